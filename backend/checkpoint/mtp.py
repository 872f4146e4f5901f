"""The MTP layers of a checkpoint: are they there, whole, of the right shape, and how are they stored."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from backend.checkpoint.dimensions import declared_mtp, language_config
from backend.checkpoint.headers import Kind
from backend.checkpoint.mtp_layout import (
    BLOCK_DRAFTER,
    JOINTS,
    OPTIONAL,
    Joint,
    Modules,
    expected_shape,
    main_layers,
    module_of,
    modules,
    template,
)
from backend.checkpoint.parts import (
    Sorted,
    dtype_totals,
    is_scale,
    layer_of,
    logical_shape,
    owner_of,
    parameters_of,
    role_of,
)
from backend.checkpoint.quantization import excludes, leaves
from backend.checkpoint.shards import Tensors
from backend.schema.checkpoint import Dims, Mtp, MtpKind, Quantization, ShapeMismatch, Warned

_PREFIX = re.compile(r"^(.*?(?:^|\.)mtp(?:_\w+)?)\.(?:layers\.)?(\d+)\.")
_EXPERT_NUMBER = re.compile(r"\.experts\.(\d+)\.")
_WIDE = {"BF16", "F16", "F32"}


@dataclass(frozen=True)
class _Layer:
    """One MTP layer: the prefix of its inside, and that of its joint."""

    prefix: str
    joint_prefix: str


def inventory(
    config: Mapping[str, Any],
    dims: Dims,
    quantization: Quantization,
    found: Sorted,
    tensors: Tensors,
    packed: int,
    warnings: list[Warned],
) -> Mtp:
    """Everything about MTP that the files tell."""
    declared, declared_by = declared_mtp(config, warnings)
    if not found.mtp:
        return _nothing(declared, declared_by, dims, tensors, warnings)
    kind, joint = _kind(found.mtp, config)
    layers = _layers(found.mtp, joint)
    missing, mismatches = _defects(found, layers, joint, dims, config, packed)
    missing += _missing_experts(found.mtp, dims)
    if joint is None or not joint.spread:
        missing += _missing_layers(layers, declared)
    known = kind == "mtp"
    unindexed = tensors.unindexed()
    stored = _stored(found.mtp)
    uncovered = _uncovered(found.mtp, quantization, stored)
    mtp = Mtp(
        declared_layers=declared,
        declared_by=declared_by,
        layers=1 if joint is not None and joint.spread else len(layers),
        kind=kind,
        prefixes=sorted({layer.prefix for layer in layers}),
        tensors=len(found.mtp),
        experts=_experts(found.mtp),
        parameters=sum(parameters_of(name, entry, packed) for name, entry in found.mtp.items()),
        bytes=sum(entry.bytes for entry in found.mtp.values()),
        dtypes=dtype_totals(Counter(found.mtp.values())),
        complete=not missing if known else None,
        missing=sorted(missing) if known else [],
        shape_mismatches=mismatches if known else [],
        sources={file: n for file, names in tensors.files.items() if (n := len(found.mtp.keys() & names.keys()))},
        unindexed=len(found.mtp.keys() & unindexed.keys()),
        stored=stored,
        why=_why(found.mtp, quantization, stored, uncovered),
        covered=None if uncovered is None else not uncovered,
        uncovered=uncovered or [],
        own_embedding=any(role_of(name, "mtp") == "embed" for name in found.mtp),
        own_head=any(role_of(name, "mtp") == "lm_head" for name in found.mtp),
    )
    warnings += _warnings(mtp)
    return mtp


def _nothing(
    declared: int | None, declared_by: str | None, dims: Dims, tensors: Tensors, warnings: list[Warned]
) -> Mtp:
    """No MTP tensor in any file that could be read. The index may name some in a file that could not."""
    named = {n: file for n, file in (tensors.indexed or {}).items() if file not in tensors.files}
    lost = sorted(name for name in named if owner_of(name, dims.layers) == "mtp")
    if lost:
        message = f"the index has {len(lost)} MTP tensors in {named[lost[0]]}, which could not be read: copy that file"
        warnings.append(Warned(code="mtp_in_missing_file", message=message, evidence=named[lost[0]]))
        return Mtp(declared_layers=declared, declared_by=declared_by, complete=False, missing=lost)
    if not declared:
        return Mtp(declared_layers=declared, declared_by=declared_by)
    nextn = declared_by is not None and declared_by.endswith("num_nextn_predict_layers")
    expected = [f"model.layers.{dims.layers}.*"] if nextn and dims.layers is not None else ["mtp.*"]
    message = (
        f"config.json declares {declared} MTP layer{'s' if declared > 1 else ''} ({declared_by}) and no file holds "
        f"any ({expected[0]}): the exporter left them out, or their file was not copied"
    )
    warnings.append(Warned(code="mtp_stripped", message=message, evidence=declared_by))
    return Mtp(declared_layers=declared, declared_by=declared_by, complete=False, missing=expected)


def _kind(mtp: Mapping[str, Kind], config: Mapping[str, Any]) -> tuple[MtpKind, Joint | None]:
    """By what is there: an MTP layer has a joint, a block drafter has parts of its own."""
    own, _ = language_config(config)
    if "dspark_block_size" in own or any(BLOCK_DRAFTER.search(name) for name in mtp):
        return "block_drafter", None
    parts = {part for name in mtp for part in (module_of(name) or "").split(".")}
    joint = max(JOINTS, key=lambda j: len(j.signature & parts))
    if joint.signature & parts:
        return "mtp", joint
    inside = any(role_of(name, "mtp") in ("attention", "routed_experts", "mlp") for name in mtp)
    return ("mtp", JOINTS[0]) if inside and any(name.startswith("mtp.layers.") for name in mtp) else ("unknown", None)


def _layers(mtp: Mapping[str, Kind], joint: Joint | None) -> list[_Layer]:
    """The layers in order. A joint that stands apart belongs to all of them."""
    found: set[_Layer] = set()
    for name in mtp:
        if match := _PREFIX.match(name):
            prefix = name[: match.end()]
            found.add(_Layer(prefix, f"{match[1]}." if joint is not None and joint.apart else prefix))
        elif layer := layer_of(name):
            found.add(_Layer(layer[0], layer[0]))
    if not found and joint is not None and joint.apart:
        found.add(_Layer("mtp.layers.0.", "mtp."))
    return sorted(found, key=lambda layer: [int(p) if p.isdigit() else 0 for p in layer.prefix.split(".")])


def _defects(
    found: Sorted, layers: list[_Layer], joint: Joint | None, dims: Dims, config: Mapping[str, Any], packed: int
) -> tuple[list[str], list[ShapeMismatch]]:
    """What is missing and what has a wrong shape."""
    if joint is None:
        return [], []
    own, _ = language_config(config)
    gated = bool(own.get("attn_output_gate", "linear_num_key_heads" in own))
    mains = main_layers(found, packed)
    missing = _missing_joint(found.mtp, layers, joint, packed)
    wrong: list[ShapeMismatch] = []
    for layer in layers:
        inside = modules(found.mtp.items(), layer.prefix, packed)
        inside = {name: shape for name, shape in inside.items() if not _of_joint(name, joint)}
        like = template(mains, inside) or {}
        missing += [_weight(layer.prefix, name) for name in like.keys() - inside.keys()]
        wrong += _mismatches(found.mtp, layer, like, dims, gated, packed)
    return missing, wrong


def _missing_joint(mtp: Mapping[str, Kind], layers: list[_Layer], joint: Joint, packed: int) -> list[str]:
    """Names of the joint that no layer has, or that one lacks where each must have its own."""
    there = {layer.joint_prefix: modules(mtp.items(), layer.joint_prefix, packed) for layer in layers}
    if joint.spread:
        every = {name for parts in there.values() for name in parts}
        first = layers[0].joint_prefix
        return [f"{first}{name}.weight" for name in joint.required if name not in every]
    return [f"{prefix}{name}.weight" for prefix, parts in there.items() for name in joint.required if name not in parts]


def _of_joint(name: str, joint: Joint) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in joint.required) or bool(OPTIONAL.match(name))


def _weight(prefix: str, module: str) -> str:
    bare = module.endswith((".bias", "A_log", "dt_bias", "e_score_correction_bias"))
    return f"{prefix}{module}" if bare else f"{prefix}{module}.weight"


def _mismatches(
    mtp: Mapping[str, Kind], layer: _Layer, like: Modules, dims: Dims, gated: bool, packed: int
) -> list[ShapeMismatch]:
    """A shape that a main layer has too is right, whatever the configuration seems to say."""
    wrong = []
    for name, kind in mtp.items():
        prefix = layer.prefix if name.startswith(layer.prefix) else layer.joint_prefix
        module = module_of(name)
        if module is None or not name.startswith(prefix):
            continue
        for below, shape in modules([(name, kind)], prefix, packed).items():
            expected = like.get(below) or expected_shape(below, dims, gated)
            by_config = expected_shape(below, dims, gated)
            if expected is not None and shape not in (expected, by_config, expected[::-1]):
                wrong.append(
                    ShapeMismatch(tensor=name, shape=list(logical_shape(kind, packed)), expected=list(expected))
                )
                break
    return wrong


def _experts(mtp: Mapping[str, Kind]) -> int | None:
    """Routed experts of the layer that has most."""
    numbers = [int(match[1]) for name in mtp if (match := _EXPERT_NUMBER.search(name))]
    if numbers:
        return len(set(numbers))
    fused = [kind.shape[0] for name, kind in mtp.items() if ".experts." in name and len(kind.shape) == 3]
    return max(fused, default=None)


def _missing_experts(mtp: Mapping[str, Kind], dims: Dims) -> list[str]:
    """Of experts stored one by one: each projection that another expert has."""
    projections: dict[str, set[int]] = {}
    for name in mtp:
        if (match := _EXPERT_NUMBER.search(name)) and not is_scale(name):
            projections.setdefault(f"{name[: match.start(1)]}{{}}{name[match.end(1) :]}", set()).add(int(match[1]))
    every = set(range(dims.experts)) if dims.experts else set[int]().union(*projections.values())
    return [name.format(number) for name, numbers in projections.items() for number in sorted(every - numbers)]


def _missing_layers(layers: list[_Layer], declared: int | None) -> list[str]:
    """Layers that config.json promises beyond those that are there."""
    if not layers or not declared or len(layers) >= declared:
        return []
    head, _, number = layers[-1].prefix.rstrip(".").rpartition(".")
    return [f"{head}.{int(number) + n}.*" for n in range(1, declared - len(layers) + 1)]


def _linear(mtp: Mapping[str, Kind]) -> dict[str, Kind]:
    """The weights that a quantisation could concern: matrices, but for embedding, head and routers."""
    skip = ("embed", "lm_head", "router", "norm")
    return {
        name: kind
        for name, kind in mtp.items()
        if len(kind.shape) >= 2 and not is_scale(name) and role_of(name, "mtp") not in skip
    }


def _stored(mtp: Mapping[str, Kind]) -> Literal["wide", "quantised", "mixed"] | None:
    dtypes = {kind.dtype in _WIDE for kind in _linear(mtp).values()}
    if not dtypes:
        return None
    return "mixed" if len(dtypes) == 2 else "wide" if dtypes == {True} else "quantised"


def _uncovered(
    mtp: Mapping[str, Kind], quantization: Quantization, stored: Literal["wide", "quantised", "mixed"] | None
) -> list[str] | None:
    """Modules stored wide that the quantisation would have an engine build packed; None where that is no question."""
    if quantization.method is None or stored in (None, "quantised"):
        return None
    if quantization.layers:  # a table of what is quantised: everything else is not
        return sorted({m for name in _wide(mtp) if (m := module_of(name)) and m in quantization.layers})
    found = {m for name in _wide(mtp) if (m := module_of(name)) and _pattern(quantization, m) is None}
    return sorted(module for module in found if not module.endswith("shared_expert_gate"))


def _wide(mtp: Mapping[str, Kind]) -> list[str]:
    return [name for name, kind in _linear(mtp).items() if kind.dtype in _WIDE]


def _pattern(quantization: Quantization, module: str) -> str | None:
    """The entry of the exclude list that covers a module; for a fused one, entries that cover all its leaves."""
    concrete = module.replace(".experts.*.", ".experts.0.")
    patterns = quantization.exclude_modules
    whole = excludes(patterns, concrete)
    if whole is not None:
        return whole
    found = [excludes(patterns, leaf) for leaf in leaves(_one_expert(concrete))]
    return found[0] if all(found) else None


def _one_expert(module: str) -> str:
    """`x.experts.gate_up_proj` as its first expert's."""
    head, experts, leaf = module.rpartition(".experts.")
    return f"{head}.experts.0.{leaf}" if experts and not leaf[:1].isdigit() else module


