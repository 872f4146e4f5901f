from backend.schema.engine import EngineState, LogChunk
from backend.schema.host import AgentInfo, Status
from backend.schema.load import LiveDelta, LoadState
from pages.ui.live import (
    LoadBuffer,
    LogBuffer,
    current_engine,
    current_load,
    signature,
    tick_interval,
)
from tests.fakes import documents

INFO = AgentInfo(version="0.1.0", pid=1, url="", boot="b", host="h", state_dir="/", started_at_utc="", started_by="ui")


def status(*engines: EngineState, loads: tuple[LoadState, ...] = ()) -> Status:
    return Status(
        agent=INFO,
        engines=[documents.engine(state, id=f"e{i}") for i, state in enumerate(engines)],
        loads=[documents.load_status(state, id=f"l{i}") for i, state in enumerate(loads)],
    )


def delta(start: int, count: int, *, boot: str = "b", reset: bool = False) -> LiveDelta:
    return LiveDelta(
        boot=boot,
        cursor=start + count,
        reset=reset,
        points=documents.points(40)[start : start + count],
        status=documents.load_status(),
    )


def test_a_buffer_grows_by_what_is_new() -> None:
    buffer = LoadBuffer("l1")
    buffer.add(delta(0, 3))
    buffer.add(delta(3, 2))
    assert [p.seq for p in buffer.points] == [0, 1, 2, 3, 4]
    assert buffer.cursor == 5


def test_another_boot_or_a_reset_starts_anew() -> None:
    for fresh in (delta(0, 2, boot="other"), delta(0, 2, reset=True)):
        buffer = LoadBuffer("l1")
        buffer.add(delta(0, 5))
        buffer.add(fresh)
        assert [p.seq for p in buffer.points] == [0, 1]


def test_a_tick_without_histogram_keeps_the_last_one() -> None:
    buffer = LoadBuffer("l1")
    buffer.add(delta(0, 1).model_copy(update={"per_position": [0.8]}))
    buffer.add(delta(1, 1))
    assert buffer.per_position == [0.8]


def test_the_log_buffer_shows_its_last_lines() -> None:
    buffer = LogBuffer("e1")
    buffer.add(LogChunk(lines=["a", "b"], first_line=1, cursor=2))
    buffer.add(LogChunk(lines=["c"], first_line=3, cursor=3))
    assert buffer.tail(2) == "b\nc"
    buffer.add(LogChunk(lines=["new"], first_line=1, cursor=1, reset=True))
    assert buffer.tail(9) == "new"


def test_the_controls_act_on_the_living_engine_even_if_a_newer_one_failed() -> None:
    assert current_engine(status(EngineState.FAILED, EngineState.READY)).id == "e1"  # type: ignore[union-attr]
    assert current_engine(status(EngineState.FAILED, EngineState.STOPPED)).id == "e0"  # type: ignore[union-attr]
    assert current_engine(status()) is None


def test_the_running_load_test_comes_before_newer_ended_ones() -> None:
    found = current_load(status(loads=(LoadState.FINISHED, LoadState.RUNNING)))
    assert found is not None
    assert found.id == "l1"


def test_pages_tick_only_while_something_can_change() -> None:
    assert tick_interval(status()) is None
    assert tick_interval(status(EngineState.STOPPED)) is None
    assert tick_interval(status(EngineState.FAILED)) is None
    assert tick_interval(status(EngineState.STARTING)) == 1.0
    assert tick_interval(status(EngineState.READY)) == 5.0
    assert tick_interval(status(EngineState.READY, loads=(LoadState.RUNNING,))) == 1.0


def test_the_signature_changes_with_every_state() -> None:
    before = signature(status(EngineState.STARTING))
    assert before != signature(status(EngineState.READY))
    assert before == signature(status(EngineState.STARTING))
