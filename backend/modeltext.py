"""From messages to a prompt and on to tokens, by the checkpoint's own chat template and tokenizer.

A template is a program that came with a checkpoint, so it runs in jinja2's immutable sandbox.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from backend.errors import InputError
from backend.files import read_json_object

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
# What a template can raise over messages that it was not written for.
_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class ChatError(InputError):
    """The template refused the messages; the text is its reason alone."""


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled template with the special tokens that it may name."""

    template: Template
    special: dict[str, str]

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None) -> str:
        """The prompt, ending where the assistant's answer begins. Raises ChatError."""
        given = {**self.special, "tools": None, **(variables or {})}
        try:
            return self.template.render({**given, "messages": messages, "add_generation_prompt": True})
        except _TEMPLATE_ERRORS as error:
            raise ChatError(str(error)) from error


def load_chat_template(directory: Path) -> ChatTemplate | None:
    """From `chat_template.jinja`, else from `tokenizer_config.json`; None when there is neither.

    Raises InputError when a file cannot be read or the template does not compile.
    """
    try:
        config = read_json_object(directory / "tokenizer_config.json")
    except FileNotFoundError:
        config = {}
    source = _source(directory / "chat_template.jinja", config)
    if source is None:
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().astimezone().strftime(pattern)
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise InputError(f"the chat template of {directory} cannot render anything ({error}); correct it") from error
    return ChatTemplate(template, {name: _token(config.get(name)) for name in _SPECIAL})


def load_tokenizer(directory: Path) -> Tokenizer:
    """The checkpoint's tokenizer. Raises InputError when there is no readable `tokenizer.json`."""
    file = directory / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception for a file that is no tokenizer
        raise InputError(
            f"{file} cannot be read as a tokenizer: {error}; name a directory with a whole tokenizer.json"
        ) from error


def _source(file: Path, config: dict[str, Any]) -> str | None:
    """The template as text. A checkpoint with several has one named `default`."""
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {file}: {error}; copy it anew, or make it readable") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token(value: object) -> str:
    """A special token is stored as a string or as an object with its `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _tojson(value: object, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
