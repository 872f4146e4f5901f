"""What the supervisor does when an engine dies, hangs, lies about being ready, or outlives the agent."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from backend.clock import monotonic_s
from backend.paths import StatePaths
from backend.schema.engine import EngineStatus, LaunchRequest
from backend.supervisor import Limits, Supervisor
from tests.supervisor.supervisor_host import QUICK, Host, is_gone

Fake = Callable[..., LaunchRequest]
OnHost = Callable[..., None]
LOADING = ["Load weight begin. avail mem=8.00 GB"]


def test_kill_9_of_the_root_is_a_failure_within_two_seconds_and_leaves_no_orphan(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        ready = await host.launch(fake({"child_setsid": True}), "ready")
        child = psutil.Process(ready.pid).children()[0]
        os.kill(ready.pid or 0, signal.SIGKILL)
        killed_s = monotonic_s()
        failed = await host.until(ready.id, "failed")
        assert monotonic_s() - killed_s < 2
        assert failed.failure is not None
        assert failed.failure.failure_class == "killed_by_os"
        assert is_gone(child)
        assert "orphans cleaned: 1" in failed.warnings
        with pytest.raises(ChildProcessError):  # the root was reaped: no zombie of ours is left
            os.waitpid(ready.pid or 0, os.WNOHANG)

    on_host(body)


def test_the_death_of_a_child_degrades_a_serving_engine_within_two_seconds(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        ready = await host.launch(fake({"child": True}), "ready")
        child = psutil.Process(ready.pid).children()[0]
        child.kill()
        killed_s = monotonic_s()
        degraded = await host.until(ready.id, "degraded")
        assert monotonic_s() - killed_s < 2
        assert any(alarm.startswith("process_lost:") and str(child.pid) in alarm for alarm in degraded.alarms)
        assert degraded.failure is None

    on_host(body)


def test_a_serving_engine_that_exits_without_a_word_is_server_lost(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        ready = await host.launch(fake(), "ready")
        os.kill(ready.pid or 0, signal.SIGHUP)
        failed = await host.until(ready.id, "failed")
        assert failed.failure is not None
        assert failed.failure.failure_class == "server_lost"
        assert "SIGHUP" in failed.failure.cause

    on_host(body)


def test_an_exit_during_loading_is_explained_by_the_log(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        log = [*LOADING, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB", "SIGQUIT received."]
        failed = await host.launch(fake({"log": log, "exit_code": 1}), "failed")
        assert failed.failure is not None
        assert (failed.failure.failure_class, failed.failure.line) == ("oom_device", 2)
        assert failed.failure.cause.endswith("(during load_target)")

    on_host(body)


def test_an_exit_without_an_explanation_tells_the_status_and_the_phase(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        failed = await host.launch(fake({"log": LOADING, "exit_code": 7}), "failed")
        assert failed.failure is not None
        assert failed.failure.failure_class == "unknown"
        assert "exit status 7 during load_target" in failed.failure.cause

    on_host(body)


def test_an_engine_that_says_ready_and_makes_no_token_is_not_ready(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        failed = await host.launch(fake({"no_token": True}), "failed")
        assert failed.failure is not None
        assert failed.failure.failure_class == "warmup_failed"
        assert not psutil.pid_exists(failed.pid or 0)

    on_host(body)


def test_a_first_request_that_never_returns_is_given_up(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        failed = await host.launch(fake({"slow_s": 30}), "failed")
        assert failed.failure is not None
        assert failed.failure.failure_class == "warmup_failed"
        assert "within 0.3 s" in failed.failure.cause

    on_host(body, replace(QUICK, smoke_timeout_s=0.3))


def _impatient(**limits: float) -> Limits:
    return replace(QUICK, **limits)


@pytest.mark.parametrize(
    ("log", "failure_class"),
    [(LOADING, "watchdog_timeout"), (["Init torch distributed begin."], "nccl_init_stall")],
)
def test_a_silent_launch_raises_an_alarm_and_is_given_up(
    on_host: OnHost, fake: Fake, log: list[str], failure_class: str
) -> None:
    async def body(host: Host) -> None:
        begun = await host.supervisor.launch(fake({"log": log, "hang": True}))
        alarmed = await host.supervisor.wait(begun.id, lambda s: bool(s.alarms), 5)
        assert (alarmed.state, alarmed.alarms[0].split(":")[0]) == ("starting", "silent")
        failed = await host.until(begun.id, "failed")
        assert failed.failure is not None
        assert failed.failure.failure_class == failure_class
        assert not psutil.pid_exists(failed.pid or 0)

    # The other limit stays long, so the phase decides which one counts.
    if failure_class == "watchdog_timeout":
        on_host(body, _impatient(silence_alarm_s=0.3, silence_limit_s=0.8))
    else:
        on_host(body, _impatient(collective_silence_alarm_s=0.3, collective_silence_limit_s=0.8))


def test_a_compiler_at_work_explains_a_silence(on_host: OnHost, fake: Fake, tmp_path: Path) -> None:
    ninja = tmp_path / "ninja"
    shutil.copy("/bin/sleep", ninja)

    async def body(host: Host) -> None:
        begun = await host.supervisor.launch(fake({"log": LOADING, "hang": True, "helper": str(ninja)}))
        await asyncio.sleep(1.2)  # twice the limit
        compiling = host.supervisor.engine(begun.id)
        assert (compiling.state, compiling.alarms) == ("starting", [])
        assert compiling.phases[-1].detail == "compiling kernels (ninja)"
        next(c for c in psutil.Process(compiling.pid).children() if c.name() == "ninja").kill()
        assert (await host.until(begun.id, "failed")).alarms[0].startswith("silent:")

    on_host(body, _impatient(silence_alarm_s=0.3, silence_limit_s=0.6))


def test_speculation_that_was_asked_for_and_is_off_raises_an_alarm(on_host: OnHost, fake: Fake) -> None:
    flags = ["--speculative-algorithm", "NEXTN"]

    async def body(host: Host) -> None:
        off = await host.launch(fake({"effective": {"speculative_algorithm": None}}, flags=flags), "ready")
        assert [alarm.split(":")[0] for alarm in off.alarms] == ["spec_inactive"]
        eagle = {"speculative_algorithm": "EAGLE"}
        half = await host.launch(fake({"log": LOADING, "effective": eagle}, flags=flags), "ready")
        assert "no draft model" in half.alarms[0]
        on = await host.launch(fake({"effective": eagle}, flags=flags), "ready")
        assert on.alarms == []

    on_host(body)


def test_a_pool_smaller_than_one_context_raises_an_alarm(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        log = ["max_total_num_tokens=1741, max_running_requests=4, context_len=65536, available_gpu_mem=46.90 GB"]
        ready = await host.launch(fake({"log": log}), "ready")
        assert "1741 tokens" in ready.alarms[0]
        assert "65536" in ready.alarms[0]

    on_host(body)


# ---- an agent that died: its successor finds the engine


def test_the_next_supervisor_adopts_a_serving_engine(tmp_home: Path, fake: Fake) -> None:
    async def body() -> None:
        paths = StatePaths(tmp_home)
        first = Supervisor(paths, limits=QUICK)
        await first.start()
        begun = await first.launch(fake({"child": True}, flags=["--api-key", "hunter22"]))
        ready = await first.wait(begun.id, lambda s: s.state == "ready", 10)
        await first.close()

        second = Supervisor(paths, limits=QUICK)
        await second.start()
        adopted = await second.wait(ready.id, lambda s: s.version is not None and bool(s.ledger), 5)
        assert (adopted.state, adopted.adopted, adopted.pid) == ("ready", True, ready.pid)
        assert (adopted.argv, adopted.config_hash) == (ready.argv, ready.config_hash)
        assert adopted.effective == ready.effective
        assert {n: i.bytes for n, i in adopted.ledger.items()} == {n: i.bytes for n, i in ready.ledger.items()}
        # Phases come from the log's own clock: weights were read from 00:00:01 to 00:00:03.
        assert next(p.seconds for p in adopted.phases if p.name == "load_target") == 2
        assert second.api_key(ready.id) == "hunter22"
        assert len(second.log(ready.id, 0).lines) == 10
        psutil.Process(ready.pid).children()[0].kill()
        assert (await second.wait(ready.id, lambda s: s.state == "degraded", 3)).state == "degraded"
        await second.stop(ready.id)
        assert (await second.wait(ready.id, lambda s: s.state == "stopped", 5)).state == "stopped"
        await second.close()

    asyncio.run(body())


def test_a_launch_goes_on_under_the_next_supervisor(tmp_home: Path, fake: Fake) -> None:
    async def body() -> None:
        paths = StatePaths(tmp_home)
        first = Supervisor(paths, limits=QUICK)
        await first.start()
        begun = await first.launch(fake({"delay_s": 0.15}))
        await first.wait(begun.id, lambda s: s.pid is not None, 5)
        await first.close()
        second = Supervisor(paths, limits=QUICK)
        await second.start()
        ready = await second.wait(begun.id, lambda s: s.state == "ready", 10)
        assert (ready.state, ready.adopted) == ("ready", True)
        await second.stop(begun.id)
        await second.wait(begun.id, lambda s: s.state == "stopped", 5)
        await second.close()

    asyncio.run(body())


def test_what_an_engine_left_behind_is_killed_at_the_next_start(tmp_home: Path, fake: Fake) -> None:
    async def body() -> tuple[EngineStatus, psutil.Process]:
        paths = StatePaths(tmp_home)
        first = Supervisor(paths, limits=QUICK)
        await first.start()
        begun = await first.launch(fake({"child_setsid": True}))
        ready = await first.wait(begun.id, lambda s: s.state == "ready", 10)
        orphan = psutil.Process(ready.pid).children()[0]
        await first.close()
        os.kill(ready.pid or 0, signal.SIGKILL)
        os.waitpid(ready.pid or 0, 0)
        second = Supervisor(paths, limits=QUICK)
        await second.start()
        found = second.engine(ready.id)
        await second.close()
        return found, orphan

    found, orphan = asyncio.run(body())
    assert (found.state, found.failure and found.failure.failure_class) == ("failed", "server_lost")
    assert found.warnings[-1] == "orphans cleaned: 1"
    psutil.wait_procs([orphan], timeout=2)
    assert is_gone(orphan)
    assert not list((tmp_home / "engines").glob("*.json"))


def test_a_stranger_with_the_recorded_pid_is_left_alone(tmp_home: Path, fake: Fake) -> None:
    """A pid is reused: only its start time tells that the process is another one. Here the recorded pid is our own."""

    async def body() -> EngineStatus:
        paths = StatePaths(tmp_home)
        first = Supervisor(paths, limits=QUICK)
        await first.start()
        begun = await first.launch(fake())
        ready = await first.wait(begun.id, lambda s: s.state == "ready", 10)
        await first.close()
        file = next(paths.engines.glob("*.json"))
        record = json.loads(file.read_text())
        os.kill(ready.pid or 0, signal.SIGKILL)
        os.waitpid(ready.pid or 0, 0)
        record["root"]["pid"] = os.getpid()
        record["relatives"] = [{"pid": os.getpid(), "start_ticks": 1}]
        file.write_text(json.dumps(record))
        second = Supervisor(paths, limits=QUICK)
        await second.start()
        found = second.engine(ready.id)
        await second.close()
        return found

    assert asyncio.run(body()).state == "failed"  # and this process is still here to say so


def test_a_damaged_record_is_put_aside(tmp_home: Path) -> None:
    (tmp_home / "engines").mkdir(parents=True)
    (tmp_home / "engines" / "e-1.json").write_text('{"boot_id": ')

    async def body() -> list[EngineStatus]:
        supervisor = Supervisor(StatePaths(tmp_home))
        await supervisor.start()
        await supervisor.close()
        return supervisor.engines()

    assert asyncio.run(body()) == []
    assert [file.name for file in (tmp_home / "engines").iterdir()] == ["e-1.damaged"]
