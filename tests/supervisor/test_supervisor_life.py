"""Launch, readiness, stop, cancel, replace, and what is refused before anything starts."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from backend.errors import ConflictError, NotFoundError
from backend.schema.engine import LaunchRequest
from backend.thresholds import ENGINE_LOGS_KEPT_COUNT
from tests.supervisor.supervisor_host import QUICK, Host, is_gone, logs_of_launches

Fake = Callable[..., LaunchRequest]
OnHost = Callable[..., None]


def test_an_engine_becomes_ready_and_stops_without_a_trace(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        ready = await host.launch(fake({"child": True}), "ready")
        assert ready.version == "9.9.fake"
        assert [p.name for p in ready.phases] == ["init", "load_target", "load_draft", "pools", "warmup", "ready"]
        assert all(phase.seconds is not None for phase in ready.phases)
        assert ready.ready_seconds is not None
        # 0.50 GB + 0.50 GB of K and V = 2^30 bytes, written on the eighth line.
        assert (ready.ledger["kv_pool"].bytes, ready.ledger["kv_pool"].line) == (2**30, 8)
        root = psutil.Process(ready.pid)
        family = [root, *root.children()]
        assert os.getsid(root.pid) == root.pid
        stopped = await host.stop(ready.id)
        assert stopped.state == "stopped"
        assert stopped.failure is None
        assert [p.name for p in stopped.phases][-2:] == ["stop", "wait_memory"]
        assert len(family) == 2
        assert all(is_gone(process) for process in family)
        assert not list(host.paths.engines.glob("*.json"))

    on_host(body)


def test_secrets_are_neither_shown_nor_stored(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        ready = await host.launch(fake(flags=["--api-key", "hunter22"]), "ready")
        assert host.supervisor.api_key(ready.id) == "hunter22"
        stored = next(host.paths.engines.glob("*.json"))
        assert stored.stat().st_mode & 0o777 == 0o600
        for text in (ready.model_dump_json(), stored.read_text(), (host.paths.home / "last_good.json").read_text()):
            assert "hunter22" not in text
        lines = host.supervisor.log(ready.id, 0).lines
        assert "api_key=" in lines[0]
        assert "hunter22" not in lines[0]

    on_host(body)


def test_the_last_good_configuration_survives_a_failed_successor(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        good = await host.launch(fake(flags=["--max-running-requests", "4"]), "ready")
        bad = await host.launch(fake({"log": ["ValueError: 7 is not even"], "exit_code": 1}, replace=good.id), "failed")
        assert bad.failure is not None
        assert (bad.failure.failure_class, bad.failure.cause) == ("config_rejected", "ValueError: 7 is not even")
        assert host.supervisor.engine(good.id).state == "stopped"
        last = host.supervisor.last_good()
        assert last is not None
        assert last.flags == ["--max-running-requests", "4"]

    on_host(body)


def test_replacing_keeps_the_address_and_shows_the_stop_first(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        old = await host.launch(fake(), "ready")
        begun = await host.supervisor.launch(fake(replace=old.id))
        assert begun.state == "replacing"
        new = await host.until(begun.id, "ready")
        assert new.url == old.url
        assert [p.name for p in new.phases][:2] == ["stop", "init"] or new.phases[1].name == "wait_memory"
        assert host.supervisor.engine(old.id).state == "stopped"
        assert [e.id for e in host.supervisor.engines()] == [new.id, old.id]

    on_host(body)


def test_a_launch_is_cancelled_while_it_loads(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        begun = await host.launch(fake({"hang": True}), "starting")
        await host.supervisor.wait(begun.id, lambda s: "warmup" in {p.name for p in s.phases}, 5)
        cancelled = await host.stop(begun.id)
        assert (cancelled.state, cancelled.failure, cancelled.ready_seconds) == ("stopped", None, None)

    on_host(body)


def test_a_launch_is_cancelled_while_the_first_request_is_open(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        begun = await host.launch(fake({"slow_s": 30}), "starting")
        await host.supervisor.wait(begun.id, lambda s: "ready" in {p.name for p in s.phases}, 5)
        assert (await host.stop(begun.id)).state == "stopped"

    on_host(body)


def test_a_replacing_launch_is_cancelled_before_it_starts(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        old = await host.launch(fake({"ignore_term": True}), "ready")
        begun = await host.supervisor.launch(fake(replace=old.id))
        cancelled = await host.stop(begun.id)
        assert (cancelled.state, cancelled.pid) == ("stopped", None)

    on_host(body, replace(QUICK, stop_grace_s=0.5))


def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        ready = await host.launch(fake({"ignore_term": True}), "ready")
        stopped = await host.stop(ready.id)
        assert stopped.state == "stopped"
        assert any("was killed" in warning for warning in stopped.warnings)
        assert not psutil.pid_exists(ready.pid or 0)

    on_host(body, replace(QUICK, stop_grace_s=0.4))


def test_a_child_that_left_the_session_is_stopped_too(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        ready = await host.launch(fake({"child_setsid": True}), "ready")
        child = psutil.Process(ready.pid).children()[0]
        assert os.getsid(child.pid) != ready.pid
        await host.stop(ready.id)
        assert is_gone(child)

    on_host(body, replace(QUICK, stop_grace_s=0.4))


def test_stopping_one_engine_leaves_the_other_serving(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        one = await host.launch(fake(), "ready")
        two = await host.launch(fake(), "ready")
        assert one.url != two.url
        await host.stop(one.id)
        assert host.supervisor.engine(two.id).state == "ready"
        assert psutil.pid_exists(two.pid or 0)

    on_host(body)


def test_a_taken_port_is_refused_before_anything_starts(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            port = listener.getsockname()[1]
            with pytest.raises(ConflictError, match=rf"port {port} .*pid {os.getpid()}.*port \d+ is free"):
                await host.supervisor.launch(fake(port=port))
        assert host.supervisor.engines() == []

    on_host(body)


def test_a_port_promised_to_a_launch_that_does_not_listen_yet_is_refused(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        begun = await host.supervisor.launch(fake({"hang": True}))
        port = int(begun.url.rsplit(":", 1)[1])
        with pytest.raises(ConflictError, match="another engine of this agent"):
            await host.supervisor.launch(fake(port=port))
        other = await host.supervisor.launch(fake({"hang": True}))
        assert other.url != begun.url

    on_host(body)


def test_an_unknown_engine_is_named(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        with pytest.raises(NotFoundError, match="e-none"):
            await host.supervisor.stop("e-none")
        with pytest.raises(NotFoundError, match="e-none"):
            await host.supervisor.launch(fake(replace="e-none"))

    on_host(body)


def test_stopping_twice_and_stopping_what_ended_is_no_error(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        ready = await host.launch(fake(), "ready")
        await host.supervisor.stop(ready.id)
        assert (await host.stop(ready.id)).state == "stopped"
        assert (await host.supervisor.stop(ready.id)).state == "stopped"

    on_host(body)


def test_a_launch_prunes_the_logs_of_old_ones(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        old = logs_of_launches(host.paths.logs, ENGINE_LOGS_KEPT_COUNT + 1)
        first = await host.launch(fake(), "ready")
        assert first.log is not None
        assert not old[0].exists()
        os.utime(first.log, (0, 0))  # a serving engine that has been silent for long
        await host.launch(fake(), "ready")
        assert Path(first.log).exists()
        assert all(path.exists() for path in old[1:])

    on_host(body)


def test_a_log_file_that_vanishes_does_not_disturb(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        ready = await host.launch(fake(), "ready")
        Path(ready.log or "").unlink()
        await asyncio.sleep(0.5)
        assert host.supervisor.engine(ready.id).state == "ready"
        assert len(host.supervisor.log(ready.id, 0).lines) == 10

    on_host(body)


def test_a_log_that_cannot_be_made_is_a_failed_launch(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        host.paths.home.mkdir(parents=True, exist_ok=True)
        host.paths.logs.write_text("a file where the folder should be")
        failed = await host.launch(fake(), "failed")
        assert failed.failure is not None
        assert "cannot create the log" in failed.failure.cause

    on_host(body)


def test_the_signal_of_a_stop_reaches_only_the_engines_own_group(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        ours = os.getpgrp()
        ready = await host.launch(fake(), "ready")
        assert os.getpgid(ready.pid or 0) not in {ours, 0, 1}
        received: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
        await host.stop(ready.id)
        signal.signal(signal.SIGTERM, before)
        assert received == []

    on_host(body)


def test_two_launches_cannot_both_take_the_place_of_one_engine(on_host: OnHost, fake: Fake) -> None:
    async def body(host: Host) -> None:
        old = await host.launch(fake(), "ready")
        new = await host.supervisor.launch(fake(replace=old.id))
        with pytest.raises(ConflictError, match="another engine of this agent"):
            await host.supervisor.launch(fake(replace=old.id))
        assert (await host.until(new.id, "ready")).url == old.url

    on_host(body)


def test_memory_that_does_not_come_back_is_told_and_does_not_block(tmp_home: Path, fake: Fake) -> None:
    gib = 2**30
    readings = iter([{"GPU-a": 10 * gib}])  # before the launch; afterwards 2 GiB stay in use

    async def body() -> list[str]:
        memory = lambda: next(readings, {"GPU-a": 12 * gib})  # noqa: E731
        host = Host(tmp_home, QUICK, memory)
        await host.supervisor.start()
        ready = await host.launch(fake(), "ready")
        stopped = await host.stop(ready.id)
        await host.supervisor.close()
        assert stopped.state == "stopped"
        return stopped.warnings

    assert "2.0 GiB on GPU-a" in asyncio.run(body())[-1]


def test_a_launch_waits_until_the_engine_that_has_just_died_gave_its_memory_back(tmp_home: Path, fake: Fake) -> None:
    gib = 2**30
    used = {"GPU-a": gib}

    async def body() -> None:
        host = Host(tmp_home, replace(QUICK, memory_wait_s=10.0), lambda: dict(used))
        await host.supervisor.start()
        ready = await host.launch(fake(), "ready")
        used["GPU-a"] = 8 * gib
        os.kill(ready.pid or 0, signal.SIGKILL)
        await host.until(ready.id, "failed")
        begun = await host.supervisor.launch(fake())
        await asyncio.sleep(0.3)
        waiting = host.supervisor.engine(begun.id)
        assert (waiting.pid, [phase.name for phase in waiting.phases]) == (None, ["wait_memory"])
        used["GPU-a"] = gib
        assert (await host.until(begun.id, "ready")).state == "ready"
        await host.stop(begun.id)
        await host.supervisor.close()

    asyncio.run(body())


def test_a_fault_of_the_supervisor_ends_the_launch_with_a_reason(
    tmp_home: Path, fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> dict[str, int]:
        raise RuntimeError("the memory reader broke its promise")

    async def body() -> None:
        host = Host(tmp_home, QUICK, broken)
        failed = await host.launch(fake(), "failed")
        assert failed.failure is not None
        assert "broke its promise" in failed.failure.cause
        await host.supervisor.close()

    asyncio.run(body())
    assert "supervision" in caplog.text