def _why(
    mtp: Mapping[str, Kind],
    quantization: Quantization,
    stored: Literal["wide", "quantised", "mixed"] | None,
    uncovered: list[str] | None,
) -> str | None:
    dtypes = ", ".join(sorted({kind.dtype for kind in _linear(mtp).values()}))
    if stored is None:
        return None
    if quantization.method is None:
        return f"stored as {dtypes}: the checkpoint says nothing of a quantisation"
    if stored == "quantised":
        return f"stored as {dtypes}: quantised like the rest ({quantization.algo})"
    if uncovered:
        return (
            f"stored as {dtypes}, and nothing in {quantization.source} leaves {uncovered[0]} out of {quantization.algo}"
        )
    patterns = {_pattern(quantization, m) for name in _wide(mtp) if (m := module_of(name))} - {None}
    if patterns:
        shown = ", ".join(sorted(str(p) for p in patterns)[:3])
        return f"stored as {dtypes}: {quantization.source} leaves it out of {quantization.algo} ({shown})"
    return f"stored as {dtypes}: {quantization.source} lists what is quantised, and it is not there"


def _warnings(mtp: Mtp) -> list[Warned]:
    found = []
    if mtp.kind == "block_drafter":
        message = "the mtp.* tensors form a block drafter, no MTP layer: NEXTN cannot run them"
        found.append(
            Warned(code="mtp_block_drafter", message=message, evidence=mtp.prefixes[0] if mtp.prefixes else None)
        )
    if mtp.kind == "unknown":
        message = "the mtp.* tensors have no joint that Slipstream knows (fc, eh_proj, input_proj): not judged"
        found.append(Warned(code="mtp_unknown_layout", message=message, evidence=None))
    if not mtp.declared_layers:
        message = f"{mtp.tensors} MTP tensors are stored and config.json declares no MTP layer"
        found.append(Warned(code="mtp_undeclared", message=message, evidence=mtp.declared_by))
    if mtp.missing:
        message = f"the MTP layer lacks {len(mtp.missing)} tensors, {mtp.missing[0]} first"
        found.append(Warned(code="mtp_incomplete", message=message, evidence=mtp.missing[0]))
    if mtp.shape_mismatches:
        first = mtp.shape_mismatches[0]
        message = f"{first.tensor} has shape {first.shape} where {first.expected} is expected"
        found.append(Warned(code="mtp_shape", message=message, evidence=first.tensor))
    if mtp.unindexed:
        message = f"{mtp.unindexed} of {mtp.tensors} MTP tensors stand in files and not in the index"
        found.append(Warned(code="mtp_not_indexed", message=message, evidence=next(iter(mtp.sources), None)))
    if mtp.uncovered:
        message = (
            f"{mtp.uncovered[0]} is stored wide, and the exclude list does not leave it out: an engine that goes by "
            "the list builds it packed and cannot load it; see --speculative-draft-model-quantization, or edit a copy"
        )
        found.append(Warned(code="mtp_uncovered", message=message, evidence=mtp.uncovered[0]))
    return found
