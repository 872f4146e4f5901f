from types import SimpleNamespace

import pytest

from backend.telemetry.nvml import Nvml, load_pynvml

GIB = 1 << 30


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_gpu_is_read_in_our_units_and_known_by_its_uuid(pynvml):
    sample = Nvml(pynvml).samples()[0]
    assert sample.device == "GPU-0"
    assert sample.name == "GPU 0 · NVIDIA H200"
    assert sample.memory_used_bytes == 10 * GIB
    assert sample.memory_total_bytes == 80 * GIB
    assert sample.power_w == 79.81  # 79810 mW
    assert (sample.utilisation_pct, sample.temperature_c, sample.clock_mhz) == (37.0, 41.0, 1980.0)
    assert sample.engine_bytes is None


def test_eight_gpus_are_eight_samples_with_eight_identities(pynvml):
    pynvml.gpus = 8
    nvml = Nvml(pynvml)
    assert [s.device for s in nvml.samples()] == [f"GPU-{i}" for i in range(8)]
    assert [(g.index, g.compute_capability) for g in nvml.gpus()] == [(i, "9.0") for i in range(8)]


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", "utilisation_pct"),
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetClockInfo", "clock_mhz"),
    ],
)
def test_an_unsupported_reading_is_none_and_the_others_stay(pynvml, function, field):
    pynvml.fail(function, pynvml.NVML_ERROR_NOT_SUPPORTED)
    nvml = Nvml(pynvml)
    sample = nvml.samples()[0]
    assert getattr(sample, field) is None
    assert sample.memory_used_bytes == 10 * GIB
    assert nvml.problem is None


def test_unified_memory_is_unknown_and_never_taken_from_the_host(pynvml):
    pynvml.name = "NVIDIA GB10"
    pynvml.fail("nvmlDeviceGetMemoryInfo_v1", pynvml.NVML_ERROR_NOT_SUPPORTED)
    pynvml.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_NOT_SUPPORTED)
    nvml = Nvml(pynvml)
    sample = nvml.samples()[0]
    assert sample.memory_used_bytes is None
    assert sample.memory_total_bytes is None
    assert sample.power_w == 79.81
    assert nvml.memory_query is None


@pytest.mark.parametrize("code", [13, 999], ids=["old driver", "WSL"])
def test_without_the_second_memory_query_the_first_is_used_and_named(pynvml, code):
    pynvml.fail("nvmlDeviceGetMemoryInfo_v2", code)
    nvml = Nvml(pynvml)
    assert nvml.samples()[0].memory_used_bytes == 11 * GIB
    assert nvml.memory_query == "v1"


def test_the_memory_query_never_changes_once_it_is_chosen(pynvml):
    nvml = Nvml(pynvml)
    nvml.samples()
    pynvml.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_UNKNOWN)
    assert nvml.samples()[0].memory_used_bytes is None
    assert nvml.memory_query == "v2"


def test_memory_of_the_engine_is_the_sum_over_its_processes_only(pynvml):
    pynvml.processes = [
        SimpleNamespace(pid=11, usedGpuMemory=3 * GIB),
        SimpleNamespace(pid=12, usedGpuMemory=1 * GIB),
        SimpleNamespace(pid=99, usedGpuMemory=40 * GIB),
    ]
    assert Nvml(pynvml).samples({11, 12, 13})[0].engine_bytes == 4 * GIB


def test_a_container_that_hides_processes_attributes_nothing_rather_than_zero(pynvml):
    assert Nvml(pynvml).samples({11})[0].engine_bytes is None


def test_one_lost_gpu_leaves_a_gap_and_the_others_go_on(pynvml):
    pynvml.gpus = 2
    clock = Clock()
    nvml = Nvml(pynvml, clock=clock)
    nvml.samples()
    for function in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"):
        pynvml.fail(function, pynvml.NVML_ERROR_GPU_IS_LOST, index=1)
    first, second = nvml.samples()
    assert first.memory_used_bytes == 10 * GIB
    assert (second.memory_used_bytes, second.utilisation_pct, second.power_w) == (None, None, None)
    assert "stopped answering" in nvml.problem


def test_a_lost_driver_is_asked_again_with_growing_pauses_and_comes_back(pynvml):
    clock = Clock()
    nvml = Nvml(pynvml, clock=clock)
    nvml.samples()
    pynvml.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_UNINITIALIZED)
    pynvml.fail("nvmlInit", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    assert nvml.samples()[0].memory_used_bytes is None
    clock.now_s = 104.9  # first retry is due after 5 s
    nvml.samples()
    assert pynvml.inits == 1
    clock.now_s = 105.0
    assert nvml.samples() == []
    assert "not loaded" in nvml.problem
    pynvml.failures.clear()
    clock.now_s = 114.9  # second retry is due 10 s after the first
    assert nvml.samples() == []
    clock.now_s = 115.0
    assert nvml.samples()[0].memory_used_bytes == 10 * GIB
    assert nvml.problem is None
    assert pynvml.inits == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [(12, "no NVIDIA driver"), (9, "not loaded"), (18, "reboot"), (999, "cannot be opened")],
    ids=["no library", "driver not loaded", "upgraded without reboot", "unknown"],
)
def test_a_machine_without_a_usable_driver_has_no_gpus_and_says_why(pynvml, code, words):
    pynvml.fail("nvmlInit", code)
    nvml = Nvml(pynvml)
    assert nvml.gpus() == []
    assert nvml.samples() == []
    assert words in nvml.problem


def test_without_the_library_installed_nothing_is_read():
    nvml = Nvml(None)
    assert nvml.samples() == []
    assert "nvidia-ml-py" in nvml.problem
    nvml.close()


def test_the_real_module_has_every_name_that_is_used(pynvml):
    real = load_pynvml()
    used = [name for name in dir(pynvml) if name.startswith(("nvml", "NVML")) and not callable(getattr(pynvml, name))]
    used += [name for name in dir(pynvml) if name.startswith("nvml")]
    assert [name for name in used if not hasattr(real, name)] == []
    assert real.NVML_ERROR_GPU_IS_LOST == pynvml.NVML_ERROR_GPU_IS_LOST
    assert real.nvmlMemory_v2 == pynvml.nvmlMemory_v2
