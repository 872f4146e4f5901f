"""From the worker's ticks to live points, about one per second."""

from collections.abc import Iterable
from statistics import median
from typing import Any

from backend import thresholds
from backend.schema.load import LivePoint


class LiveView:
    """What a running load test shows: points so far, and the acceptance by position of the level that runs."""

    def __init__(self) -> None:
        self.points: list[LivePoint] = []
        self.last: dict[str, Any] | None = None
        self._histogram: list[int] = []
        self._drafts = [0, 0]  # proposed drafts and verify steps of this level, for the number of positions
        self._origin_ns: int | None = None
        self._group: list[dict[str, Any]] = []
        self._from: dict[str, Any] | None = None  # tick at which the running group begins

    @property
    def per_position(self) -> list[float]:
        """Share of verify steps that accepted draft i, over the requests of the running level that ended."""
        steps = sum(self._histogram)
        if steps == 0:
            return []
        drafts = round(self._drafts[0] / self._drafts[1]) if self._drafts[1] else 0
        positions = max(drafts, len(self._histogram) - 1)
        return [sum(self._histogram[position:]) / steps for position in range(1, positions + 1)]

    def add(self, ticks: Iterable[dict[str, Any]]) -> None:
        """Takes in new ticks. A point closes once it spans its period, or when a level or phase ends."""
        for tick in ticks:
            if self.last is None or _place(tick) != _place(self.last):
                self._close()
                self._begin(tick)
            self._group.append(tick)
            self._count(tick["spec"])
            self.last = tick
            start_ns = self._from["t_ns"] if self._from else tick["begun_ns"]
            # A tick is due every half second and may come a little early; three quarters of a period are enough.
            if tick["t_ns"] - start_ns >= 0.75 * thresholds.LOAD_POINT_PERIOD_S * 1e9:
                self._close()

    def finish(self) -> None:
        """No more ticks will come: the last point closes, however short."""
        self._close()

    def _begin(self, tick: dict[str, Any]) -> None:
        if self._origin_ns is None:
            self._origin_ns = tick["begun_ns"]
        self._from = None
        self._histogram, self._drafts = [], [0, 0]

    def _count(self, spec: dict[str, Any]) -> None:
        self._drafts[0] += spec["proposed_drafts"]
        self._drafts[1] += spec["verify_ct"]
        for drafts, steps in enumerate(spec["histogram"]):
            self._histogram += [0] * (drafts + 1 - len(self._histogram))
            self._histogram[drafts] += steps

    def _close(self) -> None:
        """Makes a point of the ticks of the running group."""
        if not self._group:
            return
        last = self._group[-1]
        start_ns = self._from["t_ns"] if self._from else last["begun_ns"]
        self.points.append(self._point(last, (last["t_ns"] - start_ns) / 1e9))
        self._from = last
        self._group = []

    def _point(self, last: dict[str, Any], span_s: float) -> LivePoint:
        gap_ms = sum(tick["gap_ns"] for tick in self._group) / 1e6
        gap_tokens = sum(tick["gap_tokens"] for tick in self._group)
        ttft_ms = [value for tick in self._group for value in tick["ttft_ms"]]
        verify_ct = sum(tick["spec"]["verify_ct"] for tick in self._group)
        correct = sum(tick["spec"]["correct_drafts"] for tick in self._group)
        proposed = sum(tick["spec"]["proposed_drafts"] for tick in self._group)
        # A rest too short for a rate holds few gaps, and chunks that came together make them look like a burst.
        timed = gap_tokens > 0 and gap_ms > 0 and span_s >= thresholds.LOAD_RATE_SPAN_MIN_S
        return LivePoint(
            seq=len(self.points),
            t_s=(last["t_ns"] - (self._origin_ns or 0)) / 1e9,
            level=last["level"],
            phase=last["phase"],
            in_flight=last["in_flight"],
            output_tok_s=self._tok_s(last, span_s),
            tok_s_user=1e3 * gap_tokens / gap_ms if timed else None,
            ttft_ms=median(ttft_ms) if ttft_ms else None,
            itl_ms=gap_ms / gap_tokens if timed else None,
            accept_length=1 + correct / verify_ct if verify_ct else None,
            accept_rate=correct / proposed if proposed else None,
            done=last["done"],
            failed=last["failed"],
        )

    def _tok_s(self, last: dict[str, Any], span_s: float) -> float | None:
        """Tokens of the interval per second; None without counts, or when nothing was in flight and nothing came.

        Requests in flight that got no token are a true 0: that is what a stall looks like. The remainder of a phase is
        too short for a rate: one event more or less would double it.
        """
        if last["tokens"] is None or span_s < thresholds.LOAD_RATE_SPAN_MIN_S:
            return None
        came = last["tokens"] - ((self._from or {}).get("tokens") or 0)
        if came == 0 and not any(tick["in_flight"] for tick in self._group):
            return None
        return float(came / span_s)


def _place(tick: dict[str, Any]) -> tuple[int, str]:
    return tick["level_index"], tick["phase"]
