"""What a run's record says of its machine, and whose memory a stop waits for."""

import psutil
import pytest

from backend.agent.hostfacts import device_memory_used, host_facts, versions
from backend.schema.host import DeviceSample
from backend.telemetry import Nvml


class FixedNvml(Nvml):
    """Two GPUs, the second of which does not answer."""

    def __init__(self, samples: list[DeviceSample]) -> None:
        super().__init__(None)
        self._fixed = samples

    def samples(self, engine_pids: object = ()) -> list[DeviceSample]:
        return self._fixed


def test_memory_is_read_per_gpu_and_a_silent_gpu_is_left_out() -> None:
    gpus = [
        DeviceSample(device="GPU-a", name="A", memory_used_bytes=512),
        DeviceSample(device="GPU-b", name="B", memory_used_bytes=None),
    ]
    assert device_memory_used(FixedNvml(gpus)) == {"GPU-a": 512}


def test_without_a_gpu_the_host_is_the_device() -> None:
    used = device_memory_used(FixedNvml([]))
    assert list(used) == ["host"]
    assert 0 < used["host"] < psutil.virtual_memory().total


def test_a_record_names_processor_memory_environment_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    facts = host_facts()
    assert isinstance(facts["environment"], dict)
    assert facts["environment"]["NCCL_P2P_DISABLE"] == "1"
    assert "hf_verysecret" not in str(facts)
    assert facts["cores"] == psutil.cpu_count()
    assert isinstance(facts["memory_bytes"], int)
    found = versions()
    assert found["slipstream"] == "0.1.0"
    assert {"python", "pydantic", "httptools"} <= found.keys()
