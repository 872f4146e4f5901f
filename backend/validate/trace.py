"""The way from a checkpoint to speculative decoding in an engine, step by step."""

from collections.abc import Sequence

from backend.checkpoint import inspect_checkpoint
from backend.engine_scan import SourceTree, open_source, scan_engine
from backend.paths import PROJECT_ROOT, TINY_CHECKPOINT, StatePaths
from backend.schema.engine import EngineKind
from backend.schema.validate import AfterLaunch, Trace, TraceRequest, TraceStep, TraceVerdict
from backend.validate import checkpoint_steps, draft_steps, launch_steps
from backend.validate.question import PROPOSITIONS, Question, given_flags
from backend.validate.reference_steps import reference_steps

ENGINE_STEPS = (
    launch_steps.algorithm_alias,
    launch_steps.draft_path,
    launch_steps.draft_flag,
    launch_steps.worker_class,
    draft_steps.architecture_redirect,
    draft_steps.draft_class,
    draft_steps.draft_quantization,
    launch_steps.speculative_moe_backend,
)
AFTER_LAUNCH = (
    AfterLaunch(
        id="weights_load",
        question="do all tensors of the MTP layer really load?",
        look_at="the log: a second `Load weight end` with the MTP class, and no line about skipped parameters",
    ),
    AfterLaunch(
        id="speculation_active",
        question="is speculation really on?",
        look_at="the log: `accept len` in decode lines; /server_info: a speculative_algorithm that is not null",
    ),
    AfterLaunch(
        id="alias_lossless",
        question="did the algorithm come through as told here?",
        look_at="/server_info: speculative_algorithm, and the effective steps, top-k and draft tokens",
    ),
    AfterLaunch(
        id="acceptance_worth_it",
        question="are drafts accepted often enough to pay?",
        look_at="a load test with and without: accept length, tokens per second, memory",
    ),
)


def trace(kind: EngineKind, engine: str | None, request: TraceRequest, paths: StatePaths | None = None) -> Trace:
    """Raises ModelNotFoundError or InputError when checkpoint or engine cannot be read."""
    model = request.model or str(TINY_CHECKPOINT)
    inspection = inspect_checkpoint(model, paths)
    scan = scan_engine(kind, engine, paths)
    reference = kind is EngineKind.REFERENCE or engine is None
    tree = SourceTree(PROJECT_ROOT / "backend") if reference or engine is None else open_source(engine)
    question = Question(inspection, scan, tree, given_flags(request.flags, scan), request.env)
    read_by_engine = False if reference else _negation(draft_steps.sets_predict_layers(question))
    steps = [
        checkpoint_steps.declares_mtp(inspection, read_by_engine),
        checkpoint_steps.has_tensors(inspection),
        *(reference_steps(question) if reference else (check(question) for check in ENGINE_STEPS)),
    ]
    order = list(PROPOSITIONS)
    steps.sort(key=lambda step: order.index(step.id))
    verdict = _verdict(steps)
    return Trace(
        model=inspection.path,
        architecture=inspection.architecture,
        engine="reference" if reference else scan.root,
        version=scan.version,
        verdict=verdict,
        summary=_summary(verdict, steps, inspection.architecture),
        assumed=_assumed(question),
        steps=steps,
        verify_after_launch=list(AFTER_LAUNCH),
    )


def _negation(value: bool | None) -> bool | None:
    return None if value is None else not value


def _verdict(steps: Sequence[TraceStep]) -> TraceVerdict:
    states = {step.status for step in steps}
    return "unsupported" if "refuted" in states else "uncertain" if "unknown" in states else "supported"


def _summary(verdict: TraceVerdict, steps: Sequence[TraceStep], architecture: str | None) -> str:
    """One sentence for somebody who reads nothing else."""
    if verdict == "supported":
        return f"this engine drafts with the MTP layer of this {architecture}, as far as source can tell"
    decisive = next(s for s in steps if s.status == ("refuted" if verdict == "unsupported" else "unknown"))
    if verdict == "unsupported":
        return f"it does not: {decisive.detail}"
    return f"not to be told from the files alone: {decisive.detail}"


def _assumed(question: Question) -> list[str]:
    found = []
    if question.value("--speculative-algorithm") is None:
        found.append("--speculative-algorithm NEXTN, as none is given")
    return found
