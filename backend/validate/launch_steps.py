"""Propositions that the engine's launch code settles: the algorithm's name, the draft's path, worker, MoE backend."""

import ast
import re
from collections.abc import Iterator

from backend.engine_scan import Module, SourceTree
from backend.flagwords import wrong_value
from backend.schema.validate import TraceStep
from backend.validate.question import MTP_ALGORITHMS, Question, at_flag, step, strings

SERVER_ARGS, HOOKS = "srt/server_args.py", "srt/arg_groups"
SPEC_INFO = "srt/speculative/spec_info.py"
ALGORITHM, BACKEND, MOE = "--speculative-algorithm", "--speculative-moe-runner-backend", "--moe-runner-backend"


def algorithm_alias(question: Question) -> TraceStep:
    """NEXTN must be accepted and become EAGLE; no hook of this architecture may refuse the name."""
    asked = question.algorithm
    flag = question.scan.flag(ALGORITHM)
    if flag is None:
        return step("algorithm_alias", "refuted", f"this engine has no flag {ALGORITHM}")
    wrong = wrong_value(flag, [asked])
    if wrong is not None or (question.scan.algorithms and asked.upper() not in question.scan.algorithms):
        why = wrong or f"{asked} is no algorithm of this engine ({', '.join(question.scan.algorithms)})"
        return at_flag("algorithm_alias", "refuted", why, flag, question.tree)
    if asked.upper() not in MTP_ALGORITHMS:
        why = f"{asked} drafts in another way and does not use the checkpoint's MTP layer; NEXTN does"
        return at_flag("algorithm_alias", "refuted", why, flag, question.tree)
    if (refusal := _refusal(question, asked.upper())) is not None:
        return refusal
    if asked.upper() == "EAGLE":
        return at_flag("algorithm_alias", "confirmed", "EAGLE is accepted as it is", flag, question.tree)
    for module, node in _tests_for(question.tree, "NEXTN"):
        if "EAGLE" in [text for part in node.body for text in strings(part)]:
            return step("algorithm_alias", "confirmed", "NEXTN is accepted and becomes EAGLE", module, node.test.lineno)
    why = "no place was found where the launch turns NEXTN into EAGLE (a test for the name in server_args or its hooks)"
    return step("algorithm_alias", "unknown", why)


def launch_files(tree: SourceTree) -> list[str]:
    """Where a launch's arguments are resolved, as far as it concerns speculation."""
    return [SERVER_ARGS, *(file for file in tree.files(HOOKS) if b"speculative" in tree.raw(file))]


def _tests_for(tree: SourceTree, name: str) -> Iterator[tuple[Module, ast.If]]:
    """Every `if` of the launch code that compares with a name."""
    for file in launch_files(tree):
        module = tree.module(file) if name.encode() in tree.raw(file) else None
        for node in ast.walk(module.tree) if module is not None else ():
            if module is not None and isinstance(node, ast.If) and name in strings(node.test):
                yield module, node


def _refusal(question: Question, asked: str) -> TraceStep | None:
    """A hook of this architecture's own that asserts on names which leave the asked one out."""
    family = re.sub(r"For[A-Z]\w*$", "", question.architecture or "").lower()
    if not family:
        return None
    for file in question.tree.files(HOOKS):
        stem = file.rpartition("/")[2].removesuffix(".py").removesuffix("_hook").replace("_", "")
        module = question.tree.module(file) if stem == family else None
        for node in ast.walk(module.tree) if module is not None else ():
            allowed = _allowed(node)
            if module is not None and allowed and asked not in allowed:
                why = f"the hook for {question.architecture} takes {' and '.join(allowed)} alone; pass {allowed[0]}"
                return step("algorithm_alias", "refuted", why, module, getattr(node, "lineno", None))
    return None


def _allowed(node: ast.AST) -> list[str]:
    """Names in `assert x.speculative_algorithm in (...)`, or in `if ... not in (...): raise`."""
    if isinstance(node, ast.Assert):
        tests, kind = list(ast.walk(node.test)), ast.In
    elif isinstance(node, ast.If) and any(isinstance(part, ast.Raise) for part in node.body):
        tests, kind = list(ast.walk(node.test)), ast.NotIn  # type: ignore[assignment]
    else:
        return []
    for test in tests:
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], kind) and "algorithm" in ast.unparse(test.left):
            return [name for name in strings(test.comparators[0]) if name.isupper()]
    return []


