"""A load test as the agent holds it: states, live points, stop, abort, a worker that dies."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from backend.errors import InputError, UsageError
from backend.load import LoadJob, LoadTarget, read_spool
from backend.schema.load import BenchRequest, LoadState, LoadStatus
from tests.fakes.sse_server import FakeServer, fake_server


def make_job(server: FakeServer, tmp_path: Path, prompts: Path, **request: object) -> LoadJob:
    settings = {"dataset": str(prompts), "concurrency": [1], "requests": 4, "warmup_requests": 1, **request}
    return LoadJob(
        "l1", "r1", BenchRequest.model_validate(settings), LoadTarget(server.url, engine_id="e1"), tmp_path / "spool"
    )


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


def drive(job: LoadJob, act: Callable[[LoadJob], Awaitable[None]]) -> LoadStatus:
    """Starts the job, does something to it, waits for its end."""

    async def main() -> LoadStatus:
        await job.start()
        await act(job)
        return await job.wait()

    return asyncio.run(main())


async def nothing(_: LoadJob) -> None:
    return None


def test_a_load_test_goes_through_its_states_and_has_its_results(tmp_path: Path, prompt_file: Path) -> None:
    states: list[LoadState] = []

    async def watch(job: LoadJob) -> None:
        while job.status().state not in (LoadState.FINISHED, LoadState.FAILED):
            state = job.status().state
            if not states or states[-1] != state:
                states.append(state)
            await asyncio.sleep(0.02)

    spec = {"spec_verify_ct": 10, "spec_num_correct_drafts": 10, "spec_num_proposed_drafts": 30}
    spec |= {"spec_correct_drafts_histogram": [5, 2, 1, 2]}  # 0·5 + 1·2 + 2·1 + 3·2 = 10
    with fake_server(tokens=20, gap_ms=40, spec=spec) as server:
        job = make_job(server, tmp_path, prompt_file, concurrency=[1, 2], requests=2)
        final = drive(job, watch)
        assert server.seen.paths.count("/flush_cache") == 2
    assert states == [LoadState.PREPARING, LoadState.WARMUP, LoadState.RUNNING]
    assert (final.state, final.failure, final.progress.fraction) == (LoadState.FINISHED, None, 1.0)
    assert (final.run_id, final.engine_id, final.url) == ("r1", "e1", server.url)
    assert [level.concurrency for level in job.levels()] == [1, 2]
    assert [level.acceptance.accept_length for level in job.levels() if level.acceptance] == [2.0, 2.0]
    assert len(job.records()) == 6
    live = job.live(0, None)
    assert {point.level for point in live.points} == {1, 2}
    assert live.per_position == [0.5, 0.3, 0.2]
    read = read_spool(tmp_path / "spool")
    assert (read.points, read.levels, read.records) == (live.points, job.levels(), job.records())


def test_live_points_follow_a_cursor_and_a_foreign_one_starts_anew(tmp_path: Path, prompt_file: Path) -> None:
    with fake_server(tokens=5) as server:
        job = make_job(server, tmp_path, prompt_file)
        drive(job, nothing)
    everything = job.live(0, None)
    assert everything.reset and everything.cursor == len(everything.points) > 1
    following = job.live(1, everything.boot)
    assert (following.reset, following.points) == (False, everything.points[1:])
    assert job.live(everything.cursor, everything.boot).points == []
    for cursor, boot in [(1, "another"), (everything.cursor + 1, everything.boot), (-1, everything.boot)]:
        again = job.live(cursor, boot)
        assert (again.reset, again.points) == (True, everything.points)


def test_stop_keeps_what_was_measured(tmp_path: Path, prompt_file: Path) -> None:
    async def stop(job: LoadJob) -> None:
        await until(lambda: len(job.records()) >= 3)
        job.stop()
        assert job.status().state is LoadState.STOPPING

    with fake_server(tokens=10, gap_ms=20) as server:
        job = make_job(server, tmp_path, prompt_file, requests=1000)
        final = drive(job, stop)
    assert (final.state, final.failure) == (LoadState.STOPPED, None)
    assert job.levels()[0].requests.failed == 0
    assert job.levels()[0].requests.ok >= 2


def test_abort_ends_as_failed_with_the_reason_and_the_partial_data(tmp_path: Path, prompt_file: Path) -> None:
    async def abort(job: LoadJob) -> None:
        await until(lambda: len(job.records()) >= 3)
        job.abort("server_lost: the scheduler died")
        job.stop()  # comes too late to make it a stop

    with fake_server(tokens=10, gap_ms=20) as server:
        job = make_job(server, tmp_path, prompt_file, requests=1000)
        final = drive(job, abort)
    assert (final.state, final.failure) == (LoadState.FAILED, "server_lost: the scheduler died")
    assert job.levels()[0].requests.ok >= 2


def test_a_worker_that_is_killed_makes_the_load_test_fail_with_its_signal(tmp_path: Path, prompt_file: Path) -> None:
    async def kill(job: LoadJob) -> None:
        await until(lambda: len(job.records()) >= 3)
        assert job._process is not None
        os.kill(job._process.pid, signal.SIGKILL)

    with fake_server(tokens=10, gap_ms=20) as server:
        final = drive(make_job(server, tmp_path, prompt_file, requests=1000), kill)
    assert final.state is LoadState.FAILED
    assert final.failure == "the load worker was killed by signal 9: it said nothing"


def test_a_server_that_goes_away_makes_the_load_test_fail_and_the_message_says_so(
    tmp_path: Path, prompt_file: Path
) -> None:
    with fake_server() as server:
        url = server.url
    server.url = url  # nobody listens there any more
    final = drive(make_job(server, tmp_path, prompt_file, warmup_requests=0, requests=10000), nothing)
    assert final.state is LoadState.FAILED
    assert "out of reach for 5 s: cannot connect to 127.0.0.1" in (final.failure or "")


def test_bad_requests_are_refused_before_anything_is_sent(tmp_path: Path, prompt_file: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{\n")
    with fake_server() as server:
        for error, changes in [
            (InputError, {"dataset": str(tmp_path / "bad.jsonl")}),
            (InputError, {"dataset": "no-such-set"}),
            (UsageError, {"concurrency": [2, 2]}),
        ]:
            job = make_job(server, tmp_path, prompt_file, **changes)
            with pytest.raises(error):
                asyncio.run(job.start())
            assert job.status().state is LoadState.FAILED
            assert job.status().failure
        assert server.seen.paths == []


def test_a_server_of_somebody_else_keeps_its_cache(tmp_path: Path, prompt_file: Path) -> None:
    with fake_server(tokens=2) as server:
        request = BenchRequest(dataset=str(prompt_file), concurrency=[1], requests=2)
        job = LoadJob("l", "r", request, LoadTarget(server.url, api_key="s3cret"), tmp_path / "spool")
        final = drive(job, nothing)
        assert "/flush_cache" not in server.seen.paths
        assert "Bearer s3cret" in server.seen.headers[0]
    assert final.state is LoadState.FINISHED
    assert final.warnings and "without a chat template" in final.warnings[0]
    assert all(b"s3cret" not in path.read_bytes() for path in (tmp_path / "spool").iterdir())


def test_a_spool_without_a_spec_or_with_a_broken_one_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="had not begun"):
        read_spool(tmp_path)
    (tmp_path / "spec.json").write_text(json.dumps({"run_id": 1}))
    with pytest.raises(InputError, match="is damaged"):
        read_spool(tmp_path)
