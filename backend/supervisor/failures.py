"""Finds the cause of a failure in a log: the message that came first beats the wrappers that report it."""

import re
from dataclasses import dataclass

from backend.schema.engine import Failure, PhaseName
from backend.supervisor.failure_table import ADVICE, FAILURES, FailureRow
from backend.thresholds import FAILURE_CAUSE_SHOWN_CHARS

_EXCEPTION = re.compile(r"^(?:[a-zA-Z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
_REFUSAL = re.compile(
    r"^(?:\w+\.)*(?:ValueError|AssertionError|NotImplementedError|TypeError|KeyError|ValidationError)\b"
)
# Lines that quote settings or source code would match by accident; a traceback quotes with at least two blanks.
_NEVER = ("  ", "server_args=", "INFO: ", "Ignore import error", "kill_process_tree called")


def failure(failure_class: str, cause: str, line: int | None = None, advice: str | None = None) -> Failure:
    """A failure of this class, with its usual advice where there is none for this very cause."""
    return Failure(failure_class=failure_class, cause=cause, line=line, advice=advice or ADVICE[failure_class])


@dataclass(frozen=True)
class _Found:
    message: str
    line: int
    phase: PhaseName | None

    def as_failure(self, failure_class: str, advice: str | None = None) -> Failure:
        where = f" (during {self.phase})" if self.phase not in {None, "init", "ready"} else ""
        return failure(failure_class, self.message.strip()[:FAILURE_CAUSE_SHOWN_CHARS] + where, self.line, advice)


class FailureReader:
    """Takes messages one after the other."""

    def __init__(self) -> None:
        self._cause: tuple[FailureRow, _Found] | None = None
        self._wrapper: tuple[FailureRow, _Found] | None = None
        self._exception: _Found | None = None

    def feed(self, message: str, line: int, phase: PhaseName | None) -> None:
        """One message, without its time stamp, that was written during `phase`."""
        if self._cause is not None or message.startswith(_NEVER):
            return
        if _EXCEPTION.match(message):
            self._exception = _Found(message, line, phase)
        row = next((row for row in FAILURES if row.pattern is not None and row.pattern.search(message)), None)
        if row is None:
            return
        if not row.is_wrapper:
            self._cause = (row, _Found(message, line, phase))
        elif self._wrapper is None:
            self._wrapper = (row, _Found(message, line, phase))

    def found(self) -> Failure | None:
        """The failure that the messages so far show, or None.

        Where nothing in the table matched, the last exception is the cause: before anything was loaded the engine
        refused its settings, later the scheduler died of it.
        """
        if self._cause is not None:
            row, found = self._cause
            return found.as_failure(row.failure_class, row.advice)
        wrapper_class = self._wrapper[0].failure_class if self._wrapper else "unknown"
        if self._exception is not None:
            refused = self._exception.phase in {None, "init"} and _REFUSAL.match(self._exception.message)
            return self._exception.as_failure("config_rejected" if refused else wrapper_class)
        return self._wrapper[1].as_failure(wrapper_class) if self._wrapper else None
