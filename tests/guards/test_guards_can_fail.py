"""Every guard, shown something that it must refuse and something beside it that is fine."""

from pathlib import Path

import guard_code
import guard_tree
import pytest
from pydantic import BaseModel, Field
from test_guards_documents import missing_keys


def releases(source: str) -> list[str]:
    return list(guard_code.release_literals(source, "0.1.0"))


def shell(source: str) -> list[str]:
    return list(guard_code.shell_or_code_execution(source))


def broad(source: str) -> list[tuple[int, str]]:
    return list(guard_code.broad_handlers(source))


def long(source: str) -> list[str]:
    return list(guard_code.too_long(source, file_lines=5, function_lines=3))


def torch(source: str) -> list[str]:
    return list(guard_code.imports_of(source, ["torch"]))


def internals(source: str) -> list[str]:
    return list(guard_code.foreign_internals(source, "load", ["load", "store"]))


def front_end(source: str) -> list[str]:
    return list(guard_code.front_end_code(source))


# Built from pieces, so that this file keeps the rules it tests.
WORK, ROOT_HOME, NOTE = "/" + "work/main", "/" + "root/x", "TO" + "DO"

BAD_AND_FINE = [
    (releases, "if version == '0.5.12.post1': pass", "VERSION = '0.1.0'"),
    (releases, "text = 'since v0.4.6'", "host = '127.0.0.1'; any_host = '0.0.0.0'"),
    (releases, "new = parsed >= (0, 5, 9)", "same = shape == (0, 1)"),
    (releases, "new = parsed >= Version('0.5')", "limit = 0.5"),
    (torch, "import torch.nn", "import torchless"),
    (torch, "def f():\n    from torch import Tensor", "from nottorch import torch"),
    (torch, "import importlib\nimportlib.import_module('torch')", "name = 'torch'"),
    (internals, "from backend.store.writer import Writer", "from backend.store import Store"),
    (internals, "import backend.store.writer", "from backend.load.sse import events"),
    (shell, "run(words, shell=True)", "run(words, shell=False)"),
    (shell, "import os\nos.system('ls')", "import os\nos.kill(1, 2)"),
    (shell, "eval('1')", "model.eval()"),
    (shell, "run(['bash', '-c', text])", "run(['python', '-c', text])"),
    (broad, "try:\n    f()\nexcept Exception:\n    g()", "try:\n    f()\nexcept ValueError:\n    g()"),
    (
        broad,
        "try:\n    f()\nexcept (OSError, BaseException):\n    g()",
        "try:\n    f()\nexcept (OSError, KeyError):\n    g()",
    ),
    (broad, "try:\n    f()\nexcept Exception:\n    raise E", "try:\n    f()\nexcept Exception:\n    g()\n    raise"),
    (broad, "try:\n    f()\nexcept:\n    g()", "with suppress(OSError):\n    f()"),
    (long, "a = 1\n" * 6, "a = 1\n" * 5),
    (long, "def f():\n    a = 1\n    a = 2\n    return a", "def f():\n    a = 1\n    return a"),
    (front_end, "text = '<script>x()</script>'", "text = 'a < b'"),
    (front_end, "st.markdown(text, unsafe_allow_html=True)", "st.markdown(text)"),
    (guard_tree.machine_paths, f"path = '{WORK}'", "path = 'home/work/main'"),
    (guard_tree.machine_paths, f"see {ROOT_HOME}", "see $HOME/root/x and https://example.org/work/x"),
    (guard_tree.unfinished_work, f"# {NOTE}: later", "# nothing to do"),
    (guard_tree.loose_requirements, "httpx>=0.28", "httpx==0.28.1  # client"),
    (guard_tree.loose_requirements, "httpx", "-r requirements.txt\n\n# a comment"),
    (guard_tree.loose_requirements, "httpx==0.28.*", "nvidia-ml-py==13.615.71"),
    (guard_tree.skips, "@pytest.mark.skipif(True)", "@pytest.mark.engine"),
    (guard_tree.skips, "pytest.importorskip('x')", "the parser skips comments"),
    (guard_tree.careless_thresholds, "# reason\nGRACE = 3.0", "# reason\nGRACE_S = 3.0"),
    (guard_tree.careless_thresholds, "# reason\n\nGRACE_S = 3.0", "# reason\nGRACE_S = 3.0\nSTOP_S = 4.0"),
    (guard_tree.careless_thresholds, "GRACE_S = 3.0", "GRACE_S: float = 3.0  # reason"),
]


@pytest.mark.parametrize(
    ("guard", "bad", "fine"), BAD_AND_FINE, ids=[f"{g.__name__}-{i}" for i, (g, *_) in enumerate(BAD_AND_FINE)]
)
def test_the_guard_refuses_the_bad_sample_and_lets_the_fine_one_pass(guard, bad: str, fine: str) -> None:  # type: ignore[no-untyped-def]
    assert len(list(guard(bad))) >= 1
    assert list(guard(fine)) == []


def test_unused_and_repeated_thresholds_are_seen() -> None:
    text = "# a\nA_S = 1\nB_MS: int = 2\nc = 3\n"
    assert guard_tree.threshold_names(text) == ["A_S", "B_MS"]
    assert guard_tree.unused_thresholds(text, "wait(A_S, NOT_B_MS)") == ["B_MS"]
    assert guard_tree.repeated(["A_S", "B_MS", "A_S"]) == ["A_S"]


def test_a_file_that_is_too_big_is_named(tmp_path: Path) -> None:
    big, small = tmp_path / "big", tmp_path / "small"
    big.write_bytes(b"123")
    small.write_bytes(b"12")
    assert guard_tree.too_big([big, small], 2) == ["big: 3 bytes"]


def test_a_document_that_lost_a_key_is_seen() -> None:
    class Shorter(BaseModel):
        failure_class: str = Field(alias="class")
        cause: str

    assert missing_keys(Shorter, "class cause line") == {"line"}
