"""Ending an engine: ask, wait, kill, and then wait until port and memory are back."""

import asyncio
import signal

from backend.clock import monotonic_s
from backend.errors import SlipstreamError
from backend.supervisor.engine import Engine
from backend.supervisor.limits import Limits
from backend.supervisor.memory import HOST, MemoryReader, still_held
from backend.supervisor.ports import port_is_free
from backend.supervisor.process_tree import ProcessTree
from backend.thresholds import HOST_MEMORY_WAIT_S

_STEP_S = 0.1


async def end_processes(engine: Engine, limits: Limits) -> list[int]:
    """SIGTERM, grace, SIGKILL to everything the engine started. Returns the pids still there, normally none."""
    tree = engine.tree
    if tree is None:
        return []
    tree.scan()
    if tree.members():
        tree.signal(signal.SIGTERM)
    if not await _gone(tree, limits.stop_grace_s):
        engine.warn(f"the engine did not end within {limits.stop_grace_s:g} s of SIGTERM and was killed")
        await kill_processes(engine, limits)
    return [process.id.pid for process in tree.members()]


async def kill_processes(engine: Engine, limits: Limits) -> int:
    """SIGKILL to everything that is left of an engine; how many processes that were."""
    tree = engine.tree
    left = len(tree.members()) if tree else 0
    if tree is None or not left:
        return 0
    deadline = monotonic_s() + limits.kill_wait_s
    while not _is_gone(tree) and monotonic_s() < deadline:
        tree.signal(signal.SIGKILL)  # again each time: a process may have forked meanwhile
        await asyncio.sleep(_STEP_S)
    return left


async def wait_for_port(engine: Engine, limits: Limits) -> None:
    """Until the engine's port can be listened on again; a warning when it cannot."""
    deadline = monotonic_s() + limits.port_wait_s
    while not _port_is_free(engine):
        if monotonic_s() >= deadline:
            engine.warn(f"port {engine.port} is still taken {limits.port_wait_s:g} s after the engine ended")
            return
        await asyncio.sleep(_STEP_S)


async def wait_for_memory(engine: Engine, limits: Limits, memory_used: MemoryReader) -> None:
    """Until memory is where it was before the launch; a warning with the bytes when it does not come back."""
    before = engine.memory_before
    wait_s = min(limits.memory_wait_s, HOST_MEMORY_WAIT_S) if set(before) <= {HOST} else limits.memory_wait_s
    deadline = monotonic_s() + wait_s
    while held := still_held(before, memory_used()):
        if monotonic_s() >= deadline:
            amounts = ", ".join(f"{extra / 2**30:.1f} GiB on {device}" for device, extra in held.items())
            engine.warn(f"memory is above the level before the launch: {amounts}; another process may have taken it")
            return
        await asyncio.sleep(_STEP_S * 2)


def _port_is_free(engine: Engine) -> bool:
    try:
        return port_is_free(engine.host, engine.port)
    except SlipstreamError:
        return True  # the address itself has gone: nobody can listen there


async def _gone(tree: ProcessTree, timeout_s: float) -> bool:
    deadline = monotonic_s() + timeout_s
    while not _is_gone(tree):
        if monotonic_s() >= deadline:
            return False
        await asyncio.sleep(_STEP_S)
    return True


def _is_gone(tree: ProcessTree) -> bool:
    """Nothing is alive, and the root was reaped: it is no zombie either."""
    return tree.root_ended and not tree.members()
