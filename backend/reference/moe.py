"""Mixture of experts with a shared expert, in two forms that do the same sum in different ways."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from backend.reference.config import TextConfig
from backend.reference.ops import linear
from backend.reference.weights import MoeWeights

Runner = Callable[[TextConfig, MoeWeights, Tensor], Tensor]

# Above this many tokens, sorting them by expert costs less than passing each through all experts (measured on one core
# with 8 experts of 128: 64 tokens take 286 us sorted and 448 us dense, 16 take 193 and 154).
_DENSE_LIMIT_TOKENS = 32
# With one token, two of eight experts are fewer bytes to read than all; from two tokens on, one wide product is faster.
_LOOP_LIMIT_TOKENS = 1


def route(config: TextConfig, weights: MoeWeights, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [N, k] (sum 1) and indices [N, k] of the chosen experts, and the shared expert's gate [N, 1].

    The softmax over the k best logits equals the softmax over all experts, cut to the k best and renormalised.
    """
    logits = linear(x, weights.router)
    best, chosen = logits[:, : config.num_experts].topk(config.num_experts_per_tok, -1)
    return best.softmax(-1), chosen, torch.sigmoid(logits[:, config.num_experts :])


def loop(config: TextConfig, weights: MoeWeights, x: Tensor) -> Tensor:
    """The shared expert, then each expert that some token chose: all tokens pass, others with weight 0."""
    share, chosen, shared_gate = route(config, weights, x)
    inner = config.moe_intermediate_size
    routed = config.num_experts * inner
    total = weights.down.shape[0]
    result = _expert(weights, x, routed, total) * shared_gate
    table = x.new_zeros(x.shape[0], config.num_experts).scatter_(1, chosen, share)
    for expert in sorted(set(chosen.flatten().tolist())):
        part = _expert(weights, x, expert * inner, (expert + 1) * inner)
        result.addcmul_(part, table[:, expert : expert + 1])
    return result


def _expert(weights: MoeWeights, x: Tensor, first: int, last: int) -> Tensor:
    """All of `x` through the columns `first` … `last` of the experts."""
    total = weights.down.shape[0]
    gate = linear(x, weights.up[:, first:last])
    return linear(F.silu(gate) * linear(x, weights.up[:, total + first : total + last]), weights.down[first:last])


def grouped(config: TextConfig, weights: MoeWeights, x: Tensor) -> Tensor:
    """All experts at once: one wide product for few tokens, one grouped product over sorted tokens for many."""
    if x.shape[0] > _DENSE_LIMIT_TOKENS:
        return _sorted(config, weights, x)
    share, chosen, shared_gate = route(config, weights, x)
    count, experts, inner = x.shape[0], config.num_experts, config.moe_intermediate_size
    gate, up = linear(x, weights.up).chunk(2, -1)
    active = F.silu(gate) * up
    table = x.new_zeros(count, experts).scatter_(1, chosen, share)
    active[:, : experts * inner].view(count, experts, inner).mul_(table[..., None])
    active[:, experts * inner :].mul_(shared_gate)
    return linear(active, weights.down)


def _sorted(config: TextConfig, weights: MoeWeights, x: Tensor) -> Tensor:
    share, chosen, shared_gate = route(config, weights, x)
    experts, inner, hidden = config.num_experts, config.moe_intermediate_size, config.hidden_size
    total = weights.down.shape[0]
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=experts).cumsum(0).int()
    token = order // config.num_experts_per_tok
    rows = x[token].to(weights.up.dtype)
    gate_w, up_w = (
        weights.up[:, first : first + experts * inner].view(hidden, experts, inner).transpose(0, 1)
        for first in (0, total)
    )
    active = F.silu(F.grouped_mm(rows, gate_w, offs=ends)) * F.grouped_mm(rows, up_w, offs=ends)
    parts = F.grouped_mm(active, weights.down[: experts * inner].view(experts, inner, hidden), offs=ends).float()
    result = _expert(weights, x, experts * inner, total) * shared_gate
    return result.index_add_(0, token, parts * share.flatten()[order][:, None])


def automatic(config: TextConfig, weights: MoeWeights, x: Tensor) -> Tensor:
    """`loop` or `grouped`, by the number of tokens."""
    return (loop if x.shape[0] <= _LOOP_LIMIT_TOKENS else grouped)(config, weights, x)


RUNNERS: dict[str, Runner] = {"auto": automatic, "loop": loop, "grouped": grouped}
