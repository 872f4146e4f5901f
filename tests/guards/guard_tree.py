"""Checks of everything that is not Python source: thresholds, requirements, text files. And which files there are."""

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The directories that a container or a shared machine has and a reader's machine does not.
MACHINE_PATH = re.compile(r"(?<![\w./~\-{}$])/(?:work|root|tmp|home/\w+)(?:/|\b)")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
SKIP = re.compile(r"pytest\.(?:skip|importorskip)\b|mark\.(?:skip|skipif|xfail)\b")
PIN = re.compile(r"^[A-Za-z0-9._\-\[\]]+==[0-9][A-Za-z0-9.+!]*$")
THRESHOLD = re.compile(r"^([A-Z][A-Z0-9_]*)(?::\s*[^=]+)?\s*=\s")
UNITS = (
    "S MS US NS HZ BYTES KIB MIB GIB PCT RATIO SHARE COUNT LINES CHARS TOKENS REQUESTS LEVELS RUNS ROWS POINTS "
    "SAMPLES LOGITS STEPS ENGINES PROCESSES CHUNKS DIGITS CORES ATTEMPTS NATS USERS LAYERS EVENTS FILES PORT"
).split()


def tree_files() -> list[Path]:
    """Every file of the project, committed or about to be; nothing that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    return sorted(ROOT / name for name in set(listed.split("\0")) if name and (ROOT / name).is_file())


def python_files(*tops: str) -> list[Path]:
    """Python files at or under these top-level names."""
    return [p for p in tree_files() if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in tops]


def text_of(path: Path) -> str | None:
    """The file's text, or None when it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def machine_paths(text: str) -> Iterator[str]:
    yield from _lines_with(MACHINE_PATH, text, "a path of one machine")


def unfinished_work(text: str) -> Iterator[str]:
    yield from _lines_with(UNFINISHED, text, "a note to finish later")


def _lines_with(pattern: re.Pattern[str], text: str, what: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.search(line):
            yield f"{number}: {what}: {line.strip()[:80]}"


def loose_requirements(text: str) -> Iterator[str]:
    """Lines that do not name one exact version. `-r` and `--extra-index-url` lines and comments are fine."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].strip()
        if words and not words.startswith(("-r ", "--extra-index-url ", "--index-url ")) and not PIN.match(words):
            yield f"{number}: not an exact pin: {words}"


def threshold_names(text: str) -> list[str]:
    return [match[1] for line in text.splitlines() if (match := THRESHOLD.match(line))]


def careless_thresholds(text: str) -> Iterator[str]:
    """Thresholds without a unit at the end of their name, or without a comment that says where the value comes from.

    One comment may stand above several lines that belong together; an empty line ends them.
    """
    covered = _comment_lines(text)
    for number, line in enumerate(text.splitlines(), 1):
        match = THRESHOLD.match(line)
        if match is None:
            continue
        if match[1].rsplit("_", 1)[-1] not in UNITS:
            yield f"{number}: {match[1]} does not end in a unit ({', '.join(UNITS)})"
        if number - 1 in covered:
            covered.add(number)
        if number not in covered:
            yield f"{number}: {match[1]} has no comment with its reason, above it or beside it"


def _comment_lines(text: str) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0] for token in tokens if token.type == tokenize.COMMENT}


def unused_thresholds(text: str, code: str) -> list[str]:
    """Names in `text` that `code` never mentions."""
    return [name for name in threshold_names(text) if not re.search(rf"\b{name}\b", code)]


def repeated(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def too_big(files: list[Path], limit_bytes: int) -> list[str]:
    return [f"{p.name}: {p.stat().st_size} bytes" for p in files if p.stat().st_size > limit_bytes]


def skips(text: str) -> Iterator[str]:
    """Tests that are left out."""
    yield from _lines_with(SKIP, text, "a test is left out")
