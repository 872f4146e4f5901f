"""Reads a checkpoint directory into the tensors that the forward passes use.

Matrices are kept once, transposed to [in, out] (`x @ w` on such a matrix is the fastest form for few tokens on a CPU)
and fused where one input feeds several of them. Norm factors, conv taps and decay rates are float32; matrices are in
the chosen dtype. Norms are stored as `scale`, the factor (1 + weight where zero-centred) times the square root of
its size, as `ops.rms_norm` wants it; that of queries includes the attention's 1/sqrt(head_dim).
"""

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from safetensors import SafetensorError, safe_open
from torch import Tensor

from backend.errors import InputError
from backend.reference.config import TextConfig


@dataclass(frozen=True)
class AttentionWeights:
    """`qkvg` [H, queries|keys|values|gates], `qk_norm` [query+key heads, head_dim], `out` [heads*head_dim, H]."""

    qkvg: Tensor
    qk_norm: Tensor
    out: Tensor


@dataclass(frozen=True)
class DeltaNetWeights:
    """`in_proj` [H, queries|keys|values|z|a|b], `conv` [taps, channels], `rate` = -exp(A_log) and `dt_bias` [heads],
    `norm` [value head dim], `out` [value_dim, H]."""

    in_proj: Tensor
    conv: Tensor
    rate: Tensor
    dt_bias: Tensor
    norm: Tensor
    out: Tensor


@dataclass(frozen=True)
class MoeWeights:
    """`router` [H, experts + 1], the last column being the shared expert's gate. `up` [H, pieces, 2, I] and `down`
    [pieces, I, H] hold the experts and behind them the shared expert, cut into pieces of the experts' size (the last
    one padded with zeros, which changes nothing)."""

    router: Tensor
    up: Tensor
    down: Tensor

    @cached_property
    def pieces(self) -> list[tuple[Tensor, Tensor]]:
        """Views of each piece, [H, 2*I] and [I, H]: making them for every token would cost as much as the product."""
        return [(self.up[:, n].flatten(1), self.down[n]) for n in range(self.down.shape[0])]


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer; `mixer` says what kind it is."""

    input_norm: Tensor
    mixer: AttentionWeights | DeltaNetWeights
    post_norm: Tensor
    moe: MoeWeights


@dataclass(frozen=True)
class TargetWeights:
    """The main model. `head` is [H, V]; `embedding` is [V, H]."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor


@dataclass(frozen=True)
class MtpWeights:
    """The MTP layer; embedding and head are the target's."""

    fc: Tensor
    embedding_norm: Tensor
    hidden_norm: Tensor
    layer: LayerWeights
    norm: Tensor


class Checkpoint:
    """Open safetensors files of one directory. Raises InputError when they are missing, damaged or lack a tensor."""

    def __init__(self, directory: Path, config: TextConfig, dtype: torch.dtype) -> None:
        self.directory = directory
        self.config = config
        self.dtype = dtype
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        for path in _shards(directory):
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise InputError(f"{path} cannot be read as safetensors: {error}.") from error
            self._files.update(dict.fromkeys(file.keys(), file))

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get(self, name: str, *shape: int) -> Tensor:
        """Tensor `name` as float32; its shape must be `shape`."""
        if name not in self._files:
            raise InputError(f"Weight {name} is missing in {self.directory}, although its config.json asks for it.")
        tensor: Tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise InputError(
                f"Shape mismatch in {self.directory}: {name} is {list(tensor.shape)}, config.json says {list(shape)}."
            )
        widened: Tensor = tensor.float()
        return widened

    def norm(self, name: str, size: int) -> Tensor:
        """The scale of a zero-centred norm."""
        return (1.0 + self.get(name, size)) * math.sqrt(size)

    def matrix(self, *parts: Tensor) -> Tensor:
        """Row-major matrices of the same input, stacked and transposed to [in, out] in the engine's dtype."""
        return torch.cat(parts).t().to(self.dtype, memory_format=torch.contiguous_format, copy=True).contiguous()


