"""Documents as an agent would answer."""

from backend.schema.engine import EngineKind, EngineState, EngineStatus, Failure, Phase
from backend.schema.host import AgentInfo, Status
from backend.schema.load import (
    Acceptance,
    Bench,
    BenchEngine,
    BenchRequest,
    Distribution,
    LevelResult,
    LoadProgress,
    LoadState,
    LoadStatus,
    Metrics,
    RequestCounts,
    TokenCounts,
)

SINCE = "2026-11-30T22:10:00.000Z"


def engine(state: EngineState = EngineState.READY, engine_id: str = "e1", **changes: object) -> EngineStatus:
    known: dict[str, object] = {
        "id": engine_id,
        "state": state,
        "kind": EngineKind.REFERENCE,
        "url": "http://127.0.0.1:30000",
        "pid": 4711,
        "model": "/models/tiny",
        "version": "0.1.0",
        "argv": ["python", "-m", "backend.reference", "--model-path", "/models/tiny"],
        "since": SINCE,
        "started_at_utc": SINCE,
        "ready_seconds": 4.25,
        "log": "/state/logs/e1.log",
    }
    return EngineStatus.model_validate(known | changes)


def failed_engine() -> EngineStatus:
    failure = Failure(failure_class="oom_device", cause="out of memory", line=12, advice="lower --mem-fraction-static")
    return engine(EngineState.FAILED, failure=failure, ready_seconds=None)


def starting(*phases: Phase) -> EngineStatus:
    return engine(EngineState.STARTING, phases=list(phases), ready_seconds=None)


def status(*engines: EngineStatus, loads: tuple[LoadStatus, ...] = ()) -> Status:
    agent = AgentInfo(
        version="0.1.0",
        pid=99,
        url="http://127.0.0.1:8700",
        boot="b",
        host="gpu-host",
        state_dir="/state",
        started_at_utc=SINCE,
        started_by="cli",
    )
    return Status(agent=agent, engines=list(engines), loads=list(loads))


def load(state: LoadState = LoadState.RUNNING, done: int = 0) -> LoadStatus:
    progress = LoadProgress(level=4, level_index=1, levels=2, done=done, total=8, elapsed_s=2.0)
    return LoadStatus(
        id="l1", state=state, run_id="r1", url="http://127.0.0.1:30000", started_at_utc=SINCE, progress=progress
    )


def level(ok: int = 8, failed: int = 0) -> LevelResult:
    rate = Distribution(n=8, mean=51.0, p50=50.5, p90=55.0, p95=56.0, p99=57.0, max=58.0)
    metrics = Metrics(
        output_tok_s=180.25, tok_s_user=rate, ttft_ms=None, absent={"ttft_ms": "the server did not stream"}
    )
    acceptance = Acceptance(accept_length=2.754, accept_rate=0.58, verify_steps=100, source="meta_info")
    return LevelResult(
        concurrency=4,
        seconds=3.0,
        requests=RequestCounts(
            sent=ok + failed, ok=ok, failed=failed, by_class={"server_lost": failed} if failed else {}
        ),
        failures={"server_lost": "the engine ended"} if failed else {},
        tokens=TokenCounts(input=100, output=1024),
        metrics=metrics,
        acceptance=acceptance if ok else None,
        acceptance_absent=None if ok else "no request succeeded",
    )


def result(state: LoadState = LoadState.FINISHED, *levels: LevelResult, failure: str | None = None) -> Bench:
    return Bench(
        run_id="r1",
        state=state,
        levels=list(levels) or [level()],
        engine=BenchEngine(kind=EngineKind.REFERENCE, version="0.1.0", model="tiny"),
        request=BenchRequest(),
        failure=failure,
    )
