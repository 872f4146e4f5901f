"""A stand-in for the `pynvml` module: as many GPUs as asked for, and any call can be made to fail."""

from types import SimpleNamespace

import pytest

GIB = 1 << 30


class FakeNvmlError(Exception):
    """`pynvml.NVMLError`: carries the error code in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class FakePynvml:
    """The part of `pynvml` that is used. `failures[function]` is the code it raises, for one GPU index or for all."""

    NVMLError = FakeNvmlError
    NVML_ERROR_UNINITIALIZED = 1
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_ERROR_UNKNOWN = 999
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    nvmlMemory_v2 = 33554472  # noqa: N815 the name is NVML's

    def __init__(self, gpus: int = 1, name: str = "NVIDIA H200") -> None:
        self.gpus, self.name = gpus, name
        self.failures: dict[tuple[str, int | None], int] = {}
        self.processes: list[SimpleNamespace] = []
        self.inits = 0

    def fail(self, function: str, code: int, index: int | None = None) -> None:
        self.failures[function, index] = code

    def _check(self, function: str, index: int | None = None) -> None:
        for key in ((function, None), (function, index)):
            if key in self.failures:
                raise FakeNvmlError(self.failures[key])

    def nvmlInit(self) -> None:  # noqa: N802
        self._check("nvmlInit")
        self.inits += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._check("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        self._check("nvmlDeviceGetHandleByIndex", index)
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return self.name

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return (9, 0)

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> SimpleNamespace:  # noqa: N802
        self._check("nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo_v1", handle)
        # An idle card: v1 counts the 0.9 GiB that the driver reserves as used, v2 does not.
        return SimpleNamespace(total=80 * GIB, used=10 * GIB if version else 11 * GIB)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        self._check("nvmlDeviceGetUtilizationRates", handle)
        return SimpleNamespace(gpu=37, memory=12)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        self._check("nvmlDeviceGetPowerUsage", handle)
        return 79810  # the first reading of a real trace, in mW

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        self._check("nvmlDeviceGetTemperature", handle)
        return 41

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        self._check("nvmlDeviceGetClockInfo", handle)
        return 1980

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        self._check("nvmlDeviceGetComputeRunningProcesses", handle)
        return self.processes


@pytest.fixture
def pynvml() -> FakePynvml:
    return FakePynvml()
