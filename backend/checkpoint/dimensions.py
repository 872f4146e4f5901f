"""Dimensions and declarations in a config.json. Wrappers of multimodal models keep the language model's in a nested
object; then all of them come from there."""

from collections.abc import Mapping, Sequence
from typing import Any

from backend.schema.checkpoint import Dims, Warned

NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
MTP_FIELDS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers", "n_predict")
LARGEST = 10**9  # of any dimension: more is a damaged file

# Field of Dims and its spellings, the most specific first.
_NUMBERS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "attention_heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "num_attention_groups"),
    "head_dim": ("head_dim", "attention_head_dim"),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "vocab_size": ("vocab_size",),
    "intermediate_size": ("intermediate_size", "n_inner"),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_top_k", "num_experts_per_token"),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "shared_expert_intermediate_size": ("shared_expert_intermediate_size", "share_expert_dim"),
    "linear_key_heads": ("linear_num_key_heads",),
    "linear_value_heads": ("linear_num_value_heads",),
    "linear_key_head_dim": ("linear_key_head_dim",),
    "linear_value_head_dim": ("linear_value_head_dim",),
    "linear_conv_kernel": ("linear_conv_kernel_dim",),
    "max_position_embeddings": ("max_position_embeddings",),
}


def language_config(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The object with the language model's dimensions, and its name (empty for the top level)."""
    if isinstance(config.get("num_hidden_layers"), int):
        return config, ""
    for name in NESTED:
        nested = config.get(name)
        if isinstance(nested, dict):
            inner, deeper = language_config(nested)
            return inner, f"{name}.{deeper}" if deeper else name
    return config, ""


def read_dims(config: Mapping[str, Any], warnings: list[Warned]) -> Dims:
    """What the configuration says; a value that no model can have is told and left out."""
    own, where = language_config(config)
    values: dict[str, Any] = {}
    for field, spellings in _NUMBERS.items():
        for spelling in spellings:
            if own.get(spelling) is None:
                continue
            value = own[spelling]
            if type(value) is int and 0 <= value <= LARGEST:
                values[field] = value
            else:
                place = f"{where}.{spelling}" if where else spelling
                message = f"config.json says {place} {str(value)[:60]!r}, which is no size; ignored"
                warnings.append(Warned(code="config_value", message=message, evidence=place))
            break
    kinds = _layer_kinds(own, values.get("layers"))
    if kinds is not None:
        values["full_attention_layers"], values["linear_attention_layers"] = kinds
    tied = own.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    return Dims(
        **values,
        tied_embeddings=tied is True,
        dtype=_word(own, "dtype", "torch_dtype") or _word(config, "dtype", "torch_dtype"),
        ssm_dtype=_word(own, "mamba_ssm_dtype", "mamba_ssm_cache_dtype"),
    )


def _word(config: Mapping[str, Any], *names: str) -> str | None:
    return next((config[name] for name in names if isinstance(config.get(name), str)), None)


def _layer_kinds(config: Mapping[str, Any], layers: int | None) -> tuple[int, int] | None:
    """Numbers of full-attention and of linear-attention layers; None where the configuration does not tell."""
    if layers is None:
        return None
    interval = config.get("full_attention_interval")
    if type(interval) is int and interval > 0:
        return layers // interval, layers - layers // interval
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.count("*"), pattern.count("M")
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) >= layers:
        linear = sum(isinstance(kind, str) and "linear" in kind for kind in types[:layers])
        return layers - linear, linear
    return layers, 0


def full_attention_layer(config: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer of the main model has full attention."""
    own, _ = language_config(config)
    interval, types = own.get("full_attention_interval"), own.get("layer_types")
    if type(interval) is int and interval > 0:
        return (layer + 1) % interval == 0
    if isinstance(types, list) and layer < len(types):
        return "linear" not in str(types[layer])
    return True


def declared_mtp(config: Mapping[str, Any], warnings: list[Warned]) -> tuple[int | None, str | None]:
    """How many MTP layers config.json promises, and by which field. The top level counts first."""
    found: list[tuple[str, int]] = []
    for place, part in _levels(config):
        for name in MTP_FIELDS:
            value = part.get(name)
            if value is None:
                continue
            if type(value) is int and 0 <= value <= LARGEST:
                found.append((f"{place}{name}", value))
            else:
                message = f"config.json says {place}{name} {str(value)[:60]!r}, which is no number of layers; ignored"
                warnings.append(Warned(code="config_value", message=message, evidence=f"{place}{name}"))
    if len({value for _, value in found}) > 1:
        said = ", ".join(f"{name} {value}" for name, value in found)
        warnings.append(
            Warned(
                code="mtp_declarations_differ",
                message=f"config.json contradicts itself about MTP layers: {said}; the first counts",
                evidence=found[0][0],
            )
        )
    return (found[0][1], found[0][0]) if found else (None, None)


def _levels(config: Mapping[str, Any]) -> Sequence[tuple[str, Mapping[str, Any]]]:
    nested = [(f"{name}.", config[name]) for name in NESTED if isinstance(config.get(name), dict)]
    return [("", config), *nested]
