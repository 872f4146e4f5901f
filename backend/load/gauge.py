"""The load client watches itself: processor time, lateness of its event loop, requests in flight."""

import asyncio
import time

from backend import thresholds
from backend.clock import monotonic_ns
from backend.load.spec import LevelGauge

_PERIOD_NS = int(thresholds.LOAD_LAG_PERIOD_MS * 1e6)


class LoopLag:
    """A timer with absolute deadlines. One that comes late counts for every deadline that it missed meanwhile."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._samples_ns: list[int] = []
        self._deadline_ns = monotonic_ns() + _PERIOD_NS
        self._handle = self._loop.call_later(_PERIOD_NS / 1e9, self._due)

    def restart(self) -> None:
        self._samples_ns = []

    def close(self) -> None:
        self._handle.cancel()

    def p99_ms(self) -> float | None:
        """Nearest-rank percentile of the lateness; None before the first deadline."""
        if not self._samples_ns:
            return None
        ordered = sorted(self._samples_ns)
        return ordered[-(-len(ordered) * 99 // 100) - 1] / 1e6

    def _due(self) -> None:
        now_ns = monotonic_ns()
        if now_ns < self._deadline_ns:  # the loop's clock has milliseconds; it may wake a little early
            self._samples_ns.append(0)
            self._deadline_ns += _PERIOD_NS
        while self._deadline_ns <= now_ns:
            self._samples_ns.append(now_ns - self._deadline_ns)
            self._deadline_ns += _PERIOD_NS
        self._handle = self._loop.call_later((self._deadline_ns - now_ns) / 1e9, self._due)


class InFlight:
    """Number of requests on the way, and its mean over time while there was work to hand out.

    A slot that pauses after a failed request counts into the mean: that it is empty is not the client's slowness. Its
    next request was due before the pause and counts from the pause's end, so no time is counted twice.
    """

    def __init__(self) -> None:
        self.now = 0
        self._paused = 0
        self._area = 0
        self._start_ns = self._changed_ns = monotonic_ns()
        self._frozen_ns: int | None = None

    def change(self, by: int, now_ns: int, *, paused: int = 0) -> None:
        now_ns = max(now_ns, self._changed_ns)
        if self._frozen_ns is None:
            self._area += (self.now + self._paused) * (now_ns - self._changed_ns)
            self._changed_ns = now_ns
        self.now += by
        self._paused += paused

    def freeze(self, now_ns: int) -> None:
        """From here on the slots run empty, which says nothing about the client."""
        if self._frozen_ns is None:
            self.change(0, now_ns)
            self._frozen_ns = now_ns

    def mean(self) -> float | None:
        """Time-weighted mean; None when all work was handed out at once."""
        end_ns = self._frozen_ns if self._frozen_ns is not None else self._changed_ns
        if end_ns - self._start_ns < thresholds.LOAD_LAG_PERIOD_MS * 1e6:
            return None
        return self._area / (end_ns - self._start_ns)


class Meter:
    """Measures the counted part of one level, from construction to `gauge()`."""

    def __init__(self, lag: LoopLag) -> None:
        self.in_flight = InFlight()
        self.chunks = 0
        self._lag = lag
        lag.restart()
        self._start_ns = monotonic_ns()
        self._cpu_start_s = time.process_time()

    def gauge(self, concurrency: int) -> LevelGauge:
        return LevelGauge(
            concurrency=concurrency,
            wall_s=(monotonic_ns() - self._start_ns) / 1e9,
            cpu_s=time.process_time() - self._cpu_start_s,
            chunks=self.chunks,
            loop_lag_p99_ms=self._lag.p99_ms(),
            in_flight_achieved=self.in_flight.mean(),
        )
