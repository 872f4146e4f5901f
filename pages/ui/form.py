"""The launch form as data: which controls an engine declares, and the flags that chosen values make. Pure.

Everything is read from the engine's own `Scan`; a control that it does not declare does not exist.
"""

import shlex
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from backend.flagwords import number_of, split_flags, wrong_flag, wrong_value, wrong_variable
from backend.paths import PROJECT_ROOT, TINY_CHECKPOINT
from backend.schema.engine import EngineKind, Flag, FlagValue, LaunchRequest, Scan

# As it is named from the project's root, where the reference engine runs.
TINY_MODEL = str(TINY_CHECKPOINT.relative_to(PROJECT_ROOT))
ALGORITHM = "--speculative-algorithm"
MTP_ALGORITHM = "NEXTN"
MODEL_FLAG = "--model-path"

Group = Literal["speculation", "backends", "memory"]


@dataclass(frozen=True)
class Control:
    """One curated control. `names` are the spellings of its flag, the first one declared is used."""

    key: str
    names: tuple[str, ...]
    label: str
    group: Group
    start: FlagValue = None  # what the form opens with; None leaves the flag out


STEPS = Control("steps", ("--speculative-num-steps",), "Draft steps", "speculation", 3)
TOKENS = Control("tokens", ("--speculative-num-draft-tokens",), "Draft tokens", "speculation", 4)
TOPK = Control("topk", ("--speculative-eagle-topk",), "Draft top-k", "speculation", 1)
CONTROLS = (
    STEPS,
    TOPK,
    TOKENS,
    Control("fp4_gemm", ("--fp4-gemm-backend", "--fp4-gemm-runner-backend"), "FP4 GEMM backend", "backends"),
    Control("moe", ("--moe-runner-backend",), "MoE runner backend", "backends"),
    Control("spec_moe", ("--speculative-moe-runner-backend",), "Speculative MoE backend", "backends"),
    Control("mem_fraction", ("--mem-fraction-static",), "Memory fraction", "memory"),
    Control("max_running", ("--max-running-requests",), "Max running requests", "memory"),
)
NEED_MTP = ("steps", "topk", "tokens", "spec_moe")


@dataclass(frozen=True)
class Draft:
    """What the form holds. A value of None leaves that flag to the engine."""

    kind: EngineKind = EngineKind.REFERENCE
    model: str = ""
    engine: str = ""
    python: str = ""
    gpus: str = ""
    port: int | None = None
    mtp: bool = False
    values: Mapping[str, FlagValue] = field(default_factory=dict)
    env: str = ""
    other: str = ""


@dataclass(frozen=True)
class Plan:
    """A draft turned into a launch. `problems` maps a field (control key, `env`, `other`) to its message."""

    flags: list[str]
    env: dict[str, str]
    problems: dict[str, str]


def declared(scan: Scan) -> list[tuple[Control, Flag]]:
    """The curated controls whose flag this engine declares, with that flag."""
    return [(control, flag) for control in CONTROLS if (flag := _flag_of(scan, control)) is not None]


def has_mtp(scan: Scan) -> bool:
    """Whether this engine can be told to speculate with the model's own MTP layer."""
    flag = scan.flag(ALGORITHM)
    if flag is None:
        return False
    return flag.choices is None or not flag.choices_complete or MTP_ALGORITHM in flag.choices


def draft_tokens(steps: FlagValue) -> int | None:
    """Draft tokens at top-k 1: one per step, and the token that the target itself gives."""
    return steps + 1 if isinstance(steps, int) and not isinstance(steps, bool) else None


def plan(scan: Scan, draft: Draft) -> Plan:
    """The flags and environment of a draft, and what is wrong with it."""
    problems: dict[str, str] = {}
    flags = _curated_flags(scan, draft, problems)
    other, message = other_flags(scan, draft.other, taken_flags(scan, draft))
    if message:
        problems["other"] = message
    env, message = environment(draft.env)
    if message:
        problems["env"] = message
    return Plan([*flags, *other], env, problems)


def launch_request(draft: Draft, made: Plan) -> LaunchRequest:
    """What the agent is asked to launch; whoever sends it adds the owner and the engine that it replaces."""
    sglang = draft.kind is EngineKind.SGLANG  # the built-in engine has none of these fields
    return LaunchRequest(
        model=draft.model.strip() or None,
        kind=draft.kind,
        engine=draft.engine.strip() or None if sglang else None,
        python=draft.python.strip() or None if sglang else None,
        gpus=draft.gpus.replace(",", " ").split() if sglang else [],
        port=draft.port,
        env=made.env,
        flags=made.flags,
    )


def command_line(request: LaunchRequest) -> list[str]:
    """The launch as words that a shell would take, for reading and copying; nothing is executed from it.

    An unset port is the agent's choice and is left out, so that the engine's own default shows.
    """
    module = "sglang.launch_server" if request.kind is EngineKind.SGLANG else "backend.reference"
    env = [f"{name}={value}" for name, value in sorted(request.env.items())]
    port = [] if request.port is None else ["--port", str(request.port)]
    model = request.model or TINY_MODEL
    return [
        *(["env", *env] if env else []),
        *(_interpreter(request), "-m", module, MODEL_FLAG, model, "--host", request.host),
        *port,
        *request.flags,
    ]


