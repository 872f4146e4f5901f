"""Puts an inspection together."""

from pathlib import Path
from typing import Any

from backend.checkpoint.dimensions import language_config, read_dims
from backend.checkpoint.directory import read_config, require_checkpoint
from backend.checkpoint.fingerprint import fingerprint
from backend.checkpoint.mtp import inventory
from backend.checkpoint.parts import add_up, by_dtype, sort_tensors
from backend.checkpoint.quantization import read_quantization
from backend.checkpoint.shards import read_tensors
from backend.paths import StatePaths
from backend.remember import remembered
from backend.schema.checkpoint import Inspection, Quantization, Warned


def inspect_checkpoint(model: str, paths: StatePaths | None = None) -> Inspection:
    """What the files of `model` (a directory or a hub id in the local cache) say. Reads headers, never weights.

    With `paths`, an answer is kept there and given again while no file has changed. Raises ModelNotFoundError when
    there is no checkpoint, InputError when config.json or the index cannot be read.
    """
    folder = require_checkpoint(model)
    if paths is None:
        return _inspect(folder)
    store = paths.cache / "inspect"
    return remembered(store, str(folder), fingerprint(folder), Inspection, lambda: _inspect(folder))


def _inspect(folder: Path) -> Inspection:
    config = read_config(folder)
    warnings: list[Warned] = []
    dims = read_dims(config, warnings)
    quantization = read_quantization(folder, config, warnings)
    tensors = read_tensors(folder)
    packed = _per_integer(quantization)
    found = sort_tensors(tensors, dims.layers)
    mtp = inventory(config, dims, quantization, found, tensors, packed, warnings)
    parts = add_up(found, packed)
    return Inspection(
        path=str(folder),
        architecture=_architecture(config, warnings),
        model_type=_text(language_config(config)[0].get("model_type")) or _text(config.get("model_type")),
        quantization=quantization,
        parameters=sum(part.parameters for part in parts),
        bytes=sum(part.bytes for part in parts),
        tensors=sum(part.tensors for part in parts),
        by_dtype=by_dtype(found),
        parts=parts,
        shards=tensors.shards,
        dims=dims,
        mtp=mtp,
        warnings=[*tensors.warnings, *warnings],
    )


def _per_integer(quantization: Quantization) -> int:
    """Weights in one I32 of an integer format: 8 of four bits, 4 of eight."""
    return 4 if "8" in (quantization.algo or "").replace("FP8", "").replace("W4A8", "") else 8


def _architecture(config: dict[str, Any], warnings: list[Warned]) -> str | None:
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    message = "config.json names no architecture, so no engine can tell which model class it is"
    warnings.append(Warned(code="no_architecture", message=message, evidence="architectures"))
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
