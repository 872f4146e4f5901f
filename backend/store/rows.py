"""SQL: documents to rows and back. Every function works inside its caller's transaction."""

import sqlite3
from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter

from backend.clock import utc_now
from backend.schema.load import BenchEngine, LevelResult, LoadState, RequestRecord
from backend.schema.run import RunLevel, RunRow
from backend.store.document import StoredRun, draft_steps, engine_label, headline, verdict_of

# Columns of `requests` that are fields of RequestRecord with the same name; the other fields are in `rest`.
_RECORD_COLUMNS = (
    "run_id",
    "level",
    "phase",
    "prompt_id",
    "worker",
    "intended_ns",
    "sent_ns",
    "first_ns",
    "first_answer_ns",
    "last_ns",
    "end_ns",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "finish_reason",
    "http_status",
    "ok",
    "error_class",
)
_NOT_IN_REST = {*_RECORD_COLUMNS, "index", "chunk_ns", "chunk_tokens"}
_INSERT_RECORD = (
    f"INSERT OR REPLACE INTO requests ({', '.join(_RECORD_COLUMNS)}, request_index, chunk_count, rest) "  # noqa: S608
    f"VALUES ({', '.join('?' * (len(_RECORD_COLUMNS) + 3))})"
)
_OBJECT: TypeAdapter[dict[str, object]] = TypeAdapter(dict[str, object])


def insert_run(db: sqlite3.Connection, run: StoredRun) -> None:
    """A new run with its tags and levels. sqlite3.IntegrityError when the id exists."""
    columns = {
        "id": run.id,
        "started_at_utc": run.started_at_utc,
        "finished_at_utc": run.finished_at_utc,
        "state": run.state,
        "verdict": run.verdict,
        "model": run.model,
        "engine_kind": run.engine.kind,
        "engine_version": run.engine.version,
        "config_hash": run.engine.config_hash,
        "seed": run.request.seed,
        "request": run.request.model_dump_json(),
        "engine": run.engine.model_dump_json(),
        "host": _json(run.host),
        "versions": _json(run.versions),
        "failure": run.failure,
        "note": run.note,
        "pinned": run.pinned,
        "log": run.log,
    }
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    db.execute(f"INSERT INTO runs ({names}) VALUES ({marks})", list(columns.values()))  # noqa: S608 - our own names
    set_tags(db, run.id, run.tags)
    _set_levels(db, run.id, run.levels)


def end_run(
    db: sqlite3.Connection, run_id: str, state: LoadState, levels: Sequence[LevelResult], failure: str | None
) -> None:
    """Writes the final state and the results; doing it again replaces both."""
    _set_levels(db, run_id, levels)
    db.execute(
        "UPDATE runs SET state = ?, verdict = ?, failure = ?, finished_at_utc = coalesce(finished_at_utc, ?) "
        "WHERE id = ?",
        (state, verdict_of(state, list(levels)), failure, utc_now(), run_id),
    )


def set_tags(db: sqlite3.Connection, run_id: str, tags: Sequence[str]) -> None:
    db.execute("DELETE FROM tags WHERE run_id = ?", (run_id,))
    db.executemany("INSERT INTO tags VALUES (?, ?, ?)", [(run_id, at, tag) for at, tag in enumerate(tags)])


def all_ids(db: sqlite3.Connection) -> list[str]:
    return [run_id for (run_id,) in db.execute("SELECT id FROM runs ORDER BY started_at_utc DESC, id DESC")]


def unfinished_ids(db: sqlite3.Connection) -> list[str]:
    return [run_id for (run_id,) in db.execute("SELECT id FROM runs WHERE finished_at_utc IS NULL ORDER BY id")]


def select_run(db: sqlite3.Connection, run_id: str) -> StoredRun:
    """The whole run; `run_id` must exist."""
    row = db.execute("SELECT * FROM runs WHERE id = ?", (run_id,)).fetchone()
    results = db.execute("SELECT result FROM levels WHERE run_id = ? ORDER BY position", (run_id,))
    return StoredRun.model_validate(
        {
            **{
                name: row[name]
                for name in ("id", "started_at_utc", "finished_at_utc", "state", "failure", "note", "log")
            },
            **{name: _OBJECT.validate_json(row[name]) for name in ("request", "engine", "host", "versions")},
            "levels": [_OBJECT.validate_json(result) for (result,) in results],
            "tags": _tags(db, run_id),
            "pinned": bool(row["pinned"]),
        }
    )


