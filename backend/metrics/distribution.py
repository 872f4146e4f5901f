"""Summary of a sample."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from backend.schema.load import Distribution

Samples = Sequence[float] | NDArray[np.float64]


def distribution(samples: Samples) -> Distribution | None:
    """Mean and percentiles (linear interpolation between order statistics) of raw samples; None when there are none."""
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.percentile(values, [50, 90, 95, 99]))
    return Distribution(
        n=values.size, mean=float(values.mean()), p50=p50, p90=p90, p95=p95, p99=p99, max=float(values.max())
    )
