"""The three ways in which flags are declared, and trees that somebody edited or broke. Nothing is imported or run."""

import sys

import pytest

from backend.engine_scan import locate, open_source, scan_engine, scan_source
from backend.errors import InputError
from backend.paths import StatePaths
from backend.schema.engine import EngineKind

CALLS = """
import argparse, dataclasses
from sglang.srt.lists import OTHER

FP4 = ["auto", "one"]
FP4.append("two")

@dataclasses.dataclass
class ServerArgs:
    model_path: str
    fp4_gemm_runner_backend: str = "auto"
    tp_size: int = 1
    size: int = 10 * 1000
    names: list = dataclasses.field(default_factory=list)
    quick: bool = False

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser):
        kinds = ["auto"] + OTHER
        parser.add_argument("--model-path", "--model", type=str, required=True, help="Where " "it is.")
        parser.add_argument("--fp4-gemm-backend", dest="fp4_gemm_runner_backend", type=str, choices=FP4,
                            default=ServerArgs.fp4_gemm_runner_backend, help=f"One of {FP4}.")
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=ServerArgs.tp_size)
        parser.add_argument("--size", type=int, default=ServerArgs.size)
        parser.add_argument("--quick", action="store_true")
        parser.add_argument("--slow", action=argparse.BooleanOptionalAction, default=None)
        parser.add_argument("--kind", choices=kinds, default="auto")
        parser.add_argument("--parser", choices=["auto"] + load_plugins())
        parser.add_argument("--names", nargs="+", type=str, default=ServerArgs.names)
        parser.add_argument("--old", action=DeprecatedAction, help="Deprecated: use --quick instead.")
        add_more(parser)

    @classmethod
    def from_cli_args(cls, args):
        args.tp_size = args.tensor_parallel_size


def add_more(parser):
    parser.add_argument("--more", type=float, default=-0.5)
"""
FIELDS = """
from __future__ import annotations
import dataclasses
from typing import List, Literal, Optional
from sglang.srt.lists import OTHER
FP4 = ["auto", "one", "two"]

@dataclasses.dataclass
class ServerArgs:
    model_path: A[str, Arg(help="Where " "it is.", aliases=["--model"])]
    fp4_gemm_runner_backend: A[str, Arg(help="FP4.", choices=FP4, cli_name="--fp4-gemm-backend")] = "auto"
    tp_size: A[int, Arg(help="", aliases=["--tensor-parallel-size"])] = 1
    size: A[int, "Size."] = 10 * 1000
    quick: A[bool, "Quick."] = False
    slow: A[Optional[bool], Arg(help="", action=argparse.BooleanOptionalAction)] = None
    kind: A[str, Arg(help="", choices=["auto"] + OTHER)] = "auto"
    parser: A[Optional[str], Arg(help="", choices=["auto"] + load_plugins())] = None
    names: A[Optional[List[str]], "Names."] = None
    mode: A[Literal["a", "b"], "Mode."] = "a"
    hidden: A[int, Arg(help="", no_cli=True)] = 3
    grouped: A[int, NS("exec")] = 3
    more: A[float, "More."] = -0.5
"""
LISTS = 'OTHER = ("x", "y")\n'


def scan(folder):
    return scan_source(open_source(str(folder)))


def grouped():
    """The same fields in a class of the fields folder."""
    head, _, body = FIELDS.partition("@dataclasses.dataclass\nclass ServerArgs:\n")
    return {
        "srt/server_args.py": "from sglang.srt.arg_groups.fields.spec import Spec\nclass ServerArgs:\n    pass\n",
        "srt/arg_groups/fields/spec.py": f"{head}class Spec(msgspec.Struct):\n    _NS_PATH = 'spec'\n{body}",
        "srt/lists.py": LISTS,
    }


STYLES = {
    "add_argument": {"srt/server_args.py": CALLS, "srt/lists.py": LISTS},
    "annotated": {"srt/server_args.py": FIELDS, "srt/lists.py": LISTS},
    "annotated groups": grouped(),
}


@pytest.mark.parametrize(("style", "files"), STYLES.items(), ids=STYLES)
def test_one_table_from_three_styles(tree, style, files):
    found = scan(tree(files))
    assert found.style == style
    fp4 = found.flag("--fp4-gemm-backend")
    assert (fp4.field, fp4.choices, fp4.default) == ("fp4_gemm_runner_backend", ["auto", "one", "two"], "auto")
    tp = found.flag("--tp-size")
    assert (tp.field, tp.type, tp.default) == ("tp_size", "int", 1)
    assert found.flag("--tensor-parallel-size") == tp
    assert found.flag("--model").field == "model_path"
    assert found.flag("--model").help == "Where it is."
    assert (found.flag("--size").default, found.flag("--more").default) == (10_000, -0.5)
    assert (found.flag("--quick").type, found.flag("--quick").default) == ("bool", False)
    slow = found.flag("--slow")
    assert (slow.type, slow.negation, slow.aliases) == ("bool", "--no-slow", [])
    assert found.flag("--no-slow") is None  # it means the opposite
    assert (found.flag("--kind").choices, found.flag("--kind").choices_complete) == (["auto", "x", "y"], True)
    # What plugins add is not known: a lower bound, never an empty list.
    assert (found.flag("--parser").choices, found.flag("--parser").choices_complete) == (["auto"], False)
    assert found.flag("--names").type == "list"
    assert (found.flag("--hidden"), found.flag("--grouped")) == (None, None)
    if style == "add_argument":
        old = found.flag("--old")
        assert (old.deprecated, old.replacement, old.type) == (True, "--quick", "bool")
    else:
        assert (found.flag("--mode").choices, found.flag("--mode").type) == (["a", "b"], "str")


