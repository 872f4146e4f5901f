"""Which drafts stand. The drafter is greedy, so a draft is a point distribution.

Greedy requests accept the drafts that equal the model's own choice. Otherwise a draft d is accepted with probability
p(d), p being the model's distribution, and a refusal is followed by a sample of p without d, renormalised: the token
is d with probability p(d) and any other x with (1 - p(d)) * p(x) / (1 - p(d)) = p(x). The output has exactly the
model's distribution, whatever was drafted.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from backend.reference.sampling import sample


def verify_greedy(choices: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """`choices` are the model's tokens after the last one and after each draft; returns the tokens that stand."""
    correct = 0
    while correct < len(drafts) and drafts[correct] == choices[correct]:
        correct += 1
    return list(choices[: correct + 1])


def verify_sampled(distributions: Tensor, drafts: Sequence[int], generator: torch.Generator) -> list[int]:
    """`distributions` [len(drafts) + 1, V], as `choices` above; returns the tokens that stand, one of them sampled."""
    result = []
    for place, draft in enumerate(drafts):
        here = distributions[place]
        if float(torch.rand((), generator=generator)) < float(here[draft]):
            result.append(draft)
            continue
        rest = here.clone()
        rest[draft] = 0.0
        return [*result, sample(rest, generator)]
    return [*result, sample(distributions[len(drafts)], generator)]
