"""Documents about load tests: the request, one record per request, one result per concurrency level."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from backend.schema.base import Document, Request
from backend.schema.engine import EngineKind

# What every server, timer and database holds: a count of 32 bits, a time of a month.
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Field(gt=0, le=31 * 86400)]


class Endpoint(StrEnum):
    """Route under test. `/generate` is the only one that carries acceptance per request in every release."""

    GENERATE = "generate"
    CHAT = "chat"
    COMPLETIONS = "completions"


class BenchRequest(Request):
    """A closed-loop load test. Every level runs warm-up, then `requests` requests or `duration_s` seconds."""

    url: str | None = None
    engine_id: str | None = None
    endpoint: Endpoint = Endpoint.GENERATE
    concurrency: list[int] = Field(default=[1, 2, 4], min_length=1, max_length=16)
    dataset: str = "code"
    input_len: Count | None = None
    output_len: Count = 128
    requests: Count | None = None
    duration_s: Seconds | None = None
    warmup_requests: int = Field(default=1, ge=0, le=2**31 - 1)
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    ignore_eos: bool = True
    chat_template: bool = True
    flush_cache: bool = True
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    timeout_s: Seconds = 600.0
    tags: list[str] = []
    note: str = ""

    @model_validator(mode="after")
    def _levels_and_stop(self) -> "BenchRequest":
        if any(level < 1 or level > 4096 for level in self.concurrency):
            raise ValueError(f"concurrency levels must be 1 to 4096, got {self.concurrency}")
        if self.requests is not None and self.duration_s is not None:
            raise ValueError("give a number of requests per level or of seconds, not both")
        return self


class LoadState(StrEnum):
    """Life of one load test."""

    PREPARING = "preparing"  # prompts are read and rendered, the worker starts
    WARMUP = "warmup"  # requests that are not counted
    RUNNING = "running"  # counted requests
    STOPPING = "stopping"  # Stop pressed: no new requests, the open ones are cancelled
    FINISHED = "finished"  # every level done
    STOPPED = "stopped"  # ended by a person; what was measured is kept
    FAILED = "failed"  # the engine or the worker went away; what was measured is kept
    INTERRUPTED = "interrupted"  # the agent died while it ran; what was measured is kept

    @property
    def ended(self) -> bool:
        """Whether nothing comes after it."""
        return self in (self.FINISHED, self.STOPPED, self.FAILED, self.INTERRUPTED)


class SpecCounts(Document):
    """Speculation counters of one request as the engine reports them.

    `histogram[i]` counts verify steps with exactly i correct drafts; it sums to `verify_ct` where it is given.
    """

    verify_ct: int
    correct_drafts: int
    proposed_drafts: int
    histogram: list[int] | None = None
    engine_accept_length: float | None = None


class RequestRecord(Document):
    """One request, kept whole. All `_ns` are CLOCK_MONOTONIC; `chunk_ns`/`chunk_tokens` are parallel.

    chunk_ns[i]      arrival of the i-th event that added at least one token
    chunk_tokens[i]  the server's cumulative output-token count after it; empty when it gives none with each event
    `phase` is `warmup` or `measure`. A failed request is a record too, with `error_class` and `error`.
    """

    run_id: str
    level: int
    index: int
    phase: Literal["warmup", "measure"]
    prompt_id: str
    worker: int = 0
    intended_ns: int
    sent_ns: int
    first_ns: int | None = None
    first_answer_ns: int | None = None
    last_ns: int | None = None
    end_ns: int
    chunk_ns: list[int] = []
    chunk_tokens: list[int] = []
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    spec: SpecCounts | None = None
    http_status: int | None = None
    ok: bool
    error_class: str | None = None
    error: str | None = None
    text: str = ""


class Distribution(Document):
    """A sample's summary; percentiles by linear interpolation over merged raw samples. Never made from nothing."""

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class Metrics(Document):
    """Figures of one level. What could not be measured is None and its reason stands in `absent`."""

    ttft_ms: Distribution | None = None
    ttfa_ms: Distribution | None = None
    tpot_ms: Distribution | None = None
    itl_ms: Distribution | None = None
    icl_ms: Distribution | None = None
    e2e_ms: Distribution | None = None
    tok_s_user: Distribution | None = None
    output_tok_s: float | None = None
    output_tok_s_whole: float | None = None
    request_s: float | None = None
    goodput_s: float | None = None
    absent: dict[str, str] = {}


class Acceptance(Document):
    """Speculation of one level. `accept_length` = 1 + correct drafts / verify steps.

    `per_position[i]` is the share of verify steps in which draft i+1 was accepted (unconditional).
    `engine_accept_length` is the engine's own figure, which also counts the token that prefill produced.
    """

    accept_length: float
    engine_accept_length: float | None = None
    accept_rate: float | None = None
    per_position: list[float] = []
    verify_steps: int
    source: str


class ClientGauge(Document):
    """Whether the load client itself kept up."""

    cpu_pct: float | None = None
    us_per_chunk: float | None = None
    loop_lag_p99_ms: float | None = None
    in_flight_achieved: float | None = None
    verdict: Literal["ok", "client_bound", "unknown"] = "unknown"


class RequestCounts(Document):
    """Requests of one level; `by_class` counts the failed ones by error class."""

    sent: int
    ok: int
    failed: int
    by_class: dict[str, int] = {}


class TokenCounts(Document):
    """Tokens of the successful requests of one level, by the server's counts; None when it does not say."""

    input: int | None
    output: int | None
    cached: int | None = None


class LevelResult(Document):
    """Result of one concurrency level. `failures`: what the first failed request of each error class said."""

    concurrency: int
    seconds: float
    requests: RequestCounts
    failures: dict[str, str] = {}
    tokens: TokenCounts
    metrics: Metrics
    acceptance: Acceptance | None = None
    acceptance_absent: str | None = None
    client: ClientGauge = ClientGauge()


class BenchEngine(Document):
    """The engine a run was measured on."""

    kind: EngineKind
    version: str | None
    argv: list[str] = []
    effective: dict[str, object] = {}
    model: str | None = None
    env: dict[str, str] = {}
    config_hash: str = ""
    ledger: dict[str, int] = {}


class Bench(Document):
    """The document of `bench`."""

    run_id: str
    state: LoadState
    levels: list[LevelResult]
    engine: BenchEngine
    request: BenchRequest
    failure: str | None = None


class LivePoint(Document):
    """One live reading, about one per second. None where nothing was observed in the interval, never 0 for it."""

    seq: int
    t_s: float  # seconds since the load test began
    level: int
    phase: Literal["warmup", "measure"]
    in_flight: int
    output_tok_s: float | None = None
    tok_s_user: float | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    accept_length: float | None = None
    accept_rate: float | None = None
    done: int = 0
    failed: int = 0


class LoadProgress(Document):
    """Where a load test stands."""

    level: int | None = None
    level_index: int = 0
    levels: int = 0
    done: int = 0
    total: int | None = None
    elapsed_s: float = 0.0
    fraction: float | None = None
    message: str = ""


class LoadStatus(Document):
    """One load test as the agent sees it."""

    id: str
    state: LoadState
    run_id: str
    engine_id: str | None = None
    url: str
    started_at_utc: str
    progress: LoadProgress = LoadProgress()
    failure: str | None = None
    warnings: list[str] = []


class LiveDelta(Document):
    """Live points after a cursor. When `boot` differs from the one sent, or `reset` is set, start anew."""

    boot: str
    cursor: int
    reset: bool
    points: list[LivePoint]
    per_position: list[float] = []
    status: LoadStatus