def test_an_edit_shows(tree):
    files = STYLES["add_argument"]
    edited = CALLS.replace('FP4 = ["auto", "one"]', 'FP4 = ["auto", "new"]').replace(
        "tp_size: int = 1", "tp_size: int = 8"
    )
    edited = edited.replace('"--quick", action', '"--swift", action')
    found = scan(tree({**files, "srt/server_args.py": edited, "srt/lists.py": 'OTHER = ["z"]\n'}))
    assert found.flag("--fp4-gemm-backend").choices == ["auto", "new", "two"]
    assert found.flag("--tp-size").default == 8
    assert (found.flag("--quick"), found.flag("--swift").type) == (None, "bool")
    assert found.flag("--kind").choices == ["auto", "z"]


REDIRECT = """
class ModelConfig:
    def _config_draft_model(self):
        is_draft_model = self.is_draft_model
        if is_draft_model and self.hf_config.architectures[0] in ["AForCausalLM", "BForCausalLM"]:
            self.hf_config.architectures[0] = "ABForCausalLMNextN"
        if is_draft_model and self.hf_config.architectures[0] == "CForCausalLM":
            self.hf_config.architectures[0] = "CForCausalLMMTP"
            self.hf_config.num_nextn_predict_layers = 1
"""
DRAFT = """
class CForCausalLMMTP:
    def __init__(self, config, quant_config=None):
        if quant_config and quant_config.get_name() == "modelopt_fp4":
            quant_config = None
EntryClass = [CForCausalLMMTP]
"""


def test_redirects_and_the_rule_of_the_drafting_class(tree):
    files = {**STYLES["annotated"], "srt/configs/model_config.py": REDIRECT, "srt/models/c_mtp.py": DRAFT}
    found = scan(tree(files)).mtp_architectures
    assert {target: mtp.draft for target, mtp in found.items()} == {
        "AForCausalLM": "ABForCausalLMNextN",
        "BForCausalLM": "ABForCausalLMNextN",
        "CForCausalLM": "CForCausalLMMTP",
    }
    c = found["CForCausalLM"]
    assert (c.file, c.line, c.draft_file) == ("sglang/srt/configs/model_config.py", 8, "sglang/srt/models/c_mtp.py")
    assert [(rule.methods, rule.line) for rule in c.quantization] == [(["modelopt_fp4"], 5)]
    assert (found["AForCausalLM"].draft_file, found["AForCausalLM"].quantization) == (None, [])


def test_a_removed_redirect_is_gone(tree):
    files = {**STYLES["annotated"], "srt/configs/model_config.py": REDIRECT.replace("CForCausalLM", "DForCausalLM")}
    assert "CForCausalLM" not in scan(tree(files)).mtp_architectures


# ---- trees that cannot be read


def test_what_is_no_engine(tmp_path):
    for path, words in ((tmp_path / "none", "does not exist"), (tmp_path, "holds no SGLang")):
        with pytest.raises(InputError, match=words):
            locate(str(path))
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be run"):
        locate(str(tmp_path / "file"))


def test_an_interpreter_without_an_engine_says_so():
    with pytest.raises(InputError, match="has no SGLang"):
        locate(sys.executable)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no class ServerArgs"),
        ("class ServerArgs:\n    pass\n", "declares no flags"),
        ("type X = int\nclass ServerArgs[T]:\n    pass\ndef (\n", "newer syntax"),
        ("\0", "cannot be read"),
    ],
)
def test_a_tree_that_declares_nothing_is_an_error(tree, text, words):
    with pytest.raises(InputError, match=words):
        scan(tree({"srt/server_args.py": text}))


def test_bytes_that_are_no_text_are_an_error(tree):
    folder = tree({"srt/server_args.py": ""})
    (folder / "sglang/srt/server_args.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        scan(folder)


def test_one_unreadable_file_is_told_and_the_rest_is_read(tree):
    files = {**STYLES["annotated"], "srt/configs/model_config.py": "def broken(:\n"}
    found = scan(tree(files))
    assert found.flag("--tp-size") is not None
    assert found.mtp_architectures == {}
    assert "model_config.py: line 1" in found.unread[0]


def test_a_list_that_names_itself_does_not_hang(tree):
    text = FIELDS.replace('FP4 = ["auto", "one", "two"]', "FP4 = FP5\nFP5 = FP4")
    fp4 = scan(tree({**STYLES["annotated"], "srt/server_args.py": text})).flag("--fp4-gemm-backend")
    assert (fp4.choices, fp4.choices_complete) == (None, False)


def test_all_the_ways_to_name_one_engine(tree, tmp_path):
    folder = tree(STYLES["annotated"])
    (folder / "sglang/_version.py").write_text("__version__ = version = '9.8.7'\n")
    checkout, environment = tmp_path / "checkout", tmp_path / "venv"
    (checkout / "python").mkdir(parents=True)
    (checkout / "python/sglang").symlink_to(folder / "sglang")
    site = environment / "lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (site / "sglang").symlink_to(folder / "sglang")
    (environment / "bin").mkdir()
    (environment / "bin/python").write_text("")
    for path in (folder, folder / "sglang", checkout, environment, site, environment / "bin/python"):
        assert locate(str(path)).version == "9.8.7", path


def test_a_changed_tree_is_read_anew(tree, tmp_path):
    folder, paths = tree(STYLES["annotated"]), StatePaths(tmp_path / "home")
    assert scan_engine(EngineKind.SGLANG, str(folder), paths).flag("--size").default == 10_000
    (folder / "sglang/srt/server_args.py").write_text(FIELDS.replace("10 * 1000", "7"))
    assert scan_engine(EngineKind.SGLANG, str(folder), paths).flag("--size").default == 7
