"""Files that others read while they are written, and JSON files that somebody else wrote."""

import json
import os
from pathlib import Path
from typing import Any

from backend.errors import InputError


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Writes a file whole or not at all: a reader, or a crash, sees the old one or the new one and nothing between.

    The new file has `mode`, less the process's umask, from its first moment. Raises OSError and leaves the old one.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in `file`. Raises FileNotFoundError, and InputError when the file holds anything else."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except json.JSONDecodeError as error:
        raise InputError(f"{file} is not valid JSON: line {error.lineno}: {error.msg}; copy it anew") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {file}: {error}; copy it anew, or make it readable") from error
    except RecursionError as error:
        raise InputError(f"{file} is nested too deeply to be a configuration; copy it anew") from error
    if not isinstance(value, dict):
        raise InputError(f"{file} holds a {type(value).__name__}, not a JSON object; copy it anew")
    return value
