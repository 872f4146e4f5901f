"""Gated full attention over a KV pool in which each sequence owns one contiguous range of tokens.

Tokens of all sequences come packed as [N, hidden]; a Span says which sequence each run of tokens belongs to. Writing is
one operation for all of them, reading is a view per sequence: nothing is copied, padded or masked across sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.reference.config import TextConfig
from backend.reference.ops import add_linear, causal_mask, linear, rms_norm
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
    pool_index: Tensor | None  # [N] token of the pool that each new token is written to; None: the one span's own
    turn: Tensor  # [N, 1, head_dim/2] complex: the rotation of each pair of values, 1 where nothing turns


class Rotary:
    """Table of the rotary embedding for positions 0 … `length` - 1."""

    def __init__(self, config: TextConfig, length: int) -> None:
        dim = config.rotary_dim
        frequency = config.rope_theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angle = torch.zeros(length, config.head_dim // 2, dtype=torch.float64)
        angle[:, : dim // 2] = torch.arange(length, dtype=torch.float64)[:, None] * frequency
        self.turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)[:, None]

    def at(self, spans: Sequence[Span]) -> Positions:
        """Positions of packed tokens; the position of a token is its place in its sequence."""
        if len(spans) == 1:
            span = spans[0]
            return Positions(spans, None, self.turn[span.past : span.past + span.count])
        places = torch.tensor([span.past + n for span in spans for n in range(span.count)])
        index = torch.tensor([span.start + span.past + n for span in spans for n in range(span.count)])
        return Positions(spans, index, self.turn.index_select(0, places))


def rotate(x: Tensor, positions: Positions) -> Tensor:
    """Turn `x` [N, heads, head_dim], pairs side by side, by position."""
    count, heads, dim = x.shape
    pairs = torch.view_as_complex(x.view(count, heads, dim // 2, 2))
    return torch.view_as_real(pairs * positions.turn).view(count, heads, dim)


def attention(
    config: TextConfig,
    weights: AttentionWeights,
    x: Tensor,
    residual: Tensor,
    positions: Positions,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """`x` [N, H] normed input; `keys`, `values` [kv heads, pool tokens, head_dim] of this layer, written and read.

    Returns residual + output, [N, H].
    """
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    count = x.shape[0]
    turning, new_values, gate = linear(x, weights.qkvg).split_with_sizes(
        [(heads + kv_heads) * dim, kv_heads * dim, heads * dim], -1
    )
    turning = turning.view(count, heads + kv_heads, dim)
    turning = rotate(rms_norm(turning, weights.qk_norm, config.rms_norm_eps), positions)
    queries, new_keys = turning.split_with_sizes([heads, kv_heads], 1)
    _write(positions, keys, new_keys.transpose(0, 1))
    _write(positions, values, new_values.view(count, kv_heads, dim).transpose(0, 1))
    if len({span.count for span in positions.spans}) == 1:
        mixed = _attend(queries, keys, values, positions.spans, kv_heads)
    else:
        parts = queries.split_with_sizes([span.count for span in positions.spans])
        mixed = torch.cat(
            [_attend(part, keys, values, [span], kv_heads) for part, span in zip(parts, positions.spans, strict=True)]
        )
    return add_linear(residual, mixed * torch.sigmoid(gate), weights.out)


def remember(
    config: TextConfig, weights: AttentionWeights, x: Tensor, positions: Positions, keys: Tensor, values: Tensor
) -> None:
    """Write the keys and values of `x` [N, H], as `attention` does, for tokens whose own output nobody needs."""
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    wide = kv_heads * dim
    new = linear(x, weights.qkvg[:, heads * dim : heads * dim + 2 * wide])
    new_keys, new_values = (part.view(-1, kv_heads, dim) for part in new.split_with_sizes([wide, wide], 1))
    new_keys = rotate(rms_norm(new_keys, weights.qk_norm[heads:], config.rms_norm_eps), positions)
    _write(positions, keys, new_keys.transpose(0, 1))
    _write(positions, values, new_values.transpose(0, 1))


def _write(positions: Positions, pool: Tensor, new: Tensor) -> None:
    """`new` [kv heads, N, head_dim] to its places in `pool`."""
    if positions.pool_index is not None:
        pool.index_copy_(1, positions.pool_index, new)
        return
    span = positions.spans[0]
    first = span.start + span.past
    pool[:, first : first + span.count] = new


def _attend(queries: Tensor, keys: Tensor, values: Tensor, spans: Sequence[Span], kv_heads: int) -> Tensor:
    """Queries [B*T, heads, dim] of B sequences over their keys so far; returns [B*T, heads*dim].

    The loop over sequences has only what differs between them: each reads its own range of the pool, uncopied.
    """
    total, heads, dim = queries.shape
    batch = len(spans)
    count, shared = total // batch, heads // kv_heads  # `shared` query heads per key head
    rows = queries.view(batch, count, kv_heads, shared, dim).permute(0, 2, 3, 1, 4)
    rows = rows.reshape(batch, kv_heads, shared * count, dim)
    results = []
    for row, span in zip(rows.unbind(), spans, strict=True):
        past = span.past
        until = span.start + past + count
        scores = torch.bmm(row, keys[:, span.start : until].transpose(1, 2))
        if count > 1:
            scores.view(kv_heads, shared, count, -1)[..., past:].add_(causal_mask(count))
        results.append(torch.bmm(scores.softmax(-1), values[:, span.start : until]))
    mixed = results[0] if batch == 1 else torch.cat(results)
    mixed = mixed.view(batch, kv_heads, shared, count, dim).permute(0, 3, 1, 2, 4)
    return mixed.reshape(total, heads * dim)
