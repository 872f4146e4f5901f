"""Answers that were expensive and hold while some files stay as they are, kept in the cache folder."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from backend import __version__
from backend.files import replace_file

Answer = TypeVar("Answer", bound=BaseModel)


def remembered(folder: Path, name: str, state: str, kind: type[Answer], make: Callable[[], Answer]) -> Answer:
    """The answer stored under `name` in `folder` while `state` is what it was then; else a new one, stored.

    A folder that cannot be written only costs the next call its time.
    """
    stamp = hashlib.sha256(f"{__version__}\n{state}".encode()).hexdigest()
    file = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
    try:
        known, _, document = file.read_bytes().partition(b"\n")
        if known.decode() == stamp:
            return kind.model_validate_json(document)
    except (OSError, UnicodeDecodeError, ValidationError):
        pass
    answer = make()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(file, f"{stamp}\n{answer.model_dump_json(by_alias=True)}".encode())
    except OSError:
        pass
    return answer
