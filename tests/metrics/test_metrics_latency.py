"""Latencies, worked out by hand for streams whose events carry several tokens."""

import pytest
from record_example import record

from backend.metrics import distribution, itl_ms, request_tpot_ms
from backend.metrics.latency import e2e_ms, icl_ms, ttfa_ms, ttft_ms

# Sent at 100; 1 token at 250, 3 more at 280, 2 more at 290, 4 more at 330. In all 10 tokens, 9 of them in 80 ms.
STREAM = record(100, [250, 280, 290, 330], [1, 4, 6, 10], end_ms=332)


def test_ttft_is_from_writing_to_the_first_token_and_e2e_to_the_end() -> None:
    assert ttft_ms([STREAM]) == [150]
    assert e2e_ms([STREAM]) == [232]


def test_ttfa_is_from_writing_to_the_first_token_of_the_answer() -> None:
    assert ttfa_ms([STREAM.model_copy(update={"first_answer_ns": 290_000_000}), STREAM]) == [190]


def test_tpot_leaves_out_the_tokens_of_the_first_event() -> None:
    assert request_tpot_ms(STREAM) == pytest.approx(80 / 9)
    # Five tokens come with the first event: 5 more in 40 ms.
    assert request_tpot_ms(record(0, [100, 140], [5, 10])) == 8


@pytest.mark.parametrize(
    "stream",
    [record(0, [100], [7]), record(0, [100, 140], []), record(0), record(0, [100, 140], [5, 10], output_tokens=5)],
    ids=["one event", "no counts", "no token", "no token after the first event"],
)
def test_tpot_is_absent_and_not_zero_when_nothing_was_timed(stream) -> None:
    assert request_tpot_ms(stream) is None


def test_itl_weighs_each_gap_by_its_tokens() -> None:
    """30 ms for 3, 10 ms for 2, 40 ms for 4: 10 three times, 5 twice, 10 four times. Their mean is the TPOT."""
    samples = itl_ms([STREAM])
    assert samples.tolist() == [10, 10, 10, 5, 5, 10, 10, 10, 10]
    assert samples.mean() == pytest.approx(80 / 9)
    assert icl_ms([STREAM]).tolist() == [30, 10, 40]


def test_itl_means_the_same_with_and_without_several_tokens_per_event() -> None:
    """One stream at concurrency 1 with 292.29 tok/s: 3.421 ms per token though the events come 8.72 ms apart."""
    tokens_per_event = 8.72 * 292.29 / 1000
    arrivals = [8.72 * n for n in range(100)]
    counts = [1 + round(tokens_per_event * n) for n in range(100)]
    itl = distribution(itl_ms([record(0, arrivals, counts)]))
    assert itl is not None
    assert itl.mean == pytest.approx(3.421, rel=0.005)
    assert itl.mean * 292.29 == pytest.approx(1000, rel=0.005)


def test_streams_without_counts_have_gaps_and_no_token_latency() -> None:
    stream = record(0, [10, 30, 60], [])
    assert itl_ms([stream]).size == 0
    assert icl_ms([stream]).tolist() == [20, 30]


def test_percentiles_are_linear_over_merged_samples() -> None:
    """Of 10, 20, 30, 40, 50: the 90th stands 3.6 steps behind the first, 40 + 0.6 · 10."""
    summary = distribution([50, 10, 40, 20, 30])
    assert summary is not None
    assert summary.model_dump() == pytest.approx(
        {"n": 5, "mean": 30, "p50": 30, "p90": 46, "p95": 48, "p99": 49.6, "max": 50}
    )


def test_a_distribution_is_never_made_from_nothing() -> None:
    assert distribution([]) is None
