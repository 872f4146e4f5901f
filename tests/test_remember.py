"""Answers are given again while their state holds, and made anew when it does not or the store is of no use."""

from backend.remember import remembered
from backend.schema.validate import Evidence


def ask(folder, state, made):
    return remembered(folder, "one", state, Evidence, lambda: made.append(1) or Evidence(file=f"{len(made)}"))


def test_an_answer_holds_while_its_state_does(tmp_path):
    made = []
    assert ask(tmp_path / "store", "a", made).file == "1"
    assert ask(tmp_path / "store", "a", made).file == "1"
    assert ask(tmp_path / "store", "b", made).file == "2"
    assert len(made) == 2


def test_a_damaged_store_and_one_that_cannot_be_written_only_cost_time(tmp_path):
    made = []
    ask(tmp_path, "a", made)
    (file,) = tmp_path.iterdir()
    for content in (b"", b"\xff\xfe", file.read_bytes()[:70] + b"{"):
        file.write_bytes(content)
        assert ask(tmp_path, "a", made).file == str(len(made))
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert ask(blocked / "below", "a", made).file == str(len(made))
    assert len(made) == 5
