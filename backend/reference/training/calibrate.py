"""Calibration of the routed experts' input scales, on held-out text."""

from collections.abc import Callable

import torch
from torch import Tensor

from backend.reference.training.checkpoint import InputPeaks
from backend.reference.training.layers import Experts
from backend.reference.training.model import TextModel


@torch.no_grad()
def input_peaks(model: TextModel, tokens: Tensor) -> dict[str, InputPeaks]:
    """Peaks of every main layer's experts over the windows `tokens` [B,T], each expert over the tokens sent to it.

    An expert that got no token takes the layer's largest peak.
    """
    peaks: dict[str, InputPeaks] = {}

    def watcher(name: str) -> Callable[[Experts, tuple[Tensor, Tensor], Tensor], None]:
        def watch(experts: Experts, inputs: tuple[Tensor, Tensor], _: Tensor) -> None:
            x, weights = inputs
            peaks[name] = InputPeaks(
                _peaks(x.abs().amax(-1, keepdim=True).expand_as(weights), weights),
                _peaks(experts.activation(x).float().abs().amax(-1), weights),
            )

        return watch

    main = [
        (n, module) for n, module in model.named_modules() if n.startswith("model.") and isinstance(module, Experts)
    ]
    handles = [module.register_forward_hook(watcher(name)) for name, module in main]
    try:
        model.hidden(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return peaks


def _peaks(sizes: Tensor, weights: Tensor) -> Tensor:
    """Largest of `sizes` [N,E] per expert over the tokens with a weight, [E]."""
    largest = torch.where(weights > 0, sizes, 0.0).amax(0)
    return torch.where(largest > 0, largest, largest.amax()).cpu()
