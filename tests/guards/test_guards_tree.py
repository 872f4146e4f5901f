"""Rules that the files of the project keep."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

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


def too_big(files: list[Path], limit_bytes: int) -> list[str]:
    return [f"{p.relative_to(ROOT)}: {p.stat().st_size} bytes" for p in files if p.stat().st_size > limit_bytes]


def test_no_file_names_a_path_of_one_machine() -> None:
    assert complaints(guard_tree.machine_paths, MAY_NAME_PATHS) == []


def test_nothing_is_left_to_finish_later() -> None:
    """Prompts are excerpts of other people's code, with their notes."""
    prompts = {p.relative_to(ROOT).as_posix() for p in (ROOT / "assets" / "prompts").glob("*.jsonl")}
    assert complaints(guard_tree.unfinished_work, {"tests/guards/guard_tree.py", *prompts}) == []


def test_test_files_are_small() -> None:
    assert too_big([p for p in tree_files() if (ROOT / "tests") in p.parents], 100 * KIB) == []


def test_the_checkpoint_is_small_enough_to_ship() -> None:
    files = [p for p in tree_files() if (ROOT / "assets" / "tiny-qwen3.5-moe") in p.parents]
    assert 1 * MIB < sum(p.stat().st_size for p in files) <= 12 * MIB


def test_screenshots_are_small() -> None:
    assert too_big([p for p in tree_files() if (ROOT / "assets" / "screenshots") in p.parents], 300 * KIB) == []


@pytest.mark.parametrize("file", sorted(p.name for p in ROOT.glob("requirements*.txt")))
def test_requirements_are_exact(file: str) -> None:
    assert list(guard_tree.loose_requirements((ROOT / file).read_text())) == []


def test_thresholds_carry_their_unit_and_reason() -> None:
    assert list(guard_tree.careless_thresholds(THRESHOLDS.read_text())) == []


def test_every_threshold_is_used_and_named_once() -> None:
    names = guard_tree.threshold_names(THRESHOLDS.read_text())
    assert len(names) == len(set(names)) > 0
    code = "\n".join(p.read_text() for p in python_files("app.py", "backend", "pages") if p != THRESHOLDS)
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []


def test_a_test_is_left_out_only_for_a_reason_that_is_written_down() -> None:
    """Skips hide; the few that may exist are for hardware that a machine does not have."""
    skip = re.compile(r"pytest\.(?:skip|importorskip)\b|mark\.(?:skip|skipif|xfail)\b")
    found = [
        p.relative_to(ROOT)
        for p in python_files("tests")
        if skip.search(p.read_text()) and p.name != "test_guards_tree.py"
    ]
    assert found == []
