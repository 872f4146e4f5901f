"""The two clocks. Durations come from the monotonic one, labels from the wall clock, and they never mix.

CLOCK_MONOTONIC is the same for every process of a host, so stamps of agent, engine supervisor and load worker merge.
"""

import time
from datetime import UTC, datetime


def monotonic_ns() -> int:
    """Nanoseconds of CLOCK_MONOTONIC: comparable between processes of one boot, meaningless across boots."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def monotonic_s() -> float:
    """Seconds of CLOCK_MONOTONIC."""
    return monotonic_ns() / 1e9


def utc_now() -> str:
    """Wall time for labels only, ISO 8601 with milliseconds, e.g. `2026-11-30T22:01:12.345Z`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
