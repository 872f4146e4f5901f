"""Teaching the model not to loop.

Left alone, a small model decoded greedily repeats its last lines for ever, each repetition making the next more likely.
The remedy is that of Xu et al., "Learning to Break the Loop" (2022): show it texts that do loop, and ask that each
repetition be less probable than the one before.
"""

import torch
from torch import Tensor

# Tokens per repetition, one row of the batch each: from half a line of code to a short function.
PERIODS = (5, 9, 16, 28, 48, 80)
CONTEXT_TOKENS = 160  # of true text, before its end begins to repeat
FADE = 0.5  # wanted probability of a token, as a share of its probability one repetition earlier


def with_loops(tokens: Tensor) -> Tensor:
    """[B,T] tokens, the first rows of which go round their last PERIODS[row] tokens from CONTEXT_TOKENS on."""
    rows = len(PERIODS)
    place = torch.arange(tokens.shape[1], device=tokens.device).expand(rows, -1)
    period = torch.cat([torch.full((1, 1), p, device=tokens.device) for p in PERIODS])
    looped = CONTEXT_TOKENS - period + (place - CONTEXT_TOKENS) % period
    source = torch.where(place < CONTEXT_TOKENS, place, looped)
    return torch.cat([tokens[:rows].gather(1, source), tokens[rows:]])


def repetition_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of -log(1 - |p - FADE * p one repetition earlier|) over the repeated targets of the looping rows.

    logits [R,T,V] predict targets [R,T]: row i of both loops with PERIODS[i].
    """
    probability = logits.softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    first = CONTEXT_TOKENS - 1  # the target there is the first repeated token
    losses = []
    for row, period in enumerate(PERIODS):
        earlier = probability[row, first - period : -period].detach()
        distance = (probability[row, first:] - FADE * earlier).abs()
        losses.append(-torch.log1p(-distance.clamp(max=1.0 - 1e-5)).mean())
    return torch.stack(losses).mean()


def repeated_grams(tokens: Tensor, size: int = 4) -> Tensor:
    """Whether each token of [R,T] completes a `size`-gram that its row has had before."""
    grams = tokens.unfold(1, size, 1)
    same = (grams.unsqueeze(2) == grams.unsqueeze(1)).all(-1).tril(-1).any(-1)
    return torch.nn.functional.pad(same, (size - 1, 0))
