"""Dimensions of a Qwen3.5-MoE text model, read from a Hugging Face `config.json`. No torch here.

What the numbers of a checkpoint mean, in one place for the trainer and for the engine:

- Norms `input_layernorm`, `post_attention_layernorm`, `q_norm`, `k_norm`, `norm` and the three norms of `mtp.*` are
  stored zero-centred: the factor applied is `1 + weight`. Only `linear_attn.norm` multiplies by `weight` itself,
  followed by `silu(z)`.
- `q_proj` has, for each head in turn, `head_dim` rows of the query and then `head_dim` rows of its output gate. The
  attention output is multiplied by `sigmoid(gate)` before `o_proj`. `q_norm`/`k_norm` work per head, before RoPE.
- RoPE turns the first `rotary_dim` values of a head, first half against second half; the rest passes. With text alone
  the three position streams of `mrope_section` are equal, so it is plain RoPE.
- `in_proj_qkv` rows are all query heads, all key heads, all value heads. `conv1d.weight` is [conv_dim, 1, kernel], the
  last tap is the present token; SiLU follows. Query and key are L2-normalised per head (eps 1e-6), the query is then
  scaled by `linear_key_head_dim ** -0.5`; key heads repeat to match the value heads.
- Log decay of a value head: `-exp(A_log) * softplus(in_proj_a(x) + dt_bias)`; write strength `sigmoid(in_proj_b(x))`.
- Router: softmax over all experts, then the top k renormalised to sum 1. `experts.gate_up_proj` is [E, 2I, H] with the
  gate rows first. The shared expert is always on, times `sigmoid(shared_expert_gate(x))`.
- MTP entry t joins the embedding of token t+1 and the main model's hidden state t (after the final norm):
  `fc(cat(pre_fc_norm_embedding(e), pre_fc_norm_hidden(h)))`, one full-attention layer at position t, `mtp.norm`, the
  shared `lm_head`; it predicts token t+2. Re-applied, its own normed output takes the place of h, at position t+1.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from backend.errors import InputError
from backend.files import read_json_object

# Dimensions that have no sensible value to assume when a configuration lacks them.
_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "full_attention_interval",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)


@dataclass(frozen=True)
class TextConfig:
    """Dimensions under the names of `config.json`'s `text_config`; the defaults are the shipped checkpoint's."""

    vocab_size: int = 1024
    hidden_size: int = 192
    num_hidden_layers: int = 12
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    partial_rotary_factor: float = 0.25
    rope_theta: float = 10_000.0
    linear_num_key_heads: int = 1
    linear_num_value_heads: int = 2
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    num_experts: int = 4
    num_experts_per_tok: int = 3
    moe_intermediate_size: int = 192
    shared_expert_intermediate_size: int = 128
    mtp_num_hidden_layers: int = 1
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = (2, 0)
    """Tokens that end a generation: `generation_config.json` if it says, else `text_config.eos_token_id`."""

    @property
    def rotary_dim(self) -> int:
        """How many leading values of a head RoPE turns."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def key_dim(self) -> int:
        """Width of all delta-net keys together (and of the queries)."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """Width of all delta-net values together."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the short convolution: queries, keys, values."""
        return 2 * self.key_dim + self.value_dim

    def is_full_attention(self, layer: int) -> bool:
        """Whether main layer `layer` (from 0) is full attention; the others are gated delta-nets."""
        return (layer + 1) % self.full_attention_interval == 0

    @classmethod
    def from_dir(cls, path: str | Path) -> Self:
        """Read the checkpoint directory `path`.

        Raises InputError when `config.json` is missing or unreadable, describes another architecture, or lacks a field.
        """
        directory = Path(path)
        config = _read_json(directory / "config.json")
        text = config.get("text_config")
        if not isinstance(text, dict) or text.get("model_type") != "qwen3_5_moe_text":
            raise InputError(
                f"{directory / 'config.json'} does not describe a Qwen3.5-MoE model "
                f"(architectures {config.get('architectures')!r}); choose a directory whose text_config.model_type is "
                "'qwen3_5_moe_text'."
            )
        generation_file = directory / "generation_config.json"
        generation = _read_json(generation_file) if generation_file.exists() else {}
        try:
            return cls(**_fields(text, generation))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{directory / 'config.json'}: text_config lacks or garbles {error}; copy it anew."
            ) from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return read_json_object(file)
    except FileNotFoundError as error:
        raise InputError(f"{file} is missing; name a checkpoint directory that holds it.") from error


def _fields(text: dict[str, Any], generation: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments from `text_config` and `generation_config.json`. Raises KeyError, TypeError, ValueError."""
    rope = text["rope_parameters"]
    if not isinstance(rope, dict):
        raise TypeError(f"rope_parameters, which is {rope!r} and no object")
    eos = generation.get("eos_token_id", text.get("eos_token_id", []))
    return {
        **{name: _positive(text, name) for name in _REQUIRED},
        "partial_rotary_factor": float(rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25))),
        "rope_theta": float(rope["rope_theta"]),
        "mtp_num_hidden_layers": int(text.get("mtp_num_hidden_layers", 0)),
        "rms_norm_eps": float(text.get("rms_norm_eps", 1e-6)),
        "max_position_embeddings": _positive({"max_position_embeddings": 32_768, **text}, "max_position_embeddings"),
        "tie_word_embeddings": bool(text.get("tie_word_embeddings", False)),
        "eos_token_ids": tuple(int(token) for token in (eos if isinstance(eos, list) else [eos])),
    }


def _positive(text: dict[str, Any], name: str) -> int:
    """A dimension. Raises KeyError, and ValueError for what is no positive integer."""
    value = text[name]
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}, which is {value!r} and no positive integer")
    return value
