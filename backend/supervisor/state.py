"""The states of an engine and the only legal moves between them."""

from backend.errors import ConflictError
from backend.schema.engine import EngineState as S

MOVES: dict[S, frozenset[S]] = {
    S.REPLACING: frozenset({S.STARTING, S.STOPPING, S.FAILED}),
    S.STARTING: frozenset({S.READY, S.STOPPING, S.FAILED}),
    S.READY: frozenset({S.DEGRADED, S.STOPPING, S.FAILED}),
    S.DEGRADED: frozenset({S.READY, S.STOPPING, S.FAILED}),
    S.STOPPING: frozenset({S.STOPPED, S.FAILED}),
    S.STOPPED: frozenset(),
    S.FAILED: frozenset(),
}


def transition(current: S, target: S) -> S:
    """`target` if an engine may go there from `current`, else ConflictError."""
    if target not in MOVES[current]:
        allowed = ", ".join(sorted(MOVES[current])) or "nothing: it has ended"
        raise ConflictError(f"an engine that is {current} cannot become {target}; it can become {allowed}")
    return target
