"""Documents → rows of text for tables. Pure. What is absent reads `n/a`, and its reason stands beside it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from backend.schema.engine import EngineState, EngineStatus, Phase
from backend.schema.load import Distribution, LevelResult, RequestRecord
from backend.schema.run import ComparedMetric, RunRow
from pages.ui import format as fmt
from pages.ui.labels import BETTER, COMPARED, METRICS, PHASES, VERDICTS, MetricLabel

Row = dict[str, str]


@dataclass(frozen=True)
class PhaseRow:
    """One line of a launch's progress."""

    label: str
    state: str  # done | running | waiting | skipped | failed
    seconds: str
    detail: str


def phase_rows(engine: EngineStatus) -> list[PhaseRow]:
    """Every phase of a launch in order, with those to come. A phase that was passed over is `skipped`."""
    seen = {phase.name: phase for phase in engine.phases}
    names = list(PHASES)
    last = max((names.index(name) for name in seen), default=-1)
    ended = engine.state in (EngineState.READY, EngineState.DEGRADED, EngineState.STOPPED)
    rows = []
    for position, name in enumerate(names):
        phase = seen.get(name)
        if phase is None:
            state = "skipped" if position < last or ended else "waiting"
            rows.append(PhaseRow(PHASES[name], state, "", ""))
            continue
        rows.append(PhaseRow(PHASES[name], _phase_state(phase, engine), _phase_seconds(phase), phase.detail or ""))
    return rows


def _phase_state(phase: Phase, engine: EngineStatus) -> str:
    if phase.seconds is not None or phase.name == "ready":
        return "done"
    return "failed" if engine.state is EngineState.FAILED else "running"


def _phase_seconds(phase: Phase) -> str:
    return "" if phase.seconds is None else fmt.seconds(phase.seconds)


def level_rows(levels: Sequence[LevelResult]) -> list[Row]:
    """One row per metric, one column per concurrency level."""
    heads = level_heads(levels)
    rows = []
    for metric in METRICS:
        cells = {head: metric_text(level, metric) for head, level in zip(heads, levels, strict=True)}
        rows.append({"Metric": metric.label, **cells, "Unit": metric.unit})
    for label, cell in (
        ("Requests ok / failed", lambda level: f"{level.requests.ok} / {level.requests.failed}"),
        ("Output tokens", lambda level: f"{level.tokens.output:,}"),
        ("Measured for", lambda level: fmt.seconds(level.seconds)),
        ("In flight, achieved", lambda level: fmt.number(level.client.in_flight_achieved)),
        ("Load client", lambda level: VERDICTS[level.client.verdict]),
    ):
        rows.append({"Metric": label, **{h: cell(lv) for h, lv in zip(heads, levels, strict=True)}, "Unit": ""})
    return rows


def level_heads(levels: Sequence[LevelResult]) -> list[str]:
    """Column titles; a level that was asked for twice gets its position too."""
    counts = [level.concurrency for level in levels]
    return [
        f"{c} user{'s' if c != 1 else ''}" + (f" (#{i})" if counts.count(c) > 1 else "")
        for i, c in enumerate(counts, start=1)
    ]


def metric_value(level: LevelResult, metric: MetricLabel) -> float | None:
    """The single figure of a level that stands for this metric, in the metric's unit."""
    source = level.acceptance if metric.of_acceptance else level.metrics
    value = None if source is None else getattr(source, metric.name)
    if isinstance(value, Distribution):
        return float(getattr(value, metric.statistic))
    if value is None:
        return None
    return float(value) * (100 if metric.unit == "%" else 1)


def metric_text(level: LevelResult, metric: MetricLabel) -> str:
    return fmt.number(metric_value(level, metric))


