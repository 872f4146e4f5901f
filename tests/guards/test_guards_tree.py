"""Rules that the files of the project keep."""

from collections.abc import Callable, Iterator

import guard_tree
import pytest
from guard_tree import ROOT, python_files, text_of, tree_files

KIB, MIB = 1024, 1024 * 1024
# Commands that a reader types may name a directory of theirs.
MAY_NAME_PATHS = {"README.md"}
THRESHOLDS = ROOT / "backend" / "thresholds.py"


def complaints(check: Callable[[str], Iterator[str]], skip: set[str]) -> list[str]:
    found = []
    for path in tree_files():
        name = path.relative_to(ROOT).as_posix()
        text = text_of(path)
        if text is not None and name not in skip:
            found += [f"{name}:{line}" for line in check(text)]
    return found


def test_no_file_names_a_path_of_one_machine() -> None:
    assert complaints(guard_tree.machine_paths, MAY_NAME_PATHS) == []


def test_nothing_is_left_to_finish_later() -> None:
    """Prompts are excerpts of other people's code, with their notes."""
    prompts = {p.relative_to(ROOT).as_posix() for p in (ROOT / "assets" / "prompts").glob("*.jsonl")}
    assert complaints(guard_tree.unfinished_work, {"tests/guards/guard_tree.py", *prompts}) == []


def test_test_files_are_small() -> None:
    assert guard_tree.too_big([p for p in tree_files() if (ROOT / "tests") in p.parents], 100 * KIB) == []


def test_the_checkpoint_is_small_enough_to_ship() -> None:
    files = [p for p in tree_files() if (ROOT / "assets" / "tiny-qwen3.5-moe") in p.parents]
    assert 1 * MIB < sum(p.stat().st_size for p in files) <= 12 * MIB


def test_screenshots_are_small() -> None:
    assert (
        guard_tree.too_big([p for p in tree_files() if (ROOT / "assets" / "screenshots") in p.parents], 300 * KIB) == []
    )


@pytest.mark.parametrize("file", sorted(p.name for p in ROOT.glob("requirements*.txt")))
def test_requirements_are_exact(file: str) -> None:
    assert list(guard_tree.loose_requirements((ROOT / file).read_text())) == []


def test_thresholds_carry_their_unit_and_reason() -> None:
    assert list(guard_tree.careless_thresholds(THRESHOLDS.read_text())) == []


def test_every_threshold_is_used_and_named_once() -> None:
    text = THRESHOLDS.read_text()
    code = "\n".join(p.read_text() for p in python_files("app.py", "backend", "pages") if p != THRESHOLDS)
    assert guard_tree.threshold_names(text) != []
    assert guard_tree.repeated(guard_tree.threshold_names(text)) == []
    assert guard_tree.unused_thresholds(text, code) == []


def test_no_test_is_left_out() -> None:
    """A skip hides what it skips; what a machine lacks, `tests/run.sh` gets or says."""
    guards = ROOT / "tests" / "guards"
    files = [p for p in python_files("tests") if guards not in p.parents]
    assert [f"{p.relative_to(ROOT)}:{line}" for p in files for line in guard_tree.skips(p.read_text())] == []
