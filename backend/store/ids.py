"""Run ids: short, sortable by time, safe in a URL and as a directory name, and found by any unique prefix."""

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import get_close_matches

from backend.errors import InputError, NotFoundError

# No vowels and no look-alikes: read aloud and typed by people.
_ALPHABET = "23456789bcdfghjkmnpqrstvwxz"
_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
_NEAR_IDS_SHOWN = 3


def new_run_id() -> str:
    """A new id from the wall clock (UTC) and four random characters, e.g. `20261130-221012-k3f9`."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{''.join(secrets.choice(_ALPHABET) for _ in range(4))}"


def require_safe_id(run_id: str) -> str:
    """The id itself, or InputError: an id becomes a directory name, so it must not be a path."""
    if not _SAFE_ID.fullmatch(run_id):
        raise InputError(f"{run_id!r} is no run id: letters, digits, '-' and '_' only, at most 80 characters.")
    return run_id


def match_id(wanted: str, ids: Sequence[str]) -> str:
    """The id that equals `wanted` or that alone begins with it; else NotFoundError that names near ids."""
    if wanted in ids:
        return wanted
    found = [run_id for run_id in ids if wanted and run_id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise NotFoundError(f"{wanted!r} is the beginning of {len(found)} runs: {_some(found)}. Give more of the id.")
    near = get_close_matches(wanted, ids, _NEAR_IDS_SHOWN) or sorted(ids, reverse=True)
    hint = f"Near ids: {_some(near)}." if near else "The store holds no runs yet."
    raise NotFoundError(f"No run {wanted!r}. {hint} `runs` lists them all.")


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_NEAR_IDS_SHOWN]) + (", …" if len(ids) > _NEAR_IDS_SHOWN else "")
