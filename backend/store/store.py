"""The writing side of the store. One instance per agent; calls block until the data is on its way to the disk."""

import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Self

from backend.clock import utc_now
from backend.errors import ConflictError
from backend.files import replace_file
from backend.paths import StatePaths
from backend.redact import redact_text
from backend.schema.host import TelemetrySample
from backend.schema.load import BenchEngine, BenchRequest, LevelResult, LivePoint, LoadState, RequestRecord
from backend.schema.run import Imported, RunPatch, RunRow
from backend.store import rows, samples
from backend.store.bundle import LOG, RunBundle, collect_bundle, unpack
from backend.store.database import Writer
from backend.store.document import StoredRun, clean_tags, without_secrets
from backend.store.faults import storage_errors
from backend.store.ids import match_id, require_safe_id

LIVE_NOTE, TELEMETRY_NOTE = "per_position", "source"


class Store:
    """Creates the database when there is none. Safe to call from any thread; `close()` it, or use it as a context.

    Every method raises StorageError when the disk or the database fails, and NotFoundError for an unknown run.
    """

    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths
        self._writer = Writer(paths.database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finishes what was begun and lets go of every file. Calling it again does nothing."""
        self._writer.close()

    def create_run(
        self,
        run_id: str,
        *,
        request: BenchRequest,
        engine: BenchEngine,
        host: Mapping[str, object],
        versions: Mapping[str, str],
        log: str | None = None,
    ) -> None:
        """A run begins: stored at once, so that it is found (`unfinished`) if the agent dies. Secrets are cut out.

        ConflictError: the id exists. InputError: the id is not one that `new_run_id` makes.
        """
        run = StoredRun(
            id=require_safe_id(run_id),
            started_at_utc=utc_now(),
            state=LoadState.PREPARING,
            request=request,
            engine=engine,
            host=dict(host),
            versions=dict(versions),
            note=request.note,
            tags=clean_tags(request.tags),
            log=log,
        )
        self._writer.transaction(lambda db: _insert_new(db, without_secrets(run)))

    def add_records(self, run_id: str, records: Sequence[RequestRecord]) -> None:
        """Adds request records, chunks included. The same record again (level, phase, index) replaces the first.

        Samples are written before the rows: a crash between the two leaves samples without a row, which is harmless.
        """
        own = [record if record.run_id == run_id else _of_run(record, run_id) for record in records]
        if not own:
            return
        self._writer.run(lambda db: self._add_chunks(db, run_id, own))
        self._writer.transaction(lambda db: rows.insert_records(db, own))

    def finish_run(
        self, run_id: str, state: LoadState, levels: Sequence[LevelResult], failure: str | None = None
    ) -> None:
        """The run ended in `state`; its verdict follows from the levels. Again: replaces the earlier results."""
        reason = redact_text(failure) if failure else None

        def task(db: sqlite3.Connection) -> None:
            found = match_id(run_id, rows.all_ids(db))
            rows.end_run(db, found, state, levels, reason)

        self._writer.transaction(task)

    def save_live(self, run_id: str, points: Sequence[LivePoint], per_position: Sequence[float] = ()) -> None:
        """Stores the live readings of the whole run, and the last per-position acceptance."""
        path = self._paths.run_dir(require_safe_id(run_id)) / samples.LIVE
        self._writer.run(lambda _: samples.write(path, LivePoint, points, {LIVE_NOTE: list(per_position)}))

    def save_telemetry(self, run_id: str, telemetry: Sequence[TelemetrySample], source: str = "") -> None:
        """Stores the devices and memory components over the run, and the word on where they come from."""
        path = self._paths.run_dir(require_safe_id(run_id)) / samples.TELEMETRY
        self._writer.run(lambda _: samples.write(path, TelemetrySample, telemetry, {TELEMETRY_NOTE: source}))

    def patch_run(self, run_id: str, patch: RunPatch) -> RunRow:
        """Changes note, tags or pin of a run (a unique prefix will do) and returns its row as it is then."""

        def task(db: sqlite3.Connection) -> RunRow:
            found = match_id(run_id, rows.all_ids(db))
            if patch.tags is not None:
                rows.set_tags(db, found, clean_tags(patch.tags))
            if patch.note is not None:
                db.execute("UPDATE runs SET note = ? WHERE id = ?", (patch.note, found))
            if patch.pinned is not None:
                db.execute("UPDATE runs SET pinned = ? WHERE id = ?", (patch.pinned, found))
            return rows.select_run(db, found).row()

        return self._writer.transaction(task)

    def unfinished(self) -> list[str]:
        """Ids of runs that were begun and never finished, oldest first: at start, those whose agent died."""
        return self._writer.run(rows.unfinished_ids)

    def import_run(self, data: bytes) -> Imported:
        """Stores an exported run. InputError when the file is not a whole, unharmed export that this version reads.

        A run that is here already keeps its id and nothing changes; another run with the same id gets a suffix.
        """
        bundle = unpack(data)
        return Imported(run_id=self._writer.run(lambda db: self._import(db, bundle)))

    def _add_chunks(self, db: sqlite3.Connection, run_id: str, records: Sequence[RequestRecord]) -> None:
        match_id(run_id, rows.all_ids(db))
        samples.add_chunks(self._paths.run_dir(run_id), records)

    def _import(self, db: sqlite3.Connection, bundle: RunBundle) -> str:
        taken = set(rows.all_ids(db))
        wanted, number = bundle.run.id, 1
        while wanted in taken:
            if collect_bundle(db, self._paths, wanted).fingerprint() == bundle.fingerprint():
                return wanted
            number += 1
            wanted = f"{bundle.run.id}-{number}"
        try:
            log = self._write_files(wanted, bundle)
            run = bundle.run.model_copy(update={"id": wanted, "log": log})
            db.execute("BEGIN IMMEDIATE")
            with db:
                _insert_new(db, without_secrets(run))
                rows.insert_records(db, [_of_run(record, wanted) for record in bundle.records])
        except BaseException:  # leave nothing of an import that failed
            shutil.rmtree(self._paths.run_dir(wanted), ignore_errors=True)
            raise
        return wanted

    def _write_files(self, run_id: str, bundle: RunBundle) -> str | None:
        """Puts the samples and the log in place before the rows, and returns the log's path."""
        run_dir = self._paths.run_dir(run_id)
        for name, content in bundle.files().items():
            path = run_dir / name
            with storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, content)
        return str(run_dir / LOG) if bundle.log is not None else None


def _insert_new(db: sqlite3.Connection, run: StoredRun) -> None:
    if run.id in rows.all_ids(db):
        raise ConflictError(f"A run {run.id} exists already. Take another id; stored runs are never overwritten.")
    rows.insert_run(db, run)


def _of_run(record: RequestRecord, run_id: str) -> RequestRecord:
    return record.model_copy(update={"run_id": run_id})
