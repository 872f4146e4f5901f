"""Processes as Linux describes them in /proc: enough to find an engine's relatives and to recognise one again.

A pid alone identifies nothing, because it is reused; with its start time in clock ticks it does, within one boot.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessId:
    """A process of this boot, beyond confusion with a later one of the same pid."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class ProcessInfo:
    """One line of /proc/PID/stat."""

    id: ProcessId
    name: str
    state: str
    parent: int
    session: int

    @property
    def is_alive(self) -> bool:
        """A zombie holds no memory and no port: it has ended."""
        return self.state not in "ZX"


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def read_process(pid: int) -> ProcessInfo | None:
    """The process with this pid, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 called for every process of the host: Path is slower
            text = file.read()
    except OSError:
        return None
    # The name is in parentheses and may itself contain spaces and parentheses.
    name_start, name_end = text.index(b"("), text.rindex(b")")
    rest = text[name_end + 2 :].split()
    return ProcessInfo(
        id=ProcessId(pid, int(rest[19])),
        name=text[name_start + 1 : name_end].decode(errors="replace"),
        state=rest[0].decode(),
        parent=int(rest[1]),
        session=int(rest[3]),
    )


def is_alive(process: ProcessId) -> bool:
    found = read_process(process.pid)
    return found is not None and found.id == process and found.is_alive


def all_processes() -> list[ProcessInfo]:
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return [process for process in found if process is not None]


def engine_processes(root: ProcessId, recorded: Iterable[ProcessId]) -> list[ProcessInfo]:
    """Living processes of an engine that has been watched since its start, its root included.

    They are the session of the root, its descendants, and the ones recorded earlier with theirs: a process that was
    re-parented or left the session is still found. The kernel keeps a session id reserved while the session lives.
    """
    everything = all_processes()
    known = {root, *recorded}
    members = {p.id.pid for p in everything if p.id in known or p.session == root.pid}
    return _with_descendants(members, everything)


def left_over_processes(recorded: Iterable[ProcessId], marker: str) -> list[ProcessInfo]:
    """Living processes of an engine that nobody watched for a while: only those recorded, or that carry `marker`
    (`NAME=VALUE`) in their environment, and their descendants. A session id alone proves nothing any more."""
    everything = all_processes()
    known = set(recorded)
    members = {p.id.pid for p in everything if p.id in known or _has_marker(p, marker)}
    return _with_descendants(members, everything)


def _with_descendants(members: set[int], everything: list[ProcessInfo]) -> list[ProcessInfo]:
    _add_descendants(members, everything)
    return [p for p in everything if p.id.pid in members and p.is_alive]


def _add_descendants(members: set[int], everything: list[ProcessInfo]) -> None:
    grown = True
    while grown:
        children = {p.id.pid for p in everything if p.parent in members} - members
        members |= children
        grown = bool(children)


def _has_marker(process: ProcessInfo, marker: str) -> bool:
    try:
        environment = (PROC / str(process.id.pid) / "environ").read_bytes()
    except OSError:
        return False
    return marker.encode() in environment.split(b"\0")


def command_line(pid: int) -> list[str]:
    """The argument list of a process, empty when it is gone or may not be read."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [word.decode(errors="replace") for word in words[:-1]]
