"""Values of expressions as far as the text alone tells: literals, names, sums of lists, members of classes."""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.engine_scan.source_tree import Module, SourceTree

_DEPTH = 12
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Pow: lambda a, b: a**b if abs(b) < 64 else None,  # a file must not make us compute for hours
    ast.LShift: lambda a, b: a << b if b < 64 else None,
}


class UnresolvedError(Exception):
    """The text does not tell this value."""


@dataclass(frozen=True)
class Scope:
    """Where an expression stands: its module, what its function assigned, and what attributes of the record are."""

    tree: SourceTree
    module: Module
    local: Mapping[str, ast.expr] = field(default_factory=dict)
    record: Mapping[str, ast.expr | None] = field(default_factory=dict)
    record_name: str = "ServerArgs"
    depth: int = 0

    def deeper(self, module: Module | None = None) -> "Scope":
        if self.depth >= _DEPTH:
            raise UnresolvedError
        if module is None or module is self.module:
            return Scope(self.tree, self.module, self.local, self.record, self.record_name, self.depth + 1)
        return Scope(self.tree, module, {}, self.record, self.record_name, self.depth + 1)


def value_of(node: ast.expr, scope: Scope) -> Any:
    """The value. Raises UnresolvedError."""
    reader = _READERS.get(type(node))
    if reader is None:
        raise UnresolvedError
    return reader(node, scope)


def text_of(node: ast.expr | None, scope: Scope) -> str:
    """A help text, with `…` for what is only known at run time."""
    if node is None:
        return ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, scope) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left, scope) + text_of(node.right, scope)
    try:
        value = value_of(node, scope)
    except UnresolvedError:
        return "…" if not isinstance(node, ast.Attribute) else ""
    return value if isinstance(value, str) else ""


def _subscript(node: ast.Subscript, scope: Scope) -> Any:
    """`Literal[...]` and `CHOICES[0]`."""
    if _word(node.value) == "Literal":
        return _sequence(node.slice, scope) if isinstance(node.slice, ast.Tuple) else [value_of(node.slice, scope)]
    try:
        return _listed(value_of(node.value, scope))[value_of(node.slice, scope)]
    except (TypeError, IndexError) as error:
        raise UnresolvedError from error


def _negated(node: ast.UnaryOp, scope: Scope) -> Any:
    value = value_of(node.operand, scope)
    if isinstance(node.op, ast.Not):
        return not value
    if not isinstance(node.op, ast.USub) or not isinstance(value, int | float):
        raise UnresolvedError
    return -value


def _text(part: ast.expr, scope: Scope) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    try:
        return str(value_of(part.value, scope)) if isinstance(part, ast.FormattedValue) else "…"
    except UnresolvedError:
        return "…"


