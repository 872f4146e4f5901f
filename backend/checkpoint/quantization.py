"""What a checkpoint says about its quantisation, and which modules it says are left out.

ModelOpt writes hf_quant_config.json (`quantization`) and, in newer exports, the same flat in config.json
(`quantization_config`); compressed-tensors, AWQ, GPTQ, FP8 and MXFP4 write config.json alone.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backend.checkpoint.dimensions import NESTED
from backend.errors import InputError
from backend.files import read_json_object
from backend.schema.checkpoint import Quantization, Warned

# Modules that engines fuse, and the leaves that a list may name instead.
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}


def read_quantization(folder: Path, config: Mapping[str, Any], warnings: list[Warned]) -> Quantization:
    """hf_quant_config.json counts before config.json. All None where neither says anything."""
    outside = _separate(folder, warnings)
    inside = config.get("quantization_config")
    if inside is None:
        nested = (config[name] for name in NESTED if isinstance(config.get(name), dict))
        inside = next((part["quantization_config"] for part in nested if part.get("quantization_config")), None)
    if inside is not None and not isinstance(inside, dict):
        warnings.append(_odd("config.json", "quantization_config", inside))
        inside = None
    if outside:
        found = _described(outside, "hf_quant_config.json", warnings, method="modelopt")
        if inside and (other := _described(inside, "config.json", [])).algo not in (None, found.algo):
            message = f"hf_quant_config.json says {found.algo} and config.json {other.algo}; the former counts here"
            warnings.append(Warned(code="quantization_differs", message=message, evidence="hf_quant_config.json"))
        return found
    return _described(inside, "config.json", warnings) if inside else Quantization()


def _separate(folder: Path, warnings: list[Warned]) -> dict[str, Any] | None:
    try:
        document = read_json_object(folder / "hf_quant_config.json")
    except FileNotFoundError:
        return None
    except InputError as error:
        warnings.append(Warned(code="quantization_unreadable", message=str(error), evidence="hf_quant_config.json"))
        return None
    quantization = document.get("quantization", document)
    if isinstance(quantization, dict):
        return quantization
    warnings.append(_odd("hf_quant_config.json", "quantization", quantization))
    return None


def _described(said: Mapping[str, Any], source: str, warnings: list[Warned], method: str | None = None) -> Quantization:
    nested = said.get("quantization")  # the nested form, inside config.json
    said = {**said, **nested} if isinstance(nested, dict) else said
    groups = [group for group in _mapping(said.get("config_groups")).values() if isinstance(group, dict)]
    weights = [_mapping(group.get("weights")) for group in groups]
    layers = {
        str(name): str(entry.get("quant_algo"))
        for name, entry in _mapping(said.get("quantized_layers")).items()
        if isinstance(entry, dict) and entry.get("quant_algo")
    }
    return Quantization(
        method=_text(said.get("quant_method")) or method,
        algo=_algorithm(said, weights),
        group_size=_group_size(said, weights, layers, warnings),
        exclude_modules=_excluded(said, source, warnings),
        layers=layers,
        activations=_activations(said, groups),
        kv_cache=_text(said.get("kv_cache_quant_algo")) or ("FP8" if said.get("kv_cache_scheme") else None),
        source=source,
    )


def _algorithm(said: Mapping[str, Any], weights: Sequence[Mapping[str, Any]]) -> str | None:
    """The algorithm's own name; where a method has none, one from its bits."""
    named = _text(said.get("quant_algo")) or _text(said.get("format"))
    if named:
        return named
    method = _text(said.get("quant_method"))
    if method in ("fp8", "mxfp4", "mxfp8"):
        return f"{method.upper()}{'_BLOCK' if said.get('weight_block_size') else ''}"
    bits = said.get("bits", said.get("w_bit", next((w.get("num_bits") for w in weights), None)))
    return f"INT{bits}" if method in ("awq", "gptq", "auto-round") and type(bits) is int else method


def _group_size(
    said: Mapping[str, Any], weights: Sequence[Mapping[str, Any]], layers: Mapping[str, str], warnings: list[Warned]
) -> int | None:
    given = [said.get("group_size"), said.get("q_group_size"), *(w.get("group_size") for w in weights)]
    given += [e.get("group_size") for e in _mapping(said.get("quantized_layers")).values() if isinstance(e, dict)]
    sizes = [size for size in given if type(size) is int]
    if len(set(sizes)) > 1 and not layers:
        message = f"the quantisation names several group sizes: {', '.join(map(str, sorted(set(sizes))))}"
        warnings.append(Warned(code="group_sizes_differ", message=message, evidence="group_size"))
    return sizes[0] if sizes else None


def _excluded(said: Mapping[str, Any], source: str, warnings: list[Warned]) -> list[str]:
    for name in ("exclude_modules", "ignore", "modules_to_not_convert", "ignored_layers", "exclude"):
        value = said.get(name)
        if value is None:
            continue
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return list(value)
        warnings.append(_odd(source, name, value))
    return []


def _activations(said: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> bool | None:
    algo = (_text(said.get("quant_algo")) or "").upper()
    if algo.startswith("W4A16"):
        return False
    if algo in ("NVFP4", "FP8", "W4A8_AWQ"):
        return True
    if groups:
        return any(group.get("input_activations") for group in groups)
    return False if _text(said.get("quant_method")) in ("awq", "gptq", "mxfp4") else None


def excludes(patterns: Sequence[str], module: str) -> str | None:
    """The first pattern that leaves `module` (a dotted name without `.weight`) unquantised, or None.

    ModelOpt writes globs that span dots; compressed-tensors exact names, or expressions behind `re:`. A name without a
    glob also covers what lies below it: `lm_head`, `model.layers.61`. `*` never makes `layers.6` cover `layers.61`
    unless it stands there.
    """
    for pattern in patterns:
        if pattern.startswith("re:"):
            if _matches(pattern[3:], module):
                return pattern
        elif any(c in pattern for c in "*?["):
            if fnmatch.fnmatchcase(module, pattern):
                return pattern
        elif module == pattern or module.startswith(f"{pattern}.") or _suffix(module, pattern):
            return pattern
    return None


def _suffix(module: str, pattern: str) -> bool:
    """Lists that name modules without their outer prefix: `mtp.fc` covers `model.mtp.fc`; a bare leaf any such."""
    return module.endswith(f".{pattern}") or f".{pattern}." in module


def _matches(expression: str, module: str) -> bool:
    try:
        return re.match(expression, module) is not None
    except re.error:
        return False


def leaves(module: str) -> list[str]:
    """A fused module's leaves, or the module itself: `x.gate_up_proj` is `x.gate_proj` and `x.up_proj`."""
    head, _, leaf = module.rpartition(".")
    return [f"{head}.{name}" for name in FUSED.get(leaf, (leaf,))]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _odd(source: str, field: str, value: object) -> Warned:
    said = f"{source} holds {field} {str(value)[:60]!r}, which is a {type(value).__name__}; ignored"
    return Warned(code="config_value", message=said, evidence=field)
