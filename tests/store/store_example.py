"""A small but complete run: every field of every document is set somewhere, so that losing one is seen."""

from backend.schema.engine import EngineKind
from backend.schema.host import DeviceSample, MemoryComponent, TelemetrySample
from backend.schema.load import (
    Acceptance,
    BenchEngine,
    BenchRequest,
    ClientGauge,
    Distribution,
    LevelResult,
    LivePoint,
    LoadState,
    Metrics,
    RequestCounts,
    RequestRecord,
    SpecCounts,
    TokenCounts,
)
from backend.store import Store

RUN_ID = "20261130-221012-k3f9"
HOST: dict[str, object] = {"hostname": "alpha", "cores": 2, "gpus": [{"name": "none", "uuid": "u-1"}]}
VERSIONS = {"slipstream": "0.1.0", "torch": "2.13.0"}


def request(**changes: object) -> BenchRequest:
    values: dict[str, object] = {"concurrency": [1, 2], "tags": ["mtp", "night"], "note": "first Try", "seed": 7}
    return BenchRequest.model_validate(values | changes)


def engine(**changes: object) -> BenchEngine:
    values: dict[str, object] = {
        "kind": EngineKind.REFERENCE,
        "version": "0.1.0",
        "argv": ["python", "-m", "backend.reference", "--model-path", "/m/tiny", "--speculative-num-steps", "3"],
        "effective": {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "max_running_requests": 4},
        "model": "tiny",
        "env": {"OMP_NUM_THREADS": "2"},
        "config_hash": "c0ffee",
        "ledger": {"target_weights": 1 << 20},
    }
    return BenchEngine.model_validate(values | changes)


def record(
    index: int, *, level: int = 1, phase: str = "measure", ok: bool = True, run_id: str = RUN_ID
) -> RequestRecord:
    start = 1_000_000_000 + index * 10_000_000 + level
    values: dict[str, object] = {
        "run_id": run_id,
        "level": level,
        "index": index,
        "phase": phase,
        "prompt_id": f"p{index}",
        "worker": 1,
        "intended_ns": start,
        "sent_ns": start + 10,
        "end_ns": start + 9_000,
        "ok": ok,
    }
    if not ok:
        return RequestRecord.model_validate(values | {"error_class": "timeout", "error": "no answer in 1 s"})
    return RequestRecord.model_validate(
        values
        | {
            "first_ns": start + 1_000,
            "first_answer_ns": start + 2_000,
            "last_ns": start + 8_000,
            "chunk_ns": [start + 1_000, start + 8_000],
            "chunk_tokens": [1, 4],
            "input_tokens": 16,
            "output_tokens": 4,
            "cached_tokens": 2,
            "finish_reason": "length",
            "spec": SpecCounts(
                verify_ct=1, correct_drafts=2, proposed_drafts=3, histogram=[0, 0, 1, 0], engine_accept_length=4.0
            ),
            "http_status": 200,
            "text": "def f():\n    return 'naïve'\n",
        }
    )


def records(count: int = 4) -> list[RequestRecord]:
    return [
        record(0, phase="warmup"),
        *(record(index, level=level) for level in (1, 2) for index in range(count)),
        record(count, level=2, ok=False),
    ]


def distribution(value: float) -> Distribution:
    return Distribution(n=4, mean=value, p50=value, p90=value, p95=value, p99=value, max=value)


def level(concurrency: int, *, ok: int = 4, failed: int = 0, client: str = "ok") -> LevelResult:
    return LevelResult(
        concurrency=concurrency,
        seconds=2.5,
        requests=RequestCounts(sent=ok + failed, ok=ok, failed=failed, by_class={"timeout": failed} if failed else {}),
        tokens=TokenCounts(input=64, output=16, cached=8),
        metrics=Metrics(
            ttft_ms=distribution(12.5),
            tok_s_user=distribution(80.0),
            output_tok_s=75.25 * concurrency,
            output_tok_s_whole=70.0 * concurrency,
            absent={"goodput_s": "no limit was set"},
        ),
        acceptance=Acceptance(
            accept_length=3.0, accept_rate=0.6, per_position=[0.9, 0.7, 0.4], verify_steps=4, source="meta_info"
        ),
        client=ClientGauge(
            cpu_pct=12.0, us_per_chunk=80.0, loop_lag_p99_ms=0.4, in_flight_achieved=0.99, verdict=client
        ),
    )


def live_points() -> list[LivePoint]:
    return [
        LivePoint(seq=1, t_s=0.5, level=1, phase="warmup", in_flight=1),
        LivePoint(
            seq=2,
            t_s=1.5,
            level=1,
            phase="measure",
            in_flight=1,
            output_tok_s=74.5,
            tok_s_user=80.0,
            ttft_ms=12.5,
            itl_ms=11.0,
            accept_length=3.0,
            accept_rate=0.6,
            done=3,
            failed=1,
        ),
    ]


def telemetry() -> list[TelemetrySample]:
    device = DeviceSample(
        device="0",
        name="host",
        memory_used_bytes=5,
        memory_total_bytes=8 << 30,
        engine_bytes=3,
        utilisation_pct=12.5,
        power_w=90.0,
        temperature_c=40.0,
        clock_mhz=1200.0,
    )
    component = MemoryComponent(name="target_weights", bytes=1 << 20, basis="log line 12")
    return [
        TelemetrySample(seq=1, t_ns=1_000, at_utc="2026-11-30T22:10:00.000Z", devices=[device], components=[component]),
        TelemetrySample(
            seq=2, t_ns=2_000, at_utc="2026-11-30T22:10:01.000Z", devices=[DeviceSample(device="1", name="x")]
        ),
    ]


def begin(store: Store, run_id: str = RUN_ID, **changes: object) -> None:
    store.create_run(run_id, request=request(**changes), engine=engine(), host=HOST, versions=VERSIONS)


def store_whole_run(store: Store, run_id: str = RUN_ID, **changes: object) -> None:
    begin(store, run_id, **changes)
    store.add_records(run_id, [one.model_copy(update={"run_id": run_id}) for one in records()])
    store.save_live(run_id, live_points(), [0.9, 0.7, 0.4])
    store.save_telemetry(run_id, telemetry(), "no NVIDIA driver: host memory")
    store.finish_run(run_id, LoadState.FINISHED, [level(1), level(2, failed=1)], None)
