"""The import contracts in pyproject.toml keep the parts of the engine apart; each is shown what it forbids."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from guard_tree import ROOT

LINT = Path(sys.executable).with_name("lint-imports")
PARTS = "HTTP > engine > scheduler > decoding > layers"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source that the contracts are about, for breaking."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("backend", "pages"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def broken_contracts(folder: Path) -> list[str]:
    done = subprocess.run([LINT, "--no-cache"], cwd=folder, capture_output=True, text=True, timeout=60)
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert f"{len([x for x in lines if x.endswith('KEPT')])} kept" in done.stdout, done.stdout + done.stderr
    broken = [line.removesuffix("BROKEN").strip() for line in lines if line.endswith("BROKEN")]
    assert (done.returncode != 0) == bool(broken)
    return broken


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("http", "from backend.reference.scheduler import Scheduler", "HTTP knows the engine and nothing behind it"),
        ("server", "from backend.reference.model import TargetModel", "HTTP knows the engine and nothing behind it"),
        ("serve", "from backend.reference import loglines", "HTTP knows the engine and nothing behind it"),
        ("openai_routes", "import torch", "HTTP knows the engine and nothing behind it"),
        ("scheduler", "from backend.reference.model import TargetModel", "the scheduler knows decoding"),
        ("scheduler", "from backend.reference import loglines", PARTS),
        ("worker", "from backend.reference.scheduler import Scheduler", PARTS),
        ("engine", "from backend.reference.server import build_app", PARTS),
        ("loglines", "import torch", "log lines and documents know no part that computes"),
        ("loglines", "from backend.reference import memory", "log lines and documents know no part that computes"),
        ("api", "from backend.reference.cache import KvPool", "log lines and documents know no part that computes"),
    ],
)
def test_a_part_that_reaches_past_its_neighbour_breaks_a_contract(
    copy: Path, module: str, statement: str, contract: str
) -> None:
    file = copy / "backend" / "reference" / f"{module}.py"
    source = file.read_text(encoding="utf-8")
    file.write_text(f"{source}\n\ndef reach() -> None:\n    {statement}\n", encoding="utf-8")
    try:
        assert any(contract in name for name in broken_contracts(copy))
    finally:
        file.write_text(source, encoding="utf-8")


def test_the_tree_as_it_is_breaks_none(copy: Path) -> None:
    assert broken_contracts(copy) == []
