"""Gated full attention over a KV pool in which each sequence owns one contiguous range of tokens.

Tokens of all sequences come packed as [N, hidden]; a Span says which sequence each run of tokens belongs to. Writing is
one operation for all of them, reading is a view per sequence: nothing is copied, padded or masked across sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.reference.config import TextConfig
from backend.reference.ops import causal_mask, linear, rms_norm
from backend.reference.weights import AttentionWeights


@dataclass(frozen=True)
class Span:
    """`count` new tokens of one sequence that has `past` tokens in the pool from token `start` on."""

    start: int
    past: int
    count: int


@dataclass(frozen=True)
class Positions:
    """What one forward needs to know about its packed tokens, computed once and used by every layer."""

    spans: Sequence[Span]
    pool_index: Tensor  # [N] token of the pool that each new token is written to
    cos: Tensor  # [N, 1, head_dim], 1 where nothing turns
    sin: Tensor  # [N, 1, head_dim], 0 where nothing turns, negated in the first half of the turning part
    partner: Tensor  # [head_dim] the value that each one turns with


class Rotary:
    """Tables of the rotary embedding for positions 0 … `length` - 1."""

    def __init__(self, config: TextConfig, length: int) -> None:
        dim = config.rotary_dim
        frequency = config.rope_theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
        still = torch.zeros(length, config.head_dim - dim)
        self.cos = torch.cat([angle.cos(), angle.cos(), still + 1], -1).float()[:, None]
        self.sin = torch.cat([-angle.sin(), angle.sin(), still], -1).float()[:, None]
        turning = torch.arange(dim).roll(dim // 2)
        self.partner = torch.cat([turning, torch.arange(dim, config.head_dim)])

    def at(self, spans: Sequence[Span]) -> Positions:
        """Positions of packed tokens; the position of a token is its place in its sequence."""
        if len(spans) == 1:
            span = spans[0]
            first = slice(span.past, span.past + span.count)
            index = torch.arange(span.start + span.past, span.start + span.past + span.count)
            return Positions(spans, index, self.cos[first], self.sin[first], self.partner)
        places = torch.tensor([span.past + n for span in spans for n in range(span.count)])
        index = torch.tensor([span.start + span.past + n for span in spans for n in range(span.count)])
        return Positions(spans, index, self.cos[places], self.sin[places], self.partner)


def rotate(x: Tensor, positions: Positions) -> Tensor:
    """Turn `x` [N, heads, head_dim] by position."""
    return torch.addcmul(x * positions.cos, x.index_select(-1, positions.partner), positions.sin)


def attention(
    config: TextConfig, weights: AttentionWeights, x: Tensor, positions: Positions, keys: Tensor, values: Tensor
) -> Tensor:
    """`x` [N, H] normed input; `keys`, `values` [kv heads, pool tokens, head_dim] of this layer, written and read.

    Returns [N, H].
    """
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    count = x.shape[0]
    query_width, kv_width = heads * dim, kv_heads * dim
    projected = linear(x, weights.qkvg)
    turning = projected[:, : query_width + kv_width].view(count, heads + kv_heads, dim)
    turning = rotate(rms_norm(turning, weights.qk_norm, config.rms_norm_eps), positions)
    new_values = projected[:, query_width + kv_width : query_width + 2 * kv_width].view(count, kv_heads, dim)
    keys.index_copy_(1, positions.pool_index, turning[:, heads:].transpose(0, 1))
    values.index_copy_(1, positions.pool_index, new_values.transpose(0, 1))
    queries = turning[:, :heads]
    results = []
    offset = 0
    for span in positions.spans:
        until = offset + span.count
        results.append(_attend(queries[offset:until], keys, values, span, kv_heads))
        offset = until
    mixed = results[0] if len(results) == 1 else torch.cat(results)
    return linear(mixed * torch.sigmoid(projected[:, query_width + 2 * kv_width :]), weights.out)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, span: Span, kv_heads: int) -> Tensor:
    """Queries [T, heads, dim] of one sequence over its keys so far; returns [T, heads*dim]."""
    count, heads, dim = queries.shape
    shared = heads // kv_heads  # query heads per key head
    total = span.past + span.count
    own = slice(span.start, span.start + total)
    rows = queries.view(count, kv_heads, shared, dim).permute(1, 2, 0, 3).reshape(kv_heads, shared * count, dim)
    scores = torch.bmm(rows, keys[:, own].transpose(1, 2))
    if count > 1:
        scores.view(kv_heads, shared, count, total)[..., span.past :].add_(causal_mask(count))
    result = torch.bmm(scores.softmax(-1), values[:, own])
    return result.view(kv_heads, shared, count, dim).permute(2, 0, 1, 3).reshape(count, heads * dim)
