"""What this machine has, and what to do about what it lacks. Runs nothing, changes nothing."""

from backend.doctor import findings as look
from backend.doctor.choice import choose_engine
from backend.doctor.environments import Machine, find_engines
from backend.paths import TINY_CHECKPOINT, StatePaths
from backend.schema.host import AgentInfo, Doctor
from backend.store import StoreReader
from backend.telemetry import Nvml, load_pynvml

__all__ = ["choose_engine", "doctor"]


def doctor(
    paths: StatePaths, agent: AgentInfo | None, *, nvml: Nvml | None = None, machine: Machine | None = None
) -> Doctor:
    """The document of `doctor`. `agent` is the live agent's own description, or None when none lives."""
    nvml = nvml or Nvml(load_pynvml())
    gpus = nvml.gpus()
    engines = find_engines(machine or Machine.here())
    findings = [
        look.python(),
        look.operating_system(),
        look.nvidia_driver(nvml.problem, nvml.driver),
        look.gpus(gpus),
        look.torch(),
        look.checkpoint(TINY_CHECKPOINT),
        look.engines(engines),
        look.agent(agent),
        look.state_directory(paths),
        look.disk(paths),
        look.store(paths, agent, lambda: len(StoreReader(paths).runs(tag=None, note=None, pinned=None).runs)),
        look.engine_ports(),
        look.shared_memory(),
        look.open_files(),
    ]
    nvml.close()
    return Doctor(findings=findings, gpus=gpus, engines=engines)
