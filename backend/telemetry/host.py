"""Memory of the host, and the share of it that the engine's processes hold."""

from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from backend.clock import monotonic_ns
from backend.schema.host import DeviceSample
from backend.thresholds import PSS_MAX_SHARE

HOST_DEVICE = "host"


def host_sample(engine_bytes: int | None) -> DeviceSample:
    """Host memory as a device. Used = total − available, so a page cache that can be dropped does not count."""
    memory = psutil.virtual_memory()
    return DeviceSample(
        device=HOST_DEVICE,
        name="host memory",
        memory_used_bytes=memory.total - memory.available,
        memory_total_bytes=memory.total,
        engine_bytes=engine_bytes,
    )


class ProcessMemory:
    """Memory of a set of processes in bytes: the sum of their PSS, which counts a shared page once.

    Where PSS cannot be read (another user's process, no Linux) the process counts with its RSS. Reading PSS walks page
    tables, milliseconds per GB, so a figure is used again until its cost is below PSS_MAX_SHARE of one core.
    """

    def __init__(self, proc: Path = Path("/proc"), clock_ns: Callable[[], int] = monotonic_ns) -> None:
        self._proc = proc
        self._clock_ns = clock_ns
        self._pids: frozenset[int] = frozenset()
        self._bytes: int | None = None
        self._valid_until_ns = 0

    def read(self, pids: Collection[int]) -> int | None:
        """The sum over those of `pids` that live; None when none does. A change of `pids` is always read."""
        wanted = frozenset(pids)
        started_ns = self._clock_ns()
        if wanted == self._pids and started_ns < self._valid_until_ns:
            return self._bytes
        read = [_process_bytes(self._proc, pid) for pid in wanted]
        alive = [value for value in read if value is not None]
        self._pids, self._bytes = wanted, sum(alive) if alive else None
        ended_ns = self._clock_ns()
        self._valid_until_ns = ended_ns + round((ended_ns - started_ns) / PSS_MAX_SHARE)
        return self._bytes


def _process_bytes(proc: Path, pid: int) -> int | None:
    """PSS of one process, else its RSS, else None: it is gone or a zombie."""
    try:
        rollup = (proc / str(pid) / "smaps_rollup").read_bytes()
    except OSError:
        return _rss(pid)
    for line in rollup.splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return _rss(pid)


def _rss(pid: int) -> int | None:
    try:
        rss: int = psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return None
    return rss or None
