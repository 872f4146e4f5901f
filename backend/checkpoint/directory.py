"""Finds a checkpoint directory and reads its config.json. Never downloads anything."""

import os
import re
from pathlib import Path

from backend.errors import InputError, ModelNotFoundError
from backend.files import read_json_object

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")


def require_checkpoint(model: str) -> Path:
    """The directory that `model` names: a path, or a hub id (`org/name`) that lies in the local hub cache.

    Raises ModelNotFoundError when there is none or it is no directory with a config.json, InputError when that is
    unreadable.
    """
    path = Path(model).expanduser().absolute()
    if not path.exists() and _HUB_ID.fullmatch(model):
        path = _cached_snapshot(model)
    if not path.exists():
        raise ModelNotFoundError(f"model {model} does not exist{_nearest(path)}; give a checkpoint directory")
    if not path.is_dir():
        raise ModelNotFoundError(f"model {model} is a file; give the directory that holds config.json")
    read_config(path)
    return path


def read_config(path: Path) -> dict[str, object]:
    """The content of `path`/config.json. InputError if it is missing, unreadable or no JSON object."""
    try:
        return read_json_object(path / "config.json")
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path} holds no config.json, so it is not a checkpoint directory") from None


def text_config(config: dict[str, object]) -> dict[str, object]:
    """One flat view: multimodal configurations keep the language model's dimensions in a nested `text_config`."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else dict(config)


def require_tokenizer(path: Path) -> Path:
    """The tokenizer file of a checkpoint directory. InputError if it has none."""
    found = next((path / name for name in _TOKENIZER_FILES if (path / name).is_file()), None)
    if found is None:
        raise InputError(f"{path} holds no tokenizer (looked for {', '.join(_TOKENIZER_FILES)})")
    return found


def _cached_snapshot(hub_id: str) -> Path:
    """The newest complete snapshot of a hub id in the cache, the one `refs/main` names if it is there."""
    repository = _hub_cache() / f"models--{hub_id.replace('/', '--')}"
    snapshots = [p for p in repository.glob("snapshots/*") if (p / "config.json").is_file()]
    if not snapshots:
        raise ModelNotFoundError(
            f"model {hub_id} is neither a directory nor in the hub cache {_hub_cache()}; "
            "Slipstream downloads nothing: fetch it first or give a directory"
        )
    main = repository / "refs" / "main"
    revision = main.read_text(encoding="ascii").strip() if main.is_file() else ""
    return next((p for p in snapshots if p.name == revision), max(snapshots, key=lambda p: p.stat().st_mtime))


def _hub_cache() -> Path:
    cache, home = os.environ.get("HF_HUB_CACHE"), os.environ.get("HF_HOME")
    if cache:
        return Path(cache).expanduser()
    return Path(home).expanduser() / "hub" if home else Path.home() / ".cache" / "huggingface" / "hub"


def _nearest(path: Path) -> str:
    parent = next((p for p in path.parents if p.exists()), None)
    return f" (the nearest existing folder is {parent})" if parent is not None and parent != parent.parent else ""
