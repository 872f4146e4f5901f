"""Documents → rows of text for tables. Pure. What is absent reads `n/a`, and its reason stands beside it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from backend.metrics import METRICS, MetricSpec
from backend.schema.engine import EngineState, EngineStatus, Phase
from backend.schema.load import Distribution, LevelResult, RequestRecord
from backend.schema.run import ComparedMetric, RunRow
from pages.ui import format as fmt
from pages.ui.labels import BETTER, CLIENT_VERDICTS, COMPARED, NOT_JUDGED, PHASES, STATISTICS, VERDICTS

Row = dict[str, str]

# Of these distributions the tail is shown too, or alone; of the others the median.
TAILS: dict[str, tuple[str, ...]] = {"ttft_ms": ("p50", "p99"), "itl_ms": ("p50", "p99"), "icl_ms": ("p99",)}


@dataclass(frozen=True)
class PhaseRow:
    """One line of a launch's progress."""

    label: str
    state: str  # done | running | waiting | skipped | failed | missed
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
            to_come = "missed" if engine.state is EngineState.FAILED else "waiting"
            state = "skipped" if position < last or ended else to_come
            rows.append(PhaseRow(PHASES[name], state, "", ""))
            continue
        rows.append(PhaseRow(PHASES[name], _phase_state(phase, engine), _phase_seconds(phase), phase.detail or ""))
    return rows


def _phase_state(phase: Phase, engine: EngineStatus) -> str:
    if engine.state is EngineState.FAILED and phase is engine.phases[-1] and phase.name != "ready":
        return "failed"
    return "done" if phase.seconds is not None or phase.name == "ready" else "running"


def _phase_seconds(phase: Phase) -> str:
    return "" if phase.seconds is None else fmt.seconds(phase.seconds)


@dataclass(frozen=True)
class Figure:
    """One line of a results table: a metric, and of a distribution one statistic."""

    spec: MetricSpec
    statistic: str | None

    @property
    def label(self) -> str:
        word = STATISTICS.get(self.statistic) if self.statistic else None
        return f"{self.spec.label}, {word}" if word else self.spec.label

    @property
    def unit(self) -> str:
        return "%" if self.spec.unit == "ratio" else self.spec.unit

    def value(self, level: LevelResult) -> float | None:
        """The figure of a level in `unit`, or None."""
        value = getattr(getattr(level, self.spec.place), self.spec.name, None)
        if isinstance(value, Distribution):
            value = getattr(value, self.statistic or "p50")
        if value is None:
            return None
        return float(value) * (100 if self.spec.unit == "ratio" else 1)


def _in_reading_order() -> list[MetricSpec]:
    """Acceptance explains throughput, so it stands right under it; the list of positions has a line of its own."""
    first = [spec for spec in METRICS if spec.name.startswith(("output_", "tok_s_"))]
    acceptance = [spec for spec in METRICS if spec.place == "acceptance" and spec.name != "per_position"]
    rest = [spec for spec in METRICS if spec not in first and spec.place != "acceptance"]
    return [*first, *acceptance, *rest]


def _statistics(spec: MetricSpec) -> tuple[str | None, ...]:
    return TAILS.get(spec.name, ("p50",)) if spec.distribution else (None,)


FIGURES = tuple(Figure(spec, statistic) for spec in _in_reading_order() for statistic in _statistics(spec))


def level_rows(levels: Sequence[LevelResult]) -> list[Row]:
    """One row per figure that some level has, one column per concurrency level."""
    heads = level_heads(levels)
    rows = []
    for figure in FIGURES:
        values = [figure.value(level) for level in levels]
        if all(v is None for v in values) and figure.spec.name != "accept_length":
            continue
        cells = {head: fmt.number(value) for head, value in zip(heads, values, strict=True)}
        rows.append({"Figure": figure.label, **cells, "Unit": figure.unit})
    for label, cell, unit in COUNTS:
        texts = [cell(level) for level in levels]
        if any(text != fmt.NA for text in texts):
            rows.append({"Figure": label, **dict(zip(heads, texts, strict=True)), "Unit": unit})
    return rows


def _positions(level: LevelResult) -> str:
    shares = level.acceptance.per_position if level.acceptance else []
    return " / ".join(f"{share * 100:.0f}" for share in shares) or fmt.NA


def _output_tokens(level: LevelResult) -> str:
    return fmt.NA if level.tokens.output is None else f"{level.tokens.output:,}"


COUNTS: tuple[tuple[str, Callable[[LevelResult], str], str], ...] = (
    ("Accepted at draft 1 / 2 / …", _positions, "%"),
    ("Requests ok / failed", lambda level: f"{level.requests.ok} / {level.requests.failed}", ""),
    ("Output tokens", _output_tokens, ""),
    ("Measured for", lambda level: fmt.seconds(level.seconds), ""),
    ("Load client", lambda level: CLIENT_VERDICTS[level.client.verdict], ""),
)


