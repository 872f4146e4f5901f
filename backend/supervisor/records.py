"""What must survive the agent: one JSON per running engine, and the last configuration that became ready."""

import contextlib
import json
from pathlib import Path

from pydantic import Field, ValidationError

from backend.errors import StorageError
from backend.files import replace_file
from backend.paths import StatePaths
from backend.schema.base import Document
from backend.schema.engine import EngineStatus, LaunchRequest
from backend.supervisor.procfs import ProcessId


class RecordedProcess(Document):
    """A process beyond confusion within one boot."""

    pid: int
    start_ticks: int

    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.start_ticks)


class EngineRecord(Document):
    """An engine as the next agent finds it. Everything in it is redacted."""

    boot_id: str
    root: RecordedProcess
    relatives: list[RecordedProcess] = Field(default_factory=list)
    host: str
    port: int
    launched_s: float  # both of the monotonic clock of that boot
    process_started_s: float
    memory_before: dict[str, int] = Field(default_factory=dict)
    status: EngineStatus


class Records:
    """Reads and writes the records of one state directory. Files are 0600 and replaced as a whole."""

    def __init__(self, paths: StatePaths) -> None:
        self._folder = paths.engines
        self._last_good = paths.home / "last_good.json"

    def save(self, record: EngineRecord) -> None:
        """StorageError when it cannot be written."""
        _replace(self._folder / f"{record.status.id}.json", record.model_dump_json(by_alias=True, indent=1))

    def remove(self, engine_id: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / f"{engine_id}.json").unlink()

    def load(self) -> list[EngineRecord]:
        """All readable records; a damaged one is put aside as `NAME.damaged` and not looked at again."""
        records = []
        for file in sorted(self._folder.glob("*.json")):
            try:
                records.append(EngineRecord.model_validate_json(file.read_bytes()))
            except (OSError, ValidationError):
                with contextlib.suppress(OSError):
                    file.rename(file.with_suffix(".damaged"))
        return records

    def save_last_good(self, request: LaunchRequest) -> None:
        _replace(self._last_good, request.model_dump_json(by_alias=True, indent=1))

    def last_good(self) -> LaunchRequest | None:
        try:
            return LaunchRequest.model_validate(json.loads(self._last_good.read_bytes()))
        except (OSError, ValueError):
            return None


def _replace(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), 0o600)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; make room or fix its permissions") from error
