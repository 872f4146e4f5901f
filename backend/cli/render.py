"""Documents as text for a person. Each function takes one document; `--json` bypasses them all."""

import shlex
from collections.abc import Iterable, Sequence

from backend.cli.table import MISSING, figure, percent, size, table
from backend.redact import redact_argv, redact_env
from backend.schema.engine import (
    Diagnosis,
    EngineStatus,
    Failure,
    Flag,
    LaunchFailure,
    LaunchResult,
    Phase,
    Scan,
    Stopped,
)
from backend.schema.host import Doctor, Status
from backend.schema.load import Bench, Distribution, LevelResult, LoadStatus
from backend.schema.run import ComparedMetric, Comparison, Exported, Imported, RunList, RunRow

_MARK = {"ok": "ok", "warn": "WARN", "fail": "FAIL", "absent": MISSING}


def command_line(argv: Sequence[str]) -> str:
    """A command as a person would type it, without secrets."""
    return shlex.join(redact_argv(argv))


# ---- the machine


def doctor(document: Doctor) -> str:
    rows = [(_MARK[finding.status], finding.id, finding.message) for finding in document.findings]
    remedies = [
        f"{finding.id}: {finding.remedy}" for finding in document.findings if finding.status in ("warn", "fail")
    ]
    engines = [
        (engine.kind, engine.version or MISSING, engine.python, engine.root or MISSING) for engine in document.engines
    ]
    return _sections(
        table(("", "what", "finding"), rows),
        _titled("What to do", remedies),
        table(("engine", "version", "python", "root"), engines) if engines else None,
    )


def scan(document: Scan) -> str:
    rows = [
        (flag.flag, flag.type, MISSING if flag.default is None else str(flag.default), _choices(flag))
        for flag in document.flags
    ]
    head = f"version {document.version or MISSING}, {len(document.flags)} flags, {document.style}, {document.root}"
    drafts = [
        (target, mtp.draft, " ".join(m for rule in mtp.quantization for m in rule.methods), f"{mtp.file}:{mtp.line}")
        for target, mtp in document.mtp_architectures.items()
    ]
    return _sections(
        head,
        table(("flag", "type", "default", "choices"), rows),
        f"speculative algorithms: {', '.join(document.algorithms)}" if document.algorithms else None,
        table(("model", "drafting class", "unquantised for", "said at"), drafts) if drafts else None,
        _titled("Not read", document.unread),
    )


def _choices(flag: Flag) -> str:
    if flag.choices is None:
        return ""
    return " ".join(flag.choices) + ("" if flag.choices_complete else " …")


def diagnosis(document: Diagnosis) -> str:
    ledger = [(name, size(item.bytes), _line(item.line)) for name, item in document.ledger.items()]
    verdict = "became ready" if document.ready else "never became ready"
    return _sections(
        f"engine {document.version or MISSING}: {verdict}",
        _phases(document.phases),
        table(("memory", "size", "log line"), ledger) if ledger else None,
        _titled("Values that the engine changed", (f"line {c.line}: {c.message}" for c in document.changed)),
        _failure(document.failure) if document.failure else None,
    )


# ---- engines


def launch_result(document: LaunchResult) -> str:
    return _sections(
        f"engine {document.id} ready at {document.url} after {figure(document.ready_seconds)} s, pid {document.pid}",
        command_line(document.argv),
        _titled("Environment", (f"{name}={value}" for name, value in redact_env(document.env).items())),
        _titled("Warnings", document.warnings),
        f"log: {document.log}" if document.log else None,
    )


def launch_failure(document: LaunchFailure) -> str:
    log = f"log: {document.log}" if document.log else None
    return _sections(f"engine {document.id} {document.state}", _failure(document.failure), log)


def status(document: Status) -> str:
    agent = document.agent
    engines = [
        (e.id, e.state, e.kind, e.url, str(e.pid or MISSING), e.since, "; ".join(_complaints(e)))
        for e in document.engines
    ]
    loads = [(load.id, load.state, load.run_id, load.url, _done(load), load.failure or "") for load in document.loads]
    return _sections(
        f"agent {agent.version} at {agent.url}, pid {agent.pid}, host {agent.host}, state {agent.state_dir}",
        f"the store cannot be written: {agent.store_error}" if agent.store_error else None,
        table(("engine", "state", "kind", "url", "pid", "since", "alarms"), engines) if engines else "no engine runs",
        table(("load test", "state", "run", "url", "done", "failure"), loads) if loads else None,
    )


def _complaints(engine: EngineStatus) -> list[str]:
    return [*engine.alarms, *([engine.failure.cause] if engine.failure else [])]


def stopped(document: Stopped) -> str:
    if not document.engines:
        return "no engine ran"
    return "\n".join(f"engine {engine.id} {engine.state}" for engine in document.engines)


def _phases(phases: Sequence[Phase]) -> str | None:
    if not phases:
        return None
    rows = [(phase.name, figure(phase.seconds), _line(phase.line)) for phase in phases]
    return table(("phase", "seconds", "log line"), rows)


def _failure(failure: Failure) -> str:
    where = f" (log line {failure.line})" if failure.line else ""
    return f"failure: {failure.failure_class}{where}\ncause:   {failure.cause}\nadvice:  {failure.advice}"


def _line(line: int | None) -> str:
    return MISSING if line is None else str(line)


