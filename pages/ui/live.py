"""What a page has already fetched of a running job: it asks only for what is new. Pure.

A buffer is thrown away when the agent's boot changes or the agent says that the cursor is no longer valid.
"""

from collections import deque
from dataclasses import dataclass, field

from backend.schema.engine import EngineState, EngineStatus, LogChunk
from backend.schema.host import Status, TelemetryDelta, TelemetrySample
from backend.schema.load import LiveDelta, LivePoint, LoadStatus

# One reading per second for 20 minutes: the charts thin more than they can show.
KEPT_POINTS = 1200
KEPT_LOG_LINES = 200

TICK_S = 1.0  # while a launch or a load test goes on
WATCH_S = 5.0  # while an engine only serves: often enough to see it die, rare enough to cost nothing

MOVING = {EngineState.REPLACING, EngineState.STARTING, EngineState.STOPPING}


@dataclass
class LoadBuffer:
    """Live points of one load test."""

    load_id: str
    boot: str | None = None
    cursor: int = 0
    points: deque[LivePoint] = field(default_factory=lambda: deque(maxlen=KEPT_POINTS))
    per_position: list[float] = field(default_factory=list)
    status: LoadStatus | None = None

    def add(self, delta: LiveDelta) -> None:
        if delta.reset or (self.boot is not None and delta.boot != self.boot):
            self.points.clear()
        self.boot, self.cursor, self.status = delta.boot, delta.cursor, delta.status
        self.points.extend(delta.points)
        self.per_position = delta.per_position or self.per_position


@dataclass
class TelemetryBuffer:
    """Telemetry of the host since the page began to look."""

    boot: str | None = None
    cursor: int = 0
    source: str = ""
    samples: deque[TelemetrySample] = field(default_factory=lambda: deque(maxlen=KEPT_POINTS))

    def add(self, delta: TelemetryDelta) -> None:
        if delta.reset or (self.boot is not None and delta.boot != self.boot):
            self.samples.clear()
        self.boot, self.cursor, self.source = delta.boot, delta.cursor, delta.source
        self.samples.extend(delta.samples)


@dataclass
class LogBuffer:
    """The end of one engine's log."""

    engine_id: str
    cursor: int = 0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LOG_LINES))

    def add(self, chunk: LogChunk) -> None:
        if chunk.reset:
            self.lines.clear()
        self.cursor = chunk.cursor
        self.lines.extend(chunk.lines)

    def tail(self, count: int) -> str:
        return "\n".join(list(self.lines)[-count:])


def current_engine(status: Status) -> EngineStatus | None:
    """The engine that the controls act on: the newest that is not gone, else the newest."""
    alive = [engine for engine in status.engines if not engine.state.ended]
    return next(iter(alive or status.engines), None)


def current_load(status: Status) -> LoadStatus | None:
    """The load test that runs, else the newest."""
    newest = sorted(status.loads, key=lambda load: load.started_at_utc, reverse=True)
    return next((load for load in newest if not load.state.ended), next(iter(newest), None))


def is_moving(engine: EngineStatus | None) -> bool:
    """A launch, a replacement or a stop is under way."""
    return engine is not None and engine.state in MOVING


def is_serving(engine: EngineStatus | None) -> bool:
    return engine is not None and engine.state.serving


def is_loading(load: LoadStatus | None) -> bool:
    return load is not None and not load.state.ended


def tick_interval(status: Status) -> float | None:
    """Seconds between two looks at the agent; None when nothing can change by itself."""
    engine, load = current_engine(status), current_load(status)
    if is_moving(engine) or is_loading(load):
        return TICK_S
    return WATCH_S if is_serving(engine) else None


def signature(status: Status) -> tuple[tuple[str, str], ...]:
    """What the controls depend on. When it changes between two ticks, the whole page must be drawn again."""
    engines = ((engine.id, engine.state.value) for engine in status.engines)
    loads = ((load.id, load.state.value) for load in status.loads)
    return (*engines, *loads)
