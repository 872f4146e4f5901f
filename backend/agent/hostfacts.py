"""What a run's record says about the machine and the software that measured it."""

import os
import platform
import socket
from importlib import metadata
from pathlib import Path

import psutil

from backend import __version__
from backend.redact import redact_env
from backend.supervisor import host_memory_used
from backend.telemetry import Nvml

# Libraries whose version can change a measured number or a stored format.
RECORDED_PACKAGES = ("httptools", "uvloop", "orjson", "pydantic", "pyarrow", "numpy", "torch", "tokenizers")


def host_facts() -> dict[str, object]:
    """Name, processor, memory and kernel of this machine, and the environment that its engines inherit (redacted)."""
    return {
        "hostname": socket.gethostname(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=True),
        "memory_bytes": psutil.virtual_memory().total,
        "environment": redact_env(os.environ),
    }


def versions() -> dict[str, str]:
    """Versions of Slipstream, Python and the recorded packages that are installed here."""
    found = {"slipstream": __version__, "python": platform.python_version()}
    for name in RECORDED_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def device_memory_used(nvml: Nvml) -> dict[str, int]:
    """Used bytes by GPU UUID; of the host where there is no GPU. A GPU that does not answer is left out."""
    samples = nvml.samples()
    if not samples:
        return host_memory_used()
    return {s.device: s.memory_used_bytes for s in samples if s.memory_used_bytes is not None}


def _processor() -> str | None:
    """The processor's name as the kernel prints it; None where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or None)
