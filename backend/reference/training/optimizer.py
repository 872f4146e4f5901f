"""Muon for the matrices, AdamW for the rest.

Muon moves a matrix by the nearest orthogonal matrix to its momentum, found by five Newton-Schulz steps (Jordan et al.,
"Muon: an optimizer for hidden layers in neural networks", 2024, whose coefficients and momentum are used here).
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

MUON_LEARNING_RATE, MUON_WEIGHT_DECAY, MUON_MOMENTUM = 0.02, 0.05, 0.95
ADAM_LEARNING_RATE, ADAM_WEIGHT_DECAY = 3e-3, 0.01
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
# Tables, filters and narrow projections have no useful orthogonal direction.
NOT_MUON = ("embed_tokens", "lm_head", "mlp.gate.", "shared_expert_gate", "conv1d", "in_proj_a", "in_proj_b")


def orthogonalise(matrices: Tensor) -> Tensor:
    """Nearest orthogonal matrices, roughly (singular values between 0.7 and 1.2), of a batch [N,rows,columns]."""
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-1, -2)
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True).bfloat16() + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(5):
        gram = x @ x.transpose(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.transpose(-1, -2) if tall else x
    return result.float()


class _MatrixGroup:
    """Parameters whose matrices have one shape, moved together; a stack of experts counts as many matrices."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.shape = parameters[0].shape[-2:]
        self.counts = [parameter.numel() // self.shape.numel() for parameter in parameters]
        self.momentum = torch.zeros(sum(self.counts), *self.shape, device=parameters[0].device)

    def step(self, learning_rate: float) -> None:
        gradients = torch.cat([p.grad.reshape(-1, *self.shape) for p in self.parameters if p.grad is not None])
        self.momentum.lerp_(gradients, 1.0 - MUON_MOMENTUM)
        update = orthogonalise(gradients.lerp(self.momentum, MUON_MOMENTUM))
        scale = learning_rate * max(1.0, self.shape[0] / self.shape[1]) ** 0.5
        for parameter, part in zip(self.parameters, torch.split(update, self.counts), strict=True):
            parameter.mul_(1.0 - learning_rate * MUON_WEIGHT_DECAY).add_(part.view_as(parameter), alpha=-scale)


class Optimizer:
    """Both optimizers under one schedule; `step(scale)` multiplies their learning rates by `scale`."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], strength: float = 1.0) -> None:
        by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        self.rest: list[nn.Parameter] = []
        for name, parameter in named:
            if parameter.ndim >= 2 and not any(part in name for part in NOT_MUON):
                by_shape[parameter.shape[-2:]].append(parameter)
            else:
                self.rest.append(parameter)
        self.groups = [_MatrixGroup(parameters) for parameters in by_shape.values()]
        self.strength = strength
        on_gpu = self.rest[0].is_cuda
        self.adam = torch.optim.AdamW(
            self.rest, lr=ADAM_LEARNING_RATE, betas=(0.9, 0.97), eps=1e-9, weight_decay=ADAM_WEIGHT_DECAY, fused=on_gpu
        )

    @torch.no_grad()
    def step(self, scale: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = ADAM_LEARNING_RATE * self.strength * scale
        self.adam.step()
        for matrices in self.groups:
            matrices.step(MUON_LEARNING_RATE * self.strength * scale)
