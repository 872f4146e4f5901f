"""The processes of one engine: started in a session of their own, each watched through a pidfd, ended together."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from backend.errors import ConflictError
from backend.supervisor.procfs import (
    ProcessId,
    ProcessInfo,
    command_line,
    engine_processes,
    is_alive,
    read_process,
)

# Helpers that come and go while kernels are compiled; their end means nothing, their presence explains a silence.
COMPILERS = frozenset(
    {"ninja", "nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "cc1plus", "c++", "g++", "gcc", "clang", "ld"}
)
_PASSING = COMPILERS | {"sh", "bash", "as", "nvidia-smi", "ldconfig", "uname", "lscpu"}


def spawn(argv: Sequence[str], env: Mapping[str, str], cwd: Path, output_fd: int) -> ProcessId:
    """Starts a process that no terminal and no exit of the agent can reach.

    It gets a session of its own, /dev/null as stdin and a file for its output. OSError when it cannot be executed.
    """
    process = subprocess.Popen(
        list(argv),
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output_fd,
        stderr=output_fd,
        start_new_session=True,
        close_fds=True,
    )
    # From here on the pidfd watches and reaps it; the Popen object must not warn that the child outlives it.
    process.returncode = 0
    started = read_process(process.pid)
    if started is None:
        raise ProcessLookupError(f"process {process.pid} vanished while it was started")
    return started.id


class ProcessTree:
    """An engine's root and all it started. `on_exit` is called in the event loop, once per process that ends."""

    def __init__(
        self, root: ProcessId, on_exit: Callable[[ProcessId], None], recorded: Iterable[ProcessId] = ()
    ) -> None:
        self.root = root
        self.exit_code: int | None = None  # of the root, negative for a signal; None also when it is not our child
        self.root_ended = False
        self.recorded: dict[ProcessId, str] = {}
        self._on_exit = on_exit
        self._fds: dict[ProcessId, int] = {}
        self._add(root, "root")
        for process in recorded:
            self._add(process, "recorded")

    def scan(self) -> bool:
        """Finds new relatives and watches them; True if there were any."""
        new = [process for process in self.members() if process.id not in self.recorded]
        for process in new:
            self._add(process.id, process.name)
        return bool(new)

    def members(self) -> list[ProcessInfo]:
        return engine_processes(self.root, self.recorded)

    def essential(self) -> frozenset[ProcessId]:
        """The living relatives whose end would break a serving engine: all but the root and passing helpers."""
        return frozenset(p.id for p in self.members() if p.id != self.root and not _is_passing(p))

    def compilers(self) -> list[str]:
        return sorted({process.name for process in self.members() if process.name in COMPILERS})

    def signal(self, number: signal.Signals) -> None:
        """Signals the group, then members outside of it. Never a process that was not seen to belong to the engine."""
        members = self.members()
        if self.root.pid <= 1 or self.root.pid == os.getpgrp():
            raise ConflictError(f"process group {self.root.pid} is not an engine's; nothing was signalled")
        if any(process.session == self.root.pid for process in members):
            _quietly(lambda: os.killpg(self.root.pid, number))
        for process in members:
            if process.session != self.root.pid:
                _signal_one(process.id, number)

    def close(self) -> None:
        """Stops watching; the processes go on."""
        for fd in self._fds.values():
            _unwatch(fd)
        self._fds.clear()

    def _add(self, process: ProcessId, name: str) -> None:
        self.recorded[process] = name
        try:
            fd = os.pidfd_open(process.pid)
        except OSError:
            fd = -1
        found = read_process(process.pid)
        if fd >= 0 and found is not None and found.id == process:
            self._fds[process] = fd
            asyncio.get_running_loop().add_reader(fd, self._ended, process)
            return
        if fd >= 0:
            os.close(fd)
        if process == self.root:
            self.root_ended = True

    def _ended(self, process: ProcessId) -> None:
        fd = self._fds.pop(process)
        exit_code = _reap(fd)
        if process == self.root:
            self.exit_code = exit_code
            self.root_ended = True
        _unwatch(fd)
        self._on_exit(process)


def kill_left_overs(processes: Iterable[ProcessInfo]) -> None:
    """SIGKILL to processes known to be an engine's left-overs."""
    for process in processes:
        _signal_one(process.id, signal.SIGKILL)


def _reap(fd: int) -> int | None:
    """Exit code of a child, negative for a signal; None for a process that is not our child.

    Orphans become children of pid 1: where that is the agent itself, in a container, they are reaped here as well.
    """
    try:
        result = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def _signal_one(process: ProcessId, number: signal.Signals) -> None:
    """Through a pidfd, so that a pid that was reused meanwhile is not hit."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if is_alive(process):
            _quietly(lambda: signal.pidfd_send_signal(fd, number))
    finally:
        os.close(fd)


def _quietly(send: Callable[[], None]) -> None:
    """A process that ended between the look and the signal is what was wanted."""
    try:
        send()
    except ProcessLookupError:
        return


def _unwatch(fd: int) -> None:
    asyncio.get_running_loop().remove_reader(fd)
    os.close(fd)


def _is_passing(process: ProcessInfo) -> bool:
    return process.name in _PASSING or any("compile_worker" in word for word in command_line(process.id.pid))
