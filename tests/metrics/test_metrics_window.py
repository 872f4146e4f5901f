"""The steady window and the throughput in it."""

import pytest
from record_example import MS, record

from backend.metrics.window import steady_window, tokens_between, whole

# Two slots. Slot A: 0–100, then 100–200. Slot B: 20–120, then 120–180.
LEVEL = [
    record(0, [50, 100], [1, 11]),
    record(20, [70, 120], [1, 21]),
    record(100.5, [150, 200], [1, 11], due_ms=100),
    record(120.5, [130, 180], [1, 6], due_ms=120),
]


def test_the_window_is_where_all_slots_are_busy_and_a_change_over_opens_no_gap() -> None:
    assert steady_window(LEVEL, 2) == (20 * MS, 180 * MS)


def test_the_longest_of_several_windows_is_taken() -> None:
    again = [record(300, [310, 640], [1, 9]), record(300, [320, 600], [1, 9])]
    assert steady_window(LEVEL + again, 2) == (300 * MS, 600 * MS)


def test_nine_of_ten_slots_are_enough_and_eight_are_not() -> None:
    slots = [record(0, [50, 100], [1, 2]) for _ in range(9)]
    assert steady_window(slots, 10) == (0, 100 * MS)
    assert steady_window(slots[:8], 10) is None


def test_tokens_in_the_window_are_interpolated_at_its_borders() -> None:
    """Arrivals: 50 +1, 70 +1, 100 +10, 120 +20, 130 +1, 150 +1, 180 +5, 200 +10; the count starts with 0 at 0.

    Cumulative: 0→0, 50→1, 70→2, 100→12, 120→32, 130→33, 150→34, 180→39, 200→49.
    At 20: 20/50 of the way to 1 = 0.4. At 180: 39. At 110: half way from 12 to 32 = 22.
    """
    assert tokens_between(LEVEL, (20 * MS, 180 * MS)) == pytest.approx(38.6)
    assert tokens_between(LEVEL, (110 * MS, 200 * MS)) == pytest.approx(27)


def test_without_counts_or_requests_there_is_no_figure() -> None:
    assert tokens_between([record(0, [10, 20], [])], (0, 10)) is None
    assert steady_window([], 1) is None
    assert whole([]) is None