def select_rows(db: sqlite3.Connection, *, tag: str | None, note: str | None, pinned: bool | None) -> list[RunRow]:
    """Rows newest first; `note` is a part of the note, in any case."""
    found = db.execute(
        "SELECT * FROM runs WHERE (:tag IS NULL OR id IN (SELECT run_id FROM tags WHERE tag = :tag)) "
        "AND (:note IS NULL OR instr(lower(note), lower(:note)) > 0) AND (:pinned IS NULL OR pinned = :pinned) "
        "ORDER BY started_at_utc DESC, id DESC",
        {"tag": tag, "note": note, "pinned": pinned},
    ).fetchall()
    return [_run_row(db, row) for row in found]


def insert_records(db: sqlite3.Connection, records: Sequence[RequestRecord]) -> None:
    """Adds records without their chunks; one with the same run, level, phase and index replaces the earlier one."""
    db.executemany(_INSERT_RECORD, (_record_values(record) for record in records))


def select_records(db: sqlite3.Connection, run_id: str) -> list[tuple[RequestRecord, int]]:
    """Records in the order they were sent, each without its chunks and with the number of them."""
    rows = db.execute(
        "SELECT * FROM requests WHERE run_id = ? ORDER BY sent_ns, level, phase, request_index", (run_id,)
    )
    return [(_record(row), row["chunk_count"]) for row in rows]


def count_records(db: sqlite3.Connection, run_id: str) -> int:
    (count,) = db.execute("SELECT count(*) FROM requests WHERE run_id = ?", (run_id,)).fetchone()
    return int(count)


def _run_row(db: sqlite3.Connection, row: sqlite3.Row) -> RunRow:
    levels = db.execute(
        "SELECT concurrency, output_tok_s, tok_s_user, accept_length FROM levels WHERE run_id = ? ORDER BY position",
        (row["id"],),
    )
    return RunRow(
        engine=engine_label(row["engine_kind"], row["engine_version"]),
        levels=[RunLevel(**level) for level in levels],
        tags=_tags(db, row["id"]),
        pinned=bool(row["pinned"]),
        draft_steps=draft_steps(BenchEngine.model_validate_json(row["engine"]).effective),
        **{name: row[name] for name in ("id", "started_at_utc", "model", "verdict", "note", "state", "config_hash")},
    )


def _tags(db: sqlite3.Connection, run_id: str) -> list[str]:
    return [tag for (tag,) in db.execute("SELECT tag FROM tags WHERE run_id = ? ORDER BY position", (run_id,))]


def _set_levels(db: sqlite3.Connection, run_id: str, levels: Sequence[LevelResult]) -> None:
    db.execute("DELETE FROM levels WHERE run_id = ?", (run_id,))
    for position, level in enumerate(levels):
        top = headline(level)
        values = (top.concurrency, top.output_tok_s, top.tok_s_user, top.accept_length, level.model_dump_json())
        db.execute("INSERT INTO levels VALUES (?, ?, ?, ?, ?, ?, ?)", (run_id, position, *values))


def _record_values(record: RequestRecord) -> list[object]:
    columns: list[object] = [getattr(record, name) for name in _RECORD_COLUMNS]
    rest = record.model_dump_json(exclude=_NOT_IN_REST, exclude_defaults=True)
    return [*columns, record.index, len(record.chunk_ns), rest]


def _record(row: sqlite3.Row) -> RequestRecord:
    fields: dict[str, object] = {name: row[name] for name in _RECORD_COLUMNS}
    fields |= {"index": row["request_index"], "ok": bool(row["ok"])}
    return RequestRecord.model_validate(fields | _OBJECT.validate_json(row["rest"]))


def _json(value: Mapping[str, object]) -> str:
    return _OBJECT.dump_json(dict(value)).decode()
