"""Two runs side by side, with a verdict only where the data carry one."""

from collections.abc import Sequence
from typing import Literal

from backend.metrics import metric
from backend.schema.load import LevelResult, RequestRecord
from backend.schema.run import ComparedMetric, Comparison, RunDetail
from backend.stats.bootstrap import Interval
from backend.stats.config_diff import config_diff
from backend.stats.confounds import confounds, level_void, voids
from backend.stats.measures import MEASURES, OUTPUT_TOK_S, TOK_S_USER, Measure, figure, interval_of, why_absent

Verdict = Literal["a_better", "b_better", "not_distinguishable", "not_comparable"]

_DESIGN = (
    "One run per side. Intervals are 95 % and come from resampling the requests of these two runs; they do not cover "
    "drift between the runs, the order in which the engines were started, or another start of either. A metric is "
    "better only if its interval excludes a ratio of 1. The overall verdict is that of tok/s/user at the highest "
    "concurrency that both runs have, if output tok/s there points the same way. For a firm answer repeat both sides "
    "in alternating order."
)


def compare_runs(
    a: RunDetail, b: RunDetail, records_a: Sequence[RequestRecord], records_b: Sequence[RequestRecord]
) -> Comparison:
    """Compares `b` with `a` at every concurrency that both have; ratios are b / a.

    Different model or workload: `not_comparable`, with the figures still side by side. The interval of output tok/s
    is the spread of tokens per second in flight between waves of consecutive requests, around the steady-window ratio.
    """
    no_work = voids(a, b)
    pairs = _common_levels(a, b)
    metrics: list[ComparedMetric] = []
    void_levels: dict[int, str] = {}
    for one, other in pairs:
        void = no_work[0] if no_work else level_void(one, other)
        if void:
            void_levels[one.concurrency] = void
        records = (_measured(records_a, one.concurrency), _measured(records_b, one.concurrency))
        metrics += [_compared(measure, (one, other), records, void) for measure in MEASURES]
    level_voids = [] if no_work else list(void_levels.values())
    nothing_shared = [] if pairs else ["no concurrency level that both runs finished"]
    return Comparison(
        a=a.row.id,
        b=b.row.id,
        verdict=_overall(metrics, pairs[-1][0].concurrency) if pairs else "not_comparable",
        metrics=metrics,
        confounds=[*no_work, *nothing_shared, *level_voids, *confounds(a, b)],
        design=_DESIGN,
        config_diff=config_diff(a.bench.engine, b.bench.engine),
    )


def _common_levels(a: RunDetail, b: RunDetail) -> list[tuple[LevelResult, LevelResult]]:
    """Pairs of levels of equal concurrency, ascending."""
    others = {level.concurrency: level for level in b.bench.levels}
    own = {level.concurrency: level for level in a.bench.levels}
    return [(own[concurrency], others[concurrency]) for concurrency in sorted(own.keys() & others.keys())]


def _measured(records: Sequence[RequestRecord], concurrency: int) -> list[RequestRecord]:
    return [one for one in records if one.ok and one.phase == "measure" and one.level == concurrency]


def _compared(
    measure: Measure,
    levels: tuple[LevelResult, LevelResult],
    records: tuple[list[RequestRecord], list[RequestRecord]],
    void: str | None,
) -> ComparedMetric:
    spec = metric(measure.metric)
    a, b = (figure(level, measure) for level in levels)
    ratio = b / a if a and b is not None else None
    interval: Interval | None = None
    verdict: Verdict
    reason: str | None
    if ratio is None:
        verdict, reason = _without_ratio(measure, levels, (a, b))
    elif void:
        verdict, reason = "not_comparable", void
    else:
        interval, reason = interval_of(measure, levels, records)
        verdict = _verdict(interval, spec.better)
    return ComparedMetric(
        name=measure.name,
        concurrency=levels[0].concurrency,
        unit=spec.unit,
        better=spec.better,
        a=a,
        b=b,
        ratio=ratio,
        ci_low=interval[0] if interval else None,
        ci_high=interval[1] if interval else None,
        verdict=verdict,
        reason=reason,
    )


def _without_ratio(
    measure: Measure, levels: tuple[LevelResult, LevelResult], figures: tuple[float | None, float | None]
) -> tuple[Verdict, str]:
    absent = [
        f"{side}: {why_absent(level, measure)}"
        for side, level, value in zip("AB", levels, figures, strict=True)
        if value is None
    ]
    return "not_comparable", "; ".join(absent) or "A is 0"


def _verdict(interval: Interval | None, better: str) -> Verdict:
    if interval is None or better == "neither" or interval[0] <= 1 <= interval[1]:
        return "not_distinguishable"
    b_is_higher = interval[0] > 1
    return "b_better" if b_is_higher == (better == "higher") else "a_better"


def _overall(metrics: Sequence[ComparedMetric], concurrency: int) -> Verdict:
    """The verdict of tok/s/user at this level, if output tok/s has the same one or, lacking an interval, leans so."""
    at_level = {one.name: one for one in metrics if one.concurrency == concurrency}
    user, total = at_level[TOK_S_USER.name], at_level[OUTPUT_TOK_S.name]
    if "not_comparable" in (user.verdict, total.verdict):
        return "not_comparable"
    if total.ci_low is not None:
        return user.verdict if user.verdict == total.verdict else "not_distinguishable"
    leaning = "b_better" if (total.ratio or 1) > 1 else "a_better"
    return user.verdict if user.verdict == leaning else "not_distinguishable"
