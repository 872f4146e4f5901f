"""Explains a saved engine log."""

from backend.schema.engine import Diagnosis, Failure
from backend.supervisor.failures import failure
from backend.supervisor.launch_log import LaunchLog, log_time_s
from backend.supervisor.log_file import plain_text

_ASKED_TO_STOP = ("SIGTERM received", "Gracefully exiting")


def diagnose_log(text: str) -> Diagnosis:
    """Phases, memory ledger, changed values and failure of a log. Seconds are differences of its own time stamps.

    `text` must keep its carriage returns (open with `newline=""`): they redraw progress bars and begin no line.
    """
    log = LaunchLog()
    at_s = _first_time(text)
    stopped = False
    for number, line in enumerate(text.split("\n"), start=1):
        plain = plain_text(line.encode("utf-8", errors="replace")).rstrip("\r")
        at_s = log_time_s(plain) or at_s
        stopped = stopped or any(words in plain for words in _ASKED_TO_STOP)
        log.feed(number, plain, at_s)
    return Diagnosis(
        version=log.version,
        phases=log.phases(),
        ledger=log.ledger(),
        changed=log.changed,
        ready=log.ready_line is not None,
        failure=None if stopped and log.ready_line is not None else _failure(log),
    )


def _first_time(text: str) -> float:
    return next((at for at in map(log_time_s, text.split("\n")) if at is not None), 0.0)


def _failure(log: LaunchLog) -> Failure | None:
    found = log.failure()
    if found is not None or log.ready_line is not None or not log.phases():
        return found
    if log.in_collective_init:
        return failure("nccl_init_stall", "the log ends while the GPUs set up their communication")
    return failure(
        "unknown",
        f"the log ends during {log.clock.current} with neither an error nor the ready line: the process was killed, "
        "hung, or was still starting",
    )
