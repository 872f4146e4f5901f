"""The checkpoint's own chat template and tokenizer.

A template is a program that came with a checkpoint, so it runs in jinja2's immutable sandbox.
"""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from backend.errors import InputError

Messages = list[dict[str, str]]
Render = Callable[[Messages], str]


def chat_renderer(model_dir: Path) -> Render | None:
    """A function from messages to the text that the model was trained on; None when the checkpoint has no template.

    Read from `chat_template.jinja`, else from `tokenizer_config.json`. InputError when the template is broken.
    """
    config = _tokenizer_config(model_dir)
    source = _template_source(model_dir, config)
    if source is None:
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().astimezone().strftime(pattern)
    special = {name: _token(config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise InputError(_broken(model_dir, error)) from error

    def render(messages: Messages) -> str:
        try:
            return template.render(messages=messages, add_generation_prompt=True, tools=None, **special)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(_broken(model_dir, error)) from error

    return render


def load_tokenizer(model_dir: Path | None) -> Tokenizer:
    """The checkpoint's tokenizer. InputError when there is no readable `tokenizer.json`."""
    if model_dir is None:
        raise InputError(
            "input_len needs the checkpoint's tokenizer, and the server's checkpoint is not on this machine; "
            "leave input_len out, or give prompts that have the length you want"
        )
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"input_len needs a tokenizer, and there is no {path}; leave input_len out")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception for a file that is no tokenizer
        raise InputError(f"{path} cannot be read as a tokenizer: {error}") from error


def _tokenizer_config(model_dir: Path) -> dict[str, Any]:
    path = model_dir / "tokenizer_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    return config if isinstance(config, dict) else {}


def _template_source(model_dir: Path, config: dict[str, Any]) -> str | None:
    """The template as text. A checkpoint with several has one named `default`."""
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token(value: object) -> str:
    """A special token: a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _tojson(value: object, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _broken(model_dir: Path, error: Exception) -> str:
    return f"the chat template of {model_dir} cannot render the prompts ({error}); switch the chat template off"
