"""The reading side of the store: needs no agent, opens read-only, creates nothing."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from backend.errors import NotFoundError
from backend.paths import StatePaths
from backend.schema.host import TelemetrySample
from backend.schema.load import LivePoint, RequestRecord
from backend.schema.run import RunDetail, RunList
from backend.store import rows, samples
from backend.store.bundle import collect_bundle
from backend.store.database import reading
from backend.store.ids import match_id
from backend.store.store import LIVE_NOTE, TELEMETRY_NOTE


class StoreReader:
    """Reads stored runs while an agent may be writing others. Ids may be given as any unique prefix.

    Every method raises StorageError when the database or a file is damaged, and NotFoundError for an unknown run.
    """

    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths

    def runs(self, tag: str | None = None, note: str | None = None, pinned: bool | None = None) -> RunList:
        """Runs newest first: with this tag, with this text in the note (in any case), pinned or not."""
        with reading(self._paths.database) as db:
            return RunList(runs=[] if db is None else rows.select_rows(db, tag=tag, note=note, pinned=pinned))

    def run(self, run_id: str) -> RunDetail:
        """The whole run but its requests and samples."""
        with self._run(run_id) as (db, found):
            tables = samples.stored_tables(self._paths.run_dir(found))
            count = rows.count_records(db, found)
            return rows.select_run(db, found).detail(request_count=count, sample_tables=tables)

    def records(self, run_id: str) -> list[RequestRecord]:
        """Every request record, chunks included, in the order of sending."""
        with self._run(run_id) as (db, found):
            return samples.whole_records(self._paths.run_dir(found), rows.select_records(db, found))

    def live(self, run_id: str) -> tuple[list[LivePoint], list[float]]:
        """Live readings of the run and its last per-position acceptance; both empty when none were stored."""
        with self._run(run_id) as (_, found):
            points, notes = samples.read(self._paths.run_dir(found) / samples.LIVE, LivePoint)
        per_position = notes.get(LIVE_NOTE, [])
        return points, per_position if isinstance(per_position, list) else []

    def telemetry(self, run_id: str) -> tuple[list[TelemetrySample], str]:
        """Telemetry of the run and the word on its source; empty when none was stored."""
        with self._run(run_id) as (_, found):
            found_samples, notes = samples.read(self._paths.run_dir(found) / samples.TELEMETRY, TelemetrySample)
        return found_samples, str(notes.get(TELEMETRY_NOTE, ""))

    def export(self, run_id: str) -> bytes:
        """The run as one zip file that `Store.import_run` reads back anywhere; secrets are cut out."""
        with self._run(run_id) as (db, found):
            return collect_bundle(db, self._paths, found).pack()

    @contextmanager
    def _run(self, run_id: str) -> Iterator[tuple[sqlite3.Connection, str]]:
        with reading(self._paths.database) as db:
            if db is None:
                raise NotFoundError(f"No run {run_id!r}: there is no store at {self._paths.database} yet.")
            yield db, match_id(run_id, rows.all_ids(db))
