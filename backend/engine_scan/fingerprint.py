"""Whether a source tree is still what it was."""

import os
from pathlib import Path


def fingerprint(package: Path) -> str:
    """Name, size and time of every Python file in `srt`."""
    rows = []
    waiting = [str(package / "srt")]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    rows.append(f"{entry.path} {status.st_size} {status.st_mtime_ns}")
                elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                    waiting.append(entry.path)
    return "\n".join(rows)
