"""Dimensions that are numbers but cannot be a model's. No torch here."""

from pathlib import Path

from backend.errors import InputError
from backend.reference.config import TextConfig
from backend.thresholds import CONTEXT_LENGTH_MAX_TOKENS


def check_config(config: TextConfig, file: Path) -> None:
    """Raises InputError naming the first dimensions of `file` that do not go together."""
    c = config
    wrong = {
        f"num_experts_per_tok={c.num_experts_per_tok} of num_experts={c.num_experts}": (
            c.num_experts_per_tok > c.num_experts
        ),
        f"num_attention_heads={c.num_attention_heads} shared by num_key_value_heads={c.num_key_value_heads}": bool(
            c.num_attention_heads % c.num_key_value_heads
        ),
        f"linear_num_value_heads={c.linear_num_value_heads} shared by linear_num_key_heads={c.linear_num_key_heads}": (
            bool(c.linear_num_value_heads % c.linear_num_key_heads)
        ),
        f"full_attention_interval={c.full_attention_interval} of num_hidden_layers={c.num_hidden_layers}": (
            c.full_attention_interval > c.num_hidden_layers
        ),
        f"partial_rotary_factor={c.partial_rotary_factor} of head_dim={c.head_dim}": (
            not 2 <= c.rotary_dim <= c.head_dim or c.rotary_dim % 2 == 1
        ),
        f"rope_theta={c.rope_theta}": not 0 < c.rope_theta < float("inf"),
        f"rms_norm_eps={c.rms_norm_eps}": not 0 <= c.rms_norm_eps < 1,
        f"max_position_embeddings={c.max_position_embeddings}, above {CONTEXT_LENGTH_MAX_TOKENS}": (
            c.max_position_embeddings > CONTEXT_LENGTH_MAX_TOKENS
        ),
        f"eos_token_id {list(c.eos_token_ids)} of vocab_size={c.vocab_size} (see generation_config.json too)": any(
            not 0 <= token < c.vocab_size for token in c.eos_token_ids
        ),
    }
    found = next((text for text, is_wrong in wrong.items() if is_wrong), None)
    if found is not None:
        raise InputError(f"{file} says {found}, which no model can have; copy it anew.")
