"""Documents about checkpoints: what the files of a model say, before anything is loaded."""

from typing import Literal

from backend.schema.base import Document


class Warned(Document):
    """Something about a checkpoint that is odd or wrong; `evidence` is the file, tensor or field that shows it."""

    code: str
    message: str
    evidence: str | None = None


class Quantization(Document):
    """How the weights say they are quantised. All None for a checkpoint that says nothing.

    `method` and `algo` are spelled as vendors spell them (`modelopt` and `NVFP4`, `compressed-tensors` and
    `nvfp4-pack-quantized`, `fp8` and `FP8`). `layers` is a mixed checkpoint's table from module to algorithm;
    `activations` tells W4A4 from weight-only: False means that activations stay wide.
    """

    method: str | None = None
    algo: str | None = None
    group_size: int | None = None
    exclude_modules: list[str] = []
    layers: dict[str, str] = {}
    activations: bool | None = None
    kv_cache: str | None = None
    source: str | None = None


class DtypeTotal(Document):
    """All tensors of one dtype."""

    tensors: int
    bytes: int


class Shards(Document):
    """Weight files: how many the index (or the numbering of their names) promises, are there, and which are not."""

    declared: int
    present: int
    missing: list[str]


PartOwner = Literal["target", "mtp", "vision"]
PartRole = Literal[
    "embed",
    "lm_head",
    "routed_experts",
    "shared_expert",
    "router",
    "attention",
    "linear_attention",
    "mlp",
    "joint",
    "norm",
    "other",
]


class Part(Document):
    """Tensors of one role. `joint` is what joins an embedding and a hidden state before an MTP layer (`fc`,
    `eh_proj`); `parameters` are logical, `bytes` with scales."""

    owner: PartOwner
    role: PartRole
    tensors: int
    parameters: int
    bytes: int
    dtypes: list[str]


class Dims(Document):
    """Dimensions as config.json gives them; None where it has no such field."""

    hidden_size: int | None = None
    layers: int | None = None
    full_attention_layers: int | None = None
    linear_attention_layers: int | None = None
    attention_heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    vocab_size: int | None = None
    intermediate_size: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    moe_intermediate_size: int | None = None
    shared_expert_intermediate_size: int | None = None
    linear_key_heads: int | None = None
    linear_value_heads: int | None = None
    linear_key_head_dim: int | None = None
    linear_value_head_dim: int | None = None
    linear_conv_kernel: int | None = None
    max_position_embeddings: int | None = None
    tied_embeddings: bool = False
    dtype: str | None = None
    ssm_dtype: str | None = None


class ShapeMismatch(Document):
    """An MTP tensor that has another shape than the configuration gives it."""

    tensor: str
    shape: list[int]
    expected: list[int]


MtpKind = Literal["mtp", "block_drafter", "unknown"]


class Mtp(Document):
    """The multi-token-prediction layers in a checkpoint.

    `declared_layers` is what config.json promises (None: no such field), `layers` what is stored. `complete` is None
    where there is nothing to be complete, or the layout is not known. `stored` says how the linear weights lie there;
    `why` in one sentence where that comes from. `covered` is False where the quantisation's exclude list would make an
    engine build packed what is stored wide; `uncovered` are those modules. `sources` maps files to numbers of tensors.
    """

    declared_layers: int | None = None
    declared_by: str | None = None
    layers: int = 0
    kind: MtpKind | None = None
    prefixes: list[str] = []
    tensors: int = 0
    experts: int | None = None
    parameters: int = 0
    bytes: int = 0
    dtypes: dict[str, DtypeTotal] = {}
    complete: bool | None = None
    missing: list[str] = []
    shape_mismatches: list[ShapeMismatch] = []
    sources: dict[str, int] = {}
    unindexed: int = 0
    stored: Literal["wide", "quantised", "mixed"] | None = None
    why: str | None = None
    covered: bool | None = None
    uncovered: list[str] = []
    own_embedding: bool = False
    own_head: bool = False


class Inspection(Document):
    """The document of `inspect`: a checkpoint directory as its files describe it. `parameters` are logical: a packed
    FP4 byte is two, scales are none. `bytes` is tensor data, headers not counted."""

    path: str
    architecture: str | None
    model_type: str | None
    quantization: Quantization
    parameters: int
    bytes: int
    tensors: int
    by_dtype: dict[str, DtypeTotal]
    parts: list[Part]
    shards: Shards
    dims: Dims
    mtp: Mtp
    warnings: list[Warned]
