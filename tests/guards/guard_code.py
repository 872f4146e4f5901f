"""Checks of Python source. Each takes source text and yields `line: what is wrong`; none reads a file."""

import ast
import re
from collections.abc import Iterable, Iterator

# 0.5.12, v0.4.6.post1, but not 127.0.0.1 or 10.0.5.9.
RELEASE = re.compile(r"(?<![\d.])0\.\d+\.\d+(?:\.?(?:post|rc|dev)\d*)?(?!\.?\d)")
SHELL_CALLS = {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell",
}
CODE_CALLS = {"eval", "exec", "compile"}
SHELLS = {"sh", "bash", "zsh", "dash", "/bin/sh", "/bin/bash"}
BROAD = {"Exception", "BaseException"}
FRONT_END = re.compile(r"<script|<style|addEventListener|document\.querySelector|unsafe_allow_html")


def release_literals(source: str, own_version: str) -> Iterator[str]:
    """Versions of another program that the code compares with or spells. Its own version is its own business."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = [f"the version literal {text}" for text in RELEASE.findall(node.value) if text != own_version]
        elif isinstance(node, ast.Compare):
            parts = [part for part in (node.left, *node.comparators) if _is_version_tuple(part)]
            found = [f"a comparison with the version tuple {ast.unparse(part)}" for part in parts]
        elif isinstance(node, ast.Call) and _dotted(node.func).split(".")[-1] in {"Version", "parse_version"}:
            found = [f"a comparison with version {a.value}" for a in node.args if isinstance(a, ast.Constant)]
        else:
            continue
        yield from (f"{node.lineno}: {what}" for what in found)


def _is_version_tuple(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Tuple)
        and len(node.elts) >= 2
        and all(isinstance(e, ast.Constant) and isinstance(e.value, int) for e in node.elts)
        # 0.4 and later: (0, 0) and (0, 1) are shapes and indices
        and [ast.literal_eval(e) for e in node.elts][:2] >= [0, 2]
        and ast.literal_eval(node.elts[0]) == 0
    )


def imported_modules(source: str) -> list[tuple[int, str]]:
    """Line and dotted name of every module that this source imports, wherever the statement stands."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [(node.lineno, node.module)]
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and _dotted(node.func) in {"importlib.import_module", "__import__"}:
            found += [
                (node.lineno, a.value) for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
            ]
    return found


def imports_of(source: str, packages: Iterable[str]) -> Iterator[str]:
    """Imports of any of these packages or of a module in one."""
    for line, module in imported_modules(source):
        for package in packages:
            if module == package or module.startswith(package + "."):
                yield f"{line}: imports {module}"


def foreign_internals(source: str, own: str, packages: Iterable[str], shared: Iterable[str] = ()) -> Iterator[str]:
    """Imports of a module inside another backend package than `own`: only the package itself is its public face."""
    for node in ast.walk(ast.parse(source)):
        modules = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            modules = [node.module]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        for module in modules:
            parts = module.split(".")
            inside = len(parts) > 2 and parts[0] == "backend" and parts[1] in packages
            if inside and parts[1] != own and module not in shared:
                yield f"{node.lineno}: reaches into {module}; import from backend.{parts[1]}"


def shell_or_code_execution(source: str) -> Iterator[str]:
    """Shell strings and evaluated text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = _dotted(node.func)
            if name in SHELL_CALLS or name in CODE_CALLS:
                yield f"{node.lineno}: calls {name}"
            if any(k.arg == "shell" and not _is_constant(k.value, False) for k in node.keywords):
                yield f"{node.lineno}: passes shell="
        elif isinstance(node, ast.List | ast.Tuple):
            words = [e.value if isinstance(e, ast.Constant) else None for e in node.elts]
            if len(words) > 1 and words[0] in SHELLS and isinstance(words[1], str) and words[1].startswith("-"):
                yield f"{node.lineno}: an argument list that starts a shell"


def broad_handlers(source: str) -> Iterator[tuple[int, str]]:
    """Line and enclosing function of every handler that catches everything and does not raise it again."""
    yield from _broad_handlers(ast.parse(source), "<module>")


def _broad_handlers(node: ast.AST, inside: str) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        inside = node.name
    if isinstance(node, ast.ExceptHandler):
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        raises_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
        if not raises_again and any(kind is None or _dotted(kind) in BROAD for kind in caught):
            yield node.lineno, inside
    for child in ast.iter_child_nodes(node):
        yield from _broad_handlers(child, inside)


def too_long(source: str, *, file_lines: int, function_lines: int) -> Iterator[str]:
    """Files and functions that are longer than a reader holds in mind."""
    count = len(source.splitlines())
    if count > file_lines:
        yield f"1: {count} lines, at most {file_lines}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > function_lines:
                yield f"{node.lineno}: {node.name} has {length} lines, at most {function_lines}"


def front_end_code(source: str) -> Iterator[str]:
    """JavaScript, CSS or raw HTML in a Python string."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FRONT_END.search(node.value):
            yield f"{node.lineno}: front-end code in a string"
        elif isinstance(node, ast.keyword) and node.arg == "unsafe_allow_html":
            yield f"{node.value.lineno}: unsafe_allow_html"


def _dotted(node: ast.expr | None) -> str:
    """`a.b.c` for such an expression, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def _is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
