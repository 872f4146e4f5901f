"""Verification keeps the model's distribution; sampling filters do what they say."""

import pytest
import torch

from backend.reference.request import SamplingParams
from backend.reference.sampling import probabilities
from backend.reference.verify import verify_greedy, verify_sampled

# The 99.9 % point of chi-square with 4 degrees of freedom (5 outcomes).
CRITICAL_4 = 18.47


def chi_square(counts, expected):
    return sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))


def test_greedy_keeps_the_drafts_up_to_the_first_that_differs():
    assert verify_greedy([5, 6, 7, 8], [5, 6, 7]) == [5, 6, 7, 8]
    assert verify_greedy([5, 6, 7, 8], [5, 9, 7]) == [5, 6]
    assert verify_greedy([5, 6, 7, 8], [1, 6, 7]) == [5]
    assert verify_greedy([5], []) == [5]


@pytest.mark.parametrize("drafts", [[0, 1], [3, 0], [4, 4]], ids=["likely", "mixed", "unlikely"])
def test_sampled_verification_has_the_models_distribution_whatever_was_drafted(drafts):
    p = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05], [0.1, 0.4, 0.3, 0.1, 0.1], [0.2, 0.2, 0.2, 0.2, 0.2]])
    generator = torch.Generator().manual_seed(7)
    rounds = 20_000
    first = [0] * 5
    second = [0] * 5
    for _ in range(rounds):
        tokens = verify_sampled(p, drafts, generator)
        first[tokens[0]] += 1
        assert tokens[:-1] == drafts[: len(tokens) - 1]
        if len(tokens) > 1:
            second[tokens[1]] += 1
    assert chi_square(first, [rounds * float(x) for x in p[0]]) < CRITICAL_4
    # Given that the first draft stood, the next token follows the second distribution.
    assert sum(second) == first[drafts[0]]
    assert chi_square(second, [sum(second) * float(x) for x in p[1]]) < CRITICAL_4


def test_a_verification_that_kept_the_drafts_too_often_would_be_noticed():
    """The test above can fail: always accepting an unlikely draft gives a huge chi-square."""
    assert chi_square([0, 0, 0, 0, 20_000], [20_000 * x for x in (0.5, 0.2, 0.15, 0.1, 0.05)]) > CRITICAL_4


def test_temperature_top_k_and_top_p_shape_the_distribution():
    logits = torch.tensor([[4.0, 2.0, 0.0]])
    # At temperature 2 the logits are 2, 1, 0: e^2 + e + 1 = 11.107.
    plain = probabilities(logits, SamplingParams(temperature=2.0))[0].tolist()
    assert plain == pytest.approx([7.3891 / 11.1073, 2.7183 / 11.1073, 1 / 11.1073], abs=1e-4)
    two = probabilities(logits, SamplingParams(temperature=2.0, top_k=2))[0].tolist()
    assert two == pytest.approx([0.7311, 0.2689, 0.0], abs=1e-4)
    # 0.665 alone reaches 0.6; 0.7 needs the second as well.
    assert probabilities(logits, SamplingParams(temperature=2.0, top_p=0.6))[0].tolist() == [1.0, 0.0, 0.0]
    assert probabilities(logits, SamplingParams(temperature=2.0, top_p=0.7))[0].tolist() == pytest.approx(two, abs=1e-4)


@pytest.mark.parametrize("top_p", [0.5, 0.8])
def test_sampled_verification_keeps_the_distribution_that_top_p_leaves(top_p):
    """Logits are those of 0.5, 0.2, 0.15, 0.1, 0.05: top-p 0.5 leaves the first alone, 0.8 the first three."""
    logits = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]]).log().expand(3, 5)
    p = probabilities(logits, SamplingParams(temperature=1.0, top_p=top_p))
    left = {0.5: [1.0, 0, 0, 0, 0], 0.8: [0.5 / 0.85, 0.2 / 0.85, 0.15 / 0.85, 0, 0]}[top_p]
    generator = torch.Generator().manual_seed(11)
    rounds = 20_000
    for drafts in ([1, 0], [4, 2]):  # the second begins with a token that top-p excludes
        first = [0] * 5
        for _ in range(rounds):
            first[verify_sampled(p, drafts, generator)[0]] += 1
        possible = [n for n, share in enumerate(left) if share]
        assert sum(first[n] for n in possible) == rounds
        # 13.82 is the 99.9 % point with 2 degrees of freedom.
        assert chi_square([first[n] for n in possible], [rounds * left[n] for n in possible]) < 13.82
