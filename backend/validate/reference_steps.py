"""The same propositions about the embedded reference engine, settled by its own source."""

from pathlib import Path

from backend.paths import PROJECT_ROOT
from backend.schema.validate import StepStatus, TraceStep
from backend.validate.question import PROPOSITIONS, Question

# Where the reference engine settles each proposition: file, a piece of the line, what it means.
_EVIDENCE = {
    "algorithm_alias": ("backend/reference/flags.py", "NEXTN", "NEXTN is accepted and becomes EAGLE"),
    "draft_path": (
        "backend/reference/worker.py",
        "args.speculative_draft_model_path or args.model_path",
        "without one the MTP layer is read from the model itself",
    ),
    "draft_flag": ("backend/reference/weights.py", "def load_mtp", "the MTP layer has a loader of its own"),
    "worker_class": ("backend/reference/worker.py", "def _verify", "Worker verifies what its MTP layer drafts"),
    "architecture_redirect": ("backend/reference/model.py", "class MtpModel", "the MTP layer is run by MtpModel"),
    "draft_class": ("backend/reference/model.py", "class MtpModel", "MtpModel is there"),
    "draft_quantization": (
        "backend/reference/worker.py",
        "def load_mtp_weights",
        "the MTP layer's experts are taken as they are stored and never packed",
    ),
}


def reference_steps(question: Question) -> list[TraceStep]:
    """Every proposition that is not the checkpoint's."""
    found = [_step(step_id, *evidence) for step_id, evidence in _EVIDENCE.items()]
    if question.algorithm.upper() not in question.scan.algorithms and question.scan.algorithms:
        found[0] = _plain("algorithm_alias", "refuted", f"{question.algorithm} is no algorithm of the reference engine")
    return [*found, _moe(question)]


def _moe(question: Question) -> TraceStep:
    flag = question.scan.flag("--speculative-moe-runner-backend")
    asked = question.value("--speculative-moe-runner-backend")
    if flag is None:
        return _plain("speculative_moe_backend", "unknown", "no such flag")
    if asked and asked not in (flag.choices or [asked]):
        return _plain("speculative_moe_backend", "refuted", f"{asked} is none of {', '.join(flag.choices or [])}")
    why = f"{asked} runs the draft" if asked else "none is asked for; it follows --moe-runner-backend"
    return _step("speculative_moe_backend", "backend/reference/flags.py", "--speculative-moe-runner-backend", why)


def _step(step_id: str, file: str, text: str, detail: str) -> TraceStep:
    lines = (Path(PROJECT_ROOT) / file).read_text(encoding="utf-8").splitlines()
    number = next((n for n, line in enumerate(lines, 1) if text in line), None)
    if number is None:
        return _plain(step_id, "unknown", f"{file} does not say it any more")
    excerpt = "\n".join(lines[max(0, number - 3) : number + 6])
    found = _plain(step_id, "confirmed", detail)
    return found.model_copy(update={"file": file, "line": number, "excerpt": excerpt})


def _plain(step_id: str, status: StepStatus, detail: str) -> TraceStep:
    return TraceStep(id=step_id, proposition=PROPOSITIONS[step_id], status=status, detail=detail)
