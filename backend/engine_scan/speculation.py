"""What an engine knows of speculative decoding: algorithms, which MTP class stands for which model, and what that class
does with the checkpoint's quantisation."""

import ast
import re
from collections.abc import Iterator

from backend.engine_scan.constants import Scope, UnresolvedError, class_constants, value_of
from backend.engine_scan.source_tree import Module, SourceTree
from backend.schema.engine import Flag, MtpArchitecture, QuantizationRule

SPEC_INFO, SPEC_REGISTRY = "srt/speculative/spec_info.py", "srt/speculative/spec_registry.py"
SERVER_ARGS, SPECULATIVE_HOOK = "srt/server_args.py", "srt/arg_groups/speculative_hook.py"
MODEL_CONFIG = "srt/configs/model_config.py"
REDIRECT_FUNCTION = "_config_draft_model"
ALGORITHM_FLAG = "--speculative-algorithm"


def algorithms(tree: SourceTree, flags: list[Flag]) -> list[str]:
    """Names that `--speculative-algorithm` takes: its choices, the members of the enumeration, the reserved aliases."""
    flag = next((f for f in flags if f.flag == ALGORITHM_FLAG), None)
    found = list(flag.choices or []) if flag else []
    module = tree.module(SPEC_INFO)
    if module is not None and "SpeculativeAlgorithm" in module.classes:
        found += [n for n in class_constants(module.classes["SpeculativeAlgorithm"]) if n.isupper() and n != "NONE"]
    for file in (SPEC_REGISTRY, SPEC_INFO):
        module = tree.module(file)
        node = module.constants.get("_RESERVED_ALIASES") if module else None
        if module is not None and node is not None:
            found += _strings(node, Scope(tree, module))
    for file in (SERVER_ARGS, SPECULATIVE_HOOK):
        found += _compared_algorithms(tree.module(file))
    return list(dict.fromkeys(name for name in found if not name.startswith("_")))


def _compared_algorithms(module: Module | None) -> list[str]:
    """Names that the launch compares the algorithm with: an alias may stand nowhere else."""
    found = []
    for node in ast.walk(module.tree) if module is not None else ():
        if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith("algorithm"):
            found += [name for name in _names(node.comparators[0]) if name.isupper()]
    return found


def _strings(node: ast.expr, scope: Scope) -> list[str]:
    """Strings in a literal, or in the one argument of `frozenset(...)`."""
    try:
        value = value_of(node, scope)
    except UnresolvedError:
        return []
    return sorted(str(v) for v in value) if isinstance(value, list) else [value] if isinstance(value, str) else []


def mtp_architectures(tree: SourceTree) -> dict[str, MtpArchitecture]:
    """Target architecture to the class that drafts for it."""
    found: dict[str, MtpArchitecture] = {}
    for module, function in _redirects(tree):
        for test, body in _branches(function.body):
            scope = Scope(tree, module)
            targets = _architectures(test, scope)
            for draft, line in _assigned(body):
                for target in targets:
                    if target != draft and target not in found:
                        rules, file = quantization_rules(tree, draft)
                        found[target] = MtpArchitecture(
                            draft=draft, file=module.file, line=line, draft_file=file, quantization=rules
                        )
    return found


def _redirects(tree: SourceTree) -> Iterator[tuple[Module, ast.FunctionDef]]:
    module = tree.module(MODEL_CONFIG)
    if module is not None and REDIRECT_FUNCTION in module.functions:
        yield module, module.functions[REDIRECT_FUNCTION]
        return
    for file in tree.containing("srt", REDIRECT_FUNCTION.encode()):
        module = tree.module(file)
        if module is not None and REDIRECT_FUNCTION in module.functions:
            yield module, module.functions[REDIRECT_FUNCTION]


def _branches(body: list[ast.stmt]) -> Iterator[tuple[ast.expr, list[ast.stmt]]]:
    """Every `if` and `elif` below, with the body that runs under it."""
    for node in body:
        if isinstance(node, ast.If):
            yield node.test, node.body
            yield from _branches(node.body)
            yield from _branches(node.orelse)
        elif isinstance(node, ast.With | ast.Try | ast.For):
            yield from _branches(node.body)


def _architectures(test: ast.expr, scope: Scope) -> list[str]:
    """Strings that a test compares an architecture with, by `==` or `in`."""
    found: list[str] = []
    for node in ast.walk(test):
        if not (isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.In)):
            continue
        if "arch" not in ast.unparse(node.left).lower():
            continue
        found += _strings(node.comparators[0], scope)
    return found


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    """Class names that a body puts in place of the architecture, and the lines, not those of nested tests by
    architecture."""
    for node in body:
        for part in ast.walk(node):
            if isinstance(part, ast.Assign) and "architectures" in ast.unparse(part.targets[0]):
                for name in _names(part.value):
                    yield name, part.lineno


def _names(node: ast.expr) -> list[str]:
    """`"X"`, `["X"]`, and both of `"X" if a else "Y"`."""
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def quantization_rules(tree: SourceTree, draft: str) -> tuple[list[QuantizationRule], str | None]:
    """When the drafting class is built without quantisation, and the file of that class. None: no such class."""
    file = class_file(tree, draft)
    module = tree.module(file) if file else None
    if module is None:
        return [], None
    rules = [
        QuantizationRule(methods=methods, condition=ast.unparse(test), file=module.file, line=line)
        for test, line in _unquantised(module)
        if (methods := _methods(test))
    ]
    return rules, module.file


def class_file(tree: SourceTree, name: str) -> str | None:
    """The model file whose `EntryClass` lists a class."""
    start = f"\nclass {name}".encode()
    for file in tree.files("srt/models"):
        text = tree.raw(file)
        place = text.find(start)
        if place >= 0 and text[place + len(start) : place + len(start) + 1] in (b"(", b":") and b"EntryClass" in text:
            return file
    return None


def _unquantised(module: Module) -> Iterator[tuple[ast.expr, int]]:
    """Tests under which `quant_config` becomes None."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.If):
            continue
        for part in node.body:
            if not isinstance(part, ast.Return | ast.Assign) or not isinstance(part.value, ast.Constant):
                continue
            sets = isinstance(part, ast.Return) or "quant_config" in ast.unparse(part.targets[0])
            if part.value.value is None and sets:
                yield node.test, part.lineno


def _methods(test: ast.expr) -> list[str]:
    """Names of quantisation methods in a test."""
    return [name for name in _names(test) if re.fullmatch(r"[a-z][a-z0-9_-]{2,}", name)]
