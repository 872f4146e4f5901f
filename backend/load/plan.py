"""Which prompts a level uses, in which order, and how many requests it makes. A pure function of the request."""

from backend import thresholds
from backend.schema.load import BenchRequest


def counted_requests(request: BenchRequest, concurrency: int) -> int | None:
    """Counted requests of a level; None when the level runs for a time."""
    if request.duration_s is not None:
        return None
    if request.requests is not None:
        return request.requests
    return max(thresholds.LOAD_DEFAULT_MIN_REQUESTS, thresholds.LOAD_DEFAULT_PER_SLOT_REQUESTS * concurrency)


def first_prompts(request: BenchRequest, available: int) -> list[int]:
    """Position in the prompt list at which each level starts; from there it walks on, around the end.

    Levels that count their requests start where the one before them ends, levels that run for a time are spread evenly:
    so levels draw different prompts as far as there are enough, and no level repeats one before all were used.
    """
    starts, used = [], 0
    for index, concurrency in enumerate(request.concurrency):
        planned = counted_requests(request, concurrency)
        if planned is None:
            starts.append(index * available // len(request.concurrency))
        else:
            starts.append(used % available)
            used += planned + request.warmup_requests
    return starts
