"""An engine's log file, read as it grows: complete lines for the parser, and any range of lines for display.

Line numbers are 1-based and count line feeds only: a progress bar redrawn with carriage returns is one line.
"""

import contextlib
import os
import re
from array import array
from collections.abc import Collection
from pathlib import Path

from backend.errors import StorageError
from backend.redact import redact_text
from backend.schema.engine import LogChunk
from backend.thresholds import (
    ENGINE_LOGS_KEPT_COUNT,
    LOG_CHUNK_LINES,
    LOG_LINE_SHOWN_CHARS,
    LOG_PARSED_LINE_BYTES,
    LOG_READ_BYTES,
)

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


def plain_text(raw: bytes) -> str:
    """Text of one line without colour codes; bytes that are no UTF-8 become U+FFFD."""
    return _ANSI.sub("", raw.decode("utf-8", errors="replace"))


def create_log(path: Path) -> int:
    """A file descriptor for the engine's stdout and stderr. StorageError when it cannot be made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(
            f"cannot create the log {path}: {error.strerror}; make room or fix its permissions"
        ) from error


def prune_logs(folder: Path, spared: Collection[Path]) -> None:
    """Removes all but the newest ENGINE_LOGS_KEPT_COUNT logs of launches; those in `spared` stay, however old.

    The time is that of the last line. What cannot be removed stays: a launch does not fail over old logs.
    """
    found: list[tuple[float, Path]] = []
    for path in folder.glob("*.log"):
        with contextlib.suppress(OSError):  # gone since
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[ENGINE_LOGS_KEPT_COUNT:]:
        if path not in spared:
            with contextlib.suppress(OSError):
                path.unlink()


class LogFile:
    """Follows one file through one descriptor, so that it can be renamed or deleted meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._size = 0  # bytes read so far
        self._starts = array("Q", [0])  # offset of every line that began; the last one is incomplete
        self._partial = bytearray()  # the incomplete line, its middle dropped when it is very long

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @property
    def line_count(self) -> int:
        """Complete lines so far."""
        return len(self._starts) - 1

    @property
    def size_bytes(self) -> int:
        return self._size

    @property
    def partial(self) -> str:
        """The line that is being written, such as a progress bar."""
        return plain_text(bytes(self._partial))

    def read_new(self) -> list[str]:
        """Lines completed since the last call, at most LOG_READ_BYTES of them: call again while it returns any.

        An unreadable or shortened file gives nothing; the engine goes on without its log.
        """
        block = self._read_block()
        if not block:
            return []
        lines: list[str] = []
        begin = 0
        while (end := block.find(b"\n", begin)) >= 0:
            self._extend_partial(block[begin:end])
            lines.append(plain_text(bytes(self._partial)))
            self._partial.clear()
            self._starts.append(self._size + end + 1)
            begin = end + 1
        self._extend_partial(block[begin:])
        self._size += len(block)
        return lines

    def chunk(self, cursor: int) -> LogChunk:
        """Lines after `cursor` (the number of lines already seen; negative: the last -cursor ones) for display.

        At most LOG_CHUNK_LINES per call. A cursor beyond the end belongs to another log: `reset` is set, and the answer
        starts at the first line.
        """
        reset = cursor > self.line_count
        first = 0 if reset else cursor if cursor >= 0 else max(0, self.line_count + cursor)
        last = min(self.line_count, first + LOG_CHUNK_LINES)
        lines = [self._shown(index) for index in range(first, last)]
        return LogChunk(lines=lines, first_line=first + 1, cursor=last, reset=reset)

    def _read_block(self) -> bytes:
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(self._fd).st_size <= self._size:
                return b""
            return os.pread(self._fd, LOG_READ_BYTES, self._size)
        except OSError:
            return b""

    def _extend_partial(self, data: bytes) -> None:
        self._partial += data
        if len(self._partial) > LOG_PARSED_LINE_BYTES:
            half = LOG_PARSED_LINE_BYTES // 2
            del self._partial[half:-half]

    def _shown(self, index: int) -> str:
        start, end = self._starts[index], self._starts[index + 1] - 1
        raw = self._read_at(start, min(end - start, LOG_PARSED_LINE_BYTES))
        text = plain_text(raw).rstrip("\r")
        redrawn = [part for part in text.split("\r") if part.strip()]
        text = redact_text(redrawn[-1] if redrawn else "")
        cut = len(text) - LOG_LINE_SHOWN_CHARS
        return f"{text[:LOG_LINE_SHOWN_CHARS]} … ({cut} more characters)" if cut > 0 else text

    def _read_at(self, offset: int, count: int) -> bytes:
        if self._fd is None:
            return b""
        try:
            return os.pread(self._fd, count, offset)
        except OSError:
            return b""
