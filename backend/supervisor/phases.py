"""How long each phase of a launch takes."""

from dataclasses import dataclass

from backend.schema.engine import Phase, PhaseName


@dataclass
class _Span:
    name: PhaseName
    line: int | None
    seconds: float = 0.0
    detail: str | None = None


class PhaseClock:
    """Collects phases in the order in which they first begin.

    Engines differ in order, and some enter a phase twice (pools and graphs once for the target and once for the draft
    model); a phase that is entered again continues, so the seconds of all phases add up to the whole.
    """

    def __init__(self) -> None:
        self._spans: list[_Span] = []
        self._current: _Span | None = None
        self._since = 0.0

    @property
    def current(self) -> PhaseName | None:
        return self._current.name if self._current else None

    def enter(self, name: PhaseName, at_s: float, line: int | None = None) -> None:
        """`name` runs from `at_s` on; whatever ran before has ended then."""
        if self.current == name:
            return
        self.finish(at_s)
        known = next((span for span in self._spans if span.name == name), None)
        if known is None:
            known = _Span(name, line)
            self._spans.append(known)
        self._current, self._since = known, at_s

    def finish(self, at_s: float) -> None:
        """Nothing runs from `at_s` on."""
        if self._current is not None:
            self._current.seconds += max(0.0, at_s - self._since)
            self._current = None

    def detail(self, text: str | None) -> None:
        """What the running phase is doing, such as `12/23 graphs`."""
        if self._current is not None:
            self._current.detail = text

    def phases(self) -> list[Phase]:
        return [
            Phase(
                name=span.name,
                seconds=None if span is self._current else round(span.seconds, 3),
                line=span.line,
                detail=span.detail,
            )
            for span in self._spans
        ]
