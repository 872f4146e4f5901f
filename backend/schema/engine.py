"""Documents about engines: declared flags, a launch request, and the state of a launched engine."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from backend.schema.base import Document, Request

FlagValue = str | int | float | bool | list[str] | None
FlagType = Literal["int", "float", "str", "bool", "list"]


class Flag(Document):
    """One command-line flag as the engine declares it. `choices_complete` is false when the list is a lower bound;
    `replacement` is what the engine itself names in place of a deprecated flag, `negation` the spelling that switches
    it off."""

    flag: str
    field: str
    aliases: list[str] = []
    type: FlagType
    default: FlagValue = None
    choices: list[str] | None = None
    choices_complete: bool = True
    help: str = ""
    deprecated: bool = False
    replacement: str | None = None
    negation: str | None = None
    file: str | None = None
    line: int | None = None


class EnvSwitch(Document):
    """One environment variable that the engine reads."""

    name: str
    type: str = "str"
    default: FlagValue = None
    help: str = ""
    file: str | None = None
    line: int | None = None


class QuantizationRule(Document):
    """Where a drafting class drops the checkpoint's quantisation: for `methods`, under `condition` as the source has
    it."""

    methods: list[str]
    condition: str
    file: str
    line: int


class MtpArchitecture(Document):
    """The draft class that a target architecture is redirected to, at `file` and `line`. `draft_file` is where that
    class stands, None when there is none; `quantization` lists when it is built unquantised."""

    draft: str
    file: str | None = None
    line: int | None = None
    draft_file: str | None = None
    quantization: list[QuantizationRule] = []


class Scan(Document):
    """What an engine declares. The form is built from this and from nothing else. `unread` names files that could not
    be read or parsed, with the reason."""

    version: str | None
    style: str
    root: str
    flags: list[Flag]
    env: list[EnvSwitch] = []
    algorithms: list[str] = []
    mtp_architectures: dict[str, MtpArchitecture] = {}
    unread: list[str] = []

    def flag(self, name: str) -> Flag | None:
        """The flag with this exact spelling or alias (`--moe-runner-backend`), or None. `--no-x` is not `--x`."""
        return next((f for f in self.flags if name == f.flag or name in f.aliases), None)

    def negated(self, name: str) -> Flag | None:
        """The flag that this exact spelling switches off (`--no-x`), or None."""
        return next((f for f in self.flags if f.negation == name), None)


class EngineKind(StrEnum):
    """Who serves. `attach` is a server somebody else started: measured, never restarted."""

    REFERENCE = "reference"
    SGLANG = "sglang"
    ATTACH = "attach"


class EngineState(StrEnum):
    """Life of one engine. `backend.supervisor.state.transition` is the only way from one to another."""

    REPLACING = "replacing"  # the engine it replaces is being stopped; nothing of this one runs yet
    STARTING = "starting"  # the process runs and is not ready
    READY = "ready"  # ready line seen and the smoke request answered
    DEGRADED = "degraded"  # was ready; a descendant died or it no longer answers
    STOPPING = "stopping"  # SIGTERM sent, waiting for processes, memory and port
    STOPPED = "stopped"  # gone because somebody asked for it
    FAILED = "failed"  # gone, or never ready, with `failure` set

    @property
    def ended(self) -> bool:
        """Whether nothing comes after it."""
        return self in (self.STOPPED, self.FAILED)

    @property
    def serving(self) -> bool:
        """Whether the model is loaded and requests can be sent, answered or not."""
        return self in (self.READY, self.DEGRADED)


# A phase's name as `diagnose` and every document spell it; the first two belong to a restart, not to the log.
PhaseName = Literal["stop", "wait_memory", "init", "load_target", "load_draft", "pools", "graphs", "warmup", "ready"]


class Phase(Document):
    """One phase of a launch. `seconds` is None while it runs; `line` is the 1-based log line that opened it."""

    name: PhaseName
    seconds: float | None = None
    line: int | None = None
    detail: str | None = None


class Failure(Document):
    """Why an engine is not there. `class` is one of the failure classes of the contract."""

    failure_class: str = Field(alias="class")
    cause: str
    line: int | None = None
    advice: str


class LedgerItem(Document):
    """Memory of one component in bytes, and where the number was read (log line, or endpoint when line is None)."""

    bytes: int
    line: int | None = None
    device: str = "0"


class LaunchRequest(Request):
    """A configuration to launch: everything needed to do it again. Flags are argv words, never a shell string."""

    model: str | None = None
    kind: EngineKind | None = None
    engine: str | None = None
    python: str | None = None
    host: str = Field(default="127.0.0.1", pattern=r"^[0-9A-Za-z.:%_-]+$")
    port: int | None = Field(default=None, ge=1, le=65535)
    gpus: list[Annotated[str, Field(pattern=r"^[0-9A-Za-z.:/_-]+$")]] = []
    env: dict[str, str] = {}
    flags: list[str] = []
    replace: str | None = None
    owner: str = "cli"


class EngineStatus(Document):
    """One engine, from request to its end. `argv` and `env` are what was really executed; secrets are redacted."""

    id: str
    state: EngineState
    kind: EngineKind
    url: str
    pid: int | None = None
    model: str
    version: str | None = None
    argv: list[str] = []
    env: dict[str, str] = {}
    config_hash: str = ""
    request: LaunchRequest | None = None
    since: str
    started_at_utc: str
    elapsed_s: float = 0.0
    ready_seconds: float | None = None
    phases: list[Phase] = []
    effective: dict[str, object] = {}
    ledger: dict[str, LedgerItem] = {}
    warnings: list[str] = []
    alarms: list[str] = []
    failure: Failure | None = None
    log: str | None = None
    adopted: bool = False
    serving_load: str | None = None


class LaunchResult(Document):
    """The document of `launch` when the engine is ready."""

    id: str
    url: str
    pid: int | None
    kind: EngineKind
    version: str | None
    argv: list[str]
    env: dict[str, str]
    effective: dict[str, object]
    ready_seconds: float | None
    phases: list[Phase]
    warnings: list[str]
    log: str | None


class LaunchFailure(Document):
    """The document of `launch` when no engine is ready; `failure` as in `diagnose`. No id: nothing was started."""

    id: str | None = None
    state: EngineState = EngineState.FAILED
    failure: Failure
    phases: list[Phase] = []
    argv: list[str] = []
    log: str | None = None


class Stopped(Document):
    """The document of `stop`: the engines that were named, as they are after their end."""

    engines: list[EngineStatus]


class LogChunk(Document):
    """Log lines from `cursor_start` on. `reset` says that the cursor asked for was no longer valid."""

    lines: list[str]
    first_line: int
    cursor: int
    reset: bool = False


class Changed(Document):
    """A line in which the engine says that it changed a value by itself."""

    message: str
    line: int


class Diagnosis(Document):
    """The document of `diagnose`: what a saved engine log says. `version` is None where the log does not name it."""

    version: str | None = None
    phases: list[Phase] = []
    ledger: dict[str, LedgerItem] = {}
    changed: list[Changed] = []
    ready: bool = False
    failure: Failure | None = None
