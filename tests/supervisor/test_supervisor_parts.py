"""State table, ports, processes, phases and memory, each for itself."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from itertools import product
from pathlib import Path

import psutil
import pytest

from backend.errors import ConflictError, InputError
from backend.schema.engine import EngineState as S
from backend.supervisor import transition
from backend.supervisor.memory import still_held
from backend.supervisor.phases import PhaseClock
from backend.supervisor.ports import find_free_port, port_is_free, require_free_port
from backend.supervisor.process_tree import ProcessTree, spawn
from backend.supervisor.procfs import ProcessId, engine_processes, is_alive, left_over_processes, read_process

LEGAL = {
    (S.REPLACING, S.STARTING), (S.REPLACING, S.STOPPING), (S.REPLACING, S.FAILED),
    (S.STARTING, S.READY), (S.STARTING, S.STOPPING), (S.STARTING, S.FAILED),
    (S.READY, S.DEGRADED), (S.READY, S.STOPPING), (S.READY, S.FAILED),
    (S.DEGRADED, S.READY), (S.DEGRADED, S.STOPPING), (S.DEGRADED, S.FAILED),
    (S.STOPPING, S.STOPPED), (S.STOPPING, S.FAILED),
}  # fmt: skip


@pytest.mark.parametrize(("current", "target"), list(product(S, S)))
def test_only_legal_moves_are_possible(current: S, target: S) -> None:
    if (current, target) in LEGAL:
        assert transition(current, target) is target
    else:
        with pytest.raises(ConflictError, match=f"{current} cannot become {target}"):
            transition(current, target)


# ---- ports


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_listener_on_any_address_takes_the_port(listens_on: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in listens_on else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((listens_on, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not port_is_free("127.0.0.1", port)
    assert port_is_free("127.0.0.1", port)


def test_a_port_with_connections_in_time_wait_is_free() -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            accepted.close()  # the server closes first, so the wait is on its side
    assert port_is_free("127.0.0.1", port)


def test_the_lowest_free_port_is_chosen_and_promised_ones_are_not() -> None:
    first = find_free_port("127.0.0.1", ())
    assert first >= 30000
    assert find_free_port("127.0.0.1", {first}) > first
    with pytest.raises(ConflictError, match="another engine"):
        require_free_port("127.0.0.1", first, {first})


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(InputError, match=r"192\.0\.2\.1"):
        port_is_free("192.0.2.1", 30000)


# ---- processes


def test_a_process_is_known_by_pid_and_start_time() -> None:
    me = read_process(os.getpid())
    assert me is not None
    assert (me.parent, me.session) == (os.getppid(), os.getsid(0))
    assert is_alive(me.id)
    assert not is_alive(ProcessId(me.id.pid, me.id.start_ticks + 1))
    assert read_process(2**22 + 1) is None


def test_a_process_name_with_blanks_and_parentheses_is_read(tmp_path: Path) -> None:
    odd = tmp_path / "a) R (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([odd, "30"]) as process:
        found = read_process(process.pid)
        process.kill()
    assert found is not None
    assert found.name in {"a) R (b", "sleep"}
    assert found.parent == os.getpid()


def test_a_zombie_counts_as_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    started = read_process(process.pid)
    assert started is not None
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(started.id)
    process.wait()


FAMILY = """
import os, subprocess, sys, time
code = "import time; time.sleep(30)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print("up", flush=True)
time.sleep(30)
"""


def test_relatives_are_found_across_sessions_and_strangers_are_not(tmp_path: Path) -> None:
    marker = f"SLIPSTREAM_ENGINE_ID=test-{os.getpid()}"
    name, _, value = marker.partition("=")

    async def body() -> None:
        ended: list[ProcessId] = []
        log = (tmp_path / "out").open("wb")
        root = spawn([sys.executable, "-c", FAMILY], {**os.environ, name: value}, tmp_path, log.fileno())
        log.close()
        tree = ProcessTree(root, ended.append)
        while b"up" not in (tmp_path / "out").read_bytes():
            await asyncio.sleep(0.02)
        assert tree.scan()
        assert not tree.scan()
        pids = {process.id.pid for process in tree.members()}
        assert len(pids) == 2
        assert os.getpid() not in pids
        psutil.Process(root.pid).kill()
        while not ended:
            await asyncio.sleep(0.01)
        assert (tree.root_ended, tree.exit_code) == (True, -9)
        # The child has another parent and another session now, and is still known.
        assert {p.id.pid for p in engine_processes(root, tree.recorded)} == pids - {root.pid}
        assert {p.id.pid for p in left_over_processes([], marker)} == pids - {root.pid}
        tree.signal(signal.SIGKILL)
        while tree.members():
            await asyncio.sleep(0.01)
        tree.close()

    asyncio.run(body())


# ---- phases and memory


def test_a_phase_that_is_entered_again_continues() -> None:
    clock = PhaseClock()
    for name, at_s in (("init", 0), ("pools", 2), ("graphs", 3), ("pools", 7), ("graphs", 8), ("warmup", 10)):
        clock.enter(name, at_s)  # type: ignore[arg-type]
    # pools 2-3 and 7-8, graphs 3-7 and 8-10; warm-up has not ended.
    assert [(p.name, p.seconds) for p in clock.phases()] == [("init", 2), ("pools", 2), ("graphs", 6), ("warmup", None)]
    clock.finish(11)
    assert clock.phases()[-1].seconds == 1


def test_memory_counts_as_held_only_beyond_what_others_may_have_taken() -> None:
    gib = 2**30
    before = {"0": 10 * gib, "1": 10 * gib, "gone": gib}
    # 0.4 GiB more is within the tolerance of 0.5 GiB, 2 GiB more is not; a device that no longer answers says nothing.
    assert still_held(before, {"0": 10 * gib + 4 * gib // 10, "1": 12 * gib}) == {"1": 2 * gib}
