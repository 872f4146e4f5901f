"""A source tree as parsed text: modules, classes, functions and constants, with their lines. Nothing is run."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from backend.errors import InputError

_EXCERPT_BEFORE, _EXCERPT_AFTER = 2, 6


@dataclass
class Module:
    """One file. `file` is relative to the folder that holds the package, as evidence names it."""

    file: str
    source: str
    tree: ast.Module

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)}

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """Every function and method by name; of several with one name the first."""
        found: dict[str, ast.FunctionDef] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, node)
        return found

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Names assigned at the top, also inside `if` and `try`."""
        found: dict[str, ast.expr] = {}
        for node in _top(self.tree.body):
            if isinstance(node, ast.Assign):
                found.update({t.id: node.value for t in node.targets if isinstance(t, ast.Name)})
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                found[node.target.id] = node.value
        return found

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Name here to (module, name there), wherever the import stands."""
        found: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = node.module if not node.level else self._above(node.level) + node.module
                found.update({alias.asname or alias.name: (module, alias.name) for alias in node.names})
        return found

    def _above(self, level: int) -> str:
        parts = self.file.removesuffix(".py").split("/")[:-level]
        return ".".join(parts) + "."

    def excerpt(self, line: int) -> str:
        """The lines around `line`, as they stand."""
        lines = self.source.splitlines()
        return "\n".join(lines[max(0, line - 1 - _EXCERPT_BEFORE) : line + _EXCERPT_AFTER])


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _top([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from _top([*node.body, *(s for handler in node.handlers for s in handler.body), *node.orelse])


@dataclass
class SourceTree:
    """The package `sglang`; files are read and parsed when asked for, once. `unread` says which could not be."""

    package: Path
    version: str | None = None
    unread: dict[str, str] = field(default_factory=dict)
    _modules: dict[str, Module | None] = field(default_factory=dict, repr=False)
    _files: dict[str, list[str]] = field(default_factory=dict, repr=False)
    _raw: dict[str, bytes] = field(default_factory=dict, repr=False)

    def module(self, file: str) -> Module | None:
        """`file` relative to the package: `srt/server_args.py`. None when it is not there or cannot be parsed."""
        if file not in self._modules:
            self._modules[file] = self._parse(file)
        return self._modules[file]

    def required(self, file: str) -> Module:
        """As `module`. Raises InputError when there is none."""
        found = self.module(file)
        if found is None:
            why = self.unread.get(file, "it is not there")
            raise InputError(f"{self.package / file} cannot be read: {why}; is this a whole SGLang?")
        return found

    def _parse(self, file: str) -> Module | None:
        try:
            source = (self.package / file).read_bytes().decode()
            tree = ast.parse(source)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except SyntaxError as error:
            self.unread[file] = f"line {error.lineno}: {error.msg} (newer syntax than this Python knows, or damaged)"
            return None
        except (OSError, ValueError, RecursionError) as error:
            self.unread[file] = str(error)
            return None
        return Module(f"{self.package.name}/{file}", source, tree)

    def by_import(self, module: str) -> Module | None:
        """The file of `sglang.srt.x`; None for other packages."""
        head, _, rest = module.partition(".")
        if head != self.package.name or not rest:
            return None
        file = rest.replace(".", "/")
        return self.module(f"{file}.py") or self.module(f"{file}/__init__.py")

    def files(self, folder: str) -> list[str]:
        """All Python files below `folder`, relative to the package, sorted."""
        if folder not in self._files:
            base = self.package / folder
            self._files[folder] = sorted(str(path.relative_to(self.package)) for path in base.rglob("*.py"))
        return self._files[folder]

    def raw(self, file: str) -> bytes:
        """A file's bytes; empty when it cannot be read."""
        if file not in self._raw:
            try:
                self._raw[file] = (self.package / file).read_bytes()
            except OSError:
                self._raw[file] = b""
        return self._raw[file]

    def containing(self, folder: str, *words: bytes) -> list[str]:
        """Files below `folder` in whose text all `words` occur."""
        return [file for file in self.files(folder) if all(word in self.raw(file) for word in words)]
