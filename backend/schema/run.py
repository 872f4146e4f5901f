"""Documents about stored runs: list, detail, comparison, exchange."""

from typing import Literal

from backend.schema.base import Document, Request
from backend.schema.load import Bench, LoadState

RunVerdict = Literal["ok", "partial", "failed", "interrupted", "client_bound", "running"]


class RunLevel(Document):
    """The headline of one level, for lists."""

    concurrency: int
    output_tok_s: float | None = None
    tok_s_user: float | None = None
    accept_length: float | None = None


class RunRow(Document):
    """One run in a list."""

    id: str
    started_at_utc: str
    model: str
    engine: str
    levels: list[RunLevel]
    verdict: RunVerdict
    tags: list[str] = []
    note: str = ""
    pinned: bool = False
    state: LoadState
    config_hash: str = ""
    draft_steps: int | None = None
    """Draft steps of speculative decoding; 0 when it was off, None where the server did not say."""


class RunList(Document):
    """The document of `runs`."""

    runs: list[RunRow]


class RunDetail(Document):
    """A run as it is reopened: its row, the whole result, and where and with what it was measured."""

    row: RunRow
    bench: Bench
    host: dict[str, object] = {}
    versions: dict[str, str] = {}
    seed: int = 0
    request_count: int = 0
    sample_tables: list[str] = []
    log: str | None = None


class RunPatch(Request):
    """What a person may change on a stored run. None leaves a field as it is."""

    note: str | None = None
    tags: list[str] | None = None
    pinned: bool | None = None


class ComparedMetric(Document):
    """One metric of two runs at one level. `ratio` = b / a; the interval is for the ratio."""

    name: str
    concurrency: int | None = None
    unit: str = ""
    better: Literal["higher", "lower", "neither"] = "higher"
    a: float | None
    b: float | None
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    verdict: Literal["a_better", "b_better", "not_distinguishable", "not_comparable"]
    reason: str | None = None


class ConfigDifference(Document):
    """One setting that differs. None: not set on that side."""

    setting: str
    a: str | None
    b: str | None


class Comparison(Document):
    """The document of `compare`."""

    a: str
    b: str
    verdict: Literal["a_better", "b_better", "not_distinguishable", "not_comparable"]
    metrics: list[ComparedMetric]
    confounds: list[str]
    design: str
    config_diff: list[ConfigDifference] = []


class Exported(Document):
    """The document of `export`."""

    path: str
    bytes: int


class Imported(Document):
    """The document of `import-run`."""

    run_id: str
