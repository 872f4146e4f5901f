"""Propositions that the checkpoint's own files settle."""

import json
from pathlib import Path

from backend.schema.checkpoint import Inspection
from backend.schema.validate import TraceStep
from backend.validate.question import PROPOSITIONS

_CONFIG = "config.json"
_LOST = {"shard_missing", "shard_unreadable", "no_weights"}


def declares_mtp(inspection: Inspection, read_by_engine: bool | None) -> TraceStep:
    """`read_by_engine`: whether the engine takes the number of layers from config.json; None: not known."""
    mtp = inspection.mtp
    name = (mtp.declared_by or "").rpartition(".")[2]
    line = _line_of(Path(inspection.path) / _CONFIG, name) if name else None
    if mtp.declared_layers:
        return _step(
            "checkpoint_declares_mtp", "confirmed", f"{mtp.declared_by} is {mtp.declared_layers}", _CONFIG, line
        )
    if mtp.tensors and read_by_engine is False:
        why = "config.json declares none, and the engine sets the number itself for this architecture"
        return _step("checkpoint_declares_mtp", "confirmed", why, _CONFIG, line)
    if mtp.tensors:
        why = "config.json declares none although tensors are stored; whether the engine needs the number is not known"
        return _step("checkpoint_declares_mtp", "unknown", why, _CONFIG, line)
    said = f"{mtp.declared_by} is 0" if mtp.declared_by else "config.json has no field that declares MTP layers"
    return _step("checkpoint_declares_mtp", "refuted", said, _CONFIG, line)


def has_tensors(inspection: Inspection) -> TraceStep:
    """Complete and of the right shape. What lies in a file that cannot be read is not known."""
    mtp = inspection.mtp
    lost = next((w for w in inspection.warnings if w.code in _LOST), None)
    file = next(iter(mtp.sources), None)
    if mtp.kind == "block_drafter":
        why = "the mtp.* tensors form a block drafter and no MTP layer; another algorithm is made for it"
        return _step("checkpoint_has_mtp_tensors", "refuted", why, file)
    if mtp.kind == "unknown":
        why = f"{mtp.tensors} mtp.* tensors of a layout that is not known"
        return _step("checkpoint_has_mtp_tensors", "unknown", why, file)
    if mtp.complete and not mtp.shape_mismatches:
        where = ", ".join(mtp.sources)
        why = f"{mtp.tensors:,} tensors, {mtp.parameters:,} parameters, {mtp.bytes:,} bytes in {where}"
        if mtp.unindexed:
            status = "unknown"
            why += f"; {mtp.unindexed} of them are not in the index, and an engine that follows it does not load them"
            return _step("checkpoint_has_mtp_tensors", status, why, file)
        return _step("checkpoint_has_mtp_tensors", "confirmed", why, file)
    if lost is not None:
        return _step("checkpoint_has_mtp_tensors", "unknown", f"not to be told: {lost.message}", lost.evidence)
    if mtp.shape_mismatches and mtp.complete:
        first = mtp.shape_mismatches[0]
        why = f"{first.tensor} has shape {first.shape} where {first.expected} is expected"
    elif mtp.tensors:
        why = f"{len(mtp.missing)} tensors are missing, {mtp.missing[0]} first"
    else:
        why = "no file holds an MTP tensor" + (f" ({mtp.missing[0]})" if mtp.missing else "")
    return _step("checkpoint_has_mtp_tensors", "refuted", why, file)


def _step(step_id: str, status: str, detail: str, file: str | None = None, line: int | None = None) -> TraceStep:
    return TraceStep.model_validate(
        {
            "id": step_id,
            "proposition": PROPOSITIONS[step_id],
            "status": status,
            "detail": detail,
            "file": file,
            "line": line,
        }
    )


def _line_of(config: Path, field: str) -> int | None:
    """The line of config.json on which a field stands."""
    try:
        lines = config.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    quoted = json.dumps(field)
    return next((n for n, line in enumerate(lines, 1) if quoted in line), None)
