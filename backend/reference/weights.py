"""Reads a checkpoint directory into the tensors that the forward passes use.

Matrices are kept once, transposed to [in, out] (`x @ w` on such a matrix is the fastest form for few tokens on a CPU)
and fused where one input feeds several of them. Norm factors, conv taps and decay rates are float32; matrices are in
the chosen dtype. Norms are stored as `scale`, the factor (1 + weight where zero-centred) times the square root of
its size, as `ops.rms_norm` wants it; that of queries includes the attention's 1/sqrt(head_dim).
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from backend.errors import InputError
from backend.files import read_json_object
from backend.reference.config import TextConfig
from backend.reference.experts import DenseExperts, Experts, StoredMatrix, expand, pack
from backend.reference.nvfp4 import BLOCK
from backend.reference.quantization import check_quantization

INDEX_FILE = "model.safetensors.index.json"
_PLAIN = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class AttentionWeights:
    """`qkvg` [H, queries|keys|values|gates], `qk_norm` [query+key heads, head_dim], `out` [heads*head_dim, H]. The head
    dimension of queries and keys is in the order of `rotary_pairs`."""

    qkvg: Tensor
    qk_norm: Tensor
    out: Tensor


@dataclass(frozen=True)
class DeltaNetWeights:
    """`in_proj` [H, queries|keys|values|z|a|b], `conv` [taps, channels], `rate` = -exp(A_log) [heads], `bias` of a and
    b [2 * heads] (dt_bias, then zeros), `norm` [value head dim], `out` [value_dim, H]."""

    in_proj: Tensor
    conv: Tensor
    rate: Tensor
    bias: Tensor
    norm: Tensor
    out: Tensor


@dataclass(frozen=True)
class MoeWeights:
    """`entry` [H, router of E experts|shared expert's gate|its gate projection|its up projection], `shared_down`
    [shared I, H], and the routed experts."""

    entry: Tensor
    shared_down: Tensor
    experts: Experts


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer; `mixer` says what kind it is."""

    input_norm: Tensor
    mixer: AttentionWeights | DeltaNetWeights
    post_norm: Tensor
    moe: MoeWeights


@dataclass(frozen=True)
class TargetWeights:
    """The main model. `head` is [H, V]; `embedding` is [V, H]; `fp4`: whether its experts are stored in NVFP4."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor
    fp4: bool


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

    def __init__(self, directory: Path, config: TextConfig, dtype: torch.dtype, fp4_at_use: bool = True) -> None:
        """NVFP4 experts stay packed when `fp4_at_use`, else they are expanded to `dtype`."""
        self.directory = directory
        self.config = config
        self.dtype = dtype
        self.fp4_at_use = fp4_at_use
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        for path in _shards(directory):
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise InputError(f"{path} cannot be read as safetensors: {error}; copy it anew.") from error
            self._files.update(dict.fromkeys(file.keys(), file))

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str, *shape: int) -> Tensor:
        """Tensor `name` as float32; its shape must be `shape`, and it must be stored as plain floating point."""
        return self._read(name, shape, _PLAIN).float()

    def stored(self, name: str, rows: int, columns: int) -> StoredMatrix:
        """The NVFP4 matrix `name` of `rows` x `columns` weights, as it is stored."""
        if columns % BLOCK or rows % 2:
            raise InputError(
                f"{name} in {self.directory} is {rows} x {columns}: NVFP4 needs blocks of {BLOCK} columns."
            )
        return StoredMatrix(
            weight=self._read(f"{name}.weight", (rows, columns // 2), (torch.uint8,)),
            block_scale=self._read(f"{name}.weight_scale", (rows, columns // BLOCK), (torch.float8_e4m3fn,)),
            global_scale=self._read(f"{name}.weight_scale_2", (), (torch.float32,)),
        )

    def _read(self, name: str, shape: tuple[int, ...], types: tuple[torch.dtype, ...]) -> Tensor:
        if name not in self._files:
            raise InputError(
                f"Weight {name} is missing in {self.directory}, although its config.json asks for it; copy the weights "
                "anew, or the config.json that belongs to them."
            )
        tensor: Tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise InputError(
                f"Shape mismatch in {self.directory}: {name} is {list(tensor.shape)}, config.json says {list(shape)}; "
                "copy the config.json that belongs to these weights."
            )
        if tensor.dtype not in types:
            wanted = " or ".join(_name(dtype) for dtype in types)
            raise InputError(
                f"Weight {name} in {self.directory} is {_name(tensor.dtype)}, where {wanted} belongs; this engine "
                "reads BF16 checkpoints and NVFP4 ones with BF16 around the routed experts: choose one of those."
            )
        return tensor

    def norm(self, name: str, size: int) -> Tensor:
        """The scale of a zero-centred norm."""
        return (1.0 + self.get(name, size)) * math.sqrt(size)

    def matrix(self, *parts: Tensor) -> Tensor:
        """Row-major matrices of the same input, stacked and transposed to [in, out] in the engine's dtype."""
        return torch.cat(parts).t().to(self.dtype, memory_format=torch.contiguous_format, copy=True).contiguous()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shards(directory: Path) -> list[Path]:
    try:
        files = _indexed(directory / INDEX_FILE)
    except FileNotFoundError:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise InputError(
            f"Cannot find any model weights in {directory}: it holds no *.safetensors file; name a directory with them."
        )
    return files


def _indexed(index: Path) -> list[Path]:
    """The files that an index names. Raises FileNotFoundError without one, InputError when it cannot be followed."""
    tensors_to_files = read_json_object(index).get("weight_map")
    if not isinstance(tensors_to_files, dict) or not all(isinstance(name, str) for name in tensors_to_files.values()):
        raise InputError(f"{index} has no weight_map from tensors to file names; copy it anew, or remove it.")
    files = [index.parent / name for name in sorted(set(tensors_to_files.values()))]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise InputError(f"Cannot find any model weights at {missing}, which {index.name} names; copy that file too.")
    return files


def load_target(checkpoint: Checkpoint) -> TargetWeights:
    """All tensors of the main model."""
    c = checkpoint.config
    prefix = "model.language_model"
    packed = _is_fp4(checkpoint, f"{prefix}.layers.0.mlp.experts")
    check_quantization(checkpoint.directory, packed)
    embedding = checkpoint.get(f"{prefix}.embed_tokens.weight", c.vocab_size, c.hidden_size)
    head = embedding if c.tie_word_embeddings else checkpoint.get("lm_head.weight", c.vocab_size, c.hidden_size)
    return TargetWeights(
        embedding=embedding.to(checkpoint.dtype),
        layers=[_layer(checkpoint, f"{prefix}.layers.{n}", c.is_full_attention(n)) for n in range(c.num_hidden_layers)],
        norm=checkpoint.norm(f"{prefix}.norm.weight", c.hidden_size),
        head=checkpoint.matrix(head),
        fp4=packed,
    )


def load_mtp(checkpoint: Checkpoint) -> MtpWeights:
    """The `mtp.*` tensors."""
    c = checkpoint.config
    if "mtp.fc.weight" not in checkpoint:
        raise InputError(
            f"Weight mtp.fc.weight is missing in {checkpoint.directory}, so there is no MTP layer to draft with; leave "
            "out --speculative-algorithm, or name a directory that has one with --speculative-draft-model-path."
        )
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
    pairs = rotary_pairs(c)
    query = ck.get(f"{prefix}.q_proj.weight", 2 * heads * dim, hidden).view(heads, 2, dim, hidden)
    key = ck.get(f"{prefix}.k_proj.weight", kv_heads * dim, hidden).view(kv_heads, dim, hidden)[:, pairs]
    value = ck.get(f"{prefix}.v_proj.weight", kv_heads * dim, hidden)
    flat = (heads * dim, hidden)
    norms = (
        ck.norm(f"{prefix}.q_norm.weight", dim)[pairs].expand(heads, dim) / math.sqrt(dim),
        ck.norm(f"{prefix}.k_norm.weight", dim)[pairs].expand(kv_heads, dim),
    )
    return AttentionWeights(
        qkvg=ck.matrix(query[:, 0, pairs].reshape(flat), key.flatten(0, 1), value, query[:, 1].reshape(flat)),
        qk_norm=torch.cat(norms),
        out=ck.matrix(ck.get(f"{prefix}.o_proj.weight", hidden, heads * dim)),
    )


def rotary_pairs(config: TextConfig) -> Tensor:
    """[head_dim] an order in which values that rotate together are neighbours. Scores do not depend on the order, as
    long as queries and keys have the same."""
    half = config.rotary_dim // 2
    turning = torch.arange(config.rotary_dim).view(2, half).t().flatten()
    return torch.cat([turning, torch.arange(config.rotary_dim, config.head_dim)])


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
        bias=torch.cat([ck.get(f"{prefix}.dt_bias", heads), torch.zeros(heads)]),
        norm=ck.get(f"{prefix}.norm.weight", c.linear_value_head_dim) * math.sqrt(c.linear_value_head_dim),
        out=ck.matrix(ck.get(f"{prefix}.out_proj.weight", hidden, c.value_dim)),
    )


