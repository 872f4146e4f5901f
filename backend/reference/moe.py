"""Mixture of experts with a shared expert, in two forms that do the same sum in different ways."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from backend.reference.config import TextConfig
from backend.reference.experts import DenseExperts, PackedExperts
from backend.reference.ops import add_linear, linear
from backend.reference.weights import MoeWeights
from backend.thresholds import MOE_DENSE_LIMIT_TOKENS

Runner = Callable[[TextConfig, MoeWeights, Tensor, Tensor], Tensor]
"""(config, weights, normed input [N, H], residual [N, H]) to residual + experts' output [N, H]."""


def route(config: TextConfig, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [N, k] (sum 1) and indices [N, k] of the chosen experts, from the router's logits [N, E].

    The softmax over the k best logits equals the softmax over all experts, cut to the k best and renormalised.
    """
    best, chosen = logits.topk(config.num_experts_per_tok, -1)
    return best.softmax(-1), chosen


def _enter(config: TextConfig, weights: MoeWeights, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`route`'s answer, and the residual with the shared expert's part added."""
    experts, inner = config.num_experts, config.shared_expert_intermediate_size
    logits, shared_gate, gate, up = linear(x, weights.entry).split_with_sizes([experts, 1, inner, inner], -1)
    active = (F.silu(gate) * up).mul_(torch.sigmoid(shared_gate))
    share, chosen = route(config, logits)
    return share, chosen, add_linear(residual, active, weights.shared_down)


def loop(config: TextConfig, weights: MoeWeights, x: Tensor, residual: Tensor) -> Tensor:
    """One expert after the other: of few tokens all pass those that some token chose, and others count 0; of many
    tokens each passes its own."""
    share, chosen, result = _enter(config, weights, x, residual)
    if x.shape[0] == 1:
        for expert, factor in zip(chosen[0].tolist(), share[0].tolist(), strict=True):
            active = _active(x, weights.experts.up(expert))
            result = add_linear(result, active, weights.experts.down(expert), factor)
        return result
    if x.shape[0] > MOE_DENSE_LIMIT_TOKENS:
        return _loop_of_many(weights, x, result, _table(config, share, chosen))
    wanted = sorted({*chosen.flatten().tolist()})
    entered = x.new_empty(len(wanted), x.shape[0], 2 * config.moe_intermediate_size)
    for expert, room in zip(wanted, entered.unbind(), strict=True):
        linear(x, weights.experts.up(expert), room)
    gate, value = entered.chunk(2, -1)
    part = _table(config, share, chosen).t()
    if len(wanted) < weights.experts.count:
        part = part.index_select(0, torch.tensor(wanted))
    active = (F.silu(gate) * value).mul_(part.unsqueeze(2))
    for expert, row in zip(wanted, active.unbind(), strict=True):
        result = add_linear(result, row, weights.experts.down(expert))
    return result


def _loop_of_many(weights: MoeWeights, x: Tensor, result: Tensor, table: Tensor) -> Tensor:
    for expert, part in enumerate(table.t()):
        tokens = part.nonzero().squeeze(1)
        active = _active(x.index_select(0, tokens), weights.experts.up(expert))
        active.mul_(part.index_select(0, tokens).unsqueeze(1))
        result.index_add_(0, tokens, linear(active, weights.experts.down(expert)))
    return result


def _active(x: Tensor, up: Tensor) -> Tensor:
    gate, value = linear(x, up).chunk(2, -1)
    return F.silu(gate) * value


def _table(config: TextConfig, share: Tensor, chosen: Tensor) -> Tensor:
    """The weight of every expert for every token [N, E], 0 where not chosen."""
    return share.new_zeros(share.shape[0], config.num_experts).scatter_(1, chosen, share)


def grouped(config: TextConfig, weights: MoeWeights, x: Tensor, residual: Tensor) -> Tensor:
    """Experts in one batched product for few tokens, one grouped product over sorted tokens for many.

    Matrices that lie ready are all multiplied: that costs less than finding out which are needed. Of packed ones only
    those that some token chose are unpacked.
    """
    share, chosen, result = _enter(config, weights, x, residual)
    if x.shape[0] > MOE_DENSE_LIMIT_TOKENS:
        return _sorted(config, weights, x, result, share, chosen)
    table, experts = _table(config, share, chosen), weights.experts
    if isinstance(experts, DenseExperts):
        up, down = experts.all()
    else:
        up, down, table = _unpack_chosen(experts, chosen, share, table)
    count, tokens = up.shape[0], x.shape[0]
    gate, value = torch.bmm(x.to(up.dtype).expand(count, tokens, -1), up).float().chunk(2, -1)
    active = (F.silu(gate) * value).mul_(table.t()[..., None])
    return add_linear(result, active.transpose(0, 1).reshape(tokens, -1), down.flatten(0, 1))


def _unpack_chosen(
    experts: PackedExperts, chosen: Tensor, share: Tensor, table: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    if chosen.shape[0] == 1:
        return *experts.some(chosen[0]), share
    wanted = sorted({*chosen.flatten().tolist()})
    if len(wanted) == experts.count:
        return *experts.all(), table
    index = torch.tensor(wanted)
    return *experts.some(index), table.index_select(1, index)


def _sorted(
    config: TextConfig, weights: MoeWeights, x: Tensor, result: Tensor, share: Tensor, chosen: Tensor
) -> Tensor:
    up, down = weights.experts.all()
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=config.num_experts).cumsum(0).int()
    token = order // config.num_experts_per_tok
    gate, value = F.grouped_mm(x[token].to(up.dtype), up, offs=ends).chunk(2, -1)
    parts = F.grouped_mm(F.silu(gate) * value, down, offs=ends).float()
    return result.index_add_(0, token, parts * share.flatten()[order][:, None])


def automatic(config: TextConfig, weights: MoeWeights, x: Tensor, residual: Tensor) -> Tensor:
    """`grouped` for several tokens and experts that lie ready. Packed ones are best unpacked one by one, within the
    cache, and one token is best passed through its own experts alone."""
    ready = isinstance(weights.experts, DenseExperts)
    return (grouped if ready and x.shape[0] > 1 else loop)(config, weights, x, residual)


RUNNERS: dict[str, Runner] = {"auto": automatic, "loop": loop, "grouped": grouped}
