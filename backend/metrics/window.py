"""The steady window of a level, and the throughput in it and over the whole level."""

from collections.abc import Sequence

import numpy as np

from backend import thresholds
from backend.schema.load import RequestRecord

Window = tuple[int, int]


def steady_window(records: Sequence[RequestRecord], concurrency: int) -> Window | None:
    """(start, end) in ns of the longest time with at least 90 % of the slots busy; None when that never was.

    A slot is busy from the moment a request is due until it ends. In a closed loop the next one is due when the one
    before ends, so the microseconds between the two open no gap.
    """
    changes = sorted([(r.intended_ns, 1) for r in records] + [(r.end_ns, -1) for r in records], key=_starts_first)
    needed = thresholds.STEADY_WINDOW_MIN_RATIO * concurrency
    best: Window | None = None
    busy, since = 0, None
    for at, change in changes:
        busy += change
        if since is None:
            since = at if busy >= needed else None
        elif busy < needed:
            if best is None or at - since > best[1] - best[0]:
                best = (since, at)
            since = None
    return best if best is not None and best[1] > best[0] else None


def tokens_between(records: Sequence[RequestRecord], window: Window) -> float | None:
    """Output tokens that arrived in the window: the level's cumulative count, linear between arrivals.

    None when no record has token counts per event.
    """
    arrivals, tokens = [], []
    for record in records:
        if record.chunk_tokens:
            arrivals.append(np.asarray(record.chunk_ns, dtype=np.int64))
            tokens.append(np.diff(np.asarray(record.chunk_tokens, dtype=np.int64), prepend=0))
    if not arrivals:
        return None
    origin = min(record.sent_ns for record in records)
    at = np.concatenate(arrivals)
    order = np.argsort(at, kind="stable")
    times = np.concatenate([[0], at[order] - origin]).astype(np.float64)
    counts = np.concatenate([[0], np.cumsum(np.concatenate(tokens)[order])]).astype(np.float64)
    start, end = np.interp([window[0] - origin, window[1] - origin], times, counts)
    return float(end - start)


def whole(records: Sequence[RequestRecord]) -> Window | None:
    """First request written to last one ended; None without requests."""
    if not records:
        return None
    return min(r.sent_ns for r in records), max(r.end_ns for r in records)


def seconds(window: Window) -> float:
    return (window[1] - window[0]) / 1e9


def output_tokens(record: RequestRecord) -> int | None:
    """The server's count of a request's output; for one that we cancelled, what it had said until then."""
    if record.output_tokens is not None:
        return record.output_tokens
    return record.chunk_tokens[-1] if record.chunk_tokens else None


def _starts_first(change: tuple[int, int]) -> tuple[int, int]:
    """At one instant a start comes before an end, so that a slot that goes on at once is never seen empty."""
    return change[0], -change[1]
