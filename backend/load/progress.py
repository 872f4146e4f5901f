"""How far a load test is, from its last tick."""

from typing import Any

from backend.clock import monotonic_ns
from backend.schema.load import BenchRequest, LoadProgress


def progress(request: BenchRequest, tick: dict[str, Any] | None, elapsed_s: float, *, finished: bool) -> LoadProgress:
    """Progress with a fraction of all levels; levels count alike, warm-up as the beginning of its level."""
    levels = len(request.concurrency)
    if tick is None:
        return LoadProgress(levels=levels, elapsed_s=elapsed_s, fraction=0.0, message="prompts are prepared")
    warm = tick["phase"] == "warmup"
    ended = tick["done"] + tick["failed"]
    of_total = f" of {tick['total']}" if tick["total"] else ""
    share = 0.0 if warm else _share(request, tick, ended)
    return LoadProgress(
        level=tick["level"],
        level_index=tick["level_index"],
        levels=levels,
        done=ended,
        total=tick["total"],
        elapsed_s=elapsed_s,
        fraction=1.0 if finished else (tick["level_index"] + share) / levels,
        message=f"concurrency {tick['level']}: {ended}{of_total} {'warm-up' if warm else 'requests'}",
    )


def _share(request: BenchRequest, tick: dict[str, Any], ended: int) -> float:
    """Part of the running level that is done, by requests or by time."""
    if tick["total"]:
        return min(1.0, float(ended / tick["total"]))
    running_s = (monotonic_ns() - tick["begun_ns"]) / 1e9
    return min(1.0, running_s / request.duration_s) if request.duration_s else 0.0
