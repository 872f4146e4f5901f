"""Typed, guarded readings of NVIDIA GPUs. `None` means that this device or driver does not say.

NVML is reached through the `pynvml` module of nvidia-ml-py, which is passed in: a machine without a driver, a driver
that goes away and a test are all the same code. A GPU is known by its UUID, because NVML's index need not be CUDA's.
Check any reading by hand with `nvidia-smi --query-gpu=uuid,memory.used,utilization.gpu,power.draw,temperature.gpu`.
"""

import importlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from backend.clock import monotonic_s
from backend.schema.host import DeviceSample, Gpu
from backend.thresholds import NVML_RETRY_FIRST_S, NVML_RETRY_LONGEST_S

NO_DRIVER = "no NVIDIA driver on this machine"

# What to say when NVML cannot be opened, by the name of its error code in `pynvml`.
_OPEN_FAILURES = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": NO_DRIVER,
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is installed but not loaded (`nvidia-smi` tells why)",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the NVIDIA driver was upgraded while it ran: reboot this machine",
    "NVML_ERROR_NO_PERMISSION": "this user may not read the NVIDIA driver",
}
# After these the session, or the device, will not answer again until NVML is opened anew.
_LOSSES = ("NVML_ERROR_UNINITIALIZED", "NVML_ERROR_DRIVER_NOT_LOADED", "NVML_ERROR_GPU_IS_LOST")


def load_pynvml() -> ModuleType | None:
    """The `pynvml` module, or None where nvidia-ml-py is not installed. Needs no driver."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


@dataclass(frozen=True)
class _Device:
    handle: Any
    gpu: Gpu

    @property
    def key(self) -> str:
        return self.gpu.uuid or f"gpu{self.gpu.index}"


class Nvml:
    """All GPUs of this machine. Not for two threads at once."""

    def __init__(self, pynvml: Any | None, *, clock: Callable[[], float] = monotonic_s) -> None:
        self._pynvml = pynvml
        self._clock = clock
        self._devices: list[_Device] = []
        self._driver: str | None = None
        self._memory_query: str | None = None
        self._problem: str | None = None if pynvml else "nvidia-ml-py is not installed: no GPU can be read"
        self._is_open = False
        self._retry_at = 0.0
        self._retry_after = NVML_RETRY_FIRST_S

    @property
    def problem(self) -> str | None:
        """Why a GPU, or every GPU, cannot be read at present; None when all is well."""
        return self._problem

    @property
    def memory_query(self) -> str | None:
        """`v2`, or `v1`, which counts memory reserved by the driver as used. Chosen once: figures never mix the two."""
        return self._memory_query

    @property
    def driver(self) -> str | None:
        return self._driver

    def gpus(self) -> list[Gpu]:
        """Every GPU that could be opened, in NVML's order."""
        self._ensure_open()
        return [device.gpu for device in self._devices]

    def samples(self, engine_pids: Collection[int] = ()) -> list[DeviceSample]:
        """One sample per GPU. A lost GPU stays in the list with nothing read, until reopening removes or revives it.

        `engine_bytes` is the memory that NVML attributes to `engine_pids`; None where it attributes nothing to them,
        as in a container, which hides the processes of its host.
        """
        self._ensure_open()
        return [self._sample(device, engine_pids) for device in self._devices]

    def close(self) -> None:
        """Ends the NVML session. Harmless when there is none."""
        if self._is_open:
            self._ask("nvmlShutdown")
        self._is_open = False
        self._devices = []

    # ---- opening

    def _ensure_open(self) -> None:
        """Opens NVML, or reopens it after a loss, with back-off: a dead driver is not asked twice a second."""
        if self._pynvml is None or (self._is_open and self._problem is None) or self._clock() < self._retry_at:
            return
        self.close()
        self._problem = None
        try:
            self._pynvml.nvmlInit()
        except self._pynvml.NVMLError as error:
            self._lost(self._why_not_open(error))
            return
        self._is_open = True
        self._driver = self._ask("nvmlSystemGetDriverVersion")
        count = self._ask("nvmlDeviceGetCount") or 0
        opened = [self._open_device(index) for index in range(count)]
        self._devices = [device for device in opened if device is not None]
        if self._problem is None:
            self._retry_after = NVML_RETRY_FIRST_S

    def _open_device(self, index: int) -> _Device | None:
        handle = self._ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            return None
        self._choose_memory_query(handle)
        memory = self._memory(handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        gpu = Gpu(
            index=index,
            uuid=self._ask("nvmlDeviceGetUUID", handle) or "",
            name=self._ask("nvmlDeviceGetName", handle) or "NVIDIA GPU",
            memory_bytes=None if memory is None else int(memory.total),
            compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
            driver=self._driver,
        )
        return _Device(handle, gpu)

    def _choose_memory_query(self, handle: Any) -> None:
        """The first device that answers decides. v2 is missing in old drivers and fails under WSL."""
        if self._memory_query is not None:
            return
        for query in ("v2", "v1"):
            if self._memory(handle, query) is not None:
                self._memory_query = query
                return

    # ---- reading

    def _sample(self, device: _Device, engine_pids: Collection[int]) -> DeviceSample:
        handle = device.handle
        memory = self._memory(handle)
        utilisation = self._ask("nvmlDeviceGetUtilizationRates", handle)
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", handle)
        return DeviceSample(
            device=device.key,
            name=f"GPU {device.gpu.index} · {device.gpu.name}",
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            engine_bytes=self._engine_bytes(handle, engine_pids),
            utilisation_pct=None if utilisation is None else float(utilisation.gpu),
            power_w=None if milliwatts is None else milliwatts / 1000,
            temperature_c=self._ask("nvmlDeviceGetTemperature", handle, self._constant("NVML_TEMPERATURE_GPU")),
            clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, self._constant("NVML_CLOCK_SM")),
        )

    def _memory(self, handle: Any, query: str | None = None) -> Any | None:
        query = query or self._memory_query or "v2"
        if query == "v1":
            return self._ask("nvmlDeviceGetMemoryInfo", handle)
        version = self._constant("nvmlMemory_v2")
        return None if version is None else self._ask("nvmlDeviceGetMemoryInfo", handle, version)

    def _engine_bytes(self, handle: Any, engine_pids: Collection[int]) -> int | None:
        if not engine_pids:
            return None
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or []
        ours = [p.usedGpuMemory for p in processes if p.pid in engine_pids and p.usedGpuMemory is not None]
        return sum(ours) if ours else None

    def _constant(self, name: str) -> Any | None:
        return getattr(self._pynvml, name, None)

    def _ask(self, function: str, *args: Any) -> Any | None:
        """The one place that calls NVML for a value. What the driver or the device does not support is None."""
        call = getattr(self._pynvml, function, None)
        if call is None or self._pynvml is None:
            return None
        try:
            return call(*args)
        except self._pynvml.NVMLError as error:
            if error.value in {self._constant(name) for name in _LOSSES}:
                self._lost(f"an NVIDIA GPU or its driver stopped answering ({error})")
            return None

    def _lost(self, why: str) -> None:
        """Notes a loss once and sets the time of the next attempt."""
        if self._problem is None:
            self._retry_at = self._clock() + self._retry_after
            self._retry_after = min(2 * self._retry_after, NVML_RETRY_LONGEST_S)
        self._problem = why

    def _why_not_open(self, error: Any) -> str:
        known = {self._constant(name): words for name, words in _OPEN_FAILURES.items()}
        return known.get(error.value, f"NVML cannot be opened ({error})")
