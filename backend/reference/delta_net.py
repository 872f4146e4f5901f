"""Gated delta-net: the linear-attention layers.

Per value head the state S [dk, dv] follows, with decay a_t = exp(g_t) and write strength b_t,
    S_t = a_t S_{t-1} + k_t v'_t,    v'_t = b_t (v_t - k_t (a_t S_{t-1})),    o_t = q_t S_t.
Several tokens are done at once: with G the running sum of g, the v' solve a unit lower triangular system, and
    S_n = exp(G_n) S_0 + sum_{j<=n} exp(G_n - G_j) k_j v'_j.
As no v'_j depends on later tokens, keeping k, v' and the decays of a verified block lets the state be advanced by any
number of its tokens afterwards: the rollback of speculative decoding is exact and needs no state per token.
Exponents are always differences G_i - G_j <= 0, masked before exp, so nothing overflows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from backend.reference.config import TextConfig
from backend.reference.ops import add_linear, causal_mask, linear, norm_with_floor, rms_norm
from backend.reference.weights import DeltaNetWeights
from backend.thresholds import DELTA_NET_CHUNK_TOKENS

_TABLE_TOKENS = 8  # of a block whose decays come from a table, which grows with the cube of it
_NORM_EPS = 1e-6  # of the L2 norm of queries and keys, as in the model's definition


@dataclass(frozen=True)
class Projected:
    """Inputs of the recurrence for B sequences of T tokens, heads already repeated: BH = B * value heads.

    `qk` [BH, T, 2, dk] each token's query and key, `v` [BH, T, dv], `decay` [BH, T] the log decay, `beta` [BH, T, 1].
    """

    qk: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor


def project(
    config: TextConfig, weights: DeltaNetWeights, x: Tensor, before: Tensor, window: Tensor
) -> tuple[Projected, Tensor]:
    """From the normed input `x` [B*T, H] to the recurrence's inputs and `z` [B*T, value heads, dv].

    `before` [B, K - 1, conv_dim] are the last inputs of the convolution; `window` [B, K - 1 + T, conv_dim] receives
    them and the new ones behind them.
    """
    c = config
    batch, heads = before.shape[0], c.linear_num_value_heads
    tokens = x.shape[0] // batch
    mixed, z, rates = linear(x, weights.in_proj).split_with_sizes([c.conv_dim, c.value_dim, 2 * heads], 1)
    torch.cat([before, mixed.view(batch, tokens, c.conv_dim)], 1, out=window)
    mixed = F.silu(_convolve(window, weights.conv))
    qk, v = mixed.split_with_sizes([2 * c.key_dim, c.value_dim], 2)
    qk = qk.view(batch, tokens, 2, c.linear_num_key_heads, c.linear_key_head_dim)
    qk = (qk / norm_with_floor(qk, _NORM_EPS)).permute(0, 3, 1, 2, 4)
    if heads != c.linear_num_key_heads:  # each key head serves several value heads
        qk = qk.unsqueeze(2).expand(-1, -1, heads // c.linear_num_key_heads, -1, -1, -1)
    decay, beta = (rates + weights.bias).split_with_sizes([heads, heads], 1)
    decay, beta = F.softplus(decay) * weights.rate, torch.sigmoid(beta)
    if tokens > 1:
        v = v.view(batch, tokens, heads, -1).transpose(1, 2)
        decay, beta = (part.view(batch, tokens, heads).transpose(1, 2) for part in (decay, beta))
    inputs = Projected(
        qk=qk.reshape(batch * heads, tokens, 2, c.linear_key_head_dim),
        v=v.reshape(batch * heads, tokens, -1),
        decay=decay.reshape(batch * heads, tokens),
        beta=beta.reshape(batch * heads, tokens, 1),
    )
    return inputs, z.view(-1, heads, c.linear_value_head_dim)


def _convolve(window: Tensor, taps: Tensor) -> Tensor:
    """Each channel of `window` [B, K - 1 + T, channels] with its own `taps` [K, channels]: [B, T, channels]."""
    tokens = window.shape[1] - taps.shape[0] + 1
    if tokens == 1:
        return (window * taps).sum(1, keepdim=True)
    result = window[:, :tokens] * taps[0]
    for n in range(1, taps.shape[0]):
        result.addcmul_(window[:, n : n + tokens], taps[n])
    return result


def step(inputs: Projected, state: Tensor) -> Tensor:
    """One token: advances `state` [BH, dk, dv] in place and returns o [BH, 1, dv]."""
    query, key = inputs.qk.unbind(2)
    state.mul_(inputs.decay.exp()[..., None])
    written = (inputs.v - torch.bmm(key, state)) * inputs.beta
    state.baddbmm_(key.transpose(1, 2), written)
    return torch.bmm(query, state)


def decays(decay: Tensor, out: Tensor | None = None) -> Tensor:
    """From log decays g [BH, T] to [BH, T, 1 + T]: for each token i, exp(G_i) and then exp(G_i - G_j), 0 for j > i.

    For few tokens the differences come from one product with a table of ones and zeros.
    """
    heads, tokens = decay.shape
    if tokens <= _TABLE_TOKENS:
        ones, mask = _difference_table(tokens)
        return torch.exp(torch.addmm(mask, decay, ones).view(heads, tokens, 1 + tokens), out=out)
    summed = decay.cumsum(-1)
    between = (summed[:, :, None] - summed[:, None, :]).add_(causal_mask(tokens))
    return torch.exp(torch.cat([summed[:, :, None], between], -1), out=out)


@lru_cache
def _difference_table(tokens: int) -> tuple[Tensor, Tensor]:
    """[T, T*(1+T)] of ones where g_l is part of a sum, and the mask [T*(1+T)] of the sums that are left out."""
    place = torch.arange(tokens)
    upto = place[:, None] <= place  # [l, i]
    behind = place[:, None, None] > place  # [l, 1, j]: of G_i - G_j only the g_l behind j are left
    ones = torch.cat([upto[:, :, None], upto[:, :, None] & behind], -1).float()
    mask = torch.cat([torch.zeros(tokens, 1), causal_mask(tokens)], -1)
    return ones.view(tokens, -1), mask.view(-1)


def block(inputs: Projected, state: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Several tokens from `state` [BH, dk, dv], which is left as it is.

    Returns o [BH, T, dv], v' [BH, T, dv] and `decays` [BH, T, 1 + T] (in `out`, if given).
    """
    heads, tokens, _, width = inputs.qk.shape
    passed = decays(inputs.decay, out)
    since_start, between = passed[:, :, None].split_with_sizes([1, tokens], 3)
    both = inputs.qk.reshape(heads, 2 * tokens, width)
    scores = torch.bmm(both, inputs.qk[:, :, 1].transpose(1, 2)).view(heads, tokens, 2, tokens) * between
    carried = torch.bmm(both, state).view(heads, tokens, 2, -1) * since_start
    query_scores, key_scores = scores.unbind(2)
    query_carried, key_carried = carried.unbind(2)
    # Only the strict lower part of the matrix is read, so its diagonal need not be cleared.
    written = torch.linalg.solve_triangular(
        key_scores * inputs.beta, (inputs.v - key_carried) * inputs.beta, upper=False, unitriangular=True
    )
    return torch.baddbmm(query_carried, query_scores, written), written, passed