def _shards(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        return [directory / name for name in names]
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise InputError(f"Cannot find any model weights in {directory}: it holds no *.safetensors file.")
    return files


def load_target(checkpoint: Checkpoint) -> TargetWeights:
    """All tensors of the main model."""
    c = checkpoint.config
    prefix = "model.language_model"
    embedding = checkpoint.get(f"{prefix}.embed_tokens.weight", c.vocab_size, c.hidden_size)
    head = embedding if c.tie_word_embeddings else checkpoint.get("lm_head.weight", c.vocab_size, c.hidden_size)
    return TargetWeights(
        embedding=embedding.to(checkpoint.dtype),
        layers=[_layer(checkpoint, f"{prefix}.layers.{n}", c.is_full_attention(n)) for n in range(c.num_hidden_layers)],
        norm=checkpoint.norm(f"{prefix}.norm.weight", c.hidden_size),
        head=checkpoint.matrix(head),
    )


def load_mtp(checkpoint: Checkpoint) -> MtpWeights:
    """The `mtp.*` tensors."""
    c = checkpoint.config
    return MtpWeights(
        fc=checkpoint.matrix(checkpoint.get("mtp.fc.weight", c.hidden_size, 2 * c.hidden_size)),
        embedding_norm=checkpoint.norm("mtp.pre_fc_norm_embedding.weight", c.hidden_size),
        hidden_norm=checkpoint.norm("mtp.pre_fc_norm_hidden.weight", c.hidden_size),
        layer=_layer(checkpoint, "mtp.layers.0", full_attention=True),
        norm=checkpoint.norm("mtp.norm.weight", c.hidden_size),
    )


def _layer(ck: Checkpoint, prefix: str, full_attention: bool) -> LayerWeights:
    hidden = ck.config.hidden_size
    return LayerWeights(
        input_norm=ck.norm(f"{prefix}.input_layernorm.weight", hidden),
        mixer=_attention(ck, f"{prefix}.self_attn") if full_attention else _delta_net(ck, f"{prefix}.linear_attn"),
        post_norm=ck.norm(f"{prefix}.post_attention_layernorm.weight", hidden),
        moe=_moe(ck, f"{prefix}.mlp"),
    )


def _attention(ck: Checkpoint, prefix: str) -> AttentionWeights:
    c = ck.config
    heads, kv_heads, dim, hidden = c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.hidden_size
    query = ck.get(f"{prefix}.q_proj.weight", 2 * heads * dim, hidden).view(heads, 2, dim, hidden)
    key = ck.get(f"{prefix}.k_proj.weight", kv_heads * dim, hidden)
    value = ck.get(f"{prefix}.v_proj.weight", kv_heads * dim, hidden)
    flat = (heads * dim, hidden)
    norms = (
        ck.norm(f"{prefix}.q_norm.weight", dim).expand(heads, dim) / math.sqrt(dim),
        ck.norm(f"{prefix}.k_norm.weight", dim).expand(kv_heads, dim),
    )
    return AttentionWeights(
        qkvg=ck.matrix(query[:, 0].reshape(flat), key, value, query[:, 1].reshape(flat)),
        qk_norm=torch.cat(norms),
        out=ck.matrix(ck.get(f"{prefix}.o_proj.weight", hidden, heads * dim)),
    )


def _delta_net(ck: Checkpoint, prefix: str) -> DeltaNetWeights:
    c = ck.config
    hidden, heads = c.hidden_size, c.linear_num_value_heads
    taps = ck.get(f"{prefix}.conv1d.weight", c.conv_dim, 1, c.linear_conv_kernel_dim)
    return DeltaNetWeights(
        in_proj=ck.matrix(
            ck.get(f"{prefix}.in_proj_qkv.weight", c.conv_dim, hidden),
            ck.get(f"{prefix}.in_proj_z.weight", c.value_dim, hidden),
            ck.get(f"{prefix}.in_proj_a.weight", heads, hidden),
            ck.get(f"{prefix}.in_proj_b.weight", heads, hidden),
        ),
        conv=taps[:, 0].t().contiguous(),
        rate=-ck.get(f"{prefix}.A_log", heads).exp(),
        dt_bias=ck.get(f"{prefix}.dt_bias", heads),
        norm=ck.get(f"{prefix}.norm.weight", c.linear_value_head_dim) * math.sqrt(c.linear_value_head_dim),
        out=ck.matrix(ck.get(f"{prefix}.out_proj.weight", hidden, c.value_dim)),
    )


def _moe(ck: Checkpoint, prefix: str) -> MoeWeights:
    c = ck.config
    experts, inner, shared, hidden = (
        c.num_experts,
        c.moe_intermediate_size,
        c.shared_expert_intermediate_size,
        c.hidden_size,
    )
    gate_up = ck.get(f"{prefix}.experts.gate_up_proj", experts, 2 * inner, hidden)
    down = ck.get(f"{prefix}.experts.down_proj", experts, hidden, inner)
    shared_name = f"{prefix}.shared_expert"
    padding = -shared % inner
    shared_gate, shared_up = (
        F.pad(ck.get(f"{shared_name}.{half}_proj.weight", shared, hidden), (0, 0, 0, padding)).view(-1, inner, hidden)
        for half in ("gate", "up")
    )
    shared_down = F.pad(ck.get(f"{shared_name}.down_proj.weight", hidden, shared), (0, padding)).view(hidden, -1, inner)
    halves = torch.stack([torch.cat([gate_up[:, :inner], shared_gate]), torch.cat([gate_up[:, inner:], shared_up])], 1)
    return MoeWeights(
        router=ck.matrix(
            ck.get(f"{prefix}.gate.weight", experts, hidden),
            ck.get(f"{prefix}.shared_expert_gate.weight", 1, hidden),
        ).float(),
        up=ck.matrix(halves.view(-1, hidden)).view(hidden, -1, 2, inner),
        down=torch.cat([down, shared_down.transpose(0, 1)]).transpose(1, 2).to(ck.dtype).contiguous(),
    )


def tensors(weights: object) -> Iterator[Tensor]:
    """Every tensor inside nested dataclasses and lists."""
    if isinstance(weights, Tensor):
        yield weights
    elif isinstance(weights, list):
        for item in weights:
            yield from tensors(item)
    elif is_dataclass(weights):
        for field in fields(weights):
            yield from tensors(getattr(weights, field.name))


def nbytes(weights: object) -> int:
    """Bytes of all tensors inside `weights`, each storage counted once."""
    return sum({t.data_ptr(): t.nbytes for t in tensors(weights)}.values())
