"""What doctor looks at, one function per finding. Each tells what is there and, if that is not enough, what to do."""

import json
import os
import platform
import resource
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from backend import __version__
from backend.doctor.environments import ENGINE_PYTHON_VARIABLE, torch_is_installed
from backend.errors import SlipstreamError
from backend.paths import StatePaths
from backend.schema.host import AgentInfo, EngineEnvironment, Finding, Gpu
from backend.telemetry import NO_DRIVER
from backend.thresholds import (
    DOCTOR_DISK_FAIL_BYTES,
    DOCTOR_DISK_WARN_BYTES,
    DOCTOR_NOFILE_WARN_COUNT,
    DOCTOR_SHM_WARN_BYTES,
    FIRST_ENGINE_PORT,
    LAST_ENGINE_PORT,
)

TESTED_PYTHON = (3, 11)
_GIB = 1 << 30


def python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    text = f"Python {version[0]}.{version[1]}"
    if version < TESTED_PYTHON:
        return Finding(id="python", status="fail", message=text, remedy="install Python 3.11 and make the venv with it")
    if version > TESTED_PYTHON:
        return Finding(id="python", status="warn", message=f"{text}: not tested", remedy="use Python 3.11 if in doubt")
    return Finding(id="python", status="ok", message=text)


def operating_system(system: str = platform.system()) -> Finding:
    if system == "Linux":
        return Finding(id="platform", status="ok", message=f"Linux {platform.release()}, {platform.machine()}")
    return Finding(
        id="platform",
        status="fail",
        message=f"{system}: engines are launched and watched on Linux only",
        remedy="run the agent on a Linux host and open it from here with --agent URL",
    )


def nvidia_driver(problem: str | None, driver: str | None) -> Finding:
    if problem is None:
        return Finding(id="nvidia_driver", status="ok", message=f"NVIDIA driver {driver}")
    if problem == NO_DRIVER:
        remedy = "none needed for the reference engine; install the NVIDIA driver to run SGLang here"
        return Finding(id="nvidia_driver", status="absent", message=problem, remedy=remedy)
    return Finding(id="nvidia_driver", status="warn", message=problem, remedy="`nvidia-smi` must list the GPUs")


def gpus(found: list[Gpu]) -> Finding:
    if not found:
        return Finding(
            id="gpus", status="absent", message="no NVIDIA GPU can be read", remedy="the reference engine needs none"
        )
    kinds = Counter((gpu.name, gpu.memory_bytes) for gpu in found)
    words = [f"{count} × {name}{_size(memory)}" for (name, memory), count in kinds.items()]
    return Finding(id="gpus", status="ok", message=", ".join(words))


def _size(memory_bytes: int | None) -> str:
    return ", memory unknown" if memory_bytes is None else f", {memory_bytes / _GIB:.0f} GiB"


def torch() -> Finding:
    if torch_is_installed():
        return Finding(id="torch", status="ok", message="torch is installed: the reference engine can run")
    return Finding(
        id="torch",
        status="absent",
        message="torch is not installed: the reference engine cannot run here",
        remedy="pip install -r requirements.txt (an agent for SGLang alone does without)",
    )


def checkpoint(directory: Path) -> Finding:
    """The tiny checkpoint, complete: a clone without its large files has the names and not the tensors."""
    if not directory.is_dir():
        return Finding(
            id="checkpoint",
            status="absent",
            message=f"no tiny checkpoint at {directory}",
            remedy="get assets/ of the project, or launch with a MODEL of your own",
        )
    missing = [name for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()]
    tensors = sorted(directory.glob("*.safetensors"))
    broken = [path.name for path in tensors if not _is_whole(path)]
    if missing or not tensors or broken:
        what = [f"{name} is missing" for name in [*missing, *([] if tensors else ["*.safetensors"])]]
        what += [f"{name} is damaged or cut short" for name in broken]
        return Finding(
            id="checkpoint",
            status="fail",
            message=f"tiny checkpoint at {directory}: {', '.join(what)}",
            remedy="get assets/ of the project again",
        )
    size = sum(path.stat().st_size for path in tensors)
    return Finding(id="checkpoint", status="ok", message=f"tiny checkpoint, {size / (1 << 20):.1f} MiB of tensors")


def _is_whole(path: Path) -> bool:
    """Whether a safetensors file is as long as its header says: 8 bytes of length, JSON header, tensor data."""
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(header_bytes, path.stat().st_size)))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return bool(path.stat().st_size == 8 + header_bytes + max(ends))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def engines(found: list[EngineEnvironment]) -> Finding:
    if not found:
        return Finding(
            id="engines",
            status="warn",
            message="no interpreter with an engine was found",
            remedy=f"pip install -r requirements.txt, or set {ENGINE_PYTHON_VARIABLE} to SGLang's python",
        )
    words = [f"{engine.kind} {engine.version or '(version unknown)'}" for engine in found]
    return Finding(id="engines", status="ok", message=", ".join(words))


