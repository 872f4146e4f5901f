"""What an MTP layer must have: its joint, by family, and the inside of a main layer of its kind.

Exporters lose parts in many ways. What a whole MTP layer looks like is told by the checkpoint's own main layers: it has
the modules of one of them, in the same shapes. Where there is none to compare with, the configuration gives the shapes.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backend.checkpoint.headers import Kind
from backend.checkpoint.parts import Sorted, is_scale, layer_of, logical_shape
from backend.schema.checkpoint import Dims

Shape = tuple[int, ...]
Modules = dict[str, Shape]
"""Module or bare parameter below a layer, experts as `*`, to its logical shape."""


@dataclass(frozen=True)
class Joint:
    """What stands around an MTP layer in one family: names that must be there, and how they are recognised. `apart`
    says that they stand beside the numbered layers and not in them, `spread` that the first and the last of several
    numbered parts share them."""

    required: tuple[str, ...]
    signature: frozenset[str]
    apart: bool = False
    spread: bool = False


JOINTS = (
    Joint(
        ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
        frozenset({"fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden"}),
        apart=True,
    ),
    Joint(("eh_proj", "enorm", "hnorm", "shared_head.norm"), frozenset({"eh_proj", "enorm", "hnorm"})),
    Joint(
        ("eh_proj", "enorm", "hnorm", "final_layernorm"),
        frozenset({"eh_proj", "enorm", "hnorm", "mixer"}),
        spread=True,
    ),
    Joint(("e_proj", "h_proj", "enorm", "hnorm"), frozenset({"e_proj", "h_proj"})),
    Joint(
        ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"),
        frozenset({"input_proj", "token_layernorm", "hidden_layernorm"}),
    ),
)
OPTIONAL = re.compile(r"^(?:embed_tokens|shared_head\.(?:head|output)|lm_head|rotary_emb)")
BLOCK_DRAFTER = re.compile(r"(?:^|\.)(?:markov\w*|main_norm|dspark\w*)(?:\.|$)")
_WRAPPERS = re.compile(r"^(?:transformer|mtp_block)\.")  # around the inside of an MTP layer, in some families
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_FUSED = re.compile(r"\.experts\.(gate_up_proj|w13)(?:_weight)?$")


def module_of(name: str) -> str | None:
    """`x.q_proj.weight` to `x.q_proj`, `x.experts.7.up_proj.weight` to `x.experts.*.up_proj`; None for a scale. A bare
    parameter (`A_log`, a fused `gate_up_proj`) keeps its name; a bias is one of its own."""
    if is_scale(name):
        return None
    head, _, leaf = name.rpartition(".")
    module = head if leaf in ("weight", "weight_packed", "qweight", "weight_blocks") and head else name
    return _EXPERT.sub(".experts.*.", module)


def modules(tensors: Iterable[tuple[str, Kind]], prefix: str, packed: int) -> Modules:
    """Modules below `prefix`. Fused experts count as the leaves that they hold."""
    found: Modules = {}
    for name, kind in tensors:
        module = module_of(name) if name.startswith(prefix) else None
        if module is None:
            continue
        below, shape = _WRAPPERS.sub("", module[len(prefix) :]), logical_shape(kind, packed)
        found.update(_split_experts(below, shape))
    return found


def _split_experts(module: str, shape: Shape) -> Modules:
    """Fused expert tensors [E, 2I, H] and [E, H, I] as matrices of one expert."""
    if ".experts." not in f".{module}" or ".experts.*." in f".{module}" or len(shape) != 3:
        return {module: shape}
    head = module.rpartition(".")[0]
    if _FUSED.search(f".{module}"):
        half = (shape[1] // 2, shape[2])
        return {f"{head}.*.gate_proj": half, f"{head}.*.up_proj": half}
    leaf = module.rpartition(".")[2].removesuffix("_weight").replace("w2", "down_proj")
    return {f"{head}.*.{leaf}": shape[1:]}


def main_layers(found: Sorted, packed: int) -> dict[str, Modules]:
    """Prefix of every main layer to its modules."""
    tensors: dict[str, list[tuple[str, Kind]]] = defaultdict(list)
    for name, kind in found.named.items():
        if layer := layer_of(name):
            tensors[layer[0]].append((name, kind))
    for prefix, below, kind in found.experts:
        if layer := layer_of(f"{prefix}."):
            expert = f"{prefix}.experts.{'0' if below.startswith('.') else ''}{below}"
            tensors[layer[0]].append((expert, kind))
    return {prefix: modules(rows, prefix, packed) for prefix, rows in tensors.items()}


def template(layers: Mapping[str, Modules], inside: Modules) -> Modules | None:
    """The main layer whose modules are most like `inside`; of equals the last. None without main layers."""
    best, likeness = None, -1.0
    for candidate in layers.values():
        union = candidate.keys() | inside.keys()
        alike = len(candidate.keys() & inside.keys()) / len(union) if union else 0.0
        if alike >= likeness:
            best, likeness = candidate, alike
    return best


def expected_shape(module: str, dims: Dims, gated_attention: bool) -> Shape | None:
    """What the configuration says a module's shape is; None where it does not say."""
    d = dims
    leaf = module.rpartition(".")[2]
    if d.hidden_size is None:
        return None
    hidden = d.hidden_size
    if leaf in ("fc", "eh_proj", "input_proj"):
        return (hidden, 2 * hidden)
    if ".experts.*." in f".{module}" and d.moe_intermediate_size:
        return {"down_proj": (hidden, d.moe_intermediate_size)}.get(leaf, (d.moe_intermediate_size, hidden))
    if leaf in ("enorm", "hnorm", "norm") or leaf.startswith("pre_fc_norm") or leaf.endswith("layernorm"):
        return (hidden,) if "attn" not in module else None
    if module.endswith("mlp.gate") and d.experts:
        return (d.experts, hidden)
    if "self_attn." in module and d.kv_lora_rank is None and d.attention_heads:
        return _attention_shape(leaf, d, gated_attention)
    return None


def _attention_shape(leaf: str, dims: Dims, gated: bool) -> Shape | None:
    heads, hidden = dims.attention_heads or 0, dims.hidden_size or 0
    head = dims.head_dim or hidden // heads
    shapes: dict[str, Shape] = {
        "q_proj": (heads * head * (2 if gated else 1), hidden),
        "k_proj": ((dims.kv_heads or heads) * head, hidden),
        "v_proj": ((dims.kv_heads or heads) * head, hidden),
        "o_proj": (hidden, heads * head),
        "q_norm": (head,),
        "k_norm": (head,),
    }
    return shapes.get(leaf)
