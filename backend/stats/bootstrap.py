"""Intervals for the ratio of two runs, by resampling requests.

Both sides are resampled with replacement, 2,000 times, with a fixed seed; the interval is the 2.5th to 97.5th
percentile of the ratio b / a (Efron's percentile interval). It covers the spread between requests of these two runs and
nothing else.

For sums the percentile interval is too narrow with few units, because a resample varies less than a new sample by
(n - 1) / n and the tails of Student's t are ignored. The percentiles are therefore moved outward as in Hesterberg,
"What Teachers Should Know about the Bootstrap" (2015), section 5.3. Medians need no such help.
"""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from backend.thresholds import BOOTSTRAP_BATCH_VALUES_COUNT, BOOTSTRAP_RESAMPLES_COUNT

Array = NDArray[np.float64]
Interval = tuple[float, float]

_SEED = 20261130
_TAIL = 0.025


def median_ratio_interval(a: Array, b: Array) -> Interval | None:
    """95 % interval of median(b) / median(a); `a` and `b` hold one value per request."""
    return _interval(a, b, lambda drawn: np.median(drawn, axis=1), _TAIL)


def sums_ratio_interval(a: Array, b: Array) -> Interval | None:
    """95 % interval of (Σ over / Σ under of b) / (the same of a); rows are units, columns are (over, under)."""
    return _interval(a, b, _ratio_of_sums, _expanded_tail(min(len(a), len(b))))


def _interval(a: Array, b: Array, statistic: Callable[[Array], Array], tail: float) -> Interval | None:
    """None when a resample has no ratio (a sum of 0 below the line)."""
    rng = np.random.default_rng(_SEED)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = _resampled(b, statistic, rng) / _resampled(a, statistic, rng)
    if not np.isfinite(ratios).all():
        return None
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return float(low), float(high)


def _resampled(values: Array, statistic: Callable[[Array], Array], rng: np.random.Generator) -> Array:
    at_once = max(1, BOOTSTRAP_BATCH_VALUES_COUNT // values.size)
    parts = []
    for begin in range(0, BOOTSTRAP_RESAMPLES_COUNT, at_once):
        count = min(at_once, BOOTSTRAP_RESAMPLES_COUNT - begin)
        parts.append(statistic(values[rng.integers(0, len(values), (count, len(values)))]))
    return np.concatenate(parts)


def _ratio_of_sums(drawn: Array) -> Array:
    over_and_under = drawn.sum(axis=1)
    return np.asarray(over_and_under[:, 0] / over_and_under[:, 1])


def _expanded_tail(units: int) -> float:
    """The tail to cut so that `units` resampled units give the interval that Student's t would.

    Quantile of t with v degrees of freedom: Abramowitz and Stegun 26.7.5, first two terms.
    """
    v = units - 1
    z = NormalDist().inv_cdf(1 - _TAIL)
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    return NormalDist().cdf(-((units / v) ** 0.5) * t)
