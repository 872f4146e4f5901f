"""Whether the load client kept up, so that a slow client is never taken for a slow server."""

from typing import Literal

from backend import thresholds
from backend.schema.load import ClientGauge

Verdict = Literal["ok", "client_bound", "unknown"]


def client_gauge(
    *,
    concurrency: int,
    cpu_s: float,
    wall_s: float,
    chunks: int,
    loop_lag_p99_ms: float | None,
    in_flight_achieved: float | None,
) -> ClientGauge:
    """Gauge of one level from what the client measured about itself."""
    cpu_pct = 100 * cpu_s / wall_s if wall_s > 0 else None
    return ClientGauge(
        cpu_pct=cpu_pct,
        us_per_chunk=1e6 * cpu_s / chunks if chunks else None,
        loop_lag_p99_ms=loop_lag_p99_ms,
        in_flight_achieved=in_flight_achieved,
        verdict=client_verdict(concurrency, cpu_pct, loop_lag_p99_ms, in_flight_achieved),
    )


def client_verdict(
    concurrency: int, cpu_pct: float | None, loop_lag_p99_ms: float | None, in_flight_achieved: float | None
) -> Verdict:
    """`client_bound` when any sign says so; `unknown` when the client measured neither its CPU nor its lag."""
    if cpu_pct is None or loop_lag_p99_ms is None:
        return "unknown"
    bound = (
        cpu_pct > thresholds.CLIENT_CPU_MAX_PCT
        or loop_lag_p99_ms > thresholds.CLIENT_LAG_MAX_MS
        or (in_flight_achieved is not None and in_flight_achieved < thresholds.CLIENT_IN_FLIGHT_MIN_RATIO * concurrency)
    )
    return "client_bound" if bound else "ok"
