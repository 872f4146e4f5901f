"""Documents about the machine: doctor, telemetry, and the agent's status."""

from typing import Literal

from backend.schema.base import Document
from backend.schema.engine import EngineStatus, LaunchRequest
from backend.schema.load import LoadStatus


class Finding(Document):
    """One thing doctor looked at."""

    id: str
    status: Literal["ok", "warn", "fail", "absent"]
    message: str
    remedy: str = ""


class Gpu(Document):
    """One GPU as NVML describes it. `index` is NVML's, which need not be CUDA's: the UUID identifies."""

    index: int
    uuid: str
    name: str
    memory_bytes: int | None = None
    compute_capability: str | None = None
    driver: str | None = None


class EngineEnvironment(Document):
    """An interpreter that can run an engine."""

    kind: str
    python: str
    version: str | None = None
    root: str | None = None


class Doctor(Document):
    """The document of `doctor`."""

    findings: list[Finding]
    gpus: list[Gpu]
    engines: list[EngineEnvironment]


class MemoryComponent(Document):
    """A part of a device's memory, and where the number comes from. `device` None: the first device of its sample."""

    name: str
    bytes: int
    basis: str
    device: str | None = None


class DeviceSample(Document):
    """One device at one moment. None: this device or driver does not say."""

    device: str
    name: str
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    engine_bytes: int | None = None
    utilisation_pct: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None


class TelemetrySample(Document):
    """All devices at one moment of CLOCK_MONOTONIC."""

    seq: int
    t_ns: int
    at_utc: str
    devices: list[DeviceSample]
    components: list[MemoryComponent] = []


class TelemetryDelta(Document):
    """Samples after a cursor, with a word on the source (`no NVIDIA driver: host memory …`)."""

    boot: str
    cursor: int
    reset: bool
    source: str
    samples: list[TelemetrySample]


class AgentInfo(Document):
    """The agent itself. `started_by` is `ui` when a dashboard started it."""

    version: str
    pid: int
    url: str
    boot: str
    host: str
    state_dir: str
    started_at_utc: str
    started_by: str
    store_error: str | None = None


class Status(Document):
    """The document of `status`. `last_good` is the last configuration that became ready."""

    agent: AgentInfo
    engines: list[EngineStatus]
    loads: list[LoadStatus]
    last_good: LaunchRequest | None = None


class ErrorBody(Document):
    """What the agent answers when it refuses. `kind` names the class in `backend.errors`."""

    error: str
    kind: str
