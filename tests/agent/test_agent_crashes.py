"""What is left when something dies in the middle of a load test: nothing that was measured is lost."""

import os
import signal
import time

import psutil
import pytest

from backend.agent.client import AgentClient
from backend.schema.engine import EngineState
from backend.schema.load import BenchRequest, LoadState, LoadStatus
from tests.agent.agent_process import AgentStarter, launch_ready, wait_engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

ENDED = (LoadState.FINISHED, LoadState.STOPPED, LoadState.FAILED, LoadState.INTERRUPTED)
LONG = BenchRequest(concurrency=[2], dataset="chat", requests=500, output_len=32, warmup_requests=1)


def wait_load(client: AgentClient, load_id: str, limit_s: float = 60.0) -> LoadStatus:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        status = client.load(load_id)
        if status.state in ENDED:
            return status
        time.sleep(0.05)
    raise AssertionError(f"load test is {status.state} after {limit_s} s")


def wait_done(client: AgentClient, load_id: str, requests: int, limit_s: float = 60.0) -> None:
    """Until at least `requests` counted requests have ended."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        status = client.load(load_id)
        assert status.state not in ENDED, status
        if status.progress.done >= requests:
            return
        time.sleep(0.05)
    raise AssertionError(f"only {status.progress.done} of {requests} requests ended in {limit_s} s")


def wait_stored(client: AgentClient, run_id: str, limit_s: float = 20.0) -> None:
    """Until the run's verdict is final: storing happens after the load test's own end."""
    deadline = time.monotonic() + limit_s
    while client.run(run_id).row.verdict == "running":
        assert time.monotonic() < deadline, "the run was never stored"
        time.sleep(0.05)


def test_kill_9_of_the_engine_ends_the_load_as_failed_with_what_it_had_measured(agents: AgentStarter) -> None:
    client = agents.start().client
    engine = launch_ready(client)
    load = client.start_load(LONG)
    wait_done(client, load.id, 3)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    dead = wait_engine(client, engine.id, EngineState.FAILED, limit_s=10)
    assert time.monotonic() - killed_at < 2.0
    assert dead.failure is not None
    assert dead.failure.failure_class == "killed_by_os"
    ended = wait_load(client, load.id, limit_s=20)
    assert ended.state is LoadState.FAILED
    assert ended.failure is not None
    wait_stored(client, ended.run_id)
    detail = client.run(ended.run_id)
    assert detail.row.verdict == "failed"
    records = client.run_records(ended.run_id)
    assert sum(r.ok for r in records if r.phase == "measure") >= 3
    assert detail.bench.levels[0].requests.ok >= 3
    assert detail.bench.levels[0].metrics.ttft_ms is not None


def lives(pid: int) -> bool:
    """An adopted engine is no child of the agent: pid 1 reaps it, some seconds later where that is a small init."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_kill_9_of_the_agent_leaves_the_engine_serving_and_the_next_agent_takes_both_over(agents: AgentStarter) -> None:
    first = agents.start()
    engine = launch_ready(first.client)
    load = first.client.start_load(LONG)
    wait_done(first.client, load.id, 3)
    first.kill()

    assert engine.pid is not None
    assert psutil.pid_exists(engine.pid)
    second = agents.start()
    adopted = wait_engine(second.client, engine.id, EngineState.READY, limit_s=10)
    assert adopted.adopted
    assert (adopted.pid, adopted.argv, adopted.url) == (engine.pid, engine.argv, engine.url)
    assert adopted.effective == engine.effective

    wait_stored(second.client, load.run_id)
    detail = second.client.run(load.run_id)
    assert (detail.row.verdict, detail.row.state) == ("interrupted", LoadState.INTERRUPTED)
    records = second.client.run_records(load.run_id)
    assert sum(r.ok for r in records if r.phase == "measure") >= 3
    assert [level.concurrency for level in detail.bench.levels] == [2]

    # The engine is free again: the orphaned worker has gone, and a new load test runs to its end.
    again = second.client.start_load(BenchRequest(concurrency=[1], dataset="chat", requests=2, output_len=8))
    assert wait_load(second.client, again.id).state is LoadState.FINISHED
    second.client.stop_engine(engine.id)
    wait_engine(second.client, engine.id, EngineState.STOPPED, limit_s=20)
    assert not lives(engine.pid)


def test_a_stopped_load_test_keeps_its_records(agents: AgentStarter) -> None:
    client = agents.start().client
    launch_ready(client)
    load = client.start_load(LONG)
    wait_done(client, load.id, 2)
    client.stop_load(load.id)
    ended = wait_load(client, load.id, limit_s=10)
    assert ended.state is LoadState.STOPPED
    wait_stored(client, ended.run_id)
    assert client.run(ended.run_id).row.verdict == "partial"
    assert client.run(ended.run_id).bench.levels[0].requests.ok >= 2
