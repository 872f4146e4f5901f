"""What is asked: a checkpoint, an engine's source, flags and environment; and where an answer was found."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backend.engine_scan import Module, SourceTree
from backend.flagwords import split_flags, unabbreviated
from backend.schema.checkpoint import Inspection
from backend.schema.engine import Flag, Scan
from backend.schema.validate import StepStatus, TraceStep

MTP_ALGORITHMS = ("NEXTN", "EAGLE")
"""The names under which SGLang runs a checkpoint's own MTP layer."""

PROPOSITIONS = {
    "checkpoint_declares_mtp": "config.json declares an MTP layer",
    "checkpoint_has_mtp_tensors": "the MTP layer's tensors are there, all of them, in the right shape",
    "algorithm_alias": "the speculative algorithm is accepted and becomes the one that drafts with the MTP layer",
    "draft_path": "no draft model path need be given",
    "draft_flag": "the draft worker loads the model as a draft model",
    "worker_class": "a worker class runs the algorithm",
    "architecture_redirect": "the architecture is replaced by an MTP class when it is loaded as a draft",
    "draft_class": "that class exists and is registered",
    "draft_quantization": "the draft is built as this checkpoint stores its MTP layer",
    "speculative_moe_backend": "the MoE backend that is asked for runs the draft",
}


@dataclass(frozen=True)
class Question:
    """`given` are the flags by their declared names; the last of each counts, as argparse has it."""

    inspection: Inspection
    scan: Scan
    tree: SourceTree
    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def value(self, flag: str) -> str | None:
        """The first word given for a flag; None when it is not given."""
        words = self.given.get(flag, ())
        return words[0] if words else None

    @property
    def algorithm(self) -> str:
        return self.value("--speculative-algorithm") or "NEXTN"

    @property
    def architecture(self) -> str | None:
        return self.inspection.architecture


def given_flags(words: Sequence[str], scan: Scan) -> dict[str, tuple[str, ...]]:
    """Flags by their declared names, aliases and abbreviations resolved; unknown ones under their own."""
    found: dict[str, tuple[str, ...]] = {}
    for given in split_flags(unabbreviated(words, scan), scan):
        flag: Flag | None = scan.flag(given.name)
        found[flag.flag if flag else given.name] = given.values
    return found


def step(
    step_id: str, status: StepStatus, detail: str, module: Module | None = None, line: int | None = None
) -> TraceStep:
    """A step with its evidence."""
    return TraceStep(
        id=step_id,
        proposition=PROPOSITIONS[step_id],
        status=status,
        detail=detail,
        file=module.file if module else None,
        line=line,
        excerpt=module.excerpt(line) if module and line else None,
    )


def at_flag(step_id: str, status: StepStatus, detail: str, flag: Flag, tree: SourceTree) -> TraceStep:
    """A step whose evidence is a flag's declaration."""
    module = tree.module(flag.file.partition("/")[2]) if flag.file else None
    if module is None or flag.line is None:
        return TraceStep(
            id=step_id, proposition=PROPOSITIONS[step_id], status=status, detail=detail, file=flag.file, line=flag.line
        )
    return step(step_id, status, detail, module, flag.line)


def strings(node: ast.AST) -> list[str]:
    """Every string constant below a node."""
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