def _interpreter(request: LaunchRequest) -> str:
    """The Python of the command line, as far as the request names one."""
    engine = request.engine or ""
    return request.python or (engine if engine.rsplit("/", 1)[-1].startswith("python") else "python")


def command_text(words: Sequence[str]) -> str:
    """The words as one line for display; each flag starts a continued line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(word)
    return " \\\n  ".join(shlex.join(line) for line in lines)


def changes(scan: Scan, wanted: LaunchRequest, running: LaunchRequest) -> list[str]:
    """Settings in which a draft differs from what runs, as the engine spells them."""
    found = [
        name
        for name, a, b in (
            ("model", wanted.model, running.model),
            ("engine kind", wanted.kind or EngineKind.REFERENCE, running.kind or EngineKind.REFERENCE),
            ("engine", wanted.engine, running.engine),
            ("interpreter", wanted.python, running.python),
            ("GPUs", wanted.gpus, running.gpus),
        )
        if a != b
    ]
    if wanted.port is not None and wanted.port != running.port:
        found.append("port")
    flags_a, flags_b = flag_values(scan, wanted.flags), flag_values(scan, running.flags)
    found += [name for name in {**flags_b, **flags_a} if flags_a.get(name) != flags_b.get(name)]
    found += sorted(name for name in {**wanted.env, **running.env} if wanted.env.get(name) != running.env.get(name))
    return found


def draft_from(scan: Scan, request: LaunchRequest) -> Draft:
    """The form that makes this request, as far as it can; what has no control goes to the other flags."""
    values = flag_values(scan, request.flags)
    mtp = values.get(ALGORITHM) == MTP_ALGORITHM
    if mtp:
        del values[ALGORITHM]
    chosen: dict[str, FlagValue] = {}
    for control, flag in declared(scan):
        if control.key in NEED_MTP and not mtp:  # its flags, if any, belong to another algorithm
            chosen[control.key] = control.start
            continue
        word = values.pop(flag.flag, None)
        chosen[control.key] = None if word is None else typed_word(flag, word)
    words = [word for name, value in values.items() for word in ([name, *shlex.split(value)] if value else [name])]
    return Draft(
        kind=request.kind or EngineKind.REFERENCE,
        model=request.model or "",
        engine=request.engine or "",
        python=request.python or "",
        gpus=", ".join(request.gpus),
        port=request.port,
        mtp=mtp,
        values=chosen,
        env="\n".join(f"{name}={value}" for name, value in sorted(request.env.items())),
        other=shlex.join(words),
    )


def flag_values(scan: Scan, words: Sequence[str]) -> dict[str, str]:
    """Flags of a command line by their declared name; an empty value is a switch."""
    found: dict[str, str] = {}
    for given in split_flags(words, scan):
        flag = scan.flag(given.name)
        found[flag.flag if flag else given.name] = shlex.join(given.values)
    return found


def taken_flags(scan: Scan, draft: Draft) -> set[str]:
    """Flags that a control of this draft sets, so the free field may not."""
    taken = {flag.flag for control, flag in declared(scan) if draft.mtp or control.key not in NEED_MTP}
    return taken | ({ALGORITHM} if draft.mtp else set())


def other_flags(scan: Scan, text: str, taken: Set[str] = frozenset()) -> tuple[list[str], str | None]:
    """The words of the free field and the first thing wrong with them. Split like a shell would, never run."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        return [], f"Cannot be split into words: {error}. Close every quotation mark."
    known = scan if scan.flags else None
    for given in split_flags(words, known):
        flag = scan.flag(given.name)
        if flag and flag.flag in taken:
            return words, f"{given.name} is set by its own control; remove it here."
        message = wrong_flag(given, known)
        if message:
            return words, message
    return words, None


def environment(text: str) -> tuple[dict[str, str], str | None]:
    """Variables of `KEY=VALUE` lines and the first thing wrong with them. Blank lines and `#` lines are skipped."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            return found, f"Line {number}: `{line}` is not KEY=VALUE."
        wrong = wrong_variable(name, value)
        if wrong:
            return found, f"Line {number}: {wrong}."
        if name in found:
            return found, f"Line {number}: {name} is set twice; keep one line."
        found[name] = value
    return found, None


def _flag_of(scan: Scan, control: Control) -> Flag | None:
    return next((flag for name in control.names if (flag := scan.flag(name)) is not None), None)


def _curated_flags(scan: Scan, draft: Draft, problems: dict[str, str]) -> list[str]:
    flags = [ALGORITHM, MTP_ALGORITHM] if draft.mtp and has_mtp(scan) else []
    for control, flag in declared(scan):
        value = draft.values.get(control.key)
        if control.key in NEED_MTP and not draft.mtp:
            continue
        if control is TOKENS and draft.values.get(TOPK.key) in (None, 1):
            value = draft_tokens(draft.values.get(STEPS.key))
        if value is None or value == "" or value is False:
            continue
        words = [] if value is True else [str(value)]
        message = wrong_value(flag, words)
        if message:
            problems[control.key] = message
        flags += [flag.flag, *words]
    return flags


def typed_word(flag: Flag, word: str) -> FlagValue:
    """A word of a command line as the control holds it; a word of the wrong type stays text."""
    if flag.type == "bool":
        return True
    number = number_of(flag, word)
    return word if number is None else number
