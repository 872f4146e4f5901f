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

# Possessive quantifiers and the look-behinds keep every search linear, whatever an engine prints.
_BEARER = re.compile(r"(?i)\b(bearer\s++)(?!\[redacted\])[A-Za-z0-9._~+/=-]++")
_URL_USER = re.compile(r"(?i)(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*+://)(?!\[redacted\]@)[^/\s@'\"]++@")
_OPTION = re.compile(r"(?<![\w-])(--[A-Za-z][\w-]*+\s++)(?=[^\s-])")
# `api_key='x'`, `"hf_token": "x"`, `PASSWORD=x`: a name, a separator, then a value in quotes or up to a delimiter.
_ASSIGNMENT = re.compile(r"""(?<![\w.-])([\w.-]++["']?[ \t]*+[=:][ \t]*+)""")
_VALUE = re.compile(r""""[^"\n]*"|'[^'\n]*'|[^\s,;&()\[\]{}"']+""")
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
    return _hide_values(_ASSIGNMENT, _hide_values(_OPTION, text))


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with secret values replaced; names stay, so that a difference remains visible."""
    return {name: REDACTED if value and is_secret_name(name) else redact_text(value) for name, value in env.items()}


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line with the values of secret flags replaced: `--api-key X`, `--api-key=X`, `TOKEN=X`."""
    words: list[str] = []
    for word in argv:
        last = words[-1] if words else ""
        after_secret_flag = last.startswith("--") and "=" not in last and is_secret_name(last)
        name, equals, _ = word.partition("=")
        if after_secret_flag and not word.startswith("--"):
            words.append(REDACTED)
        elif equals and is_secret_name(name):
            words.append(f"{name}={REDACTED}")
        else:
            words.append(redact_text(word))
    return words


def redact_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Effective settings as an engine reports them, at any depth. Numbers and switches are never secrets."""
    return {name: _redact_setting(name, value) for name, value in settings.items()}


def _redact_setting(name: str, value: object) -> object:
    if isinstance(value, Mapping):
        return redact_settings({str(key): inner for key, inner in value.items()})
    if isinstance(value, list | tuple):
        words = [inner for inner in value if isinstance(inner, str)]  # of a command line, if they are all
        return [_redact_setting(name, inner) for inner in (redact_argv(words) if len(words) == len(value) else value)]
    if isinstance(value, str) and value:
        return REDACTED if is_secret_name(name) else redact_text(value)
    return value


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD_BREAK.split(name) if word]


def _hide_values(naming: re.Pattern[str], text: str) -> str:
    """Hides the value after each secret name. Other values are looked into: `url="http://h?api_key=x"`."""
    parts, done = [], 0
    for match in naming.finditer(text):
        if match.start() < done or not is_secret_name(match[1]):
            continue
        value = _VALUE.match(text, match.end())
        if value and _is_secret_value(match[1], value[0]):
            quote = value[0][0] if value[0][0] in "\"'" else ""
            parts += [text[done : match.end()], quote, REDACTED, quote]
            done = value.end()
    return "".join([*parts, text[done:]])


def _is_secret_value(name: str, value: str) -> bool:
    if value in _NOTHING or value.strip("\"'") == REDACTED:
        return False
    # `#new-token: 512` in an engine log is a count.
    return not _NUMBER.fullmatch(value) or bool(_ALWAYS_SECRET & set(_words(name)))
