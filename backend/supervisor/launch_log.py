"""Reads an engine's log, line by line: phases, memory, changed values, readiness, failure.

One dialect covers SGLang and the reference engine, which writes the same lines. A line may hold several messages: a
progress bar redrawn with carriage returns and, behind it, the message of another process.
"""

import re
from collections.abc import Iterator
from datetime import datetime

from backend.schema.engine import Changed, Failure, LedgerItem, Phase, PhaseName
from backend.supervisor.failures import FailureReader
from backend.supervisor.ledger import LedgerReader
from backend.supervisor.phases import PhaseClock
from backend.thresholds import LOG_MATCHED_CHARS

_MESSAGE_BREAK = re.compile(r"\r|(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_PREFIX = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)((?: [A-Z_]+\d+)*)\] ")

_PHASE_OPENERS: tuple[tuple[PhaseName, re.Pattern[str]], ...] = (
    ("pools", re.compile(r"Using KV cache dtype|Mamba Cache is allocated|(?:\S+ )?KV Cache is allocated")),
    ("graphs", re.compile(r"Capture .*(?:cuda|CUDA) graph begin")),
    ("warmup", re.compile(r"max_total_num_tokens=|INFO: +(?:Started server process|Uvicorn running)")),
    ("ready", re.compile(r"The server is fired up and ready to roll!")),
)
_LOAD_BEGIN = "Load weight begin"
_INIT_BEGIN = re.compile(r"Init (?:torch distributed|parallel) begin")
_INIT_END = re.compile(r"Init (?:torch distributed|parallel) ends")
_CHANGED = re.compile(
    r"is reset to |(?:is|are) adjusted|^Disabling |^Disable .* because |is disabled(?! \()|[Cc]hanging \S+ from |"
    r"auto-resolved to |is enabled by default|overrid(?:den|ing|es) |not set\. Use |is not set: .* is used|"
    r"speculative_adaptive disabled|(?:has|have) no effect"
)
_POOL = re.compile(r"max_total_num_tokens=(\d+).*\bcontext_len=(\d+)")
_PROGRESS = re.compile(r"(Loading|Capturing|Multi-thread)\b.*?(\d+)%.*?(\d+/\d+)")
_VERSION = re.compile(r"\b(?:SGLang|sglang|[Ee]ngine) version[:= ]+v?(\S+)")
# Not worth a second look once the engine serves; they come by the million.
_SERVING = ("Decode batch", "Prefill batch")


class LaunchLog:
    """What a log has said so far. `started_at_s` is when the process began, on the clock that `feed` is given."""

    def __init__(self, started_at_s: float | None = None) -> None:
        self.clock = PhaseClock()
        self.changed: list[Changed] = []
        self.version: str | None = None
        self.ready_line: int | None = None
        self.ready_at_s: float | None = None
        self.draft_loaded = False
        self.max_total_tokens: int | None = None
        self.context_len: int | None = None
        self.in_collective_init = False
        self._ledger = LedgerReader()
        self._failures = FailureReader()
        self._first_rank: str | None = None
        self._loads = 0
        if started_at_s is not None:
            self.clock.enter("init", started_at_s)

    def feed(self, number: int, text: str, at_s: float) -> None:
        """Line `number` (1-based), read at `at_s`."""
        for rank, message in _messages(text):
            if message.startswith(_SERVING):
                continue
            self._read_phase(message, rank, number, at_s)
            self._ledger.feed(message, rank, number)
            self._failures.feed(message, number, self.clock.current)
            self._read_facts(message, number)

    def feed_partial(self, text: str) -> None:
        """The line that is still being written: a progress bar says how far the phase is."""
        if self.ready_line is None:
            self._read_progress(text.rsplit("\r", 1)[-1])

    def phases(self) -> list[Phase]:
        return self.clock.phases()

    def ledger(self) -> dict[str, LedgerItem]:
        return self._ledger.items()

    def failure(self) -> Failure | None:
        return self._failures.found()

    def _read_phase(self, message: str, rank: str, number: int, at_s: float) -> None:
        if self.ready_line is not None or rank not in {"", self._first_rank or rank}:
            return  # other ranks repeat what the first one says
        if self.clock.current is None:
            self.clock.enter("init", at_s, number)
        self._first_rank = self._first_rank or rank or None
        if message.startswith(_LOAD_BEGIN):
            self._loads += 1
            self.draft_loaded = self._loads > 1
            self.clock.enter("load_draft" if self.draft_loaded else "load_target", at_s, number)
            return
        if _INIT_BEGIN.match(message):
            self.in_collective_init = True
        elif _INIT_END.match(message):
            self.in_collective_init = False
        name = next((name for name, opener in _PHASE_OPENERS if opener.match(message)), None)
        if name is not None:
            self.clock.enter(name, at_s, number)
        if name == "ready":
            self.ready_line, self.ready_at_s = number, at_s

    def _read_facts(self, message: str, number: int) -> None:
        if match := _POOL.match(message):
            self.max_total_tokens, self.context_len = int(match[1]), int(match[2])
        if self.ready_line is not None:
            return
        if self.version is None and (match := _VERSION.search(message)):
            self.version = match[1]
        if _CHANGED.search(message) and not message.startswith("server_args="):
            self._note_change(Changed(message=message.strip(), line=number))
        self._read_progress(message)

    def _note_change(self, change: Changed) -> None:
        """Every rank and the draft worker repeat the same words: the first line counts."""
        if all(known.message != change.message for known in self.changed):
            self.changed.append(change)

    def _read_progress(self, message: str) -> None:
        if match := _PROGRESS.search(message):
            self.clock.detail(f"{match[3]} ({match[2]} %)")


def log_time_s(text: str) -> float | None:
    """Seconds of the log's own clock in the last time stamp of a line: good for differences within one log only."""
    stamps = _PREFIX.findall(text)
    return datetime.fromisoformat(stamps[-1][0]).timestamp() if stamps else None


def _messages(text: str) -> Iterator[tuple[str, str]]:
    """(rank tags, message) of each message in a line."""
    for part in _MESSAGE_BREAK.split(text):
        if not part.strip():
            continue
        prefix = _PREFIX.match(part)
        rank, start = (prefix[2].strip(), prefix.end()) if prefix else ("", 0)
        yield rank, part[start : start + LOG_MATCHED_CHARS]
