"""What becomes of a load test whose agent died: its records are in the spool, the run ends as `interrupted`."""

import logging

from backend.errors import SlipstreamError
from backend.load import SpooledRun, read_spool
from backend.paths import StatePaths
from backend.schema.load import LoadState
from backend.store import Store

log = logging.getLogger(__name__)


def recover_interrupted(store: Store, paths: StatePaths, run_id: str) -> None:
    """Stores what the worker had written. A spool that cannot be read leaves a run without records, and says so."""
    spool = paths.run_dir(run_id) / "spool"
    try:
        spooled = read_spool(spool)
        state, failure = _end_of(spooled)
        store.add_records(run_id, spooled.records)
        store.finish_run(run_id, state, spooled.levels, failure)
        store.save_live(run_id, spooled.points, spooled.per_position)
    except SlipstreamError as error:
        log.warning("run %s could not be recovered: %s", run_id, error)
        store.finish_run(run_id, LoadState.INTERRUPTED, [], f"the agent died, and its spool is unusable: {error}")


def _end_of(spooled: SpooledRun) -> tuple[LoadState, str | None]:
    """What the worker said of its end: a test that was done before the agent died, or before there was room to store
    it, is not an interrupted one."""
    report = spooled.report
    if report is not None and report.state == LoadState.FINISHED:
        return LoadState.FINISHED, None
    return LoadState.INTERRUPTED, "the agent died while the load test ran"
