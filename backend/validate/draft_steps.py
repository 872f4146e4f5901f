"""Propositions about the class that drafts: which one, is it there, how does it take the checkpoint's quantisation."""

import ast

from backend.engine_scan import Module
from backend.schema.checkpoint import Quantization
from backend.schema.engine import MtpArchitecture
from backend.schema.validate import TraceStep
from backend.validate.question import Question, at_flag, step

MODEL_CONFIG = "srt/configs/model_config.py"
REDIRECT = "_config_draft_model"
DRAFT_QUANTIZATION = "--speculative-draft-model-quantization"


def _module(question: Question, file: str | None) -> Module | None:
    return question.tree.module(file.partition("/")[2]) if file else None


def redirect_of(question: Question) -> MtpArchitecture | None:
    return question.scan.mtp_architectures.get(question.architecture or "")


def architecture_redirect(question: Question) -> TraceStep:
    found = redirect_of(question)
    if found is not None:
        layers = _predict_layers(question, found)
        why = f"{question.architecture} becomes {found.draft}" + (f", with {layers} predict layer" if layers else "")
        return step("architecture_redirect", "confirmed", why, _module(question, found.file), found.line)
    module = question.tree.module(MODEL_CONFIG)
    if question.architecture is None:
        return step("architecture_redirect", "unknown", "config.json names no architecture")
    if module is None or REDIRECT not in module.functions:
        why = question.tree.unread.get(MODEL_CONFIG, "it is not there")
        return step("architecture_redirect", "unknown", f"no {REDIRECT} in {MODEL_CONFIG} could be read: {why}")
    if not question.scan.mtp_architectures:
        return step("architecture_redirect", "unknown", f"no redirect of any architecture was recognised in {REDIRECT}")
    why = f"{REDIRECT} has no branch for {question.architecture}: loaded as a draft, it stays the whole model"
    return step("architecture_redirect", "refuted", why, module, module.functions[REDIRECT].lineno)


def _predict_layers(question: Question, found: MtpArchitecture) -> int | None:
    """`num_nextn_predict_layers = 1` in the branch of the redirect."""
    branch = _branch(question, found)
    for node in ast.walk(ast.Module(branch, [])) if branch else ():
        if isinstance(node, ast.Assign) and "num_nextn_predict_layers" in ast.unparse(node.targets[0]):
            return node.value.value if isinstance(node.value, ast.Constant) and type(node.value.value) is int else None
    return None


def sets_predict_layers(question: Question) -> bool | None:
    """Whether the engine sets the number of MTP layers itself; None without a redirect."""
    found = redirect_of(question)
    return None if found is None else _predict_layers(question, found) is not None


def _branch(question: Question, found: MtpArchitecture) -> list[ast.stmt]:
    module = _module(question, found.file)
    for node in ast.walk(module.tree) if module is not None else ():
        if isinstance(node, ast.If) and any(part.lineno == found.line for part in node.body):
            return node.body
    return []


def draft_class(question: Question) -> TraceStep:
    found = redirect_of(question)
    if found is None:
        return step("draft_class", "unknown", "no class is named for this architecture")
    module = _module(question, found.draft_file)
    if module is None or found.draft not in module.classes:
        return step("draft_class", "refuted", f"no file below srt/models registers {found.draft}")
    line = module.classes[found.draft].lineno
    return step("draft_class", "confirmed", f"{found.draft} stands in {module.file}, which registers it", module, line)


def draft_quantization(question: Question) -> TraceStep:
    """Unquantised from a checkpoint that stores its MTP layer wide. Where it is stored quantised that need not be."""
    name = "draft_quantization"
    mtp, quantization = question.inspection.mtp, question.inspection.quantization
    if not mtp.tensors:
        return step(name, "unknown", "there is no MTP layer to build")
    if quantization.method is None:
        return step(name, "confirmed", "the checkpoint is not quantised, so neither is the draft")
    if mtp.stored == "quantised":
        return step(name, "confirmed", f"the MTP layer itself is quantised ({mtp.why}), and the draft is built so")
    flag = question.scan.flag(DRAFT_QUANTIZATION)
    if flag is not None and question.value(DRAFT_QUANTIZATION) == "unquant":
        return at_flag(name, "confirmed", "asked for: unquant", flag, question.tree)
    found = redirect_of(question)
    method = method_name(quantization)
    for rule in found.quantization if found is not None else []:
        if method in rule.methods and not _kept(quantization):
            why = f"{found.draft if found else ''} drops the quantisation of {method}"
            return step(name, "confirmed", why, _module(question, rule.file), rule.line)
    return _by_list(question, method)


def _kept(quantization: Quantization) -> bool:
    """A mixed checkpoint's table that names the MTP layer makes a class keep the quantisation."""
    return any(module.startswith("mtp.") for module in quantization.layers)


def _by_list(question: Question, method: str) -> TraceStep:
    """No rule of the class applies: what is built wide hangs on the checkpoint's exclude list."""
    name, mtp = "draft_quantization", question.inspection.mtp
    hint = f"; {DRAFT_QUANTIZATION} unquant forces it" if question.scan.flag(DRAFT_QUANTIZATION) else ""
    found = redirect_of(question)
    module = _module(question, found.draft_file) if found is not None else None
    line = module.classes[found.draft].lineno if module and found and found.draft in module.classes else None
    if mtp.covered is False:
        why = f"the class has no rule for {method}, and the exclude list leaves {mtp.uncovered[0]} quantised{hint}"
        return step(name, "refuted", why, module, line)
    if method.startswith("modelopt"):
        why = f"the class has no rule for {method}; the exclude list covers the MTP layer ({mtp.why})"
        return step(name, "confirmed", why, module, line)
    why = (
        f"the class has no rule for {method}, and its fused modules may not match a list that names leaves: then "
        f"packed parameters are made and the stored tensors skipped{hint}"
    )
    return step(name, "unknown", why, module, line)


def method_name(quantization: Quantization) -> str:
    """The name under which SGLang knows a quantisation."""
    method, algo = quantization.method or "", (quantization.algo or "").upper()
    if method == "modelopt":
        if quantization.layers or algo == "MIXED_PRECISION":
            return "modelopt_mixed"
        return "modelopt_fp4" if "NVFP4" in algo else "modelopt_fp8" if "FP8" in algo else method
    return method
