"""Documents as an agent would give them, for the pages' tests: one tiny engine, its runs, its load tests."""

from typing import Any

from backend.schema.engine import EngineKind, EngineState, EngineStatus, Flag, LaunchRequest, LedgerItem, Phase, Scan
from backend.schema.host import (
    DeviceSample,
    Doctor,
    Finding,
    MemoryComponent,
    TelemetrySample,
)
from backend.schema.load import (
    Acceptance,
    Bench,
    BenchEngine,
    BenchRequest,
    ClientGauge,
    Distribution,
    LevelResult,
    LivePoint,
    LoadProgress,
    LoadState,
    LoadStatus,
    Metrics,
    RequestCounts,
    RequestRecord,
    SpecCounts,
    TokenCounts,
)
from backend.schema.run import ComparedMetric, Comparison, ConfigDifference, RunDetail, RunLevel, RunRow

MIB = 1024**2
SOURCE = "backend/reference/flags.py"

SCAN = Scan(
    version="0.1.0",
    style="argparse",
    root="/engine",
    algorithms=["NEXTN"],
    flags=[
        Flag(flag="--model-path", field="model_path", type="str", aliases=["--model"], file=SOURCE, line=10),
        Flag(flag="--host", field="host", type="str", default="127.0.0.1", file=SOURCE, line=11),
        Flag(flag="--port", field="port", type="int", default=30000, file=SOURCE, line=12),
        Flag(
            flag="--speculative-algorithm",
            field="speculative_algorithm",
            type="str",
            choices=["NEXTN"],
            help="Draft with the model's own MTP layer and verify in one step.",
            file=SOURCE,
            line=20,
        ),
        Flag(
            flag="--speculative-num-steps",
            field="speculative_num_steps",
            type="int",
            help="Tokens drafted per verify step.",
            file=SOURCE,
            line=24,
        ),
        Flag(flag="--speculative-eagle-topk", field="speculative_eagle_topk", type="int", choices=["1"], file=SOURCE),
        Flag(flag="--speculative-num-draft-tokens", field="speculative_num_draft_tokens", type="int", file=SOURCE),
        Flag(
            flag="--moe-runner-backend",
            field="moe_runner_backend",
            type="str",
            default="auto",
            choices=["auto", "loop", "grouped"],
            help="How the experts are multiplied.",
            file=SOURCE,
            line=31,
        ),
        Flag(flag="--mem-fraction-static", field="mem_fraction_static", type="float", file=SOURCE, line=40),
        Flag(flag="--max-running-requests", field="max_running_requests", type="int", default=4, file=SOURCE, line=44),
        Flag(flag="--random-seed", field="random_seed", type="int", file=SOURCE, line=50),
        Flag(flag="--disable-radix-cache", field="disable_radix_cache", type="bool", file=SOURCE, line=51),
    ],
)

MTP_FLAGS = [
    *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
]


def engine(state: EngineState = EngineState.READY, **changes: Any) -> EngineStatus:
    """An engine of kind reference with MTP on."""
    given: dict[str, Any] = {
        "id": "e1",
        "state": state,
        "kind": EngineKind.REFERENCE,
        "url": "http://127.0.0.1:30000",
        "pid": 4712,
        "model": "/assets/tiny-qwen3.5-moe",
        "version": "0.1.0",
        "argv": ["python", "-m", "backend.reference", *MTP_FLAGS],
        "config_hash": "a1b2c3d4e5f6",
        "request": LaunchRequest(kind=EngineKind.REFERENCE, flags=MTP_FLAGS, owner="ui"),
        "since": "2026-11-30T22:01:00.000Z",
        "started_at_utc": "2026-11-30T22:00:50.000Z",
        "elapsed_s": 4.2,
        "ready_seconds": 7.4 if state is EngineState.READY else None,
        "phases": phases("ready") if state is EngineState.READY else phases("load_draft"),
        "ledger": {"target_weights": LedgerItem(bytes=11 * MIB, line=12), "mtp_weights": LedgerItem(bytes=2 * MIB)},
        "log": "/state/logs/e1.log",
    }
    return EngineStatus(**{**given, **changes})


def phases(upto: str) -> list[Phase]:
    """A launch that has come to this phase; it still runs unless it is the last one."""
    names = ["init", "load_target", "load_draft", "pools", "warmup", "ready"]
    done = names[: names.index(upto)]
    rows = [Phase(name=name, seconds=0.5 + i, line=i + 1) for i, name in enumerate(done)]  # type: ignore[arg-type]
    return [*rows, Phase(name=upto, line=len(done) + 1)]  # type: ignore[arg-type]


