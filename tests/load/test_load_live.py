"""From ticks to points: what was not observed is absent, and a stall is a true zero."""

from typing import Any

from backend.load.live import LiveView

SECOND = 1_000_000_000


def tick(at_s: float, **fields: Any) -> dict[str, Any]:
    """A tick of a phase that began at 100 s."""
    spec = {"verify_ct": 0, "correct_drafts": 0, "proposed_drafts": 0, "histogram": [], **fields.pop("spec", {})}
    return {
        "t_ns": int((100 + at_s) * SECOND),
        "begun_ns": 100 * SECOND,
        "level": 2,
        "level_index": 0,
        "phase": "measure",
        "total": 10,
        "in_flight": 2,
        "tokens": None,
        "done": 0,
        "failed": 0,
        "ttft_ms": [],
        "gap_ns": 0,
        "gap_tokens": 0,
        **fields,
        "spec": spec,
    }


def points(*ticks: dict[str, Any]) -> list[Any]:
    view = LiveView()
    view.add(ticks)
    view.finish()
    return view.points


def test_two_ticks_of_half_a_second_make_a_point() -> None:
    """100 tokens in the first second, then 60 in the next; 40 tokens after gaps of 800 ms in all: 20 ms each."""
    first, second = points(
        tick(0.5, tokens=40, ttft_ms=[100.0], gap_ns=300_000_000, gap_tokens=15),
        tick(1.0, tokens=100, ttft_ms=[140.0, 180.0], gap_ns=500_000_000, gap_tokens=25, done=1),
        tick(1.5, tokens=130),
        tick(2.0, tokens=160, done=3, failed=1),
    )
    assert (first.t_s, first.output_tok_s, first.itl_ms, first.tok_s_user, first.ttft_ms) == (1.0, 100, 20, 50, 140)
    assert (second.t_s, second.output_tok_s, second.done, second.failed) == (2.0, 60, 3, 1)
    assert (second.itl_ms, second.tok_s_user, second.ttft_ms, second.accept_length) == (None, None, None, None)


def test_without_counts_there_is_no_throughput_and_a_stall_is_zero() -> None:
    silent, stalled, idle = (
        points(tick(0.5), tick(1.0))[0],
        points(tick(1.0, tokens=50), tick(2.0, tokens=50))[1],
        points(tick(1.0, tokens=50), tick(2.0, tokens=50, in_flight=0))[1],
    )
    assert (silent.output_tok_s, stalled.output_tok_s, idle.output_tok_s) == (None, 0.0, None)


def test_the_short_remainder_of_a_phase_has_no_rate() -> None:
    """Two chunks of 4 tokens that were read together, 2 ms apart, are no 2000 tok/s of a user."""
    remainder = points(tick(1.0, tokens=50), tick(1.1, tokens=90, in_flight=0, done=4, gap_ns=2_000_000, gap_tokens=4))[
        1
    ]
    assert (remainder.output_tok_s, remainder.tok_s_user, remainder.itl_ms, remainder.done) == (None, None, None, 4)


def test_a_new_phase_counts_from_zero_and_closes_the_point_before() -> None:
    warm, measured = points(
        tick(0.5, phase="warmup", tokens=30),
        {**tick(1.5, tokens=80), "begun_ns": int(100.5 * SECOND)},
    )
    assert (warm.phase, warm.output_tok_s) == ("warmup", 60)
    assert (measured.phase, measured.t_s, measured.output_tok_s) == ("measure", 1.5, 80)


def test_acceptance_is_a_ratio_of_sums_and_positions_are_those_of_the_level() -> None:
    """Steps 10 and 30 with 5 and 30 correct: 1 + 35/40, not the mean of 1.5 and 2."""
    one = {"verify_ct": 10, "correct_drafts": 5, "proposed_drafts": 30, "histogram": [5, 5]}
    two = {"verify_ct": 30, "correct_drafts": 30, "proposed_drafts": 90, "histogram": [10, 10, 10]}
    view = LiveView()
    view.add([tick(0.5, spec=one), tick(1.0, spec=two)])
    assert view.points[0].accept_length == 1.875
    assert view.points[0].accept_rate == 35 / 120
    assert view.per_position == [25 / 40, 10 / 40, 0.0]  # three drafts per step, the third never accepted
    view.add([{**tick(2.0), "level_index": 1}])
    assert view.per_position == []
