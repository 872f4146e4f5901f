"""Environment variables that an engine reads: those it declares, and those named where they are read."""

import ast
import re

from backend.engine_scan.arguments import plain
from backend.engine_scan.constants import Scope, UnresolvedError, value_of
from backend.engine_scan.source_tree import SourceTree
from backend.schema.engine import EnvSwitch, FlagValue

ENVIRON = "srt/environ.py"
_READ = re.compile(
    rb"""(?:getenv|environ\.get|get_bool_env_var|get_int_env_var|get_float_env_var|environ\[)\s*\(?\s*["']([A-Z][A-Z0-9_]{2,})["']"""
)
_KINDS = {"EnvBool": "bool", "EnvInt": "int", "EnvFloat": "float", "EnvStr": "str"}


def read_environment(tree: SourceTree) -> list[EnvSwitch]:
    """Declared ones first, in their order, then the others by name."""
    found = {switch.name: switch for switch in _declared(tree)}
    for file in tree.files("srt"):
        text = tree.raw(file)
        for match in _READ.finditer(text):
            name = match[1].decode()
            if name.startswith(("SGLANG", "SGL_", "FLASHINFER", "NCCL", "CUDA", "TORCH", "TRITON", "HF_")):
                line = text.count(b"\n", 0, match.start()) + 1
                found.setdefault(name, EnvSwitch(name=name, file=f"{tree.package.name}/{file}", line=line))
    return list(found.values())


def _declared(tree: SourceTree) -> list[EnvSwitch]:
    """`NAME = EnvBool(False)` in the body of a class of environ.py."""
    module = tree.module(ENVIRON)
    if module is None:
        return []
    found = []
    for cls in module.classes.values():
        for node in cls.body:
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
                continue
            kind = ast.unparse(node.value.func).split(".")[-1]
            target = node.targets[0]
            if isinstance(target, ast.Name) and kind.startswith("Env") and target.id.isupper():
                scope = Scope(tree, module)
                found.append(
                    EnvSwitch(
                        name=target.id,
                        type=_KINDS.get(kind, "str"),
                        default=_first(node.value, scope),
                        file=module.file,
                        line=node.lineno,
                    )
                )
    return found


def _first(call: ast.Call, scope: Scope) -> FlagValue:
    if not call.args:
        return None
    try:
        return plain(value_of(call.args[0], scope))
    except UnresolvedError:
        return None
