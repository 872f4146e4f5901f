"""Writes the reference pages of this folder from the code that they describe.

python -m docs.generate            writes documents.md, cli.md, glossary.md and the module list of architecture.md
python -m docs.generate --check    writes nothing; exit 1 names the pages that are out of date
"""

import argparse
import ast
import enum
import importlib
import inspect
import itertools
import json
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import backend.schema
from backend.cli import build_parser
from backend.metrics import METRICS

HERE = Path(__file__).resolve().parent
GENERATED = "<!-- Written by `python -m docs.generate`; edit the code instead. -->"
MODULES_BEGIN = "<!-- modules: written by `python -m docs.generate` from the docstrings -->"
MODULES_END = "<!-- end of modules -->"


# ---- documents.md


def documents_page() -> str:
    """Every typed document: its fields, their types as JSON has them, and their defaults."""
    lines = [
        "# Documents",
        GENERATED,
        "",
        "What the command line prints with `--json`, what the agent's HTTP API speaks and what the store keeps. "
        "A field without a default is always there; `null` means that the value is absent, never zero.",
    ]
    for info in pkgutil.iter_modules(backend.schema.__path__):
        if info.name == "base":
            continue
        module = importlib.import_module(f"backend.schema.{info.name}")
        lines += ["", f"## {info.name}", "", _paragraph(module.__doc__)]
        for thing in _own_classes(module):
            lines += ["", *(_model(thing) if issubclass(thing, BaseModel) else _enum(thing))]
    return "\n".join(lines) + "\n"


def _own_classes(module: types.ModuleType) -> Iterator[type[BaseModel] | type[enum.Enum]]:
    for thing in vars(module).values():
        own = isinstance(thing, type) and thing.__module__ == module.__name__
        if own and issubclass(thing, BaseModel | enum.Enum):
            yield thing


def _model(model: type[BaseModel]) -> list[str]:
    about = _paragraph(model.__doc__)
    if model.model_config.get("extra") == "forbid":
        about += "\n\nA key that is not listed is refused."
    rows = [
        f"| `{field.alias or name}` | {_type(field.annotation)} | {_default(field)} |"
        for name, field in model.model_fields.items()
    ]
    return [
        f"### {model.__name__}",
        "",
        about,
        "",
        "| key | type | default |",
        "|---|---|---|",
        *rows,
    ]


def _enum(kind: type[enum.Enum]) -> list[str]:
    """The values, each with the comment that stands beside it in the source."""
    comments = dict(re.findall(r"^ *(\w+) = .*?  # (.+)$", inspect.getsource(kind), flags=re.MULTILINE))
    rows = [f"| `{member.value}` | {_cell(comments.get(member.name, ''))} |" for member in kind]
    return [f"### {kind.__name__}", "", _paragraph(kind.__doc__), "", "| value | meaning |", "|---|---|", *rows]


def _type(annotation: object) -> str:
    """The type as a reader of JSON would write it, e.g. `[Flag]`, `{str: LedgerItem}`, `int or null`."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in parts)
    if origin is typing.Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin in (list, tuple):
        return f"[{_type(parts[0])}]"
    if origin is dict:
        return f"{{{_type(parts[0])}: {_type(parts[1])}}}"
    if annotation in (None, type(None)):
        return "null"
    if annotation is object:
        return "any"
    name = getattr(annotation, "__name__", str(annotation))
    documented = isinstance(annotation, type) and annotation.__module__.startswith("backend.schema")
    return f"[{name}](#{name.lower()})" if documented else name


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its own defaults"
    return f"`{json.dumps(value)}`"


# ---- cli.md


def cli_page() -> str:
    """Every command with its arguments, from the parser itself."""
    parser = build_parser()
    lines = ["# Command line", GENERATED, "", _paragraph(parser.description), ""]
    lines += ["`python -m backend COMMAND [options] [-- ENGINE FLAGS]`", ""]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                lines += [f"## {name}", "", _paragraph(command.description), ""]
                lines += [*_arguments(command), ""]
    return "\n".join(lines).rstrip() + "\n"


def _arguments(command: argparse.ArgumentParser) -> list[str]:
    rows = []
    for action in command._actions:
        if action.help == argparse.SUPPRESS or action.dest == "help":
            continue
        name = ", ".join(action.option_strings) or (str(action.metavar or action.dest)).upper()
        takes = "" if action.nargs == 0 or not action.option_strings else " " + _metavar(action)
        rows.append(f"| `{name}{takes}` | {_cell(_help(action))} |")
    return ["| argument | meaning |", "|---|---|", *rows]


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None and action.metavar is None:
        return "{" + ",".join(str(choice) for choice in action.choices) + "}"
    return str(action.metavar or action.dest.upper())


def _help(action: argparse.Action) -> str:
    text = action.help or ""
    return text % {**vars(action), "prog": "python -m backend"} if "%(" in text else text


# ---- glossary.md


def glossary_page() -> str:
    """Every metric, from the table that charts, exports and verdicts read."""
    lines = [
        "# Glossary of metrics",
        GENERATED,
        "",
        "| metric | name in documents | unit | better | formula | needs |",
        "|---|---|---|---|---|---|",
    ]
    for metric in METRICS:
        cells = [metric.label, f"`{metric.name}`", metric.unit, metric.better, metric.formula, metric.needs]
        lines.append("| " + " | ".join(_cell(str(cell)) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


# ---- architecture.md


def architecture_page() -> str:
    """The page as it is written by hand, with its list of modules made new from their docstrings."""
    text = (HERE / "architecture.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(MODULES_BEGIN)
    _, _, after = rest.partition(MODULES_END)
    lines = [f"- `{path}`: {_summary(HERE.parent / path)}" for path in _modules()]
    return "\n".join([before + MODULES_BEGIN, *lines, MODULES_END + after])


def _modules() -> list[str]:
    root = HERE.parent
    found = [root / "app.py", *(root / "backend").rglob("*.py"), *(root / "pages").rglob("*.py")]
    documented = [p for p in found if p.name != "__init__.py" or ast.get_docstring(ast.parse(p.read_text("utf-8")))]
    return sorted(p.relative_to(root).as_posix() for p in documented)


def _summary(path: Path) -> str:
    """The first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not docstring:
        raise SystemExit(f"{path} has no docstring; its first line says what the module is for")
    return re.split(r"(?<=\.)\s", " ".join(docstring.split("\n\n")[0].split()))[0].rstrip(".")


# ---- all pages


def _paragraph(text: str | None) -> str:
    """A docstring without its indentation; lines that are aligned in columns become a code block."""
    blocks = []
    for aligned, lines in itertools.groupby(_dedent(text or "").splitlines(), lambda line: "  " in line):
        block = "\n".join(lines)
        blocks.append(f"\n```\n{block}\n```\n" if aligned else block)
    return "\n".join(blocks)


def _dedent(text: str) -> str:
    first, _, rest = text.strip().partition("\n")
    return "\n".join([first, *(line.strip() for line in rest.splitlines())]).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


PAGES: dict[str, Callable[[], str]] = {
    "documents.md": documents_page,
    "cli.md": cli_page,
    "glossary.md": glossary_page,
    "architecture.md": architecture_page,
}


def main(words: list[str]) -> int:
    check = words == ["--check"]
    if words and not check:
        print("usage: python -m docs.generate [--check]", file=sys.stderr)
        return 2
    stale = []
    for name, page in PAGES.items():
        path, text = HERE / name, page()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{'out of date' if check else 'written'}: {', '.join(stale)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
