"""Files that are replaced as a whole, and JSON objects that somebody else wrote."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.errors import InputError
from backend.files import read_json_object, replace_file


class Crash(BaseException):
    """The end of the process: nothing handles it."""


@pytest.fixture
def umask() -> Iterator[None]:
    """Group may read, others may not."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


def test_a_file_is_made_and_then_replaced(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    replace_file(file, b"old, and longer")
    replace_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


def test_a_crash_between_writing_and_renaming_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state.json"
    replace_file(file, b"old")
    written: list[bytes] = []

    def crash(draft: Path, target: Path) -> None:
        written.append(draft.read_bytes())
        raise Crash(str(target))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(Crash):
            replace_file(file, b"new")
    assert written == [b"new"]  # all of it was on disk, and still the old file is what a reader finds
    assert file.read_bytes() == b"old"
    replace_file(file, b"newer")  # what the crash left is in nobody's way
    assert file.read_bytes() == b"newer"


def test_a_full_disk_leaves_the_old_file_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state.json"
    replace_file(file, b"old")

    def full(draft: Path, target: Path) -> None:
        raise OSError(28, f"No space left on device: {draft} to {target}")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("umask")
def test_a_secret_is_its_owners_alone_from_the_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    replace = Path.replace

    def watched(draft: Path, target: Path) -> Path:
        seen.append(mode(draft))
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", watched)
    replace_file(tmp_path / "secret", b"token", 0o600)
    replace_file(tmp_path / "plain", b"figures")
    assert seen == [0o600, 0o640]  # 666 less the umask's 027
    assert (mode(tmp_path / "secret"), mode(tmp_path / "plain")) == (0o600, 0o640)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{\n"a":', "is not valid JSON: line 2"),
        (b"", "is not valid JSON: line 1"),
        (b"[1]", "holds a list, not a JSON object"),
        (b"\xff\xfe", "cannot read"),
        (b"[" * 100_000, "nested too deeply"),
    ],
    ids=["cut off", "empty", "list", "binary", "nested"],
)
def test_what_is_no_json_object_is_named_with_what_to_do(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=words) as refusal:
        read_json_object(file)
    assert str(file) in str(refusal.value)
    assert "copy it anew" in str(refusal.value)


def test_a_missing_file_is_the_callers_to_explain(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json_object(tmp_path / "config.json")
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert read_json_object(tmp_path / "config.json") == {"a": 1}