def level_heads(levels: Sequence[LevelResult]) -> list[str]:
    """Column titles; a level that was asked for twice gets its position too."""
    counts = [level.concurrency for level in levels]
    return [fmt.users(c) + (f" (#{i})" if counts.count(c) > 1 else "") for i, c in enumerate(counts, start=1)]


def absences(levels: Sequence[LevelResult]) -> list[str]:
    """Why figures are missing, each reason once: `Accept length: … (1 user, 2 users)`."""
    heads = level_heads(levels)
    found: dict[str, list[str]] = {}
    for head, level in zip(heads, levels, strict=True):
        for name, reason in level.metrics.absent.items():
            if name == "goodput_s":  # absent unless somebody asks for it with an objective
                continue
            found.setdefault(f"{label_of(name)}: {reason}", []).append(head)
        if level.acceptance is None:
            reason = level.acceptance_absent or "the engine reports no speculation counters"
            found.setdefault(f"Acceptance: {reason}", []).append(head)
    return [f"{reason} ({', '.join(where)})" for reason, where in found.items()]


def label_of(name: str) -> str:
    """The declared label of a metric; `ttft_ms_p99` is a metric and a statistic."""
    specs = {spec.name: spec for spec in METRICS}
    if name in specs:
        return specs[name].label
    base, _, statistic = name.rpartition("_")
    return f"{specs[base].label}, {STATISTICS.get(statistic, statistic)}" if base in specs else name


def glossary_rows() -> list[Row]:
    """What every figure means, as it is declared."""
    return [{"Figure": m.label, "Unit": m.unit, "How it is computed": m.formula, "Needs": m.needs} for m in METRICS]


def failures(levels: Sequence[LevelResult]) -> list[Row]:
    """Failed requests by class and level."""
    return [
        {"Level": head, "Error class": name, "Requests": str(count)}
        for head, level in zip(level_heads(levels), levels, strict=True)
        for name, count in level.requests.by_class.items()
    ]


def filter_runs(runs: Sequence[RunRow], tag: str | None, verdict: str | None, note: str) -> list[RunRow]:
    """Runs with this tag, this verdict, and this text in the note (in any case)."""
    return [
        run
        for run in runs
        if (tag is None or tag in run.tags)
        and (verdict is None or run.verdict == verdict)
        and note.lower() in run.note.lower()
    ]


def run_rows(runs: Iterable[RunRow]) -> list[dict[str, object]]:
    """The list of runs, newest first; figures are those of the best level by output tok/s."""
    rows: list[dict[str, object]] = []
    for run in runs:
        best = max(run.levels, key=lambda level: level.output_tok_s or 0.0, default=None)
        rows.append(
            {
                "Run": run.id,
                "Started": fmt.when(run.started_at_utc),
                "Verdict": VERDICTS[run.verdict],
                "Model": fmt.name_of_path(run.model),
                "Engine": run.engine,
                "Draft steps": draft_steps(run),
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


def draft_steps(run: RunRow) -> str | None:
    """`3`, `off`, or None where the server did not say."""
    if run.draft_steps is None:
        return None
    return str(run.draft_steps) if run.draft_steps else "off"


def record_rows(records: Iterable[RequestRecord]) -> list[dict[str, object]]:
    """One row per request. Times in ms from sending; None where the request had no such moment."""
    rows: list[dict[str, object]] = []
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
        interval = fmt.NA if m.ci_low is None or m.ci_high is None else f"{m.ci_low:.3f} – {m.ci_high:.3f}"
        a, b, unit = shown_pair(m)
        unjudged = m.verdict == "not_distinguishable" and m.ci_low is None
        rows.append(
            {
                "Figure": label_of(m.name) + (f" ({unit})" if unit else ""),
                "Users": "" if m.concurrency is None else str(m.concurrency),
                "A": fmt.number(a),
                "B": fmt.number(b),
                "B / A": fmt.NA if m.ratio is None else f"{m.ratio:.3f}×",
                "Verdict": NOT_JUDGED if unjudged else COMPARED[m.verdict],
                "Interval of B / A": interval,
                "Better if": BETTER[m.better],
                "Reason": m.reason or "",
            }
        )
    return rows


def shown_pair(metric: ComparedMetric) -> tuple[float | None, float | None, str]:
    """Both values and their unit as they are shown: shares of 1 in per cent."""
    if metric.unit != "ratio":
        return metric.a, metric.b, metric.unit
    a, b = (None if value is None else value * 100 for value in (metric.a, metric.b))
    return a, b, "%"


def pairs(mapping: Mapping[str, object]) -> list[Row]:
    """A mapping as rows of text, sorted, for configurations and versions."""
    return [{"Setting": str(name), "Value": "not set" if v is None else str(v)} for name, v in sorted(mapping.items())]
