"""Documents about what an engine would do with a checkpoint, told from their files."""

from typing import Literal

from backend.schema.base import Document, Request

StepStatus = Literal["confirmed", "refuted", "unknown"]
TraceVerdict = Literal["supported", "unsupported", "uncertain"]


class TraceRequest(Request):
    """What to trace. Without an engine the only one of the machine; flags and environment as for a launch."""

    model: str | None = None
    engine: str | None = None
    env: dict[str, str] = {}
    flags: list[str] = []


class TraceStep(Document):
    """One proposition about the way from this checkpoint to speculative decoding. `file` and `line` are where it is
    settled, `excerpt` the lines there; None where it is settled by what is absent."""

    id: str
    proposition: str
    status: StepStatus
    detail: str
    file: str | None = None
    line: int | None = None
    excerpt: str | None = None


class AfterLaunch(Document):
    """What source cannot settle, and where to look once the engine runs."""

    id: str
    question: str
    look_at: str


class Trace(Document):
    """The document of `trace`: would this engine use this checkpoint's MTP layer under these flags? `assumed` names
    what was not given and taken for granted."""

    model: str
    architecture: str | None
    engine: str
    version: str | None
    verdict: TraceVerdict
    summary: str
    assumed: list[str]
    steps: list[TraceStep]
    verify_after_launch: list[AfterLaunch]


Severity = Literal["error", "override", "warning", "info", "unknown"]
CheckVerdict = Literal["ok", "warn", "reject"]


class CheckRequest(TraceRequest):
    """A configuration to check. `gpu` is a model name, as NVML has it or part of it; `gpu_count` of them."""

    gpu: str | None = None
    gpu_count: int | None = None


class Evidence(Document):
    """Where in the engine's source a finding is settled."""

    file: str
    line: int | None = None
    excerpt: str | None = None


class CheckFinding(Document):
    """One thing about a configuration. `override`: the engine runs another value than was asked for; `unknown`: the
    rule was not found in this engine's source. `fix` are flags to add or change, with their values."""

    rule: str
    severity: Severity
    message: str
    flags: list[str] = []
    fix: dict[str, str] | None = None
    evidence: Evidence | None = None


class Check(Document):
    """The document of `check`. `effective` has every given flag, and those that the engine sets itself; a switch that
    is on is `true`."""

    verdict: CheckVerdict
    engine: str
    version: str | None
    findings: list[CheckFinding]
    effective: dict[str, str]
    argv: list[str]
