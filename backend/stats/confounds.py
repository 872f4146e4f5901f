"""Whatever else differs between two runs besides the setting under test.

A *void* makes the figures not comparable at all; a *confound* is said, and the reader judges.
"""

from backend.schema.load import Bench, BenchRequest, LevelResult
from backend.schema.run import RunDetail
from backend.stats.config_diff import unasked_diff
from backend.thresholds import CACHED_SHARE_DIFFERENCE_MAX_PCT

# Fields of BenchRequest that make the work another work.
_WORKLOAD = (
    "dataset",
    "input_len",
    "output_len",
    "temperature",
    "top_p",
    "ignore_eos",
    "chat_template",
    "endpoint",
)
# Fields that change how long or with which prompts it is measured, but not what is measured.
_MEASURING = ("seed", "requests", "duration_s", "warmup_requests", "flush_cache")
# What a reader calls the fields whose names are written for programs.
_PLAIN = {
    "input_len": "tokens per prompt",
    "output_len": "tokens per answer",
    "top_p": "top-p",
    "ignore_eos": "choice to go on after an end token",
    "requests": "requests per level",
    "duration_s": "seconds per level",
    "warmup_requests": "warm-up requests",
    "flush_cache": "choice to empty the prefix cache first",
}
_TROUBLED = {
    "partial": "was stopped or had failed requests",
    "failed": "failed",
    "interrupted": "was interrupted: its agent died",
    "client_bound": "was limited by the load client, so its figures describe the client",
    "running": "is still running",
}


def voids(a: RunDetail, b: RunDetail) -> list[str]:
    """Why the two runs did not do the same work; empty when they did."""
    found = [_differs(name, a.bench.request, b.bench.request) for name in _WORKLOAD]
    if a.row.model != b.row.model:
        found.insert(0, f"different model: {a.row.model} and {b.row.model}")
    return [one for one in found if one]


def level_void(a: LevelResult, b: LevelResult) -> str | None:
    """Why one level is void: the prefix cache answered a different share of the input."""
    shares = (_cached_pct(a), _cached_pct(b))
    if shares[0] is None or shares[1] is None or abs(shares[0] - shares[1]) <= CACHED_SHARE_DIFFERENCE_MAX_PCT:
        return None
    return (
        f"different share of the input from the prefix cache at concurrency {a.concurrency}: "
        f"{shares[0]:.1f} % and {shares[1]:.1f} %"
    )


def confounds(a: RunDetail, b: RunDetail) -> list[str]:
    """Everything else that differs or went wrong, in words."""
    found = [_differs(name, a.bench.request, b.bench.request) for name in _MEASURING]
    found += _levels_of_one_side(a.bench, b.bench)
    found += _engine(a.bench, b.bench)
    found += _named_differences("host", _machine(a), _machine(b))
    found += _named_differences("version of", dict(a.versions), dict(b.versions))
    found += [_trouble(name, run) for name, run in (("a", a), ("b", b))]
    return [one for one in found if one]


def _machine(run: RunDetail) -> dict[str, object]:
    """The host without its environment: what of that concerns an engine stands in the engine's own record."""
    return {name: value for name, value in run.host.items() if name != "environment"}


def _differs(name: str, a: BenchRequest, b: BenchRequest) -> str:
    one, other = getattr(a, name), getattr(b, name)
    words = _PLAIN.get(name, name.replace("_", " "))
    return "" if one == other else f"different {words}: {_shown(one)} and {_shown(other)}"


def _levels_of_one_side(a: Bench, b: Bench) -> list[str]:
    levels = [{level.concurrency for level in bench.levels} for bench in (a, b)]
    only = {"A": sorted(levels[0] - levels[1]), "B": sorted(levels[1] - levels[0])}
    return [f"concurrency {', '.join(map(str, some))} only in {side}" for side, some in only.items() if some]


def _engine(a: Bench, b: Bench) -> list[str]:
    found = []
    if a.engine.kind != b.engine.kind:
        found.append(f"different engine: {a.engine.kind} and {b.engine.kind}")
    if a.engine.version != b.engine.version:
        found.append(f"different engine version: {_shown(a.engine.version)} and {_shown(b.engine.version)}")
    for one in unasked_diff(a.engine, b.engine):
        found.append(f"{one.setting} is {_shown(one.a)} and {_shown(one.b)}, though no flag asked for a difference")
    return found


def _named_differences(what: str, a: dict[str, object], b: dict[str, object]) -> list[str]:
    names = [name for name in sorted(set(a) | set(b)) if a.get(name) != b.get(name)]
    return [
        f"different {what} {name.replace('_', ' ')}: {_shown(a.get(name))} and {_shown(b.get(name))}" for name in names
    ]


def _trouble(name: str, run: RunDetail) -> str:
    if run.row.verdict == "ok":
        return ""
    failed = sum(level.requests.failed for level in run.bench.levels)
    counted = f" ({failed} failed requests)" if failed else ""
    return f"run {name} {_TROUBLED[run.row.verdict]}{counted}"


def _cached_pct(level: LevelResult) -> float | None:
    tokens = level.tokens
    return None if tokens.cached is None or not tokens.input else 100.0 * tokens.cached / tokens.input


def _shown(value: object) -> str:
    return "not set" if value is None else str(value)