def load_status(state: LoadState = LoadState.RUNNING, **changes: Any) -> LoadStatus:
    given: dict[str, Any] = {
        "id": "l1",
        "state": state,
        "run_id": "20261130-220200-abcd",
        "engine_id": "e1",
        "url": "http://127.0.0.1:30000",
        "started_at_utc": "2026-11-30T22:02:00.000Z",
        "progress": LoadProgress(
            level=2, level_index=1, levels=3, done=12, total=None, elapsed_s=21.5, fraction=0.55, message=""
        ),
    }
    return LoadStatus(**{**given, **changes})


def points(count: int = 30, *, speculative: bool = True) -> list[LivePoint]:
    """One reading per second: 10 s per level, then the next one with twice the users."""
    return [
        LivePoint(
            seq=i,
            t_s=float(i),
            level=2 ** (i // 10),
            phase="measure",
            in_flight=2 ** (i // 10),
            output_tok_s=None if i % 10 == 0 else 60.0 * 1.6 ** (i // 10) + i % 3,
            tok_s_user=None if i % 10 == 0 else 60.0 * 0.8 ** (i // 10),
            ttft_ms=None if i % 10 == 0 else 40.0 + 5 * (i % 4) + 30 * (i // 10),
            itl_ms=None if i % 10 == 0 else 15.0 + i % 2 + 4 * (i // 10),
            accept_length=2.6 + 0.1 * (i % 3) if speculative and i % 10 else None,
            accept_rate=0.55 if speculative and i % 10 else None,
            done=i,
        )
        for i in range(count)
    ]


def samples(count: int = 30) -> list[TelemetrySample]:
    return [
        TelemetrySample(
            seq=i,
            t_ns=i * 1_000_000_000,
            at_utc="2026-11-30T22:02:00.000Z",
            devices=[
                DeviceSample(
                    device="host",
                    name="Host memory",
                    memory_used_bytes=3000 * MIB,
                    memory_total_bytes=8000 * MIB,
                    engine_bytes=(400 + i) * MIB,
                )
            ],
            components=[
                MemoryComponent(name="target_weights", bytes=110 * MIB, basis="log line 12"),
                MemoryComponent(name="mtp_weights", bytes=20 * MIB, basis="log line 14"),
                MemoryComponent(name="kv_pool", bytes=64 * MIB, basis="log line 17"),
            ],
        )
        for i in range(count)
    ]


def spread(p50: float) -> Distribution:
    return Distribution(n=40, mean=p50 * 1.05, p50=p50, p90=p50 * 1.3, p95=p50 * 1.5, p99=p50 * 2, max=p50 * 2.5)


def level(users: int, tok_s: float, *, speculative: bool = True, failed: int = 0, verdict: str = "ok") -> LevelResult:
    metrics = Metrics(
        ttft_ms=spread(40.0 * users),
        tpot_ms=spread(15.0),
        itl_ms=spread(15.0),
        icl_ms=spread(40.0),
        e2e_ms=spread(900.0),
        tok_s_user=spread(tok_s / users),
        output_tok_s=tok_s,
        output_tok_s_whole=tok_s * 0.95,
        request_s=tok_s / 64,
        absent={"goodput_s": "no objective was given"},
    )
    acceptance = Acceptance(
        accept_length=2.71,
        engine_accept_length=2.75,
        accept_rate=0.57,
        per_position=[0.8, 0.55, 0.36],
        verify_steps=400,
        source="meta_info of each request",
    )
    return LevelResult(
        concurrency=users,
        seconds=10.0,
        requests=RequestCounts(
            sent=20, ok=20 - failed, failed=failed, by_class={"server_lost": failed} if failed else {}
        ),
        tokens=TokenCounts(input=2000, output=1280),
        metrics=metrics,
        acceptance=acceptance if speculative else None,
        acceptance_absent=None if speculative else "the engine ran without speculation",
        client=ClientGauge(cpu_pct=3.1, us_per_chunk=40.0, in_flight_achieved=users * 0.98, verdict=verdict),  # type: ignore[arg-type]
    )


def bench(run_id: str = "20261130-220200-abcd", *, speculative: bool = True, **changes: Any) -> Bench:
    given: dict[str, Any] = {
        "run_id": run_id,
        "state": LoadState.FINISHED,
        "levels": [level(n, t, speculative=speculative) for n, t in ((1, 61.2), (2, 98.4), (4, 153.9))],
        "engine": BenchEngine(
            kind=EngineKind.REFERENCE,
            version="0.1.0",
            argv=["python", "-m", "backend.reference", *(MTP_FLAGS if speculative else [])],
            effective={"max_running_requests": 4, "mem_fraction_static": 0.5},
            model="/assets/tiny-qwen3.5-moe",
            env={"OMP_NUM_THREADS": "2"},
            config_hash="a1b2c3d4e5f6",
            ledger={"target_weights": 11 * MIB},
        ),
        "request": BenchRequest(duration_s=10),
    }
    return Bench(**{**given, **changes})


def run_row(run_id: str, **changes: Any) -> RunRow:
    given: dict[str, Any] = {
        "id": run_id,
        "started_at_utc": "2026-11-30T22:02:00.000Z",
        "model": "/assets/tiny-qwen3.5-moe",
        "engine": "reference 0.1.0",
        "levels": [
            RunLevel(concurrency=1, output_tok_s=61.2, tok_s_user=61.2, accept_length=2.71),
            RunLevel(concurrency=4, output_tok_s=153.9, tok_s_user=38.5, accept_length=2.71),
        ],
        "verdict": "ok",
        "tags": ["mtp"],
        "note": "three steps",
        "state": LoadState.FINISHED,
        "config_hash": "a1b2c3d4e5f6",
    }
    return RunRow(**{**given, **changes})


def run_detail(run_id: str, *, speculative: bool = True, **changes: Any) -> RunDetail:
    return RunDetail(
        row=run_row(run_id, **changes),
        bench=bench(run_id, speculative=speculative),
        host={"hostname": "testhost", "cpu": "a CPU", "memory_bytes": 8000 * MIB},
        versions={"slipstream": "0.1.0", "python": "3.11", "torch": "2.13.0"},
        seed=7,
        request_count=2,
        sample_tables=["requests", "live", "telemetry"],
        log="/state/logs/e1.log",
    )


def records(run_id: str) -> list[RequestRecord]:
    ok = RequestRecord(
        run_id=run_id,
        level=1,
        index=0,
        phase="measure",
        prompt_id="code-1",
        intended_ns=0,
        sent_ns=1_000_000_000,
        first_ns=1_045_000_000,
        last_ns=1_900_000_000,
        end_ns=1_910_000_000,
        input_tokens=100,
        output_tokens=64,
        finish_reason="length",
        # 24 steps with 40 correct drafts: 1 + 40 / 24 = 2.67
        spec=SpecCounts(verify_ct=24, correct_drafts=40, proposed_drafts=72),
        ok=True,
        text="def main():",
    )
    lost = RequestRecord(
        run_id=run_id,
        level=1,
        index=1,
        phase="measure",
        prompt_id="code-2",
        intended_ns=0,
        sent_ns=2_000_000_000,
        end_ns=2_500_000_000,
        ok=False,
        error_class="server_lost",
        error="the connection was closed",
    )
    return [ok, lost]


def comparison(a: str, b: str, verdict: str = "b_better") -> Comparison:
    metrics = [
        ComparedMetric(
            name="output_tok_s",
            concurrency=1,
            unit="tok/s",
            a=41.0,
            b=61.2,
            ratio=1.493,
            ci_low=1.41,
            ci_high=1.57,
            verdict="b_better",
        ),
        ComparedMetric(
            name="ttft_ms",
            concurrency=1,
            unit="ms",
            better="lower",
            a=40.0,
            b=41.0,
            ratio=1.025,
            ci_low=0.97,
            ci_high=1.08,
            verdict="not_distinguishable",
        ),
        ComparedMetric(
            name="accept_length",
            concurrency=1,
            unit="tok/step",
            a=None,
            b=2.71,
            verdict="not_comparable",
            reason="run A has no speculation counters",
        ),
    ]
    return Comparison(
        a=a,
        b=b,
        verdict=verdict,  # type: ignore[arg-type]
        metrics=metrics,
        confounds=["the two runs were measured 31 minutes apart"],
        design="20 and 20 requests per level, same prompts, bootstrap of the ratio of medians",
        config_diff=[ConfigDifference(setting="--speculative-algorithm", a=None, b="NEXTN")],
    )


DOCTOR = Doctor(
    findings=[
        Finding(id="gpus", status="absent", message="no NVIDIA driver on this machine", remedy="nothing to do for CPU"),
        Finding(id="disk", status="warn", message="4.2 GB free in /state", remedy="delete old runs"),
        Finding(id="store", status="ok", message="12 runs, 3.1 MB"),
        Finding(id="sglang", status="fail", message="the environment at /opt/sgl has no torch", remedy="install torch"),
    ],
    gpus=[],
    engines=[],
)
