"""`python -m backend.reference.training.random_checkpoint DIR`: a checkpoint with random weights, for tests."""

import argparse
import json
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer

from backend.reference.config import TextConfig
from backend.reference.training.checkpoint import InputPeaks, Shape, is_quantised, tensor_shapes, write_checkpoint
from backend.reference.training.tokenizer import train_tokenizer

# Small enough for a test to run in milliseconds, and no two dimensions equal where a mix-up could hide.
TINY = TextConfig(
    vocab_size=384,
    hidden_size=48,
    num_hidden_layers=4,
    full_attention_interval=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    partial_rotary_factor=0.5,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=12,
    linear_value_head_dim=20,
    num_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=40,
    max_position_embeddings=4096,
)

RANDOM_INPUT_PEAK = 5.0  # a normal vector's largest value is about that; nothing here measures it


def random_weights(config: TextConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """FP32 weights of an untrained model in which every tensor matters (no norm at its neutral value)."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(name, shape, generator) for name, shape in tensor_shapes(config).items()}


def _random(name: str, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("A_log"):
        return torch.rand(shape, generator=generator).mul(7.5).add(0.5).log()
    if name.endswith("dt_bias"):
        return noise - 4.0
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.1 * noise
    if name.endswith("norm.weight") or "layernorm" in name or "pre_fc_norm" in name:
        return 0.1 * noise
    if name.endswith("embed_tokens.weight"):
        return 0.5 * noise
    return noise / math.sqrt(shape[-1])


def small_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` entries, trained on the source of the `json` package."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(Path(json.__file__).parent.glob("*.py"))]
    return train_tokenizer(texts, vocab_size)


def write_random_checkpoint(directory: Path, config: TextConfig = TINY, seed: int = 0, nvfp4: bool = False) -> None:
    """Write a complete checkpoint directory with random weights and a small tokenizer, in BF16 or the NVFP4 layout."""
    weights = random_weights(config, seed)
    peak = torch.full((config.num_experts,), RANDOM_INPUT_PEAK)
    layers = {name.rsplit(".", 1)[0] for name in weights if is_quantised(name)}
    peaks = {experts: InputPeaks(peak, peak) for experts in layers} if nvfp4 else None
    write_checkpoint(directory, config, weights, small_tokenizer(config.vocab_size), peaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full-size", action="store_true", help="the shipped checkpoint's dimensions")
    parser.add_argument("--nvfp4", action="store_true", help="routed experts in NVFP4, as the shipped checkpoint's")
    arguments = parser.parse_args()
    config = TextConfig() if arguments.full_size else TINY
    write_random_checkpoint(arguments.directory, config, arguments.seed, arguments.nvfp4)


if __name__ == "__main__":
    main()