# ---- load tests


def progress(load: LoadStatus) -> str:
    """One line while a load test runs."""
    now = load.progress
    return f"  {load.state:<9} {now.elapsed_s:5.0f} s  {now.message or f'{_done(load)} requests'}"


def _done(load: LoadStatus) -> str:
    total = load.progress.total
    return str(load.progress.done) if total is None else f"{load.progress.done} of {total}"


def bench(document: Bench) -> str:
    absent = {f"{name}: {why}" for level in document.levels for name, why in _absent(level)}
    spoiled = [
        f"level {level.concurrency}: the load client could not keep up; its figures are too low"
        for level in document.levels
        if level.client.verdict == "client_bound"
    ]
    engine = document.engine
    return _sections(
        f"run {document.run_id} {document.state}, {engine.kind} engine {engine.version or MISSING}, "
        f"{engine.model or 'model unknown'}",
        f"failure: {document.failure}" if document.failure else None,
        _levels(document.levels) if document.levels else "no level was measured",
        _titled("Warnings", spoiled),
        _titled("Not measured", sorted(absent)),
    )


def _absent(level: LevelResult) -> Iterable[tuple[str, str]]:
    shown = {"ttft_ms", "tpot_ms", "itl_ms", "output_tok_s", "tok_s_user"}
    yield from ((name, why) for name, why in level.metrics.absent.items() if name in shown)
    if level.acceptance is None and level.acceptance_absent:
        yield "acceptance", level.acceptance_absent


def _levels(levels: Sequence[LevelResult]) -> str:
    heads = ("users", "ok", "failed", "tok/s", "tok/s/user", "accept length", "accept rate", "TTFT p50 ms", "p99")
    return table((*heads, "ITL p50 ms", "p99"), [_level(level) for level in levels])


def _level(level: LevelResult) -> tuple[str, ...]:
    metrics, accepted = level.metrics, level.acceptance
    return (
        str(level.concurrency),
        str(level.requests.ok),
        str(level.requests.failed),
        figure(metrics.output_tok_s),
        _of(metrics.tok_s_user, "p50"),
        figure(accepted.accept_length if accepted else None, 2),
        percent(accepted.accept_rate if accepted else None),
        _of(metrics.ttft_ms, "p50"),
        _of(metrics.ttft_ms, "p99"),
        _of(metrics.itl_ms, "p50"),
        _of(metrics.itl_ms, "p99"),
    )


def _of(distribution: Distribution | None, percentile: str) -> str:
    return MISSING if distribution is None else figure(getattr(distribution, percentile))


# ---- stored runs


def runs(document: RunList) -> str:
    if not document.runs:
        return "no runs; measure one with `python -m backend bench`"
    heads = (
        "run",
        "started (UTC)",
        "model",
        "engine",
        "draft steps",
        "users",
        "best tok/s",
        "accept",
        "verdict",
        "tags",
        "note",
    )
    return table(heads, [_run(row) for row in document.runs])


def _run(row: RunRow) -> tuple[str, ...]:
    rates = [level.output_tok_s for level in row.levels if level.output_tok_s is not None]
    accepted = [level.accept_length for level in row.levels if level.accept_length is not None]
    return (
        f"{row.id}{' *' if row.pinned else ''}",
        row.started_at_utc[:19].replace("T", " "),
        row.model.rstrip("/").rsplit("/", 1)[-1],
        row.engine,
        MISSING if row.draft_steps is None else str(row.draft_steps or "off"),
        ",".join(str(level.concurrency) for level in row.levels) or MISSING,
        figure(max(rates, default=None)),
        figure(max(accepted, default=None), 2),
        row.verdict,
        " ".join(row.tags),
        row.note.splitlines()[0] if row.note else "",
    )


def comparison(document: Comparison) -> str:
    settings = [(d.setting, d.a or MISSING, d.b or MISSING) for d in document.config_diff]
    return _sections(
        f"A {document.a}\nB {document.b}\nverdict: {document.verdict.replace('_', ' ')}",
        table(("setting", "A", "B"), settings) if settings else "the settings are the same",
        table(("metric", "unit", "users", "A", "B", "B/A", "95 % interval", "verdict"), _compared(document.metrics)),
        _titled("Confounds", document.confounds),
        document.design,
    )


def _compared(metrics: Sequence[ComparedMetric]) -> list[tuple[str, ...]]:
    return [
        (
            metric.name,
            metric.unit,
            MISSING if metric.concurrency is None else str(metric.concurrency),
            figure(metric.a, 2),
            figure(metric.b, 2),
            figure(metric.ratio, 3),
            MISSING if metric.ci_low is None else f"{figure(metric.ci_low, 3)} to {figure(metric.ci_high, 3)}",
            f"{metric.verdict.replace('_', ' ')}{f': {metric.reason}' if metric.reason else ''}",
        )
        for metric in metrics
    ]


def exported(document: Exported) -> str:
    return f"{document.path}, {size(document.bytes)}"


def imported(document: Imported) -> str:
    return f"run {document.run_id}"


# ---- pieces


def _sections(*parts: str | None) -> str:
    return "\n\n".join(part for part in parts if part)


def _titled(title: str, lines: Iterable[str]) -> str | None:
    listed = "\n".join(f"  {line}" for line in lines)
    return f"{title}\n{listed}" if listed else None
