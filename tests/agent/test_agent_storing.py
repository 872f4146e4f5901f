"""A run whose storing fails, or whose agent dies before it, is stored as what it was."""

import asyncio
from pathlib import Path

import pytest

from backend.agent.jobs import Jobs
from backend.agent.recovery import recover_interrupted
from backend.clock import utc_now
from backend.errors import StorageError
from backend.load.spec import WorkerReport, WorkerSpec
from backend.paths import state_paths
from backend.schema.engine import EngineKind
from backend.schema.host import AgentInfo
from backend.schema.load import BenchEngine, BenchRequest, LiveDelta, LoadState, LoadStatus
from backend.store import Store, StoreReader

REQUEST = BenchRequest(concurrency=[1])
ENGINE = BenchEngine(kind=EngineKind.REFERENCE, version="1")


class FinishedJob:
    """A load test that has ended, without requests."""

    def status(self) -> LoadStatus:
        return LoadStatus(id="l", state=LoadState.FINISHED, run_id="r", url="http://h:1", started_at_utc=utc_now())

    async def wait(self) -> LoadStatus:
        return self.status()

    def records(self) -> list[object]:
        return []

    levels = records

    def live(self, *_: object) -> LiveDelta:
        return LiveDelta(boot="b", cursor=0, reset=True, points=[], status=self.status())


def begin(store: Store) -> None:
    store.create_run("r", request=REQUEST, engine=ENGINE, host={}, versions={})


def state() -> LoadState:
    return StoreReader(state_paths()).run("r").row.state


def test_a_run_that_found_no_room_is_stored_when_there_is_some(tmp_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.thresholds.STORE_RETRY_PERIOD_S", 0.01)
    told: list[str | None] = []

    async def main() -> None:
        now = utc_now()
        info = AgentInfo(
            version="1", pid=1, url="u", boot="b", host="h", state_dir="s", started_at_utc=now, started_by="test"
        )
        jobs = Jobs(state_paths(), info)
        begin(jobs.store)
        add_records = jobs.store.add_records

        def full_twice(*arguments: object) -> None:
            told.append(jobs.info.store_error)
            if len(told) < 3:
                raise StorageError("no room")
            add_records(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(jobs.store, "add_records", full_twice)
        await jobs._follow(FinishedJob())  # type: ignore[arg-type]
        told.append(jobs.info.store_error)
        await jobs.close()

    asyncio.run(main())
    assert told == [None, "no room", "no room", None]
    assert state() is LoadState.FINISHED


@pytest.mark.parametrize(("said", "stored"), [("finished", LoadState.FINISHED), ("running", LoadState.INTERRUPTED)])
def test_a_test_that_was_done_before_its_agent_died_is_no_interrupted_one(
    tmp_home: Path, said: str, stored: LoadState
) -> None:
    spool = state_paths().run_dir("r") / "spool"
    spool.mkdir(parents=True)
    spec = WorkerSpec(run_id="r", load_id="l", url="http://h:1", request=REQUEST, prompts=[])
    (spool / "spec.json").write_text(spec.model_dump_json())
    (spool / "worker.json").write_text(WorkerReport(state=said).model_dump_json())
    store = Store(state_paths())
    begin(store)
    recover_interrupted(store, state_paths(), "r")
    store.close()
    assert state() is stored
