"""The pages in docs/ say what the code says."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_generated_pages_are_current() -> None:
    """When this fails: `python -m docs.generate`."""
    done = subprocess.run(
        [sys.executable, "-m", "docs.generate", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_file_tree_in_the_architecture_page_is_the_tree() -> None:
    """Every package, and every module of the backend and the pages, has its line; no line is left over."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^`?((?:backend|pages)/[\w/.]+\.py)\b", page, flags=re.MULTILINE))
    present = {
        path.relative_to(ROOT).as_posix()
        for top in ("backend", "pages")
        for path in (ROOT / top).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert present - named == set(), "without a line"
    assert named - present == set(), "gone"


def test_links_between_the_pages_lead_somewhere() -> None:
    broken = []
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []
