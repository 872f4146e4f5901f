"""What the worker process is told: one JSON file, `spec.json` in the run's spool."""

from pydantic import Field

from backend.schema.base import Document
from backend.schema.load import BenchRequest


class Prompt(Document):
    """One prompt, ready to be sent: `text` for `/generate` and `/v1/completions`, `messages` for chat."""

    id: str
    text: str = ""
    messages: list[dict[str, str]] = Field(default=[])


class WorkerSpec(Document):
    """A whole load test. The API key is not here: it travels in the worker's environment.

    parent_pid  the worker stops when this is no longer its parent; 0 when nobody watches over it
    flush       POST /flush_cache before the counted part of each level
    """

    run_id: str
    load_id: str
    url: str
    request: BenchRequest
    prompts: list[Prompt]
    flush: bool = False
    parent_pid: int = 0
    warnings: list[str] = Field(default=[])


class LevelGauge(Document):
    """What the worker measured about itself during the counted part of one level."""

    concurrency: int
    wall_s: float
    cpu_s: float
    chunks: int
    loop_lag_p99_ms: float | None = None
    in_flight_achieved: float | None = None


class WorkerReport(Document):
    """`worker.json`: written after each level and at the end. `state` is `running` until the worker ends by itself."""

    state: str
    failure: str | None = None
    warnings: list[str] = Field(default=[])
    levels: list[LevelGauge] = Field(default=[])


# Environment variable that carries the target's API key to the worker.
API_KEY_VARIABLE = "SLIPSTREAM_TARGET_API_KEY"

# How the worker ends, beside 0 (all levels done, or stopped on request) and 2 (the spec cannot be used).
EXIT_SERVER_GONE = 69
EXIT_SPOOL_FAILED = 74
