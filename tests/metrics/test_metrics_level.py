"""A level's result from its records; the declarations of the metrics; the client's verdict."""

import pytest
from record_example import record, spec

from backend.metrics import METRICS, client_gauge, level_result, metric
from backend.schema.load import Acceptance, ClientGauge, Distribution, LevelResult, Metrics


def test_a_level_counts_warm_up_failures_and_cancelled_requests_apart() -> None:
    """Measured from 1000 to 2000 ms: 11 tokens of a good request, 4 of a cancelled one, and a failed one's left out."""
    records = [
        record(0, [500, 900], [1, 50], phase="warmup"),
        record(1000, [1200, 1700], [1, 11], input_tokens=5, cached_tokens=3),
        record(1700, [1800, 1900], [1, 4], ok=False, error_class="cancelled", end_ms=2000),
        record(1000, [1100, 1500], [1, 99], ok=False, error_class="truncated", error="cut off"),
        record(1000, ok=False, error_class="timeout", error="no answer", end_ms=1600),
    ]
    level = level_result(1, records, ClientGauge())
    assert level.requests.model_dump() == {
        "sent": 4,
        "ok": 1,
        "failed": 2,
        "by_class": {"truncated": 1, "timeout": 1},
    }
    assert level.failures == {"truncated": "cut off", "timeout": "no answer"}
    assert level.seconds == 1
    assert level.tokens.model_dump() == {"input": 5, "output": 11, "cached": 3}
    assert level.metrics.output_tok_s_whole == 15
    assert level.metrics.request_s == 1
    assert level.metrics.ttft_ms is not None and level.metrics.ttft_ms.n == 1
    # TPOT 500/10 = 50 ms, so a user gets 20 tok/s
    assert level.metrics.tok_s_user is not None and level.metrics.tok_s_user.p50 == 20


def test_steady_throughput_leaves_out_filling_and_draining() -> None:
    """Two slots from 0 to 1000 with 100 tokens each, evenly; then one slot alone for another second with 100 more."""
    even = [(at, n) for n, at in enumerate(range(10, 1001, 10), 1)]
    both = [record(0, [at for at, _ in even], [n for _, n in even]) for _ in range(2)]
    alone = record(1000, [1000 + at for at, _ in even], [n for _, n in even])
    level = level_result(2, [*both, alone], ClientGauge())
    assert level.metrics.output_tok_s == pytest.approx(200)
    assert level.metrics.output_tok_s_whole == pytest.approx(150)


def test_tokens_that_nobody_counted_are_unknown_and_not_0() -> None:
    assert level_result(1, [record(0, [10, 20], [])], ClientGauge()).tokens.output is None


def test_every_absent_figure_has_a_reason_and_no_present_one_has() -> None:
    cases = {
        "nothing": [],
        "failed": [record(0, ok=False, error_class="connect", end_ms=5)],
        "no counts": [record(0, [10, 20], [])],
        "one event": [record(0, [10], [7], end_ms=11)],
        "whole": [record(0, [10, 20], [1, 9], spec=spec(4, 4, 12, [1, 2, 1]))],
    }
    for name, records in cases.items():
        level = level_result(1, records, ClientGauge())
        figures = level.metrics.model_dump(exclude={"absent"})
        assert {key for key, value in figures.items() if value is None} == set(level.metrics.absent), name
        assert all(level.metrics.absent.values()), name
        assert (level.acceptance is None) == (level.acceptance_absent is not None), name


def test_reasons_tell_the_cases_apart() -> None:
    def absent(*records) -> dict[str, str]:
        return level_result(2, records, ClientGauge()).metrics.absent

    assert absent(record(0, [10, 20], []))["itl_ms"] == "the server gives no token count with each event"
    assert absent(record(0, [10], [7]))["itl_ms"] == "every answer came in one event, so nothing was timed"
    assert absent(record(0, ok=False, error_class="connect"))["ttft_ms"] == "no request succeeded"
    assert "never 2 requests in flight" in absent(record(0, [10, 20], [1, 9]))["output_tok_s"]
    assert absent(record(0, [10], [7]))["goodput_s"] == "no SLO given"
    failed = level_result(1, [record(0, ok=False, error_class="connect")], ClientGauge())
    assert failed.acceptance_absent == "no request succeeded"


@pytest.mark.parametrize(
    ("cpu_s", "lag_ms", "in_flight", "verdict"),
    [
        (2.0, 1.0, 7.9, "ok"),
        (2.0, 1.0, None, "ok"),
        (5.5, 1.0, 7.9, "client_bound"),  # 55 % of a core
        (2.0, 80.0, 7.9, "client_bound"),
        (2.0, 1.0, 7.0, "client_bound"),  # less than 7.2 of 8
        (2.0, None, 7.9, "unknown"),
    ],
)
def test_the_client_is_judged_by_cpu_lag_and_requests_in_flight(cpu_s, lag_ms, in_flight, verdict) -> None:
    gauge = client_gauge(
        concurrency=8, cpu_s=cpu_s, wall_s=10, chunks=100_000, loop_lag_p99_ms=lag_ms, in_flight_achieved=in_flight
    )
    assert gauge.verdict == verdict
    assert gauge.cpu_pct == pytest.approx(cpu_s * 10)
    assert gauge.us_per_chunk == pytest.approx(cpu_s * 10)


def test_every_figure_of_the_documents_is_declared_once_and_nothing_else_is() -> None:
    places = {"metrics": Metrics, "acceptance": Acceptance, "client": ClientGauge}
    no_metric = {"absent", "verify_steps", "source", "verdict"}
    for place, document in places.items():
        declared = [spec.name for spec in METRICS if spec.place == place]
        assert sorted(declared) == sorted(set(document.model_fields) - no_metric)
    for spec_ in METRICS:
        field = places[spec_.place].model_fields[spec_.name]
        assert (field.annotation == Distribution | None) == spec_.distribution
        assert spec_.formula and spec_.needs and spec_.label and spec_.unit
        assert metric(spec_.name) is spec_


def test_a_result_survives_its_json() -> None:
    level = level_result(1, [record(0, [10, 20], [1, 9], spec=spec(4, 4, 12, [1, 2, 1]))], ClientGauge())
    assert LevelResult.model_validate_json(level.model_dump_json()) == level
