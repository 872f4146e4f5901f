"""The database's layout as an ordered list of named steps.

Each step runs in one transaction together with the row that records it, so a crash leaves either both or neither. A
step that has been released is never edited; a change is a new step at the end. `tests/fixtures/store/` keeps a dump of
every version.
"""

import sqlite3
from pathlib import Path

from backend.clock import utc_now
from backend.errors import StorageError

_RUNS_AND_REQUESTS = (
    """CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        started_at_utc TEXT NOT NULL,
        finished_at_utc TEXT,           -- NULL while it runs, or when its agent died
        state TEXT NOT NULL,
        verdict TEXT NOT NULL,
        model TEXT NOT NULL,
        engine_kind TEXT NOT NULL,
        engine_version TEXT,
        config_hash TEXT NOT NULL,
        seed INTEGER NOT NULL,
        request TEXT NOT NULL,          -- JSON of BenchRequest
        engine TEXT NOT NULL,           -- JSON of BenchEngine, secrets redacted
        host TEXT NOT NULL,             -- JSON
        versions TEXT NOT NULL,         -- JSON
        failure TEXT,
        note TEXT NOT NULL,
        pinned INTEGER NOT NULL,
        log TEXT                        -- path of the engine's log on this host
    )""",
    "CREATE INDEX runs_by_start ON runs (started_at_utc DESC, id DESC)",
    """CREATE TABLE tags (
        run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        tag TEXT NOT NULL,
        PRIMARY KEY (run_id, tag)
    )""",
    """CREATE TABLE levels (
        run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        concurrency INTEGER NOT NULL,
        output_tok_s REAL,
        tok_s_user REAL,                -- median over requests
        accept_length REAL,
        result TEXT NOT NULL,           -- JSON of LevelResult
        PRIMARY KEY (run_id, position)
    )""",
    """CREATE TABLE requests (
        run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        level INTEGER NOT NULL,
        phase TEXT NOT NULL,
        request_index INTEGER NOT NULL,
        prompt_id TEXT NOT NULL,
        worker INTEGER NOT NULL,
        intended_ns INTEGER NOT NULL,
        sent_ns INTEGER NOT NULL,
        first_ns INTEGER,
        first_answer_ns INTEGER,
        last_ns INTEGER,
        end_ns INTEGER NOT NULL,
        input_tokens INTEGER,
        output_tokens INTEGER,
        cached_tokens INTEGER,
        finish_reason TEXT,
        http_status INTEGER,
        ok INTEGER NOT NULL,
        error_class TEXT,
        chunk_count INTEGER NOT NULL,   -- the chunks themselves are in chunks.parquet
        rest TEXT NOT NULL,             -- JSON of every other field of RequestRecord
        PRIMARY KEY (run_id, level, phase, request_index)
    ) WITHOUT ROWID""",
)

MIGRATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (("0001_runs_and_requests", _RUNS_AND_REQUESTS),)

_RECORD = "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied_at_utc TEXT NOT NULL)"


def applied(db: sqlite3.Connection) -> list[str]:
    """Names of the steps that this database has seen. Changes nothing."""
    known = db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'migrations'").fetchone()
    return [name for (name,) in db.execute("SELECT name FROM migrations ORDER BY name")] if known else []


def pending(db: sqlite3.Connection, path: Path) -> list[str]:
    """Names of the steps still to apply, in order. StorageError when a newer Slipstream wrote this database."""
    seen = applied(db)
    known = [name for name, _ in MIGRATIONS]
    unknown = [name for name in seen if name not in known]
    if unknown:
        raise StorageError(
            f"The store {path} was written by a newer Slipstream (it has {', '.join(unknown)}). "
            "Use that version, or point SLIPSTREAM_HOME at another directory; nothing was changed."
        )
    return [name for name in known if name not in seen]


def migrate(db: sqlite3.Connection, path: Path) -> None:
    """Applies what is pending. Two processes may do this at once: each step is looked at again under the lock."""
    steps = dict(MIGRATIONS)
    for name in pending(db, path):
        db.execute("BEGIN IMMEDIATE")
        with db:
            db.execute(_RECORD)
            if name in applied(db):
                continue
            for statement in steps[name]:
                db.execute(statement)
            db.execute("INSERT INTO migrations VALUES (?, ?)", (name, utc_now()))
