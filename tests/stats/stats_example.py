"""Two runs made of plain numbers: every request's TTFT and time per token are given, the rest follows."""

from collections.abc import Sequence

from backend.metrics import level_result
from backend.schema.engine import EngineKind
from backend.schema.load import (
    Bench,
    BenchEngine,
    BenchRequest,
    ClientGauge,
    LevelResult,
    LoadState,
    RequestRecord,
    SpecCounts,
)
from backend.schema.run import RunDetail, RunRow

MS = 1_000_000
TOKENS = 9  # of every answer: one in the first event, then four events of two


def one_record(
    index: int, *, start_ns: int, tpot_ms: float, ttft_ms: float, level: int, correct: int | None
) -> RequestRecord:
    first = start_ns + round(ttft_ms * MS)
    arrivals = [first + round(step * 2 * tpot_ms * MS) for step in range(5)]
    spec = None if correct is None else SpecCounts(verify_ct=4, correct_drafts=correct, proposed_drafts=12)
    return RequestRecord(
        run_id="r",
        level=level,
        index=index,
        phase="measure",
        prompt_id=str(index),
        intended_ns=start_ns,
        sent_ns=start_ns,
        first_ns=first,
        first_answer_ns=first,
        last_ns=arrivals[-1],
        end_ns=arrivals[-1],
        chunk_ns=arrivals,
        chunk_tokens=[1, 3, 5, 7, 9],
        input_tokens=100,
        output_tokens=TOKENS,
        cached_tokens=0,
        spec=spec,
        ok=True,
    )


def closed_loop(
    tpots_ms: Sequence[float], *, level: int = 1, ttft_ms: float = 5.0, correct: Sequence[int] | None = None
) -> list[RequestRecord]:
    """`level` users, each sending its next request when the last has ended; request i takes tpots_ms[i] per token."""
    free_at = [0] * level
    records = []
    for index, tpot_ms in enumerate(tpots_ms):
        user = free_at.index(min(free_at))
        one = one_record(
            index,
            start_ns=free_at[user],
            tpot_ms=tpot_ms,
            ttft_ms=ttft_ms,
            level=level,
            correct=correct[index] if correct else None,
        )
        free_at[user] = one.end_ns
        records.append(one)
    return records


def run_of(
    *groups: list[RequestRecord],
    run_id: str = "run",
    levels: list[LevelResult] | None = None,
    engine: dict[str, object] | None = None,
    verdict: str = "ok",
    host: dict[str, object] | None = None,
    **request: object,
) -> RunDetail:
    """A finished run whose levels are computed from these records, one group per level."""
    model = str((engine or {}).get("model", "tiny"))
    settings = {"kind": EngineKind.REFERENCE, "version": "1", "model": model, **(engine or {})}
    if levels is None:
        levels = [level_result(group[0].level, group, ClientGauge()) for group in groups]
    row = RunRow.model_validate(
        {
            "id": run_id,
            "started_at_utc": "2026-11-30T22:10:12.000Z",
            "model": model,
            "engine": "reference 1",
            "levels": [],
            "verdict": verdict,
            "state": LoadState.FINISHED,
        }
    )
    bench = Bench(
        run_id=run_id,
        state=LoadState.FINISHED,
        levels=levels,
        engine=BenchEngine.model_validate(settings),
        request=BenchRequest.model_validate(request),
    )
    return RunDetail(row=row, bench=bench, host=host or {})
