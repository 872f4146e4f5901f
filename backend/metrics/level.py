"""The result of one concurrency level, composed from its records."""

from collections import Counter
from collections.abc import Sequence

from backend.metrics import latency, window
from backend.metrics.acceptance import acceptance
from backend.metrics.distribution import distribution
from backend.schema.load import ClientGauge, LevelResult, Metrics, RequestCounts, RequestRecord, TokenCounts

CANCELLED = "cancelled"

NO_SUCCESS = "no request succeeded"
NO_EVENT_COUNTS = "the server gives no token count with each event"
NO_COUNTS = "the server gives no token counts"
NO_ANSWER_SPLIT = "this endpoint does not tell reasoning from the answer"
ONE_EVENT = "every answer came in one event, so nothing was timed"
NO_SLO = "no SLO given"


def level_result(concurrency: int, records: Sequence[RequestRecord], client: ClientGauge) -> LevelResult:
    """Figures of a level. Warm-up requests are left out.

    Latencies and tokens are those of successful requests; throughput counts also what arrived of requests that we
    cancelled ourselves, because the server did produce it. `sent` − `ok` − `failed` is the number of cancelled ones.
    """
    counted = [record for record in records if record.phase == "measure"]
    good = [record for record in counted if record.ok]
    failed = [record for record in counted if not record.ok and record.error_class != CANCELLED]
    accepted, why_not = acceptance(good)
    span = window.whole(counted)
    return LevelResult(
        concurrency=concurrency,
        seconds=window.seconds(span) if span else 0.0,
        requests=RequestCounts(
            sent=len(counted),
            ok=len(good),
            failed=len(failed),
            by_class=dict(Counter(record.error_class or "unknown" for record in failed)),
        ),
        failures={record.error_class or "unknown": record.error or "" for record in reversed(failed)},
        tokens=_tokens(good),
        metrics=_metrics(concurrency, counted, good),
        acceptance=accepted,
        acceptance_absent=why_not if good else NO_SUCCESS,
        client=client,
    )


def _tokens(good: Sequence[RequestRecord]) -> TokenCounts:
    return TokenCounts(
        input=_total([record.input_tokens for record in good]),
        output=_total([window.output_tokens(record) for record in good]),
        cached=_total([record.cached_tokens for record in good]),
    )


def _total(values: list[int | None]) -> int | None:
    """Sum of the values that are known; None when none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _metrics(concurrency: int, counted: Sequence[RequestRecord], good: Sequence[RequestRecord]) -> Metrics:
    tpot = latency.tpot_ms(good)
    producing = [record for record in counted if record.ok or record.error_class == CANCELLED]
    steady, why_not_steady = _steady_tok_s(concurrency, counted, producing)
    per_event = NO_EVENT_COUNTS if good and not any(record.chunk_tokens for record in good) else ONE_EVENT
    values = {
        "ttft_ms": distribution(latency.ttft_ms(good)),
        "ttfa_ms": distribution(latency.ttfa_ms(good)),
        "tpot_ms": distribution(tpot),
        "itl_ms": distribution(latency.itl_ms(good)),
        "icl_ms": distribution(latency.icl_ms(good)),
        "e2e_ms": distribution(latency.e2e_ms(good)),
        "tok_s_user": distribution([1e3 / value for value in tpot if value > 0]),
        "output_tok_s": steady,
        "output_tok_s_whole": _whole_tok_s(counted, producing),
        "request_s": _request_s(counted, good),
        "goodput_s": None,
    }
    reasons = {
        "ttft_ms": "no token arrived",
        "ttfa_ms": NO_ANSWER_SPLIT,
        "tpot_ms": per_event,
        "itl_ms": per_event,
        "icl_ms": ONE_EVENT,
        "tok_s_user": per_event,
        "output_tok_s": why_not_steady,
        "output_tok_s_whole": NO_COUNTS,
        "goodput_s": NO_SLO,
    }
    absent = {
        name: NO_SUCCESS if not good and name not in ("goodput_s", "output_tok_s") else reasons.get(name, NO_SUCCESS)
        for name, value in values.items()
        if value is None
    }
    return Metrics.model_validate({**values, "absent": absent})


def _steady_tok_s(
    concurrency: int, counted: Sequence[RequestRecord], producing: Sequence[RequestRecord]
) -> tuple[float | None, str]:
    """(tokens per second in the steady window, why there are none)."""
    steady = window.steady_window(counted, concurrency)
    if steady is None:
        return None, f"there were never {concurrency} requests in flight (at least 90 % of them)"
    tokens = window.tokens_between(producing, steady)
    if tokens is None:
        return None, NO_EVENT_COUNTS if producing else NO_SUCCESS
    return tokens / window.seconds(steady), ""


def _whole_tok_s(counted: Sequence[RequestRecord], producing: Sequence[RequestRecord]) -> float | None:
    span = window.whole(counted)
    total = _total([window.output_tokens(record) for record in producing])
    return total / window.seconds(span) if span and total is not None and window.seconds(span) > 0 else None


def _request_s(counted: Sequence[RequestRecord], good: Sequence[RequestRecord]) -> float | None:
    span = window.whole(counted)
    return len(good) / window.seconds(span) if span and good and window.seconds(span) > 0 else None
