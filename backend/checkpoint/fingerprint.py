"""Whether a checkpoint is still what it was."""

from pathlib import Path


def fingerprint(folder: Path) -> str:
    """Changes when any file that an inspection reads does. Links count as what they point to."""
    rows = []
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".json", ".safetensors"):
            continue
        try:
            status = path.stat()
        except OSError:
            rows.append(f"{path.name} absent")
            continue
        rows.append(f"{path.name} {status.st_size} {status.st_mtime_ns} {status.st_ino}")
    return "\n".join(rows)