def advance(state: Tensor, passed: Tensor, key: Tensor, written: Tensor) -> None:
    """Move `state` [BH, dk, dv] in place to behind a token: `passed` [BH, 1 + T] is its row of `decays`; `key`
    [BH, T, dk] and `written` [BH, T, dv] are the block's."""
    decayed, left = passed.split_with_sizes([1, key.shape[1]], 1)
    state.mul_(decayed.unsqueeze(2))
    state.baddbmm_((key * left.unsqueeze(2)).transpose(1, 2), written)


def prefill(inputs: Projected, state: Tensor, passed: Callable[[int], None] | None = None) -> Tensor:
    """A whole prompt chunk: advances `state` in place and returns o [BH, T, dv]. Calls `passed` with the number of
    tokens that the state has seen each time it has seen more."""
    results = []
    for first in range(0, inputs.v.shape[1], DELTA_NET_CHUNK_TOKENS):
        part = slice(first, first + DELTA_NET_CHUNK_TOKENS)
        chunk = Projected(inputs.qk[:, part], inputs.v[:, part], inputs.decay[:, part], inputs.beta[:, part])
        result, written, passed_here = block(chunk, state)
        advance(state, passed_here[:, -1], chunk.qk[:, :, 1], written)
        results.append(result)
        if passed is not None:
            passed(min(part.stop, inputs.v.shape[1]))
    return torch.cat(results, 1)


def output(config: TextConfig, weights: DeltaNetWeights, o: Tensor, z: Tensor, batch: int, residual: Tensor) -> Tensor:
    """Gated norm and output projection: o [BH, T, dv], z [B*T, heads, dv] to residual + output, [B*T, H]."""
    heads, width = config.linear_num_value_heads, config.linear_value_head_dim
    tokens = o.shape[1]
    rows = o.view(batch, heads, tokens, width).transpose(1, 2).reshape(-1, heads, width)
    # The queries' scale of 1/sqrt(dk) cancels in the norm, except against eps.
    normed = rms_norm(rows, weights.norm, config.rms_norm_eps * config.linear_key_head_dim)
    return add_linear(residual, normed.mul_(F.silu(z)).reshape(-1, heads * width), weights.out)
