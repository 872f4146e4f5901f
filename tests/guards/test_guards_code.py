"""Rules that the source keeps, read from the source itself."""

import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import guard_code
import guard_tree
import pytest
from guard_tree import ROOT, python_files

CODE = ("app.py", "backend", "pages")
FILE_LINES, FUNCTION_LINES = 400, 60
OWN_VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
LEAVES = "supervisor load metrics telemetry store reference engine_scan checkpoint validate stats".split()
# The reference engine's flag declarations are data that the scan reads, as it reads an SGLang source tree.
SHARED_INTERNALS = ("backend.reference.flags", "backend.metrics.registry")


def complaints(files: list[Path], check: Callable[[str], Iterator[str]]) -> list[str]:
    return [f"{p.relative_to(ROOT)}:{found}" for p in files for found in check(p.read_text(encoding="utf-8"))]


def test_there_is_code_to_check() -> None:
    assert len(python_files(*CODE)) > 20


def test_no_release_of_another_program_is_spelt_in_the_backend() -> None:
    assert complaints(python_files("backend"), lambda s: guard_code.release_literals(s, OWN_VERSION)) == []


def test_only_the_reference_engine_imports_torch() -> None:
    files = [p for p in python_files(*CODE) if (ROOT / "backend" / "reference") not in p.parents]
    assert complaints(files, lambda s: guard_code.imports_of(s, ["torch", "safetensors"])) == []


@pytest.mark.parametrize(
    "module", ["backend.agent.server", "backend.cli", "backend.reference.flags", "backend.load.worker"]
)
def test_importing_it_loads_neither_torch_nor_a_user_interface(module: str) -> None:
    heavy = ["torch", "streamlit", "plotly", "pandas", "sglang"]
    program = (
        f"import importlib, sys; importlib.import_module({module!r}); print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_backend_imports_no_user_interface() -> None:
    assert (
        complaints(python_files("backend"), lambda s: guard_code.imports_of(s, ["streamlit", "plotly", "pages"])) == []
    )


def test_nothing_imports_the_engine_that_is_tuned() -> None:
    assert complaints(python_files(*CODE, "tests"), lambda s: guard_code.imports_of(s, ["sglang"])) == []


def test_packages_use_each_other_only_through_their_public_face() -> None:
    found = []
    for path in python_files("backend"):
        own = path.relative_to(ROOT).parts[1]
        source = path.read_text(encoding="utf-8")
        reached = guard_code.foreign_internals(source, own, LEAVES, SHARED_INTERNALS)
        found += [f"{path.relative_to(ROOT)}:{line}" for line in reached]
    assert found == []


def test_no_shell_and_no_evaluated_text() -> None:
    assert complaints(python_files(*CODE), guard_code.shell_or_code_execution) == []


def test_a_handler_that_catches_everything_has_a_written_reason() -> None:
    allowed = {}
    for line in (Path(__file__).parent / "broad_except.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            path, function, reason = line.split(maxsplit=2)
            allowed[path, function] = reason
    present = {
        (p.relative_to(ROOT).as_posix(), function)
        for p in python_files(*CODE)
        for _, function in guard_code.broad_handlers(p.read_text(encoding="utf-8"))
    }
    assert present - allowed.keys() == set(), "not in broad_except.txt"
    assert allowed.keys() - present == set(), "stale in broad_except.txt"


def test_files_and_functions_stay_short() -> None:
    def check(source: str) -> Iterator[str]:
        return guard_code.too_long(source, file_lines=FILE_LINES, function_lines=FUNCTION_LINES)

    assert complaints(python_files(*CODE), check) == []


def test_front_end_code_stands_in_assets_only() -> None:
    assert complaints(python_files(*CODE), guard_code.front_end_code) == []
    strays = [p for p in guard_tree.tree_files() if p.suffix in {".js", ".mjs", ".css", ".html"}]
    assert [p for p in strays if p.suffix != ".js" or p.parent != ROOT / "assets"] == []


def test_what_an_agent_imports_is_in_its_requirements() -> None:
    """A GPU host installs requirements-agent.txt alone; the reference engine is not for it."""
    own_name = {"nvidia-ml-py": "pynvml", "Jinja2": "jinja2"}
    pins = (ROOT / "requirements-agent.txt").read_text().splitlines()
    packages = [pin.split("==")[0] for pin in pins if "==" in pin]
    known = {own_name.get(name, name) for name in packages} | {"backend"} | set(sys.stdlib_module_names)
    files = [p for p in python_files("backend") if (ROOT / "backend" / "reference") not in p.parents]
    found = {
        f"{p.relative_to(ROOT)}:{line}: {module}"
        for p in files
        for line, module in guard_code.imported_modules(p.read_text(encoding="utf-8"))
        if module.split(".")[0] not in known
    }
    assert found == set()