def _moe(ck: Checkpoint, prefix: str) -> MoeWeights:
    c = ck.config
    hidden, shared = c.hidden_size, c.shared_expert_intermediate_size
    name = f"{prefix}.shared_expert"
    return MoeWeights(
        entry=ck.matrix(
            ck.get(f"{prefix}.gate.weight", c.num_experts, hidden),
            ck.get(f"{prefix}.shared_expert_gate.weight", 1, hidden),
            ck.get(f"{name}.gate_proj.weight", shared, hidden),
            ck.get(f"{name}.up_proj.weight", shared, hidden),
        ),
        shared_down=ck.matrix(ck.get(f"{name}.down_proj.weight", hidden, shared)),
        experts=_experts(ck, f"{prefix}.experts"),
    )


def _experts(ck: Checkpoint, prefix: str) -> Experts:
    c = ck.config
    count, inner, hidden = c.num_experts, c.moe_intermediate_size, c.hidden_size
    if _is_fp4(ck, prefix):
        shapes = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
        gate, up, down = (
            [ck.stored(f"{prefix}.{n}.{name}", *shape) for n in range(count)] for name, shape in shapes.items()
        )
        packed = pack(list(zip(gate, up, down, strict=True)))
        return packed if ck.fp4_at_use else expand(packed, ck.dtype)
    gate_up = ck.get(f"{prefix}.gate_up_proj", count, 2 * inner, hidden)
    return DenseExperts(
        gate_up=gate_up.transpose(1, 2).to(ck.dtype).contiguous(),
        out=ck.get(f"{prefix}.down_proj", count, hidden, inner).transpose(1, 2).to(ck.dtype).contiguous(),
    )


def _is_fp4(ck: Checkpoint, prefix: str) -> bool:
    """Plain experts are stacked in one tensor; those in NVFP4 stand one by one."""
    return any(f"{prefix}.0.gate_proj.{part}" in ck for part in ("weight", "weight_scale"))


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
