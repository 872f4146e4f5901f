"""One stored run as a document: the rows of `runs`, `tags` and `levels` together, and `run.json` of an export."""

from collections.abc import Mapping

from pydantic import Field

from backend.redact import redact_argv, redact_env, redact_settings, redact_text
from backend.schema.base import Document
from backend.schema.load import Bench, BenchEngine, BenchRequest, LevelResult, LoadState
from backend.schema.run import RunDetail, RunLevel, RunRow, RunVerdict

UNKNOWN_MODEL = "unknown"  # an attached server need not say what it serves

_ENDED_EARLY: dict[LoadState, RunVerdict] = {
    LoadState.FAILED: "failed",
    LoadState.INTERRUPTED: "interrupted",
    LoadState.STOPPED: "partial",
}


class StoredRun(Document):
    """Everything about a run except its requests and samples."""

    id: str
    started_at_utc: str
    finished_at_utc: str | None = None
    state: LoadState
    request: BenchRequest
    engine: BenchEngine
    host: dict[str, object]
    versions: dict[str, str]
    levels: list[LevelResult] = Field(default_factory=list)
    failure: str | None = None
    note: str = ""
    tags: list[str] = Field(default_factory=list)
    pinned: bool = False
    log: str | None = None

    @property
    def model(self) -> str:
        return self.engine.model or UNKNOWN_MODEL

    @property
    def verdict(self) -> RunVerdict:
        return verdict_of(self.state, self.levels)

    def row(self) -> RunRow:
        return RunRow(
            id=self.id,
            started_at_utc=self.started_at_utc,
            model=self.model,
            engine=engine_label(self.engine.kind, self.engine.version),
            levels=[headline(level) for level in self.levels],
            verdict=self.verdict,
            tags=self.tags,
            note=self.note,
            pinned=self.pinned,
            state=self.state,
            config_hash=self.engine.config_hash,
            draft_steps=draft_steps(self.engine.effective),
        )

    def detail(self, *, request_count: int, sample_tables: list[str]) -> RunDetail:
        bench = Bench(
            run_id=self.id,
            state=self.state,
            levels=self.levels,
            engine=self.engine,
            request=self.request,
            failure=self.failure,
        )
        return RunDetail(
            row=self.row(),
            bench=bench,
            host=self.host,
            versions=self.versions,
            seed=self.request.seed,
            request_count=request_count,
            sample_tables=sample_tables,
            log=self.log,
        )


def verdict_of(state: LoadState, levels: list[LevelResult]) -> RunVerdict:
    """What a run is worth. `client_bound` comes before `partial`: its figures describe the client, not the engine."""
    if state in _ENDED_EARLY:
        return _ENDED_EARLY[state]
    if state != LoadState.FINISHED:
        return "running"
    if not any(level.requests.ok for level in levels):
        return "failed"
    if any(level.client.verdict == "client_bound" for level in levels):
        return "client_bound"
    return "partial" if any(level.requests.failed for level in levels) else "ok"


def headline(level: LevelResult) -> RunLevel:
    """The figures of a level that lists show; tok/s/user is the median over requests."""
    return RunLevel(
        concurrency=level.concurrency,
        output_tok_s=level.metrics.output_tok_s,
        tok_s_user=level.metrics.tok_s_user.p50 if level.metrics.tok_s_user else None,
        accept_length=level.acceptance.accept_length if level.acceptance else None,
    )


def engine_label(kind: str, version: str | None) -> str:
    return f"{kind} {version}" if version else kind


def draft_steps(effective: Mapping[str, object]) -> int | None:
    """What `RunRow.draft_steps` says, from the engine's effective settings."""
    if effective.get("speculative_algorithm"):
        steps = effective.get("speculative_num_steps")
        return steps if isinstance(steps, int) else None
    return 0 if "speculative_algorithm" in effective else None


def without_secrets(run: StoredRun) -> StoredRun:
    """The run as it may be stored and exported."""
    engine = run.engine.model_copy(
        update={
            "argv": redact_argv(run.engine.argv),
            "env": redact_env(run.engine.env),
            "effective": redact_settings(run.engine.effective),
        }
    )
    url = run.request.url
    request = run.request.model_copy(update={"url": redact_text(url)}) if url else run.request
    failure = redact_text(run.failure) if run.failure else run.failure
    return run.model_copy(
        update={"engine": engine, "request": request, "failure": failure, "host": redact_settings(run.host)}
    )


def clean_tags(tags: list[str]) -> list[str]:
    """Tags stripped, without empty ones and repetitions, in the order given."""
    return list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
