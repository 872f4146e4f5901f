"""Ratios, intervals and verdicts of two runs."""

import numpy as np
import pytest
from stats_example import closed_loop, one_record, run_of

from backend.schema.load import RequestRecord
from backend.schema.run import ComparedMetric, Comparison
from backend.stats import compare_runs


def compare(records_a: list[RequestRecord], records_b: list[RequestRecord]) -> Comparison:
    return compare_runs(run_of(records_a, run_id="a"), run_of(records_b, run_id="b"), records_a, records_b)


def metric(comparison: Comparison, name: str, concurrency: int = 1) -> ComparedMetric:
    [found] = [one for one in comparison.metrics if (one.name, one.concurrency) == (name, concurrency)]
    return found


def noisy(seed: int, *, scale: float = 1.0, count: int = 32, level: int = 1) -> list[RequestRecord]:
    """Time per token around 10 ms x scale with a spread of 10 %."""
    tpots = 10.0 * scale * np.random.default_rng(seed).lognormal(0.0, 0.1, count)
    return closed_loop([float(one) for one in tpots], level=level, ttft_ms=5.0 * scale)


def test_equal_requests_give_a_degenerate_interval_around_the_exact_ratio() -> None:
    # 10 ms and 8 ms per token: 100 and 125 tok/s per user, ratio 1.25, and no spread to resample.
    comparison = compare(closed_loop([10.0] * 8), closed_loop([8.0] * 8))
    user = metric(comparison, "tok_s_user")
    assert (user.a, user.b, user.ratio) == pytest.approx((100.0, 125.0, 1.25))
    assert (user.ci_low, user.ci_high) == pytest.approx((1.25, 1.25))
    assert user.verdict == "b_better"
    # TPOT is the same fact seen from below: lower is better, ratio 0.8.
    tpot = metric(comparison, "tpot_ms_p50")
    assert (tpot.ratio, tpot.verdict, tpot.better, tpot.unit) == (pytest.approx(0.8), "b_better", "lower", "ms")
    # Each request: 5 ms + 8 tokens. a: 9 tokens in 85 ms; b: 9 in 69 ms: ratio 85/69 = 1.2319 over the whole level.
    assert metric(comparison, "output_tok_s_whole").ratio == pytest.approx(85 / 69)
    assert metric(comparison, "e2e_ms_p50").ratio == pytest.approx(69 / 85)
    assert comparison.verdict == "b_better"
    assert (comparison.a, comparison.b) == ("a", "b")


def test_swapping_the_sides_swaps_the_verdict() -> None:
    fast, slow = closed_loop([8.0] * 8), closed_loop([10.0] * 8)
    assert compare(slow, fast).verdict == "b_better"
    assert compare(fast, slow).verdict == "a_better"
    assert metric(compare(fast, slow), "ttft_ms_p50").verdict == "not_distinguishable"  # 5 ms on both sides


def test_acceptance_is_compared_as_a_ratio_of_sums() -> None:
    # a: 8 x 4 steps with 4 correct each: 1 + 32/32 = 2. b: correct 4, 8, ... : 1 + (4*4 + 4*8)/32 = 2.5. Ratio 1.25.
    comparison = compare(
        closed_loop([10.0] * 8, correct=[4] * 8), closed_loop([10.0] * 8, correct=[4, 8, 4, 8, 4, 8, 4, 8])
    )
    length = metric(comparison, "accept_length")
    assert (length.a, length.b, length.ratio) == pytest.approx((2.0, 2.5, 1.25))
    assert length.ci_low is not None
    assert length.ci_high is not None
    # Resampled b lies between 2 (only fours) and 3 (only eights), so the ratio between 1 and 1.5.
    assert 1.0 <= length.ci_low < 1.25 < length.ci_high <= 1.5
    # 32 of 96 and 48 of 96 drafts.
    assert (metric(comparison, "accept_rate").a, metric(comparison, "accept_rate").b) == pytest.approx((1 / 3, 0.5))


def test_speculation_on_one_side_only_leaves_acceptance_absent_with_the_reason() -> None:
    comparison = compare(closed_loop([10.0] * 8), closed_loop([8.0] * 8, correct=[4] * 8))
    length = metric(comparison, "accept_length")
    assert (length.a, length.b, length.ratio, length.ci_low) == (None, pytest.approx(2.0), None, None)
    assert length.verdict == "not_comparable"
    assert length.reason is not None
    assert length.reason.startswith("A: ")
    assert "speculation" in length.reason
    assert comparison.verdict == "b_better"  # acceptance does not decide


def test_figures_without_an_interval_say_why_and_give_no_verdict() -> None:
    comparison = compare(closed_loop([10.0] * 8), closed_loop([5.0] * 8))
    for name in ("output_tok_s_whole", "ttft_ms_p99", "itl_ms_p99"):
        found = metric(comparison, name)
        assert (found.ci_low, found.verdict) == (None, "not_distinguishable")
        assert found.reason is not None
        assert "one run per side" in found.reason


