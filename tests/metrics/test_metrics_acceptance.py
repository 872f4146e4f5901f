"""Acceptance as ratios of sums, and the two conventions that one run can be read in."""

import pytest
from record_example import record, spec

from backend.metrics import acceptance, per_position


def test_accept_length_is_a_ratio_of_sums_with_the_engines_figure_beside_it() -> None:
    """10 steps with 5 correct of 30, 30 steps with 30 of 90. Lengths 1.5 and 2 would average 1.75; the ratio is 1.875.

    Output of 16 and 61 tokens: the engine says 77/40, which is ours plus the two prefill tokens: (40 + 35 + 2)/40.
    """
    records = [
        record(0, [10], [16], spec=spec(10, 5, 30)),
        record(0, [10], [61], spec=spec(30, 30, 90)),
        record(0, [10], [9]),
    ]
    result, why_not = acceptance(records)
    assert why_not is None
    assert result is not None
    assert result.accept_length == 1.875
    assert result.engine_accept_length == 1.925
    assert result.accept_rate == pytest.approx(35 / 120)
    assert result.verify_steps == 40
    assert result.per_position == []
    assert result.source == "counters in meta_info of 2 of 3 requests"


def test_one_run_has_one_length_and_the_rate_counts_drafts_only() -> None:
    """Length 1.57 with four slots is rate 0.19 by drafts; 0.39 would be with the bonus token counted as a draft."""
    result, _ = acceptance([record(0, [10], [158], spec=spec(100, 57, 300))])
    assert result is not None
    assert result.accept_length == pytest.approx(1.57)
    assert result.accept_rate == pytest.approx(0.19)
    assert (result.accept_length - 1) / 3 == pytest.approx(result.accept_rate)


def test_positions_are_unconditional_shares_of_all_steps() -> None:
    """Steps with 0, 1, 2, 3 correct drafts: 4, 3, 2, 1 and 2, 0, 0, 0 more. Of 12: 6, 3, 1 had at least 1, 2, 3."""
    assert per_position([spec(10, 10, 30, [4, 3, 2, 1]), spec(2, 0, 6, [2])]) == [6 / 12, 3 / 12, 1 / 12]


def test_positions_that_were_never_accepted_are_zero_and_not_missing() -> None:
    assert per_position([spec(23, 0, 69, [23])]) == [0.0, 0.0, 0.0]


def test_without_counters_or_without_a_step_there_is_no_acceptance_and_a_reason() -> None:
    none, why = acceptance([record(0, [10], [9])])
    assert none is None
    assert why is not None and "no speculation counters" in why
    none, why = acceptance([record(0, [10], [1], spec=spec(0, 0, 0))])
    assert none is None
    assert why is not None and "no verify step" in why
