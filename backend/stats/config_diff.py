"""What differs between the configurations of two runs: requested settings first, then what the engines made of them."""

import json
from collections.abc import Mapping, Sequence

from backend.schema.load import BenchEngine
from backend.schema.run import ConfigDifference

SWITCHED_ON = "on"
# Where an engine listens says nothing about how it runs.
_PLACE_FLAGS = {"--port", "--host", "--nccl-port", "--dist-init-addr"}
# Effective values that differ between any two launches.
_PLACE_SETTINGS = {"port", "host", "nccl_port", "dist_init_addr", "random_seed", "pid", "status", "uptime_s"}
# Switching speculation on sets its other parameters: one decision, not several differences.
_FAMILY = "speculative"


def config_diff(a: BenchEngine, b: BenchEngine) -> list[ConfigDifference]:
    """Flags, environment, effective values and engine version that differ, in this order."""
    return [
        *requested_diff(a, b),
        *_differences(_settings(a.effective), _settings(b.effective), "effective {}", _PLACE_SETTINGS),
        *_differences({"engine": a.kind}, {"engine": b.kind}, "{} kind", set()),
        *_differences({"engine": a.version}, {"engine": b.version}, "{} version", set()),
    ]


def requested_diff(a: BenchEngine, b: BenchEngine) -> list[ConfigDifference]:
    """Flags and environment variables that differ."""
    flags = _differences(parse_flags(a.argv), parse_flags(b.argv), "{}", _PLACE_FLAGS)
    return [*flags, *_differences(a.env, b.env, "env {}", set())]


def unasked_diff(a: BenchEngine, b: BenchEngine) -> list[ConfigDifference]:
    """Effective values that differ although neither command line asked for a difference in them."""
    asked = {one.setting.lstrip("-").replace("-", "_") for one in requested_diff(a, b)}
    implied = {_FAMILY} if any(name.startswith(_FAMILY) for name in asked) else set()
    found = _differences(_settings(a.effective), _settings(b.effective), "{}", _PLACE_SETTINGS | asked)
    return [one for one in found if one.setting.partition("_")[0] not in implied]


def parse_flags(argv: Sequence[str]) -> dict[str, str]:
    """Flag to value of a command line: `--f v`, `--f=v`, `--f v w` (joined by a blank), a bare `--f` is `on`."""
    flags: dict[str, str] = {}
    name = None
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            flags[name] = value if equals else SWITCHED_ON
        elif name is not None:
            flags[name] = word if flags[name] == SWITCHED_ON else f"{flags[name]} {word}"
    return flags


def _differences(
    a: Mapping[str, str | None], b: Mapping[str, str | None], label: str, ignored: set[str]
) -> list[ConfigDifference]:
    names = sorted(set(a) | set(b))
    pairs = ((name, a.get(name), b.get(name)) for name in names if name not in ignored)
    return [ConfigDifference(setting=label.format(name), a=one, b=other) for name, one, other in pairs if one != other]


def _settings(effective: Mapping[str, object]) -> dict[str, str | None]:
    """Effective values as text; None stays None. Nested reports (states, not settings) are left out."""
    return {name: _text(value) for name, value in effective.items() if not isinstance(value, Mapping)}


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str)
