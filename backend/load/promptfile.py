"""Reads a prompt file: JSON lines, each an object with `prompt`, `text`, `messages` or ShareGPT's `conversations`."""

import os
from pathlib import Path
from typing import Any

import orjson

from backend import thresholds
from backend.errors import InputError
from backend.load.template import Messages
from backend.paths import PROJECT_ROOT

BUNDLED = PROJECT_ROOT / "assets" / "prompts"
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


def prompt_path(dataset: str) -> Path:
    """The file of a bundled data set's name, or of a path. InputError when there is none."""
    bundled = BUNDLED / f"{dataset}.jsonl"
    path = Path(os.path.expanduser(dataset))  # noqa: PTH111 never raises, as isfile does not
    for found in [path] if "/" in dataset else [bundled, path]:
        if os.path.isfile(found):  # noqa: PTH113
            return found
    names = ", ".join(sorted(file.stem for file in BUNDLED.glob("*.jsonl"))) or "none"
    raise InputError(f"there is no data set and no file {dataset!r}; bundled data sets: {names}")


def read_prompts(path: Path) -> list[tuple[str, Messages]]:
    """(id, messages) of every line. InputError names the file, the line, and what is wrong with it."""
    prompts = []
    for number, line in _lines(path):
        if line.strip():
            where = f"{path} line {number}"
            row = _object(line, where)
            prompts.append((str(row.get("id", f"line{number}")), _messages(row, where)))
    if not prompts:
        raise InputError(f"{path} has no prompts; each line is an object with a `prompt`, `text` or `messages`")
    return prompts


def _lines(path: Path) -> list[tuple[int, str]]:
    """Numbered lines. Only a line feed ends one: U+2028 may stand in a JSON string."""
    try:
        if path.stat().st_size > thresholds.LOAD_PROMPT_FILE_MAX_BYTES:
            raise InputError(f"{path} is larger than {thresholds.LOAD_PROMPT_FILE_MAX_BYTES >> 20} MiB; cut it down")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    lines = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        try:
            lines.append((number, line.decode("utf-8")))
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path} line {number}: not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}); "
                "save the file as UTF-8"
            ) from error
    return lines


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = orjson.loads(line)  # unlike json: no lone surrogates, which cannot be sent, and bounded depth
    except orjson.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(row, dict):
        kind = "an array" if isinstance(row, list) else f"a {type(row).__name__}"
        raise InputError(f"{where}: {kind} where an object is expected; write one object per line")
    return row


def _messages(row: dict[str, Any], where: str) -> Messages:
    """The conversation up to the last question; an answer that follows it is left out."""
    for key in ("prompt", "text"):
        if key in row:
            text = row[key]
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"{where}: `{key}` must be a text that is not empty")
            return [{"role": "user", "content": text}]
    if "messages" in row:
        messages = _turns(row["messages"], "messages", "role", "content", where)
    elif "conversations" in row:
        messages = _turns(row["conversations"], "conversations", "from", "value", where)
    else:
        raise InputError(f"{where}: no `prompt`, `text`, `messages` or `conversations` (keys: {', '.join(row)})")
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages or messages[-1]["role"] != "user":
        raise InputError(f"{where}: the conversation has no question by a user")
    return messages


def _turns(turns: object, key: str, role_key: str, text_key: str, where: str) -> Messages:
    if not isinstance(turns, list):
        raise InputError(f"{where}: `{key}` must be a list")
    messages = []
    for position, turn in enumerate(turns):
        role = turn.get(role_key) if isinstance(turn, dict) else None
        text = turn.get(text_key) if isinstance(turn, dict) else None
        if role not in _ROLES or not isinstance(text, str):
            raise InputError(
                f"{where}: `{key}[{position}]` needs `{role_key}` ({', '.join(_ROLES)}) and `{text_key}` (a text)"
            )
        messages.append({"role": _ROLES[role], "content": text})
    return messages
