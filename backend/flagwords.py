"""Words of an engine's command line: flags with their values, and what is wrong with them. Pure.

The supervisor refuses a launch by these rules and the launch form explains them field by field, in the same words.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from backend.errors import UsageError
from backend.schema.engine import Flag, Scan

# What Slipstream decides itself, with the field of a launch that it comes from: a second value would contradict the
# address and model that it shows.
OWN_FLAGS = {"--model-path": "model", "--model": "model", "--host": "host", "--port": "port"}

_FLAG_NAME = re.compile(r"--[a-z0-9][a-z0-9-]*|-[a-z]+")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NEGATIVE_NUMBER = re.compile(r"-\.?\d")
_BREAK = re.compile(r"[\0\n]")


@dataclass(frozen=True)
class GivenFlag:
    """One flag of a command line with its values, as written. Values that stand before any flag have the name ""."""

    name: str
    values: tuple[str, ...]


def split_flags(words: Sequence[str], scan: Scan | None) -> list[GivenFlag]:
    """`--a 1 -2 --b=3 --c` as (`--a`, 1 -2), (`--b`, 3), (`--c`). Never fails: `wrong_flag` judges what it gives."""
    grouped: list[tuple[str, list[str]]] = []
    for word in words:
        if _begins_flag(word, scan):
            name, equals, value = word.partition("=")
            grouped.append((name, [value] if equals else []))
        elif grouped:
            grouped[-1][1].append(word)
        else:
            grouped.append(("", [word]))
    return [GivenFlag(name, tuple(values)) for name, values in grouped]


def _begins_flag(word: str, scan: Scan | None) -> bool:
    """As argparse reads it: a negative number, a lone dash and an undeclared name with a blank in it are values."""
    name = word.partition("=")[0]
    if scan is not None and (scan.flag(name) or scan.negated(name)) is not None:
        return True
    return word.startswith("-") and word != "-" and not _NEGATIVE_NUMBER.match(word) and " " not in name


def longer_names(name: str, scan: Scan) -> list[str]:
    """Spellings that begin with a name which is none itself. argparse reads it as a single one and refuses several."""
    if not name.startswith("--") or scan.flag(name) or scan.negated(name):
        return []
    spellings = [s for f in scan.flags for s in (f.flag, *f.aliases, *([f.negation] if f.negation else []))]
    return [spelling for spelling in spellings if spelling.startswith(name)]


def unabbreviated(words: Sequence[str], scan: Scan) -> list[str]:
    """The words with abbreviated flags in full, as argparse would read them: `--tp 8` as `--tp-size 8`."""
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        longer = longer_names(name, scan) if _begins_flag(word, scan) else []
        found.append(f"{longer[0]}{equals}{value}" if len(longer) == 1 else word)
    return found


def check_flags(words: Sequence[str], scan: Scan | None) -> list[GivenFlag]:
    """The flags in `words`, under their declared names. UsageError names the first that the engine would refuse.

    Without a scan there is nothing to check them against: only their form is.
    """
    checked = []
    for given in split_flags(words, scan):
        wrong = wrong_flag(given, scan)
        if wrong:
            raise UsageError(wrong)
        flag = scan.flag(given.name) if scan else None
        checked.append(GivenFlag(flag.flag if flag else given.name, given.values))
    return checked


def value_of(flags: Sequence[GivenFlag], name: str) -> str | None:
    """The value of the last flag of this name, as argparse would take it."""
    found = [flag.values[0] for flag in flags if flag.name == name and flag.values]
    return found[-1] if found else None


def wrong_flag(given: GivenFlag, scan: Scan | None) -> str | None:
    """What is wrong with a flag and what to do about it, or None. Without a scan only its form is judged."""
    broken = next((word for word in (given.name, *given.values) if _BREAK.search(word)), None)
    if broken is not None:
        return f"the flag word {broken!r} contains a NUL or a line break; remove it"
    if not given.name:
        return f"{given.values[0]!r} stands before any flag; write --flag value"
    if scan is None:
        wrong = None if _FLAG_NAME.fullmatch(given.name) else _no_flag_name(given.name)
        return wrong or _own(given.name)
    flag = scan.flag(given.name) or scan.negated(given.name)
    return _unknown(given.name, scan) if flag is None else _own(flag.flag) or wrong_value(flag, given.values)


def wrong_value(flag: Flag, values: Sequence[str]) -> str | None:
    """What the flag's declaration says against these values, or None."""
    name, text = flag.flag, " ".join(values)
    if flag.type == "bool":
        return f"{name} is a switch and takes no value, got {text!r}; write {name} alone" if values else None
    if not values:
        return f"{name} needs a value{_choices(flag)}"
    if flag.type != "list" and len(values) > 1:
        return f"{name} takes one value, got {text!r}; put quotes around a value with blanks"
    return next((wrong for value in values if (wrong := _wrong_word(flag, value))), None)


def _wrong_word(flag: Flag, word: str) -> str | None:
    if flag.type in ("int", "float") and number_of(flag, word) is None:
        return f"{flag.flag} needs {'a whole number' if flag.type == 'int' else 'a number'}, got {word!r}"
    if flag.choices and flag.choices_complete and word not in flag.choices:
        return f"{flag.flag} cannot be {word!r}{_choices(flag)}"
    return None


def number_of(flag: Flag, word: str) -> int | float | None:
    """A word as the number that this flag takes; None when the word is none, or the flag takes none."""
    if flag.type not in ("int", "float"):
        return None
    try:
        return int(word) if flag.type == "int" else float(word)
    except ValueError:
        return None


def wrong_variable(name: str, value: str) -> str | None:
    """What is wrong with an environment variable, or None. The value may be a secret and is never repeated."""
    if not _ENV_NAME.fullmatch(name):
        return f"{name!r} is not a name for an environment variable: letters, digits and _ only, and no digit first"
    if _BREAK.search(value):
        return f"the value of environment variable {name} contains a NUL or a line break; remove it"
    return None


def _no_flag_name(name: str) -> str:
    return f"{name!r} is not a flag: write --name or --name=value in lower case with dashes"


def _own(name: str) -> str | None:
    if name not in OWN_FLAGS:
        return None
    return f"{name} is set by Slipstream itself; remove it here and give the {OWN_FLAGS[name]} of the launch instead"


def _unknown(name: str, scan: Scan) -> str:
    spellings = [spelling for flag in scan.flags for spelling in (flag.flag, *flag.aliases)]
    near = difflib.get_close_matches(name, spellings, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}?" if near else "`scan` lists the flags that it has"
    return f"{name} is not a flag of this engine ({scan.version or 'version unknown'}); {hint}"


def _choices(flag: Flag) -> str:
    if not flag.choices:
        return ""
    return f"; it can be {'' if flag.choices_complete else 'for example '}{', '.join(flag.choices)}"
