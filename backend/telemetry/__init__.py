"""What the machine does while an engine runs: GPUs through NVML, host memory, and the engine's own ledger."""

from backend.telemetry.nvml import NO_DRIVER, Nvml, load_pynvml
from backend.telemetry.sampler import Sampler

__all__ = ["NO_DRIVER", "Nvml", "Sampler", "load_pynvml"]
