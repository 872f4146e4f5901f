"""Secrets are cut out before anything is stored, shown or exported. One implementation for supervisor and store.

What counts as secret: a value whose *name* says so (`HF_TOKEN`, `--api-key`, `ssl_keyfile_password`), a bearer token,
and user information inside a URL. `token` and `key` count only as the last word of a name, because engines have many
harmless settings about tokens (`--speculative-num-draft-tokens`, `--speculative-token-map`, `--tokenizer-path`).
Redacting twice changes nothing.
"""

import re
from collections.abc import Mapping, Sequence

REDACTED = "[redacted]"

_ALWAYS_SECRET = {"secret", "secrets", "password", "passwd", "passphrase", "credential", "credentials", "apikey"}
_SECRET_LAST_WORD = (["key"], ["token"], ["auth"], ["authorization"])
_WORD_BREAK = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z])")

_BEARER = re.compile(r"(?i)\b(bearer\s+)(?!\[redacted\])[A-Za-z0-9._~+/=-]+")
_URL_USER = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)(?!\[redacted\]@)[^/\s@'\"]+@")
# `api_key='x'`, `"hf_token": "x"`, `PASSWORD=x`: a name, a separator, a value that is quoted or ends at a blank.
_ASSIGNMENT = re.compile(r"""(?x) (?P<name> [A-Za-z][A-Za-z0-9_.-]* ) (?P<sep> ["']? \s* [=:] \s* )
                             (?P<value> "[^"\n]*" | '[^'\n]*' | [^\s,;)}\]"']+ )""")
_OPTION = re.compile(r"(?<![\w-])(?P<name>--[A-Za-z][A-Za-z0-9_-]*)(?P<sep>\s+)(?P<value>[^\s-]\S*)")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_NOTHING = {"None", "null", "True", "False", "true", "false", "''", '""'}


def is_secret_name(name: str) -> bool:
    """Whether a variable, flag or key of this name holds a secret: `HF_TOKEN`, `--api-key`, `AWS_ACCESS_KEY_ID`."""
    words = _words(name)
    return bool(_ALWAYS_SECRET & set(words)) or words[-1:] in _SECRET_LAST_WORD or "access-key" in "-".join(words)


def redact_text(text: str) -> str:
    """Free text, such as a log or an error message, without secrets."""
    text = _URL_USER.sub(rf"\1{REDACTED}@", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    text = _OPTION.sub(_hide_value, text)
    return _ASSIGNMENT.sub(_hide_value, text)


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with secret values replaced; names stay, so that a difference remains visible."""
    return {name: REDACTED if value and is_secret_name(name) else redact_text(value) for name, value in env.items()}


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line with the values of secret flags replaced: `--api-key X`, `--api-key=X`, `TOKEN=X`."""
    words: list[str] = []
    for word in argv:
        after_secret_flag = bool(words) and words[-1].startswith("--") and is_secret_name(words[-1])
        hide = after_secret_flag and "=" not in words[-1] and not word.startswith("--")
        words.append(REDACTED if hide else redact_text(word))
    return words


def redact_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Effective settings as an engine reports them, at any depth. Numbers and switches are never secrets."""
    return {name: _redact_setting(name, value) for name, value in settings.items()}


def _redact_setting(name: str, value: object) -> object:
    if isinstance(value, Mapping):
        return redact_settings({str(key): inner for key, inner in value.items()})
    if isinstance(value, list | tuple):
        return [_redact_setting(name, inner) for inner in value]
    if isinstance(value, str) and value:
        return REDACTED if is_secret_name(name) else redact_text(value)
    return value


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD_BREAK.split(name) if word]


def _hide_value(match: re.Match[str]) -> str:
    value = match["value"]
    if value in _NOTHING or REDACTED.startswith(value) or not is_secret_name(match["name"]):
        return match[0]
    if _NUMBER.fullmatch(value) and not _ALWAYS_SECRET & set(_words(match["name"])):
        return match[0]  # `#new-token: 512` in an engine log is a count
    quote = value[0] if value[0] in "\"'" else ""
    return f"{match['name']}{match['sep']}{quote}{REDACTED}{quote}"
