"""Mixture of experts with a shared expert, in two forms that do the same sum in different ways."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from backend.reference.config import TextConfig
from backend.reference.ops import linear
from backend.reference.weights import MoeWeights
from backend.thresholds import MOE_DENSE_LIMIT_TOKENS, MOE_LOOP_LIMIT_TOKENS

Runner = Callable[[TextConfig, MoeWeights, Tensor], Tensor]


def route(config: TextConfig, weights: MoeWeights, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [N, k] (sum 1) and indices [N, k] of the chosen experts, and the shared expert's gate [N, 1].

    The softmax over the k best logits equals the softmax over all experts, cut to the k best and renormalised.
    """
    logits = linear(x, weights.router)
    best, chosen = logits[:, : config.num_experts].topk(config.num_experts_per_tok, -1)
    return best.softmax(-1), chosen, torch.sigmoid(logits[:, config.num_experts :])


def _table(config: TextConfig, weights: MoeWeights, x: Tensor) -> tuple[Tensor, Tensor]:
    """The weight of every piece for every token [N, pieces], 0 where not chosen, and the indices chosen [N, k]."""
    share, chosen, shared_gate = route(config, weights, x)
    table = x.new_zeros(x.shape[0], weights.down.shape[0])
    table[:, config.num_experts :] = shared_gate
    return table.scatter_(1, chosen, share), chosen


def loop(config: TextConfig, weights: MoeWeights, x: Tensor) -> Tensor:
    """One expert after the other, those that some token chose and the shared one: all tokens pass, others count 0."""
    table, chosen = _table(config, weights, x)
    pieces = {*chosen.flatten().tolist(), *range(config.num_experts, weights.down.shape[0])}
    result = torch.zeros_like(x)
    for piece in sorted(pieces):
        result.addcmul_(_expert(weights, piece, x), table[:, piece : piece + 1])
    return result


def _expert(weights: MoeWeights, piece: int, x: Tensor) -> Tensor:
    """All of `x` through one piece."""
    up_weight, down_weight = weights.pieces[piece]
    gate, up = linear(x, up_weight).chunk(2, -1)
    return linear(F.silu(gate) * up, down_weight)


def grouped(config: TextConfig, weights: MoeWeights, x: Tensor) -> Tensor:
    """All experts at once: one wide product for few tokens, one grouped product over sorted tokens for many."""
    if x.shape[0] > MOE_DENSE_LIMIT_TOKENS:
        return _sorted(config, weights, x)
    table, _ = _table(config, weights, x)
    pieces, inner, hidden = weights.down.shape
    gate, up = linear(x, weights.up.view(hidden, -1)).view(-1, pieces, 2, inner).unbind(2)
    active = (F.silu(gate) * up).mul_(table[..., None])
    return linear(active.view(-1, pieces * inner), weights.down.view(-1, hidden))


def _sorted(config: TextConfig, weights: MoeWeights, x: Tensor) -> Tensor:
    share, chosen, shared_gate = route(config, weights, x)
    pieces, inner, hidden = weights.down.shape
    experts = config.num_experts
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=experts).cumsum(0).int()
    token = order // config.num_experts_per_tok
    rows = x[token].to(weights.up.dtype)
    up_weights = weights.up[:, :experts].view(hidden, experts, 2 * inner).transpose(0, 1)
    gate, up = F.grouped_mm(rows, up_weights, offs=ends).chunk(2, -1)
    parts = F.grouped_mm(F.silu(gate) * up, weights.down[:experts], offs=ends).float()
    result = torch.zeros_like(x)
    for piece in range(experts, pieces):
        result.addcmul_(_expert(weights, piece, x), shared_gate)
    return result.index_add_(0, token, parts * share.flatten()[order][:, None])


def automatic(config: TextConfig, weights: MoeWeights, x: Tensor) -> Tensor:
    """`loop` or `grouped`, by the number of tokens."""
    return (loop if x.shape[0] <= MOE_LOOP_LIMIT_TOKENS else grouped)(config, weights, x)


RUNNERS: dict[str, Runner] = {"auto": automatic, "loop": loop, "grouped": grouped}
