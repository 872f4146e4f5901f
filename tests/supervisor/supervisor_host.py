"""What the supervisor's tests share: quick time limits, and a supervisor with the waits that tests need."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from backend.paths import StatePaths
from backend.schema.engine import EngineStatus, LaunchRequest
from backend.supervisor import Limits, Supervisor
from backend.supervisor.memory import MemoryReader, host_memory_used

QUICK = Limits(
    starting_poll_s=0.05,
    ready_poll_s=0.2,
    starting_scan_s=0.1,
    ready_scan_s=0.2,
    smoke_timeout_s=5.0,
    stop_grace_s=3.0,
    kill_wait_s=3.0,
    memory_wait_s=0.2,
    port_wait_s=3.0,
)


def is_gone(process: psutil.Process) -> bool:
    """Ended, whether or not its parent has taken note of it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def logs_of_launches(folder: Path, count: int) -> list[Path]:
    """The n-th was written to n seconds after the epoch."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"e-{n:04}.log" for n in range(count)]
    for n, path in enumerate(paths):
        path.write_text("line\n")
        os.utime(path, (n, n))
    return paths


class Host:
    """One supervisor with quick limits, and the waits that tests need."""

    def __init__(self, home: Path, limits: Limits, memory_used: MemoryReader = host_memory_used) -> None:
        self.paths = StatePaths(home)
        self.supervisor = Supervisor(self.paths, limits=limits, memory_used=memory_used)

    async def until(self, engine_id: str, *states: str, timeout_s: float = 10.0) -> EngineStatus:
        """Waits for one of these states, or for the end; fails the test when neither comes."""
        status = await self.supervisor.wait(engine_id, lambda s: s.state in states or s.state.ended, timeout_s)
        as_wanted = status.state in states if states else status.state.ended
        assert as_wanted, (status.state, status.failure, status.alarms)
        return status

    async def launch(self, request: LaunchRequest, *states: str) -> EngineStatus:
        started = await self.supervisor.launch(request)
        return await self.until(started.id, *states)

    async def stop(self, engine_id: str) -> EngineStatus:
        await self.supervisor.stop(engine_id)
        return await self.until(engine_id)


@asynccontextmanager
async def running_host(home: Path, limits: Limits) -> AsyncIterator[Host]:
    host = Host(home, limits)
    await host.supervisor.start()
    try:
        yield host
    finally:
        for status in host.supervisor.engines():
            await host.stop(status.id)
        await host.supervisor.close()
