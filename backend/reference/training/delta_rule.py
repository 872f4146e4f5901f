"""The gated delta rule, once token by token and once in chunks.

State S [dk, dv] per head; for each token with key k, value v, query q, log decay g and write strength b:
    S <- exp(g) * S;   S <- S + b * k (v - S^T k)^T;   o = S^T q
(Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024, eq. 10; the chunked form is their section 3.3.)
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def sequential_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """The definition, one token at a time. q, k [B,H,T,dk], v [B,H,T,dv], log_decay, beta [B,H,T] -> [B,H,T,dv]."""
    state = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], dtype=v.dtype, device=v.device)
    outputs = []
    for t in range(k.shape[2]):
        now = slice(t, t + 1)
        state, output = delta_step(state, q[:, :, now], k[:, :, now], v[:, :, now], log_decay[..., now], beta[..., now])
        outputs.append(output)
    return torch.cat(outputs, 2)


def delta_step(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: the new state [B,H,dk,dv] and the output [B,H,1,dv]; the other shapes as above, with T = 1."""
    state = state * log_decay[..., None].exp()
    error = v - k @ state
    state = state + beta[..., None] * k.transpose(-1, -2) @ error
    return state, q @ state


def chunked_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, chunk: int = 64) -> Tensor:
    """The same result with one short recurrence per `chunk` tokens; shapes as `sequential_delta_rule`, in fp32."""
    length = k.shape[2]
    padding = -length % chunk  # zero keys with zero write strength and no decay leave the state alone
    q, k, v = (_chunks(functional.pad(x, (0, 0, 0, padding)), chunk) for x in (q, k, v))
    beta = _chunks(functional.pad(beta, (0, padding)).unsqueeze(-1), chunk)
    total = _chunks(functional.pad(log_decay, (0, padding)).unsqueeze(-1), chunk).squeeze(-1).cumsum(-1)

    below = torch.ones(chunk, chunk, dtype=torch.bool, device=k.device).tril()
    gap = total.unsqueeze(-1) - total.unsqueeze(-2)
    decay = gap.masked_fill(~below, float("-inf")).exp()  # masked before exp: above the diagonal it would overflow
    from_start = total.exp().unsqueeze(-1)

    # Inside a chunk the written values solve a unit lower triangular system: (I + A) written = b (v - decayed k S).
    interaction = ((k * beta) @ k.transpose(-1, -2) * decay).tril(-1)
    right = torch.cat([v * beta, k * beta * from_start], -1)
    solved: Tensor = _UnitLowerSolve.apply(interaction, right)  # type: ignore[no-untyped-call]
    values, reads = torch.split(solved, [v.shape[-1], k.shape[-1]], -1)

    key_to_end = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).transpose(-1, -2)
    keep = total[..., -1, None, None].exp() * torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    states = _chunk_states(keep - key_to_end @ reads, key_to_end @ values)

    written = values - reads @ states
    output: Tensor = (q * from_start) @ states + ((q @ k.transpose(-1, -2)) * decay) @ written
    return output.flatten(2, 3)[:, :, :length]


class _UnitLowerSolve(torch.autograd.Function):
    """(I + A)^-1 right for strictly lower triangular A: a few batched products, where a GPU's solver is slow."""

    @staticmethod
    def forward(ctx: Any, strictly_lower: Tensor, right: Tensor) -> Tensor:
        inverse = invert_unit_lower(strictly_lower)
        solved = inverse @ right
        ctx.save_for_backward(inverse, solved)
        return solved

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        inverse, solved = ctx.saved_tensors
        right = inverse.transpose(-1, -2) @ gradient
        return -(right @ solved.transpose(-1, -2)).tril(-1), right


def invert_unit_lower(strictly_lower: Tensor, block: int = 8) -> Tensor:
    """(I + A)^-1 for strictly lower triangular A [..., n, n], n being `block` times a power of two.

    The diagonal blocks by (I - A)(I + A^2)(I + A^4), which ends there because A^8 = 0; larger ones from pairs of
    these, [[P, 0], [-Q L P, Q]]. The product form alone, for all of A, would lose all digits: its powers grow.
    """
    a = _diagonal_blocks(strictly_lower, block)
    eye = torch.eye(block, dtype=a.dtype, device=a.device)
    square = a @ a
    inverse = (eye - a) @ (eye + square) @ (eye + square @ square)
    while (size := inverse.shape[-1]) < strictly_lower.shape[-1]:
        below = _diagonal_blocks(strictly_lower, 2 * size)[..., size:, :size]
        first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        corner = -second @ below @ first
        top, bottom = torch.cat([first, torch.zeros_like(first)], -1), torch.cat([corner, second], -1)
        inverse = torch.cat([top, bottom], -2)
    return inverse.squeeze(-3)


def _diagonal_blocks(x: Tensor, size: int) -> Tensor:
    """[..., n, n] -> [..., n / size, size, size]."""
    count = x.shape[-1] // size
    grid = x.reshape(*x.shape[:-2], count, size, count, size)
    return grid.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """[B,H,T,d] -> [B,H,T/chunk,chunk,d]."""
    return x.reshape(*x.shape[:2], -1, chunk, x.shape[-1])


def _chunk_states(transition: Tensor, update: Tensor) -> Tensor:
    """State before each chunk from `S <- transition S + update`; [B,H,N,dk,dk], [B,H,N,dk,dv] -> [B,H,N,dk,dv]."""
    heads, chunks = update.shape[:2], update.shape[2]
    state = torch.zeros_like(update[:, :, 0]).flatten(0, 1)
    states = [state]
    for step, added in zip(transition.flatten(0, 1).unbind(1), update.flatten(0, 1).unbind(1), strict=True):
        state = torch.baddbmm(added, step, state)
        states.append(state)
    return torch.stack(states[:chunks], 1).view(*heads, chunks, *update.shape[3:])