def test_too_few_requests_give_ratios_but_no_verdict() -> None:
    comparison = compare(closed_loop([10.0] * 4), closed_loop([5.0] * 4))
    user = metric(comparison, "tok_s_user")
    assert user.ratio == pytest.approx(2.0)
    assert (user.ci_low, user.verdict, user.reason) == (
        None,
        "not_distinguishable",
        "4 requests on one side; an interval needs 5",
    )
    assert comparison.verdict == "not_distinguishable"


def test_records_that_do_not_give_back_the_stored_figure_get_no_interval() -> None:
    a, b = closed_loop([10.0] * 8), closed_loop([8.0] * 8)
    comparison = compare_runs(run_of(a), run_of(b), a, closed_loop([7.0] * 8))
    user = metric(comparison, "tok_s_user")
    assert user.ratio == pytest.approx(1.25)
    assert (user.ci_low, user.reason) == (None, "the request records do not give back the stored figure")


def test_warm_up_and_failed_requests_do_not_count() -> None:
    a, b = closed_loop([10.0] * 8), closed_loop([8.0] * 8)
    slow = one_record(99, start_ns=0, tpot_ms=500.0, ttft_ms=900.0, level=1, correct=None)
    noise = [slow.model_copy(update={"phase": "warmup"}), slow.model_copy(update={"ok": False})]
    with_noise = compare_runs(run_of(a), run_of(b), [*a, *noise], [*noise, *b])
    assert with_noise.metrics == compare_runs(run_of(a), run_of(b), a, b).metrics


def test_a_comparison_is_the_same_every_time() -> None:
    a, b = noisy(1), noisy(2)
    assert compare(a, b) == compare(a, b)


def test_output_throughput_has_an_interval_over_waves_around_its_own_ratio() -> None:
    a, b = noisy(1, count=32, level=4), noisy(2, count=32, level=4, scale=0.7)
    found = metric(compare(a, b), "output_tok_s", 4)
    assert found.ci_low is not None
    assert found.ci_high is not None
    assert found.ratio is not None
    assert found.ci_low < found.ratio < found.ci_high
    assert "8 and 8 waves of 4 consecutive requests" in str(found.reason)
    assert found.verdict == "b_better"


def test_the_highest_common_level_decides() -> None:
    # At 1 user b is faster, at 2 users b is slower; a level of 4 exists only in b.
    a = [*closed_loop([10.0] * 10), *closed_loop([10.0] * 10, level=2)]
    b = [*closed_loop([8.0] * 10), *closed_loop([14.0] * 10, level=2), *closed_loop([1.0] * 10, level=4)]
    groups_b = [[one for one in b if one.level == level] for level in (1, 2, 4)]
    comparison = compare_runs(run_of(a[:10], a[10:]), run_of(*groups_b), a, b)
    assert comparison.verdict == "a_better"
    assert metric(comparison, "tok_s_user", 1).verdict == "b_better"
    assert {one.concurrency for one in comparison.metrics} == {1, 2}
    assert "concurrency 4 only in B" in comparison.confounds


def test_users_and_total_that_disagree_are_not_distinguishable() -> None:
    # b answers each user faster once it has begun, but makes everybody wait 400 ms first: fewer tokens per second.
    comparison = compare(closed_loop([10.0] * 8), closed_loop([8.0] * 8, ttft_ms=400.0))
    assert metric(comparison, "tok_s_user").verdict == "b_better"
    assert metric(comparison, "output_tok_s").verdict == "a_better"
    assert comparison.verdict == "not_distinguishable"


def test_no_common_level_is_not_comparable() -> None:
    a, b = closed_loop([10.0] * 8), closed_loop([10.0] * 8, level=2)
    comparison = compare(a, b)
    assert (comparison.verdict, comparison.metrics) == ("not_comparable", [])
    assert comparison.confounds[0] == "no concurrency level that both runs finished"


def test_the_design_says_what_the_intervals_do_not_cover() -> None:
    design = compare(closed_loop([10.0] * 8), closed_loop([10.0] * 8)).design
    for part in ("One run per side", "resampling the requests", "drift between the runs", "order in which the engines"):
        assert part in design


def test_two_runs_of_one_distribution_are_rarely_told_apart() -> None:
    # 95 % intervals: about 5 of 100 are expected to miss 1 per metric; the overall verdict asks two to agree.
    results = [compare(noisy(seed), noisy(1000 + seed)) for seed in range(100)]
    assert sum(one.verdict == "not_distinguishable" for one in results) >= 93
    assert sum(metric(one, "tok_s_user").verdict == "not_distinguishable" for one in results) >= 90


def test_a_difference_of_20_percent_is_found() -> None:
    # Spread 10 %, 32 requests: the median's standard error is about 2.2 %, so 20 % is over six standard errors away.
    results = [compare(noisy(seed), noisy(1000 + seed, scale=1 / 1.2)) for seed in range(20)]
    assert [one.verdict for one in results] == ["b_better"] * 20
    user = [metric(one, "tok_s_user") for one in results]
    # 95 % intervals over 20 trials: at least 16 hold the true 1.2 (fewer has a chance of 0.3 %).
    assert sum((one.ci_low or 9) <= 1.2 <= (one.ci_high or 0) for one in user) >= 16