def absences(levels: Sequence[LevelResult]) -> list[str]:
    """Why figures are missing, each reason once: `Accept length: … (1 user, 2 users)`."""
    heads = level_heads(levels)
    found: dict[str, list[str]] = {}
    for head, level in zip(heads, levels, strict=True):
        for name, reason in level.metrics.absent.items():
            found.setdefault(f"{_label_of(name)}: {reason}", []).append(head)
        if level.acceptance is None:
            reason = level.acceptance_absent or "the engine reports no speculation counters"
            found.setdefault(f"Acceptance: {reason}", []).append(head)
    return [f"{reason} ({', '.join(where)})" for reason, where in found.items()]


def _label_of(name: str) -> str:
    return next((metric.label for metric in METRICS if metric.name == name), name)


def failures(levels: Sequence[LevelResult]) -> list[Row]:
    """Failed requests by class and level."""
    return [
        {"Level": head, "Error class": name, "Requests": str(count)}
        for head, level in zip(level_heads(levels), levels, strict=True)
        for name, count in level.requests.by_class.items()
    ]


def run_rows(runs: Iterable[RunRow]) -> list[dict[str, object]]:
    """The list of runs, newest first; figures are those of the best level by output tok/s."""
    rows = []
    for run in runs:
        best = max(run.levels, key=lambda level: level.output_tok_s or 0.0, default=None)
        rows.append(
            {
                "Run": run.id,
                "Started": fmt.when(run.started_at_utc),
                "Verdict": VERDICTS[run.verdict],
                "Model": fmt.name_of_path(run.model),
                "Engine": run.engine,
                "Users": ", ".join(str(level.concurrency) for level in run.levels),
                "Best tok/s": best and best.output_tok_s,
                "tok/s per user": best and best.tok_s_user,
                "Accept length": best and best.accept_length,
                "Tags": run.tags,
                "Note": run.note,
                "Pinned": run.pinned,
            }
        )
    return rows


def record_rows(records: Iterable[RequestRecord]) -> list[dict[str, object]]:
    """One row per request. Times in ms from sending; None where the request had no such moment."""
    rows = []
    for r in records:
        rows.append(
            {
                "Level": r.level,
                "#": r.index,
                "Phase": r.phase,
                "Result": "ok" if r.ok else r.error_class or "failed",
                "TTFT (ms)": _ms(r.sent_ns, r.first_ns),
                "Total (ms)": _ms(r.sent_ns, r.end_ns),
                "In (tok)": r.input_tokens,
                "Out (tok)": r.output_tokens,
                "Cached (tok)": r.cached_tokens,
                "Accept length": None
                if r.spec is None or not r.spec.verify_ct
                else 1 + r.spec.correct_drafts / r.spec.verify_ct,
                "Finish": r.finish_reason,
                "Prompt": r.prompt_id,
                "Error": r.error,
                "Text": r.text[:200],
            }
        )
    return rows


def _ms(start_ns: int, end_ns: int | None) -> float | None:
    return None if end_ns is None else (end_ns - start_ns) / 1e6


def compared_rows(metrics: Iterable[ComparedMetric]) -> list[Row]:
    """Metrics side by side: both values, the ratio B / A with its interval, and the verdict in words."""
    rows = []
    for m in metrics:
        interval = NA_INTERVAL if m.ci_low is None or m.ci_high is None else f"{m.ci_low:.3f} – {m.ci_high:.3f}"
        rows.append(
            {
                "Metric": _label_of(m.name),
                "Users": "" if m.concurrency is None else str(m.concurrency),
                "A": fmt.number(m.a),
                "B": fmt.number(m.b),
                "Unit": m.unit,
                "Better": BETTER[m.better],
                "B / A": fmt.NA if m.ratio is None else f"{m.ratio:.3f}×",
                "Interval of the ratio": interval,
                "Verdict": COMPARED[m.verdict],
                "Reason": m.reason or "",
            }
        )
    return rows


NA_INTERVAL = fmt.NA


def pairs(mapping: Mapping[str, object]) -> list[Row]:
    """A mapping as rows of text, sorted, for configurations and versions."""
    return [{"Setting": str(name), "Value": "not set" if v is None else str(v)} for name, v in sorted(mapping.items())]
