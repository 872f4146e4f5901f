"""Checks engine flags against what the engine declares, before anything is started."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from backend.errors import UsageError
from backend.schema.engine import Flag, Scan

# What Slipstream decides itself; a second value would contradict the address and model that it shows.
OWN_FLAGS = frozenset({"--model-path", "--model", "--host", "--port"})

_FLAG_WORD = re.compile(r"--[a-z0-9][a-z0-9-]*|-[a-z]+")
_NUMBER = {"int": int, "float": float}


@dataclass(frozen=True)
class GivenFlag:
    """One flag of a command line with its values, as written."""

    name: str
    values: tuple[str, ...]


def check_flags(words: Sequence[str], scan: Scan) -> list[GivenFlag]:
    """The flags in `words` under their canonical names. UsageError names the first that the engine would refuse."""
    given = []
    for flag in split_flags(words, scan):
        declared = scan.flag(flag.name)
        if declared is None:
            raise UsageError(_unknown(flag.name, scan))
        _refuse_own(declared.flag)
        _check_values(declared, flag.values)
        given.append(GivenFlag(declared.flag, flag.values))
    return given


def split_unchecked_flags(words: Sequence[str]) -> list[GivenFlag]:
    """The flags in `words` where no declaration exists to check them against: only their form is."""
    given = split_flags(words, None)
    for flag in given:
        if not _FLAG_WORD.fullmatch(flag.name):
            raise UsageError(f"{flag.name!r} is not a flag: write --name or --name=value in lower case with dashes")
        _refuse_own(flag.name)
    return given


def split_flags(words: Sequence[str], scan: Scan | None) -> list[GivenFlag]:
    """Groups words into flags and their values. A word that starts with `-` and is no number begins a flag."""
    grouped: list[tuple[str, list[str]]] = []
    for word in words:
        if "\0" in word or "\n" in word:
            raise UsageError(f"the flag word {word!r} contains a NUL or a line break")
        if _begins_flag(word, scan):
            name, equals, value = word.partition("=")
            grouped.append((name, [value] if equals else []))
        elif grouped:
            grouped[-1][1].append(word)
        else:
            raise UsageError(f"{word!r} stands before any flag; engine flags start with --")
    return [GivenFlag(name, tuple(values)) for name, values in grouped]


def value_of(flags: Sequence[GivenFlag], name: str) -> str | None:
    """The value of the last flag of this name, as argparse would take it."""
    found = [flag.values[0] for flag in flags if flag.name == name and flag.values]
    return found[-1] if found else None


def _begins_flag(word: str, scan: Scan | None) -> bool:
    if word.startswith("--") and len(word) > 2:
        return True
    if scan is not None:
        return scan.flag(word) is not None
    return bool(re.match(r"-[a-z]", word))


def _refuse_own(name: str) -> None:
    if name in OWN_FLAGS:
        option = "MODEL" if name.startswith("--model") else name
        raise UsageError(
            f"{name} is set by Slipstream itself; use the option {option} of the launch, not an engine flag"
        )


def _unknown(name: str, scan: Scan) -> str:
    spellings = [spelling for flag in scan.flags for spelling in (flag.flag, *flag.aliases)]
    near = difflib.get_close_matches(name, spellings, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "; `scan` lists the flags that it has"
    return f"this engine has no flag {name}{hint}"


def _check_values(declared: Flag, values: tuple[str, ...]) -> None:
    name = declared.flag
    if declared.type == "bool":
        if values:
            raise UsageError(f"{name} is a switch and takes no value, got {values[0]!r}")
        return
    if not values:
        raise UsageError(f"{name} needs a value{_choices(declared)}")
    if declared.type != "list" and len(values) > 1:
        raise UsageError(f"{name} takes one value, got {' '.join(values)!r}")
    for value in values:
        _check_value(declared, value)


def _check_value(declared: Flag, value: str) -> None:
    parse = _NUMBER.get(declared.type)
    if parse is not None:
        try:
            parse(value)
        except ValueError:
            noun = "a whole number" if declared.type == "int" else "a number"
            raise UsageError(f"{declared.flag} needs {noun}, got {value!r}") from None
    if declared.choices and declared.choices_complete and value not in declared.choices:
        raise UsageError(f"{declared.flag} cannot be {value!r}{_choices(declared)}")


def _choices(declared: Flag) -> str:
    return f"; it can be {', '.join(declared.choices)}" if declared.choices else ""
