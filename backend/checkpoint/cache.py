"""Remembers inspections, by what the files looked like."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from backend import __version__
from backend.files import replace_file
from backend.paths import StatePaths
from backend.schema.checkpoint import Inspection


def remembered(paths: StatePaths, folder: Path, inspect: Callable[[], Inspection]) -> Inspection:
    """The stored answer while name, size, inode and time of every file are as they were; else a new one, stored.

    A store that cannot be written only costs the next call its time.
    """
    state = fingerprint(folder)
    file = paths.cache / "inspect" / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:32]}.json"
    try:
        stamp, _, document = file.read_bytes().partition(b"\n")
        if stamp.decode() == state:
            return Inspection.model_validate_json(document)
    except (OSError, UnicodeDecodeError, ValidationError):
        pass
    answer = inspect()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, f"{state}\n{answer.model_dump_json(by_alias=True)}".encode())
    except OSError:
        pass
    return answer


def fingerprint(folder: Path) -> str:
    """Changes when any file that an inspection reads does. Links count as what they point to."""
    rows = [__version__]
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".json", ".safetensors"):
            continue
        try:
            status = path.stat()
        except OSError:
            rows.append(f"{path.name} absent")
            continue
        rows.append(f"{path.name} {status.st_size} {status.st_mtime_ns} {status.st_ino}")
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()
