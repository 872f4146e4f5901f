"""Puts the scan of an SGLang tree together. The style of its declarations is told by what stands there."""

import ast

from backend.engine_scan import annotated, arguments
from backend.engine_scan.arguments import Record
from backend.engine_scan.environment import read_environment
from backend.engine_scan.source_tree import Module, SourceTree
from backend.engine_scan.speculation import algorithms, mtp_architectures
from backend.errors import InputError
from backend.schema.engine import Flag, Scan

SERVER_ARGS, RECORD = "srt/server_args.py", "ServerArgs"


def scan_source(tree: SourceTree) -> Scan:
    """Raises InputError when the tree declares no flags."""
    module = tree.required(SERVER_ARGS)
    if RECORD not in module.classes:
        raise InputError(f"{tree.package / SERVER_ARGS} has no class {RECORD}: this is no SGLang that can be read")
    classes = annotated.field_classes(tree, module, module.classes[RECORD])
    record = Record(annotated.fields(classes), _renamed(module))
    by_field = list(annotated.declared(tree, classes, record))
    flags = _once([*by_field, *arguments.declared(tree, module, record)])
    if not flags:
        raise InputError(f"{tree.package / SERVER_ARGS} declares no flags in a way that is known")
    style = "add_argument" if not by_field else "annotated" if len(classes) == 1 else "annotated groups"
    return Scan(
        version=tree.version,
        style=style,
        root=str(tree.package.parent),
        flags=flags,
        env=read_environment(tree),
        algorithms=algorithms(tree, flags),
        mtp_architectures=mtp_architectures(tree),
        unread=[f"{file}: {why}" for file, why in tree.unread.items()],
    )


def _once(flags: list[Flag]) -> list[Flag]:
    found: dict[str, Flag] = {}
    for flag in flags:
        found.setdefault(flag.flag, flag)
    return list(found.values())


def _renamed(module: Module) -> dict[str, str]:
    """dest to field, from `args.tp_size = args.tensor_parallel_size` in `from_cli_args`."""
    function = module.functions.get("from_cli_args")
    found: dict[str, str] = {}
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            target = node.targets[0]
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == ast.unparse(node.value.value):
                found[node.value.attr] = target.attr
    return found
