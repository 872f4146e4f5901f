"""Flags declared as annotated fields: `name: A[type, "help" or Arg(...)] = default`.

The record may hold them itself, or collect them from classes of their own under `arg_groups/fields/`.
"""

import ast
from collections.abc import Iterator, Mapping

from backend.engine_scan.arguments import Record, choices_of, plain, replacement_of, said
from backend.engine_scan.constants import Scope, UnresolvedError, text_of, value_of
from backend.engine_scan.source_tree import Module, SourceTree
from backend.schema.engine import Flag, FlagType, FlagValue

FIELDS_FOLDER = "srt/arg_groups/fields"
_ANNOTATED = ("A", "Annotated")
Classes = list[tuple[Module, ast.ClassDef]]
_PLAIN: dict[str, FlagType] = {"int": "int", "float": "float", "str": "str", "bool": "bool"}


def field_classes(tree: SourceTree, record_module: Module, record_class: ast.ClassDef) -> Classes:
    """The record itself and the classes of the fields folder, in order of their files."""
    found: Classes = [(record_module, record_class)]
    for file in tree.files(FIELDS_FOLDER):
        module = tree.module(file)
        if module is not None:
            found += [(module, cls) for cls in module.tree.body if isinstance(cls, ast.ClassDef)]
    return found


def fields(classes: Classes) -> dict[str, ast.expr | None]:
    """Every annotated name of the classes with its default."""
    return {
        node.target.id: _declared_default(node.value)
        for _, cls in classes
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _declared_default(node: ast.expr | None) -> ast.expr | None:
    """`field(default=x)` is x, `field(default_factory=list)` an empty list; other factories have nothing to show."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "field":
        given = {k.arg: k.value for k in node.keywords}
        if "default_factory" in given and ast.unparse(given["default_factory"]) == "list":
            return ast.List([], ast.Load())
        return given.get("default")
    return node


def declared(tree: SourceTree, classes: Classes, record: Record) -> Iterator[Flag]:
    """A flag for each annotated field with an `Arg` or a help text that is not kept off the command line."""
    for module, cls in classes:
        scope = Scope(tree, module, {}, record.defaults)
        for node in cls.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_annotated(node.annotation):
                flag = _flag(node, node.target.id, scope)
                if flag is not None:
                    yield flag


def _is_annotated(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node.value).split(".")[-1] in _ANNOTATED


def _flag(node: ast.AnnAssign, field: str, scope: Scope) -> Flag | None:
    inside = node.annotation.slice if isinstance(node.annotation, ast.Subscript) else None
    if not isinstance(inside, ast.Tuple):
        return None
    kind_node, *details = inside.elts
    arg = next((d for d in details if isinstance(d, ast.Call) and ast.unparse(d.func).split(".")[-1] == "Arg"), None)
    keywords = {k.arg: k.value for k in arg.keywords if k.arg} if arg is not None else {}
    if said(keywords.get("no_cli"), scope) is True:
        return None
    bare = next((d for d in details if not isinstance(d, ast.Call)), None)
    if arg is None and bare is None:
        return None  # not for the command line, or registered by hand
    text = text_of(keywords.get("help", arg.args[0] if arg is not None and arg.args else bare), scope)
    kind, literal = _type(kind_node, keywords)
    choices, complete = choices_of(keywords.get("choices", literal), scope)
    name = said(keywords.get("cli_name"), scope) or f"--{field.replace('_', '-')}"
    aliases = said(keywords.get("aliases"), scope)
    action = ast.unparse(keywords["action"]) if "action" in keywords else ""
    names = [str(alias) for alias in aliases] if isinstance(aliases, list) else []
    deprecated = "Deprecated" in action or text.lower().lstrip("([ ").startswith("deprecated")
    return Flag(
        flag=str(name),
        field=field,
        aliases=names,
        negation=f"--no-{str(name)[2:]}" if action.endswith("BooleanOptionalAction") else None,
        type=kind,
        default=_default(node.value, scope),
        choices=choices,
        choices_complete=complete,
        help=text,
        deprecated=deprecated,
        replacement=replacement_of(keywords, text, scope) if deprecated else None,
        file=scope.module.file,
        line=node.lineno,
    )


def _type(node: ast.expr, keywords: Mapping[str, ast.expr]) -> tuple[FlagType, ast.expr | None]:
    """The type, and the `Literal[...]` in it that lists the choices."""
    node = _unwrapped(node)
    name = ast.unparse(node.value if isinstance(node, ast.Subscript) else node).split(".")[-1]
    if "nargs" in keywords and ast.unparse(keywords["nargs"]) not in ("'?'", "None"):
        return "list", None
    if isinstance(node, ast.Subscript) and name == "Literal":
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
        is_int = isinstance(first, ast.Constant) and type(first.value) is int
        return ("int" if is_int else "str"), node
    if name in ("List", "list", "Sequence", "Tuple", "tuple"):
        return ("str" if "type_parser" in keywords else "list"), None
    parser = ast.unparse(keywords["type_parser"]).split(".")[-1] if "type_parser" in keywords else ""
    if parser and name not in _PLAIN:
        return _PLAIN.get(parser, "str"), None
    return _PLAIN.get(name, "str"), None


def _unwrapped(node: ast.expr) -> ast.expr:
    """`Optional[X]`, `X | None` and `Union[X, None]` without the None."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).split(".")[-1] in ("Optional", "Union"):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _unwrapped(next((p for p in parts if not _is_none(p)), node))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _unwrapped(node.left if _is_none(node.right) else node.right if _is_none(node.left) else node.left)
    return node


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _default(node: ast.expr | None, scope: Scope) -> FlagValue:
    declared_default = _declared_default(node)
    if declared_default is None:
        return None
    try:
        return plain(value_of(declared_default, scope))
    except UnresolvedError:
        return None