def draft_path(question: Question) -> TraceStep:
    """Either the launch fills it in for this architecture, or the model configuration falls back to the model's."""
    given = question.value("--speculative-draft-model-path")
    if given is not None:
        return step("draft_path", "confirmed", f"it is given: {given}")
    for file in launch_files(question.tree):
        module = question.tree.module(file)
        for node in ast.walk(module.tree) if module is not None else ():
            if isinstance(node, ast.If) and question.architecture in strings(node.test) and _fills_path(node):
                why = f"it is filled in with the model's own for {question.architecture}"
                return step("draft_path", "confirmed", why, module, node.test.lineno)
    module = question.tree.module("srt/configs/model_config.py")
    for node in ast.walk(module.tree) if module is not None else ():
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and _is_fallback(node):
            why = "it is not filled in for this architecture; the draft's configuration falls back to the model's path"
            return step("draft_path", "confirmed", why, module, node.lineno)
    why = "no place was found that fills it in or falls back; give --speculative-draft-model-path the model's own path"
    return step("draft_path", "unknown", why)


def _fills_path(node: ast.If) -> bool:
    """Whether a body assigns or declares `speculative_draft_model_path` from `model_path`."""
    for part in node.body:
        for inner in ast.walk(part):
            targets = [ast.unparse(t) for t in inner.targets] if isinstance(inner, ast.Assign) else []
            if any(t.endswith("speculative_draft_model_path") for t in targets):
                return True
            if isinstance(inner, ast.keyword) and inner.arg == "speculative_draft_model_path":
                return True
    return False


def _is_fallback(node: ast.BoolOp) -> bool:
    words = [ast.unparse(value) for value in node.values]
    return words[0] == "model_path" and words[-1].endswith(".model_path")


def draft_flag(question: Question) -> TraceStep:
    """`is_draft_model=self.is_draft_worker`, or the like, where a worker makes its model configuration."""
    for file in ("srt/managers/tp_worker.py", *question.tree.containing("srt/managers", b"is_draft_model")):
        module = question.tree.module(file)
        for node in ast.walk(module.tree) if module is not None else ():
            if isinstance(node, ast.keyword) and node.arg == "is_draft_model" and "draft" in ast.unparse(node.value):
                why = f"the worker hands is_draft_model={ast.unparse(node.value)} to the model's configuration"
                return step("draft_flag", "confirmed", why, module, node.value.lineno)
    return step("draft_flag", "unknown", "no worker was found that hands is_draft_model to the model's configuration")


def worker_class(question: Question) -> TraceStep:
    """What `create_worker` returns for the algorithm."""
    module = question.tree.module(SPEC_INFO)
    function = module.functions.get("create_worker") if module is not None else None
    if module is None or function is None:
        return step("worker_class", "unknown", f"{SPEC_INFO} has no create_worker that could be read")
    found = [
        (node.value.id, node.lineno)
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and "eagle" in node.value.id.lower()
    ]
    plain = [row for row in found if "multi" not in row[0].lower()]
    if not plain:
        return step("worker_class", "unknown", "create_worker returns no class for EAGLE that was recognised")
    names = list(dict.fromkeys(name for name, _ in plain))
    why = f"{names[0]} runs it" if len(names) == 1 else f"{' or '.join(names)} runs it, by the overlap schedule"
    return step("worker_class", "confirmed", why, module, plain[0][1])


def speculative_moe_backend(question: Question) -> TraceStep:
    """A backend that the launch refuses for the draft, a choice that the flag does not have; else it may run."""
    name = "speculative_moe_backend"
    if question.inspection.mtp.tensors and question.inspection.mtp.experts is None:
        return step(name, "confirmed", "the MTP layer has no routed experts, so no MoE backend is needed")
    flag = question.scan.flag(BACKEND)
    asked = question.value(BACKEND)
    if flag is None:
        return step(name, "refuted" if asked else "unknown", f"this engine has no flag {BACKEND}")
    if asked is None:
        inherited = question.value(MOE)
        why = f"none is asked for; it follows {MOE}" + (f" {inherited}" if inherited else "")
        return at_flag(name, "confirmed", why, flag, question.tree)
    if (wrong := wrong_value(flag, [asked])) is not None:
        return at_flag(name, "refuted", wrong, flag, question.tree)
    for file in launch_files(question.tree):
        module = question.tree.module(file)
        for node in ast.walk(module.tree) if module is not None else ():
            if isinstance(node, ast.Assert) and _refuses(node, asked):
                why = f"the launch asserts that the draft's MoE backend is not {asked}"
                return step(name, "refuted", why, module, node.lineno)
    return at_flag(name, "confirmed", f"{asked} is a choice and nothing refuses it for the draft", flag, question.tree)


def _refuses(node: ast.Assert, backend: str) -> bool:
    """`assert not MoeRunnerBackend(self.speculative_moe_runner_backend).is_<backend>()`."""
    text = ast.unparse(node.test)
    return text.startswith("not ") and "speculative_moe_runner_backend" in text and text.endswith(f".is_{backend}()")
