"""Flags declared by `add_argument` calls."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from backend.engine_scan.constants import Scope, UnresolvedError, text_of, value_of
from backend.engine_scan.source_tree import Module, SourceTree
from backend.schema.engine import Flag, FlagType, FlagValue

PARSER_FUNCTION = "add_cli_args"
_REPLACEMENT = re.compile(r"(?:[Uu]se|by|of|with)\W{1,3}(--[a-z][\w-]*)")
_DEPRECATED = re.compile(r"^\W*(?:\[|\()?\s*deprecated", re.IGNORECASE)
_CHANGERS = ("append", "extend", "remove", "insert", "pop", "clear")
_SWITCHES = ("store_true", "store_false", "store_const", "BooleanOptionalAction", "DeprecatedAction")
# What a `type=` function makes of a word.
_TYPES: dict[str, FlagType] = {"int": "int", "float": "float", "bool": "bool", "human_readable_int": "int"}


@dataclass(frozen=True)
class Record:
    """The class whose fields the flags fill: its fields' defaults (None: no default), and dest to field where the
    two differ."""

    defaults: Mapping[str, ast.expr | None]
    renamed: Mapping[str, str]

    def field_of(self, dest: str) -> str:
        return dest if dest in self.defaults else self.renamed.get(dest, dest)


def declared(tree: SourceTree, module: Module, record: Record) -> Iterator[Flag]:
    """Every flag of `add_cli_args` and of functions that it hands its parser to."""
    seen: set[str] = set()
    waiting: list[tuple[Module, ast.FunctionDef]] = []
    if PARSER_FUNCTION in module.functions:
        waiting.append((module, module.functions[PARSER_FUNCTION]))
    while waiting:
        where, function = waiting.pop(0)
        if f"{where.file}:{function.name}" in seen:
            continue
        seen.add(f"{where.file}:{function.name}")
        scope = Scope(tree, where, _locals(function), record.defaults)
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                if flag := _flag(node, scope, record):
                    yield flag
            elif helper := _helper(node, where, tree):
                waiting.append(helper)


def _locals(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """What the function assigns to names; a name that is also changed in other ways is left out."""
    found: dict[str, ast.expr] = {}
    changed: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in found:
                changed.add(name)
            found[name] = node.value
        elif isinstance(node, ast.AugAssign):
            changed.add(ast.unparse(node.target))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGERS:
            changed.add(ast.unparse(node.func.value))
    return {name: value for name, value in found.items() if name not in changed}


def _helper(node: ast.Call, module: Module, tree: SourceTree) -> tuple[Module, ast.FunctionDef] | None:
    """A function that is called with the parser alone: it may add more flags."""
    if not (isinstance(node.func, ast.Name) and len(node.args) == 1 and ast.unparse(node.args[0]) == "parser"):
        return None
    name = node.func.id
    if name in module.functions:
        return module, module.functions[name]
    there, original = module.imports.get(name, ("", ""))
    other = tree.by_import(there) if there else None
    return (other, other.functions[original]) if other and original in other.functions else None


def _flag(node: ast.Call, scope: Scope, record: Record) -> Flag | None:
    names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    long = [name for name in names if name.startswith("--")]
    if not names or not names[0].startswith("-"):
        return None
    keywords = {k.arg: k.value for k in node.keywords if k.arg}
    dest = said(keywords.get("dest"), scope) or (long or names)[0].lstrip("-").replace("-", "_")
    field = record.field_of(str(dest))
    action = ast.unparse(keywords["action"]).strip("'\"") if "action" in keywords else ""
    kind = _type(keywords, action, scope)
    choices, complete = choices_of(keywords.get("choices"), scope)
    text = text_of(keywords.get("help"), scope)
    deprecated = "Deprecated" in action or _DEPRECATED.match(text) is not None
    return Flag(
        flag=names[0],
        field=field,
        aliases=names[1:],
        negation=f"--no-{long[0][2:]}" if action.endswith("BooleanOptionalAction") else None,
        type=kind,
        default=_default(keywords, action, scope.record.get(field), scope),
        choices=choices,
        choices_complete=complete,
        help=text,
        deprecated=deprecated,
        replacement=replacement_of(keywords, text, scope) if deprecated else None,
        file=scope.module.file,
        line=node.lineno,
    )


def _type(keywords: Mapping[str, ast.expr], action: str, scope: Scope) -> FlagType:
    name = action.split(".")[-1]
    if name in _SWITCHES or name.endswith(("StoreTrueAction", "StoreConstAction")):
        return "bool"  # DeprecatedAction too: it takes no value
    if "nargs" in keywords and said(keywords["nargs"], scope) != "?":
        return "list"
    kind = ast.unparse(keywords["type"]).split(".")[-1] if "type" in keywords else "str"
    return _TYPES.get(kind, "str")


def _default(keywords: Mapping[str, ast.expr], action: str, of_field: ast.expr | None, scope: Scope) -> FlagValue:
    """As argparse has it; an action of the engine's own that names no default leaves the field's."""
    if "default" not in keywords and action in ("store_true", "store_false"):
        return action == "store_false"
    node = keywords.get("default", of_field if action.endswith("Action") else None)
    try:
        return plain(value_of(node, scope)) if node is not None else None
    except UnresolvedError:
        return None


def plain(value: object) -> FlagValue:
    """A default as documents carry it; None for what is no plain value."""
    if isinstance(value, list):
        return [str(part) for part in value]
    return value if isinstance(value, str | int | float | bool) else None


def choices_of(node: ast.expr | None, scope: Scope) -> tuple[list[str] | None, bool]:
    """(choices, whether they are all). Of a sum, the parts that are known are a lower bound."""
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return None, True
    try:
        values = value_of(node, scope)
    except UnresolvedError:
        return _known_choices(node, scope), False
    return ([str(value) for value in values], True) if isinstance(values, list) else (None, False)


def _known_choices(node: ast.expr, scope: Scope) -> list[str] | None:
    """What is known of choices that are not all known; None when nothing is."""
    if isinstance(node, ast.Name) and node.id in scope.local:
        return _known_choices(scope.local[node.id], scope)
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
        return None
    found: list[str] = []
    for part in (node.left, node.right):
        try:
            value = value_of(part, scope)
            found += [str(v) for v in value] if isinstance(value, list) else []
        except UnresolvedError:
            found += _known_choices(part, scope) or []
    return found or None


def said(node: ast.expr | None, scope: Scope) -> object:
    """The value of an optional keyword; None when it is absent or not known."""
    try:
        return value_of(node, scope) if node is not None else None
    except UnresolvedError:
        return None


def replacement_of(keywords: Mapping[str, ast.expr], text: str, scope: Scope) -> str | None:
    """The flag that the engine itself names in place of a deprecated one."""
    new = said(keywords.get("new_flag"), scope)
    if isinstance(new, str) and new.startswith("--"):
        return new
    match = _REPLACEMENT.search(text)
    return match[1] if match else None
