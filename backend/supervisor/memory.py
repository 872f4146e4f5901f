"""Memory before a launch and after a stop: is it back?"""

from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from backend.thresholds import MEMORY_TOLERANCE_BYTES

# Used bytes by device, e.g. `{"GPU-8f…": 512000000}` from NVML. A device that does not answer is left out; it must not
# raise.
MemoryReader = Callable[[], Mapping[str, int]]

HOST = "host"


def host_memory_used() -> dict[str, int]:
    """Memory of the machine that is not available, as the only device: the reader where no GPU is present."""
    memory = psutil.virtual_memory()
    return {HOST: memory.total - memory.available}


def oom_kills() -> int | None:
    """How many processes the kernel has killed since boot because host memory ran out; None where it does not tell."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    counts = [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
    return counts[0] if counts else None


def still_held(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Bytes by device above the level before the launch, where they exceed what other processes may have taken."""
    above = {device: now[device] - used for device, used in before.items() if device in now}
    return {device: extra for device, extra in above.items() if extra > MEMORY_TOLERANCE_BYTES}
