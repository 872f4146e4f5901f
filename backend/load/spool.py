"""The files of a running load test. Whoever writes one may die at any moment; whoever reads one copes with that.

spec.json       what was asked (WorkerSpec)
requests.jsonl  one RequestRecord per line, appended when the request ends
ticks.jsonl     one live tick per line
worker.json     WorkerReport, replaced as a whole
worker.log      the worker's stderr
"""

from pathlib import Path
from typing import Any

import orjson


class Spool:
    """Paths of one spool."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.spec = directory / "spec.json"
        self.requests = directory / "requests.jsonl"
        self.ticks = directory / "ticks.jsonl"
        self.report = directory / "worker.json"
        self.log = directory / "worker.log"


class LineWriter:
    """Appends JSON lines, each in one write to the file, so that a kill leaves at most one broken line, the last."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, row: dict[str, Any]) -> None:
        """OSError when the disk is full; a line that went to disk in part is ended by nobody and read by nobody."""
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
        written = self._file.write(line)
        while written < len(line):
            line = line[written:]
            written = self._file.write(line)

    def close(self) -> None:
        self._file.close()


class LineReader:
    """Reads the complete lines that were appended since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """New rows. A file that is not there yet has none, an unfinished last line is left for the next call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self._offset += end
        return [row for line in data[:end].splitlines() if (row := _row(line)) is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None  # the end of a line whose writing was cut off, completed by a later one
    return row if isinstance(row, dict) else None