def agent(info: AgentInfo | None) -> Finding:
    if info is None:
        return Finding(
            id="agent",
            status="absent",
            message="no agent runs",
            remedy="none needed: launch, status, stop and bench start one",
        )
    if info.version != __version__:
        return Finding(
            id="agent",
            status="warn",
            message=f"the agent at {info.url} has version {info.version}, this is {__version__}",
            remedy=f"end process {info.pid} on {info.host} and start an agent again; its engines keep running",
        )
    return Finding(id="agent", status="ok", message=f"agent {info.version} at {info.url}, pid {info.pid}")


def state_directory(paths: StatePaths) -> Finding:
    existing = _nearest_existing(paths.home)
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        return Finding(
            id="state_dir",
            status="fail",
            message=f"state directory {paths.home} cannot be written",
            remedy="set SLIPSTREAM_HOME to a directory that you may write",
        )
    note = "" if existing == paths.home else " (made at first use)"
    return Finding(id="state_dir", status="ok", message=f"state directory {paths.home}{note}")


def disk(paths: StatePaths) -> Finding:
    free = shutil.disk_usage(_nearest_existing(paths.home)).free
    message = f"{free / _GIB:.1f} GiB free for runs and logs"
    remedy = "free some space, or set SLIPSTREAM_HOME to a larger disk"
    if free < DOCTOR_DISK_FAIL_BYTES:
        return Finding(id="disk", status="fail", message=message, remedy=remedy)
    if free < DOCTOR_DISK_WARN_BYTES:
        return Finding(id="disk", status="warn", message=message, remedy=remedy)
    return Finding(id="disk", status="ok", message=message)


def _nearest_existing(path: Path) -> Path:
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())


def store(paths: StatePaths, agent_info: AgentInfo | None, count_runs: Callable[[], int]) -> Finding:
    if agent_info is not None and agent_info.store_error is not None:
        return Finding(
            id="store",
            status="fail",
            message=f"the agent cannot write the store: {agent_info.store_error}",
            remedy="free disk space or repair the state directory; running tests keep their records in spool files",
        )
    if not paths.database.exists():
        return Finding(id="store", status="absent", message="nothing stored yet", remedy="none needed")
    try:
        count = count_runs()
    except SlipstreamError as error:
        return Finding(
            id="store",
            status="fail",
            message=str(error),
            remedy=f"restore {paths.database} from a copy or move it away",
        )
    return Finding(id="store", status="ok", message=f"{count} run{'' if count == 1 else 's'} in {paths.database}")


def engine_ports(host: str = "127.0.0.1", first: int = FIRST_ENGINE_PORT, last: int = LAST_ENGINE_PORT) -> Finding:
    free = sum(_port_is_free(host, port) for port in range(first, last + 1))
    message = f"{free} of {last - first + 1} engine ports free ({first} to {last})"
    if free == 0:
        return Finding(id="ports", status="fail", message=message, remedy="launch with --port, or end what holds them")
    return Finding(id="ports", status="ok", message=message)


def _port_is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def shared_memory(directory: Path = Path("/dev/shm")) -> Finding:  # noqa: S108 the mount itself, no file in it
    try:
        total = shutil.disk_usage(directory).total
    except OSError:
        return Finding(
            id="shm",
            status="absent",
            message=f"no {directory}",
            remedy="engines on several GPUs need it; mount a tmpfs there",
        )
    message = f"{total / _GIB:.1f} GiB of shared memory in {directory}"
    if total < DOCTOR_SHM_WARN_BYTES:
        return Finding(
            id="shm", status="warn", message=message, remedy="start the container with --shm-size 16g or --ipc=host"
        )
    return Finding(id="shm", status="ok", message=message)


def open_files(limits: tuple[int, int] | None = None) -> Finding:
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Finding(id="nofile", status="ok", message="open files: unlimited")
    message = f"open files: at most {soft} per process"
    if soft < DOCTOR_NOFILE_WARN_COUNT:
        reach = "" if hard == resource.RLIM_INFINITY or hard >= DOCTOR_NOFILE_WARN_COUNT else f" (now capped at {hard})"
        return Finding(
            id="nofile",
            status="warn",
            message=f"{message}; a load test needs one per user",
            remedy=f"`ulimit -n {DOCTOR_NOFILE_WARN_COUNT}` before the agent starts{reach}",
        )
    return Finding(id="nofile", status="ok", message=message)
