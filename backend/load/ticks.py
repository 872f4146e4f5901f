"""Live ticks: what happened since the one before, read from the open requests so that the hot path pays nothing."""

from collections.abc import Iterable
from typing import Any

from backend.clock import monotonic_ns
from backend.load.exchange import Exchange


class Ticker:
    """Sums of one level and phase. `ended` for each request that ends, `tick` twice a second."""

    def __init__(self) -> None:
        self.begin(0, 0, "warmup", None)

    def begin(self, level: int, level_index: int, phase: str, total: int | None) -> None:
        """A new level or phase: everything is counted from zero."""
        self._place = {"level": level, "level_index": level_index, "phase": phase, "total": total}
        self._begun_ns = monotonic_ns()
        self._counted = False  # whether any token count was seen in this phase
        self._tokens = 0
        self._done = self._failed = 0
        self._clear()

    def _clear(self) -> None:
        self._ttft_ms: list[float] = []
        self._gap_ns = self._gap_tokens = 0
        self._spec = {"verify_ct": 0, "correct_drafts": 0, "proposed_drafts": 0}
        self._histogram: list[int] = []

    def ended(self, exchange: Exchange) -> None:
        """Counts a request that has ended."""
        self._read(exchange)
        if exchange.failure is None:
            self._done += 1
        elif exchange.failure[0] != "cancelled":
            self._failed += 1
        spec = exchange.stream.spec
        if spec is None:
            return
        for name in self._spec:
            self._spec[name] += spec[name]
        for drafts, steps in enumerate(spec["histogram"] or []):
            self._histogram += [0] * (drafts + 1 - len(self._histogram))
            self._histogram[drafts] += steps

    def tick(self, open_requests: Iterable[Exchange], in_flight: int) -> dict[str, Any]:
        """One line of `ticks.jsonl`. `tokens` is None as long as the server gave no count."""
        for exchange in open_requests:
            self._read(exchange)
        row = {
            "t_ns": monotonic_ns(),
            **self._place,
            "begun_ns": self._begun_ns,
            "in_flight": in_flight,
            "tokens": self._tokens if self._counted else None,
            "done": self._done,
            "failed": self._failed,
            "ttft_ms": self._ttft_ms,
            "gap_ns": self._gap_ns,
            "gap_tokens": self._gap_tokens,
            "spec": {**self._spec, "histogram": self._histogram},
        }
        self._clear()
        return row

    def _read(self, exchange: Exchange) -> None:
        """Takes in the arrivals that no tick has counted yet."""
        stream = exchange.stream
        arrivals, counts, seen = stream.arrivals, stream.chunk_tokens, stream.seen
        if len(arrivals) == seen:
            return
        stream.seen = len(arrivals)
        if seen == 0:
            self._ttft_ms.append(round((arrivals[0] - exchange.sent_ns) / 1e6, 3))
        if counts:
            self._counted = True
            before = max(seen, 1)
            self._tokens += counts[-1] - (counts[seen - 1] if seen else 0)
            self._gap_ns += arrivals[-1] - arrivals[before - 1]
            self._gap_tokens += counts[-1] - counts[before - 1]
