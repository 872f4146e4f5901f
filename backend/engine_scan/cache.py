"""Remembers scans, by what the files of a tree looked like."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from backend import __version__
from backend.files import replace_file
from backend.paths import StatePaths
from backend.schema.engine import Scan


def remembered(paths: StatePaths, package: Path, scan: Callable[[], Scan]) -> Scan:
    """The stored scan while no Python file below `package` has changed; else a new one, stored if that is possible."""
    state = fingerprint(package)
    file = paths.cache / "scan" / f"{hashlib.sha256(str(package).encode()).hexdigest()[:32]}.json"
    try:
        stamp, _, document = file.read_bytes().partition(b"\n")
        if stamp.decode() == state:
            return Scan.model_validate_json(document)
    except (OSError, UnicodeDecodeError, ValidationError):
        pass
    answer = scan()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, f"{state}\n{answer.model_dump_json(by_alias=True)}".encode())
    except OSError:
        pass
    return answer


def fingerprint(package: Path) -> str:
    """Of name, size and time of every Python file in `srt`."""
    digest = hashlib.sha256(__version__.encode())
    waiting = [str(package / "srt")]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    digest.update(f"{entry.path} {status.st_size} {status.st_mtime_ns}\n".encode())
                elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                    waiting.append(entry.path)
    return digest.hexdigest()
