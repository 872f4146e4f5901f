"""The load-test form as data, and the request that it makes. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from pydantic import ValidationError

from backend.schema.load import BenchRequest, Endpoint

CODE, CHAT, FILE = "code", "chat", "file"
DATASETS = {CODE: "Code (built in)", CHAT: "Chat (built in)", FILE: "A file of my own"}
BY_SECONDS, BY_REQUESTS = "seconds", "requests"
STOPS = {BY_SECONDS: "a number of seconds", BY_REQUESTS: "a number of requests"}

# The field of the form that holds each field of the request, where the names differ.
FIELD_OF = {"concurrency": "levels", "dataset": "file", "duration_s": "seconds", "warmup_requests": "warmup"}


@dataclass(frozen=True)
class LoadDraft:
    """What the load form holds. Lengths in tokens; a level ends after `seconds` or after `requests`."""

    levels: str = "1, 2, 4"
    dataset: str = CODE
    file: str = ""
    endpoint: str = Endpoint.GENERATE.value
    input_len: int | None = None
    output_len: int | None = 64
    warmup: int | None = 1
    stop: str = BY_SECONDS
    seconds: float | None = 10.0
    requests: int | None = 16
    temperature: float | None = 0.0
    seed: int | None = 0
    tags: str = ""
    note: str = ""

    def items(self) -> Iterator[tuple[str, Any]]:
        return ((field.name, getattr(self, field.name)) for field in fields(self))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        return cls(**values)


def levels_of(text: str) -> list[int]:
    """Concurrency levels of `1, 2, 4` or `1 2 4`. ValueError names the word that is no level."""
    words = re.split(r"[,;\s]+", text.strip())
    found = []
    for word in words:
        if not word.isdecimal() or int(word) < 1:
            raise ValueError(f"{word!r} is not a number of users; write levels like 1, 2, 4.")
        found.append(int(word))
    return found


def tags_of(text: str) -> list[str]:
    """Tags of `mtp, steps 3`: separated by commas, each once, in order."""
    return list(dict.fromkeys(tag for part in text.split(",") if (tag := part.strip())))


def bench_request(draft: LoadDraft, engine_id: str | None) -> tuple[BenchRequest | None, dict[str, str]]:
    """The request of this form, or None and the message under each wrong field."""
    problems = _missing(draft)
    levels: list[int] = []
    try:
        levels = levels_of(draft.levels)
    except ValueError as error:
        problems["levels"] = str(error)
    if problems:
        return None, problems
    by_seconds = draft.stop == BY_SECONDS
    try:
        request = BenchRequest(
            engine_id=engine_id,
            endpoint=Endpoint(draft.endpoint),
            concurrency=levels,
            dataset=draft.file.strip() if draft.dataset == FILE else draft.dataset,
            input_len=draft.input_len,
            output_len=draft.output_len or 0,
            warmup_requests=draft.warmup or 0,
            duration_s=draft.seconds if by_seconds else None,
            requests=None if by_seconds else draft.requests,
            temperature=draft.temperature or 0.0,
            seed=draft.seed or 0,
            tags=tags_of(draft.tags),
            note=draft.note.strip(),
        )
    except ValidationError as error:
        return None, _messages(error)
    return request, {}


def _missing(draft: LoadDraft) -> dict[str, str]:
    """Fields that are empty and must not be."""
    needed: dict[str, object] = {"output_len": draft.output_len, draft.stop: getattr(draft, draft.stop)}
    if draft.dataset == FILE:
        needed["file"] = draft.file.strip() or None
    names = {"output_len": "tokens per answer", "seconds": "seconds per level", "requests": "requests per level"}
    return {
        key: f"Give {names.get(key, 'the path of a prompt file on the agent’s machine')}."
        for key, value in needed.items()
        if value is None
    }


def _messages(error: ValidationError) -> dict[str, str]:
    """pydantic's complaints under the names of the form's fields."""
    found: dict[str, str] = {}
    for problem in error.errors():
        name = str(problem["loc"][0]) if problem["loc"] else "concurrency"
        found.setdefault(FIELD_OF.get(name, name), problem["msg"].removeprefix("Value error, "))
    return found
