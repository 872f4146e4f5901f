"""What an engine declares: its flags, choices, defaults and environment switches."""

from backend.errors import InputError
from backend.schema.engine import EngineKind, Scan


def scan_engine(kind: EngineKind, engine: str | None = None) -> Scan:
    """Declarations of the reference engine. InputError for SGLang, whose tree `engine` this version cannot read."""
    if kind is EngineKind.REFERENCE:
        # Imported here: whoever only launches SGLang needs nothing of the reference engine.
        from backend.reference.flags import scan

        return scan()
    where = f" at {engine}" if engine else ""
    raise InputError(f"reading the flags of an SGLang source tree{where} is not available in this version")
