"""Which engine a question is about when nobody names one."""

from backend.doctor.environments import Machine, find_engines
from backend.errors import UsageError
from backend.schema.engine import EngineKind

REFERENCE = "reference"


def choose_engine(engine: str | None, machine: Machine | None = None) -> tuple[EngineKind, str | None]:
    """The engine that `engine` names: `reference`, or a path to an SGLang. Without one the only SGLang of this machine,
    or the reference engine where there is none. UsageError, with the list, where there are several."""
    if engine == REFERENCE:
        return EngineKind.REFERENCE, None
    if engine is not None:
        return EngineKind.SGLANG, engine
    found = [e for e in find_engines(machine or Machine.here()) if e.kind == EngineKind.SGLANG]
    if len(found) > 1:
        listed = ", ".join(f"{e.python} (SGLang {e.version or 'of unknown version'})" for e in found)
        raise UsageError(f"this machine has several engines; name one with --engine: {listed}, or {REFERENCE}")
    return (EngineKind.SGLANG, found[0].python) if found else (EngineKind.REFERENCE, None)
