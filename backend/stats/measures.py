"""What is compared: for each figure of a level, where it stands in the result and how requests give it back.

Point figures are those of the stored LevelResult. An interval needs the same figure from the request records; if the
records do not give it back, there is no interval (`interval_of` says so) rather than one about something else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from backend.metrics import metric, request_tpot_ms
from backend.schema.load import LevelResult, RequestRecord
from backend.stats.bootstrap import Array, Interval, median_ratio_interval, sums_ratio_interval
from backend.thresholds import BOOTSTRAP_MIN_UNITS_COUNT, RECORDS_MATCH_TOLERANCE_RATIO

NS_PER_MS = 1e6
NS_PER_S = 1e9
Values = Callable[[Sequence[RequestRecord], int], Array]
Kind = Literal["median", "sums", "waves", "none"]


@dataclass(frozen=True)
class Measure:
    """One compared figure. `metric` is its name in the metric registry, `statistic` a field of Distribution.

    kind   median: one value per request; sums: (over, under) per request; waves: the same per wave; none: no interval
    values (records of the level, concurrency) -> the array that `kind` describes
    """

    name: str
    metric: str
    statistic: str | None
    kind: Kind
    values: Values | None = None


def figure(level: LevelResult, measure: Measure) -> float | None:
    """The stored figure, or None when the level does not have it."""
    value = getattr(getattr(level, metric(measure.metric).place), measure.metric, None)
    return getattr(value, measure.statistic) if value is not None and measure.statistic else value


def why_absent(level: LevelResult, measure: Measure) -> str:
    """The reason that the level gives for not having this figure."""
    if metric(measure.metric).place == "acceptance":
        return level.acceptance_absent or "the engine reported no speculation"
    return level.metrics.absent.get(measure.metric, "not measured")


def interval_of(
    measure: Measure,
    levels: tuple[LevelResult, LevelResult],
    records: tuple[Sequence[RequestRecord], Sequence[RequestRecord]],
) -> tuple[Interval | None, str | None]:
    """The interval of the ratio b / a and a word on it: why there is none, or what it is made of."""
    if measure.values is None:
        return None, _NO_INTERVAL[measure.name]
    a, b = (measure.values(side, level.concurrency) for side, level in zip(records, levels, strict=True))
    fewest = min(len(a), len(b))
    if fewest < BOOTSTRAP_MIN_UNITS_COUNT:
        unit = "whole waves of requests" if measure.kind == "waves" else "requests"
        return None, f"{fewest} {unit} on one side; an interval needs {BOOTSTRAP_MIN_UNITS_COUNT}"
    if measure.kind == "waves":
        return _wave_interval(a, b, levels, measure)
    if not all(_gives_back(measure, level, side) for level, side in zip(levels, (a, b), strict=True)):
        return None, "the request records do not give back the stored figure"
    interval = median_ratio_interval(a, b) if measure.kind == "median" else sums_ratio_interval(a, b)
    return interval, None if interval else "no ratio: a sum is 0 in some resamples"


def _wave_interval(
    a: Array, b: Array, levels: tuple[LevelResult, LevelResult], measure: Measure
) -> tuple[Interval | None, str | None]:
    """The relative spread of tokens per busy second over waves, laid around the ratio of the steady-window figures."""
    interval = sums_ratio_interval(a, b)
    stored = [figure(level, measure) for level in levels]
    if interval is None or not stored[0] or not stored[1]:
        return None, "no ratio: a figure is 0"
    scale = (stored[1] / stored[0]) / (_from_sums(b) / _from_sums(a))
    waves = f"{len(a)} and {len(b)} waves of {levels[0].concurrency} consecutive requests"
    return (interval[0] * scale, interval[1] * scale), f"spread of tokens per second in flight between {waves}"


def _gives_back(measure: Measure, level: LevelResult, values: Array) -> bool:
    stored = figure(level, measure)
    found = float(np.median(values)) if measure.kind == "median" else _from_sums(values)
    return stored is not None and abs(found - stored) <= RECORDS_MATCH_TOLERANCE_RATIO * abs(stored)


def _from_sums(values: Array) -> float:
    over, under = values.sum(axis=0)
    return float(over / under) if under else float("nan")


# ---- what each request contributes; definitions as in the metric registry


def _ttft_ms(record: RequestRecord) -> float | None:
    return None if record.first_ns is None else (record.first_ns - record.sent_ns) / NS_PER_MS


def _tok_s_user(record: RequestRecord) -> float | None:
    tpot_ms = request_tpot_ms(record)
    return 1000.0 / tpot_ms if tpot_ms else None


def _e2e_ms(record: RequestRecord) -> float | None:
    return (record.end_ns - record.sent_ns) / NS_PER_MS


def _each(value: Callable[[RequestRecord], float | None]) -> Values:
    def values(records: Sequence[RequestRecord], _: int) -> Array:
        found = (value(record) for record in records)
        return np.array([one for one in found if one is not None], dtype=np.float64)

    return values


def _accept_length(records: Sequence[RequestRecord], _: int) -> Array:
    """(verify steps + correct drafts, verify steps): their sums' ratio is 1 + correct / steps."""
    counts = [one.spec for one in records if one.spec]
    return _pairs([(spec.verify_ct + spec.correct_drafts, spec.verify_ct) for spec in counts])


def _accept_rate(records: Sequence[RequestRecord], _: int) -> Array:
    return _pairs([(one.spec.correct_drafts, one.spec.proposed_drafts) for one in records if one.spec])


def _waves(records: Sequence[RequestRecord], concurrency: int) -> Array:
    """(tokens, seconds in flight) of each whole wave: requests that run together share their disturbances."""
    ordered = sorted((one for one in records if one.output_tokens is not None), key=lambda one: one.sent_ns)
    busy = _pairs([(one.output_tokens or 0, (one.end_ns - one.sent_ns) / NS_PER_S) for one in ordered])
    whole = len(busy) // concurrency
    waves: Array = busy[: whole * concurrency].reshape(whole, concurrency, 2).sum(axis=1)
    return waves


def _pairs(pairs: Sequence[tuple[float, float]]) -> Array:
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


OUTPUT_TOK_S = Measure("output_tok_s", "output_tok_s", None, "waves", _waves)
TOK_S_USER = Measure("tok_s_user", "tok_s_user", "p50", "median", _each(_tok_s_user))
MEASURES = (
    OUTPUT_TOK_S,
    Measure("output_tok_s_whole", "output_tok_s_whole", None, "none"),
    TOK_S_USER,
    Measure("ttft_ms_p50", "ttft_ms", "p50", "median", _each(_ttft_ms)),
    Measure("ttft_ms_p99", "ttft_ms", "p99", "none"),
    Measure("tpot_ms_p50", "tpot_ms", "p50", "median", _each(request_tpot_ms)),
    Measure("itl_ms_p99", "itl_ms", "p99", "none"),
    Measure("e2e_ms_p50", "e2e_ms", "p50", "median", _each(_e2e_ms)),
    Measure("accept_length", "accept_length", None, "sums", _accept_length),
    Measure("accept_rate", "accept_rate", None, "sums", _accept_rate),
)
_NO_INTERVAL = {
    "output_tok_s_whole": "one run per side: this figure includes ramp-up and tail, which one run has once",
    "ttft_ms_p99": "one run per side has too few requests beyond the 99th percentile",
    "itl_ms_p99": "one run per side has too few stalls beyond the 99th percentile",
}