def _sequence(node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> list[Any]:
    found: list[Any] = []
    for part in node.elts:
        if isinstance(part, ast.Starred):
            found += _listed(value_of(part.value, scope))
        else:
            found.append(value_of(part, scope))
    return found


def _operation(node: ast.BinOp, scope: Scope) -> Any:
    act = _OPERATORS.get(type(node.op))
    if act is None:
        raise UnresolvedError
    try:
        return act(value_of(node.left, scope), value_of(node.right, scope))
    except (TypeError, ArithmeticError) as error:
        raise UnresolvedError from error


def _name(name: str, scope: Scope) -> Any:
    if name in scope.local:
        rest = {key: value for key, value in scope.local.items() if key != name}
        return value_of(scope.local[name], Scope(scope.tree, scope.module, rest, scope.record, depth=scope.depth))
    if name in scope.module.constants:
        value = value_of(scope.module.constants[name], scope)
        return value + _extended(name, scope) if isinstance(value, list) else value
    if name in scope.module.imports:
        module, there = scope.module.imports[name]
        other = scope.tree.by_import(module)
        if other is not None:
            return _name(there, scope.deeper(other))
    raise UnresolvedError


def _extended(name: str, scope: Scope) -> list[Any]:
    """What the module itself appends to a list of its own, outside functions."""
    found: list[Any] = []
    for node in scope.module.tree.body:
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and _word(call.func.value) == name:
            if call.func.attr == "extend" and call.args:
                found += _listed(value_of(call.args[0], scope))
            elif call.func.attr == "append" and call.args:
                found.append(value_of(call.args[0], scope))
        if isinstance(node, ast.AugAssign) and _word(node.target) == name and isinstance(node.op, ast.Add):
            found += _listed(value_of(node.value, scope))
    return found


def _attribute(node: ast.Attribute, scope: Scope) -> Any:
    owner = _word(node.value)
    if owner == scope.record_name and node.attr in scope.record:
        default = scope.record[node.attr]
        return None if default is None else value_of(default, scope)
    found = find_class(owner, scope)
    if found is None:
        raise UnresolvedError
    module, cls = found
    for statement in cls.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and target.id == node.attr and value is not None:
            inside = {n: v for n, v in class_constants(cls).items() if n != node.attr}
            return value_of(value, Scope(scope.tree, module, inside, scope.record, depth=scope.depth))
    raise UnresolvedError


def class_constants(cls: ast.ClassDef) -> dict[str, ast.expr]:
    """What a class body assigns to plain names."""
    plain = [s for s in cls.body if isinstance(s, ast.Assign)]
    return {t.id: s.value for s in plain for t in s.targets if isinstance(t, ast.Name)}


def find_class(name: str, scope: Scope) -> tuple[Module, ast.ClassDef] | None:
    """A class by the name that it has here, wherever it is defined in the tree."""
    if name in scope.module.classes:
        return scope.module, scope.module.classes[name]
    if name in scope.module.imports:
        module, there = scope.module.imports[name]
        other = scope.tree.by_import(module)
        if other is not None and other is not scope.module:
            return find_class(there, scope.deeper(other))
    return None


def _call(node: ast.Call, scope: Scope) -> Any:
    """`list(X)`, `sorted(X)`, `X.keys()`, `dict(a=1)`, `_declared_default("x")`; enum members of `list(Enum)`."""
    name = _word(node.func)
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "copy") and not node.args:
        return value_of(node.func.value, scope)
    if name in ("list", "tuple", "sorted", "set", "frozenset") and len(node.args) == 1:
        values = _listed(value_of(node.args[0], scope))
        return sorted(values) if name == "sorted" else values
    if name == "dict" and not node.args:
        return [keyword.arg for keyword in node.keywords]
    if "default" in name and len(node.args) == 1:
        field_name = value_of(node.args[0], scope)
        if field_name in scope.record:
            default = scope.record[field_name]
            return None if default is None else value_of(default, scope)
    raise UnresolvedError


def _comprehension(node: ast.ListComp, scope: Scope) -> list[Any]:
    """`[m.name.lower() for m in SomeEnum]`, and the like over values that are known."""
    generator = node.generators[0]
    if len(node.generators) > 1 or generator.ifs or not isinstance(generator.target, ast.Name):
        raise UnresolvedError
    found = find_class(_word(generator.iter), scope)
    if found is None:
        raise UnresolvedError
    members = class_constants(found[1])
    wanted = ast.unparse(node.elt).replace(generator.target.id, "m", 1)
    if wanted in ("m.name", "m.name.lower()"):
        return [name.lower() if wanted.endswith("lower()") else name for name in members]
    if wanted == "m.value":
        return [value_of(value, scope) for value in members.values()]
    raise UnresolvedError


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UnresolvedError
    return value


def _word(node: ast.AST) -> str:
    """The last name of `a.b.c`; empty for another expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


_READERS: dict[type[ast.expr], Callable[[Any, Scope], Any]] = {
    ast.Constant: lambda node, _: node.value,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Name: lambda node, scope: _name(node.id, scope.deeper()),
    ast.Attribute: lambda node, scope: _attribute(node, scope.deeper()),
    ast.BinOp: _operation,
    ast.UnaryOp: _negated,
    ast.JoinedStr: lambda node, scope: "".join(_text(part, scope) for part in node.values),
    ast.Call: lambda node, scope: _call(node, scope.deeper()),
    ast.Dict: lambda node, scope: [value_of(key, scope) for key in node.keys if key is not None],
    ast.ListComp: lambda node, scope: _comprehension(node, scope.deeper()),
    ast.Subscript: _subscript,
}
