"""Messages to the prompt that the checkpoint was trained on, by its own template.

A template is a program that came with a checkpoint, so it runs in jinja2's immutable sandbox.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from backend.errors import InputError

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatError(Exception):
    """The template refused the messages; the text says why."""


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled template with the special tokens that it may name."""

    template: Template
    special: dict[str, str]

    def render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        """The prompt, ending where the assistant's answer begins. Raises ChatError."""
        try:
            return self.template.render(
                {**self.special, "tools": None, **variables, "messages": messages, "add_generation_prompt": True}
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise ChatError(f"The chat template cannot render these messages: {error}") from error


def load_chat_template(directory: Path) -> ChatTemplate | None:
    """From `chat_template.jinja`, else from `tokenizer_config.json`; None when there is neither.

    Raises InputError when the template does not compile.
    """
    config = _read_config(directory / "tokenizer_config.json")
    file = directory / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if not isinstance(source, str):
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = _raise
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise InputError(f"The chat template in {directory} does not compile: {error}.") from error
    return ChatTemplate(template, {name: _text(config.get(name)) for name in _SPECIAL})


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as JSON: {error}.") from error
    return config if isinstance(config, dict) else {}


def _text(token: object) -> str:
    """A special token is stored as a string or as an object with its `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
