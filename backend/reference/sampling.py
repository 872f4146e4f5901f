"""From logits to tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from backend.reference.request import Request, SamplingParams


def forbid_early_end(logits: Tensor, request: Request, ends: Sequence[int]) -> None:
    """In `logits` [T, V] of the next T tokens, rule out `ends` where the output would be below min_new_tokens."""
    missing = request.params.min_new_tokens - len(request.output)
    if missing > 0:
        logits[:missing, list(ends)] = float("-inf")


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """[T, V] logits to the distributions that are sampled: temperature, then top-k, then top-p."""
    scaled = logits / params.temperature
    if 0 < params.top_k < scaled.shape[-1]:
        floor = scaled.topk(params.top_k, -1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < floor, float("-inf"))
    result = scaled.softmax(-1)
    if params.top_p < 1.0:
        ordered, places = result.sort(-1, descending=True)
        beyond = ordered.cumsum(-1) - ordered >= params.top_p
        beyond[..., 0] = False  # a top_p that float32 rounds to 0 keeps the best token too
        result = result.scatter(-1, places, ordered.masked_fill(beyond, 0.0))
        result = result / result.sum(-1, keepdim=True)
    return result


def sample(distribution: Tensor, generator: torch.Generator) -> int:
    """One token from a distribution [V], which need not be normalised."""
    return int(torch.multinomial(distribution, 1, generator=generator))
