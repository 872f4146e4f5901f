"""Which part of a model a tensor belongs to, from its name; and what the parts add up to."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from backend.checkpoint.headers import Kind
from backend.checkpoint.shards import Tensors
from backend.schema.checkpoint import DtypeTotal, Part, PartOwner, PartRole

# What stands beside quantised weights: no parameters of their own.
_SCALE = re.compile(
    r"(?:^|_)(?:scales?|scale_2|scale_inv|global_scale|zero_point|qzeros|zeros|g_idx|weight_shape|absmax|quant_map|"
    r"quant_state\w*|bitsandbytes\w*)$"
)
_VISION = re.compile(r"(?:^|\.)(?:visual|vision\w*|image\w*|audio\w*|mm_projector|multi_modal_projector)\.")
_MTP = re.compile(r"(?:^|\.)mtp(?:_\w+)?(?:\.|$)")
_LAYER = re.compile(r"^((?:\w+\.)*?layers\.)(\d+)(?:\.|$)")

# The first that occurs in a name decides. Those of the MTP layer's own joint stand apart, as `fc` means less elsewhere.
_ROLES: tuple[tuple[PartRole, re.Pattern[str]], ...] = tuple(
    (role, re.compile(pattern))  # type: ignore[misc]
    for role, pattern in (
        ("routed_experts", r"\.experts\."),
        ("shared_expert", r"\.shared?_experts?(?:_gate)?\."),
        ("router", r"(?:\.gate|\.router)\.|e_score_correction_bias|\.router_bias"),
        ("linear_attention", r"\.linear_attn\.|\.mamba\.|\.mixer\.(?:A_log|D|dt_bias|conv1d|in_proj|out_proj|norm)"),
        ("attention", r"\.(?:self_attn|self_attention|attn|attention|mixer)\."),
        ("mlp", r"\.(?:mlp|feed_forward|ffn)\."),
        ("lm_head", r"(?:^|\.)(?:lm_head|shared_head\.(?:head|output)|output_head)\."),
        ("embed", r"(?:^|\.)(?:embed_tokens|word_embeddings|wte|tok_embeddings|embeddings?)\."),
        ("norm", r"norm|layernorm"),
    )
)
_JOINT = re.compile(r"(?:^|\.)(?:fc|eh_proj|e_proj|h_proj|input_proj)\.")


@dataclass
class Sorted:
    """Tensors by owner. Experts of the main layers are only counted, by (prefix, what follows the expert's number,
    kind): (`model.layers.3.mlp`, `.up_proj.weight`, …), or (…, `gate_up_proj`, …) of fused ones."""

    named: dict[str, Kind] = field(default_factory=dict)
    experts: dict[tuple[str, str, Kind], int] = field(default_factory=dict)
    mtp: dict[str, Kind] = field(default_factory=dict)
    vision: dict[str, Kind] = field(default_factory=dict)


def sort_tensors(tensors: Tensors, layers: int | None) -> Sorted:
    """`layers` is the number of main layers: an MTP layer may be stored as one more. A name that stands in two files
    counts once."""
    found = Sorted()
    owners: dict[str, PartOwner] = {}
    several = any(warning.code == "duplicate_tensors" for warning in tensors.warnings)
    seen: set[str] = set()
    experts = found.experts
    for kinds in tensors.files.values():
        items: Iterable[tuple[str, Kind]] = kinds.items()
        if several:
            items = [item for item in kinds.items() if item[0] not in seen]
            seen |= kinds.keys()
        for name, kind in items:
            prefix, expert, below = name.partition(".experts.")
            if expert:
                owner = owners.get(prefix) or owners.setdefault(prefix, owner_of(name, layers))
                if owner == "target":
                    key = prefix, below.lstrip("0123456789"), kind
                    experts[key] = experts.get(key, 0) + 1
                    continue
            else:
                owner = owner_of(name, layers)
            {"target": found.named, "mtp": found.mtp, "vision": found.vision}[owner][name] = kind
    return found


def owner_of(name: str, layers: int | None) -> PartOwner:
    """Whose a tensor is."""
    if _VISION.search(name):
        return "vision"
    if _MTP.search(name) or is_extra_layer(name, layers):
        return "mtp"
    return "target"


def is_extra_layer(name: str, layers: int | None) -> bool:
    """Whether a name lies in a layer behind the last main one."""
    return layers is not None and (match := _LAYER.match(name)) is not None and int(match[2]) >= layers


def layer_of(name: str) -> tuple[str, int] | None:
    """(`model.layers.7.`, 7) of such a name."""
    match = _LAYER.match(name)
    return (f"{match[1]}{match[2]}.", int(match[2])) if match else None


def role_of(name: str, owner: PartOwner) -> PartRole:
    """What a tensor does."""
    if owner == "mtp" and _JOINT.search(name):
        return "joint"
    return next((role for role, pattern in _ROLES if pattern.search(name)), "other")


def is_scale(name: str) -> bool:
    """Whether a tensor only belongs to a quantised weight."""
    return _SCALE.search(name.rpartition(".")[2]) is not None


def logical_shape(kind: Kind, packed: int) -> tuple[int, ...]:
    """The shape of the weight that is stored: a byte of a packed FP4 weight holds two of its last dimension; an I32 of
    integer formats `packed`."""
    factor = {"U8": 2, "I32": packed}.get(kind.dtype, 1) if len(kind.shape) >= 2 else 1
    return (*kind.shape[:-1], kind.shape[-1] * factor) if kind.shape else ()


def parameters_of(name: str, kind: Kind, packed: int) -> int:
    """Logical parameters of one tensor."""
    if is_scale(name):
        return 0
    return kind.elements * {"U8": 2, "I32": packed}.get(kind.dtype, 1)


def add_up(found: Sorted, packed: int) -> list[Part]:
    """Totals of every part, in a fixed order. `packed` as in `logical_shape`."""
    totals: dict[tuple[PartOwner, PartRole], list[tuple[str, Kind, int]]] = {}
    owners: tuple[tuple[PartOwner, dict[str, Kind]], ...] = (
        ("target", found.named),
        ("mtp", found.mtp),
        ("vision", found.vision),
    )
    for owner, tensors in owners:
        for name, kind in tensors.items():
            role: PartRole = "other" if owner == "vision" else role_of(name, owner)
            totals.setdefault((owner, role), []).append((name, kind, 1))
    for (_, below, kind), count in found.experts.items():
        totals.setdefault(("target", "routed_experts"), []).append((below, kind, count))
    return [
        Part(
            owner=owner,
            role=role,
            tensors=sum(count for *_, count in rows),
            parameters=sum(parameters_of(name, kind, packed) * count for name, kind, count in rows),
            bytes=sum(kind.bytes * count for _, kind, count in rows),
            dtypes=sorted({kind.dtype for name, kind, _ in rows if not is_scale(name)}),
        )
        for (owner, role), rows in sorted(totals.items())
    ]


def by_dtype(found: Sorted) -> dict[str, DtypeTotal]:
    """All tensors by the dtype they are stored in, the largest total first."""
    counts: Counter[Kind] = Counter()
    for tensors in (found.named, found.mtp, found.vision):
        counts.update(tensors.values())
    for (_, _, kind), count in found.experts.items():
        counts[kind] += count
    return dtype_totals(counts)


def dtype_totals(counts: Counter[Kind]) -> dict[str, DtypeTotal]:
    """Totals of counted kinds."""
    sums: dict[str, tuple[int, int]] = {}
    for kind, count in counts.items():
        tensors, size = sums.get(kind.dtype, (0, 0))
        sums[kind.dtype] = tensors + count, size + kind.bytes * count
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    return {dtype: DtypeTotal(tensors=tensors, bytes=size) for dtype, (tensors, size) in ordered}
