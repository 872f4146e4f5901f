"""Counters of the scheduler: what the log lines, /server_info and /metrics report. One writer, many readers."""

from dataclasses import dataclass, field

from backend.clock import monotonic_s
from backend.reference.request import Request

# Upper bounds in seconds, doubling: the range of a tiny model on a CPU and of a large one under load alike.
LATENCY_BUCKETS_S = tuple(0.001 * 2**n for n in range(18))


@dataclass
class Histogram:
    """A Prometheus histogram."""

    bounds: tuple[float, ...] = LATENCY_BUCKETS_S
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        place = next((n for n, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[place] += times
        self.total += value * times


@dataclass
class Acceptance:
    """Totals of verifications since some moment."""

    verifications: int = 0
    correct: int = 0
    proposed: int = 0

    def add(self, verifications: int, correct: int, steps: int) -> None:
        """More verifications, each of `steps` drafts."""
        self.verifications += verifications
        self.correct += correct
        self.proposed += verifications * steps

    @property
    def length(self) -> float | None:
        """Tokens per verification, its own included; None before the first."""
        return 1 + self.correct / self.verifications if self.verifications else None

    @property
    def rate(self) -> float | None:
        """Share of the drafts that were correct; None before the first verification."""
        return self.correct / self.proposed if self.proposed else None


@dataclass
class Stats:
    """Everything since the start, except where a name says otherwise."""

    running: int = 0
    queued: int = 0
    used_tokens: int = 0
    gen_throughput: float = 0.0  # tokens per second in the last log interval
    interval: Acceptance = field(default_factory=Acceptance)  # since the last decode log line
    last_interval: Acceptance = field(default_factory=Acceptance)  # the one before
    since_flush: Acceptance = field(default_factory=Acceptance)
    verify_calls: int = 0  # per request and verification
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefill_computed: int = 0
    prefill_cached: int = 0  # prompt tokens that the prefix cache had
    decoded: int = 0
    requests: int = 0
    aborted: int = 0
    first_token: Histogram = field(default_factory=Histogram)
    latency: Histogram = field(default_factory=Histogram)
    queue_time: Histogram = field(default_factory=Histogram)
    step_began_s: float | None = None  # None while idle

    def finished(self, request: Request) -> None:
        """Count a request that ended."""
        self.requests += 1
        self.prompt_tokens += len(request.prompt)
        self.generation_tokens += len(request.output)
        if request.finish_reason is not None and request.finish_reason["type"] == "abort":
            self.aborted += 1
        now = monotonic_s()
        self.latency.observe(now - request.received_s)
        if request.first_token_s is not None:
            self.first_token.observe(request.first_token_s - request.received_s)
        if request.started_s is not None:
            self.queue_time.observe(request.started_s - request.received_s)
