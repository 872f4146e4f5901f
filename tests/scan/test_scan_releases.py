"""Scans of real releases against what their own argparse has."""

import json
import time
from pathlib import Path

import pytest

from backend.engine_scan import open_source, scan_engine, scan_source
from backend.paths import StatePaths
from backend.schema.engine import EngineKind
from tests.fakes.releases import NEWEST, RELEASES

# Read from the parser that each release builds, with its imports stubbed.
COUNTS = {
    "0.5.9": 331,
    "0.5.10.post1": 354,
    "0.5.11": 374,
    "0.5.12.post1": 387,
    "0.5.13.post1": 406,
    "0.5.15.post1": 437,
    "0.5.17": 474,
    "0.5.20": 494,
    NEWEST: 531,
}
STYLES = {"0.5.9": "add_argument", "0.5.12.post1": "add_argument", "0.5.20": "annotated groups"}


@pytest.mark.parametrize("name", RELEASES)
def test_every_flag_of_a_release_is_found(scanned, name):
    found = scanned(name)
    assert (found.version, len(found.flags), found.style) == (name, COUNTS[name], STYLES[name])
    assert len({flag.flag for flag in found.flags}) == COUNTS[name]
    assert found.unread == []
    assert all(flag.file and flag.line for flag in found.flags)


# Where the answers, which are the fields', are not what argparse does: a switch is off when it is not given, and these
# actions take no value.
ANSWERS_OFF = {
    ("0.5.20", "--enable-flashinfer-allreduce-fusion"): ("default", False),
    ("0.5.20", "--disable-cuda-graph"): ("default", False),
}
SWITCHES = {
    "--hybrid-kvcache-ratio",
    "--prefill-round-robin-balance",
    "--collect-tokens-histogram",
    "--enable-piecewise-cuda-graph",
    "--experts-shared-outer-loras",
    "--lora-strict-loading",
    "--record-nolora-graph",
    "--stream-output",
    "--disable-cuda-graph",
}


@pytest.mark.parametrize("name", RELEASES)
def test_flags_are_as_their_release_declares_them(scanned, name):
    """Against answers read from each release in another way (field names and argparse dests are both right)."""
    answers = json.loads((Path(__file__).parent / f"flags-{name}.json").read_text())
    found = {flag.flag: flag for flag in scanned(name).flags}
    assert found.keys() == answers.keys()
    wrong = {}
    for spelling, (aliases, default, choices, switch, field) in answers.items():
        flag = found[spelling]
        default = ANSWERS_OFF.get((name, spelling), ("default", default))[1]
        checks = {
            "aliases": sorted(flag.aliases) == sorted(aliases),
            "default": default in ("<unresolved>", "<required>") or flag.default == default,
            "choices": choices == "<unresolved>" or flag.choices == choices,
            "switch": (flag.type == "bool") == (switch or spelling in SWITCHES),
            "field": flag.field == field or spelling.strip("-").replace("-", "_") == field,
        }
        if failed := [key for key, right in checks.items() if not right]:
            wrong[spelling] = failed
    assert wrong == {}


@pytest.mark.parametrize("name", RELEASES)
def test_a_line_is_that_of_the_flag(scanned, release, name):
    for flag in scanned(name).flags[::7]:
        lines = (release(name) / flag.file).read_text().splitlines()
        assert any(flag.flag in line or flag.field in line for line in lines[flag.line - 1 : flag.line + 3]), flag.flag


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("0.5.9", {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"}),
        ("0.5.12.post1", {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "FROZEN_KV_MTP"}),
    ],
)
def test_algorithms_are_those_that_are_accepted(scanned, name, names):
    assert set(scanned(name).algorithms) == names


@pytest.mark.parametrize("name", RELEASES)
def test_qwen_is_redirected_to_its_mtp_class(scanned, release, name):
    found = scanned(name).mtp_architectures
    mtp = found["Qwen3_5MoeForConditionalGeneration"]
    assert (mtp.draft, mtp.draft_file) == ("Qwen3_5ForCausalLMMTP", "sglang/srt/models/qwen3_5_mtp.py")
    assert "Qwen3_5ForCausalLMMTP" in (release(name) / mtp.file).read_text().splitlines()[mtp.line - 1]
    assert found["DeepseekV3ForCausalLM"].draft == "DeepseekV3ForCausalLMNextN"
    assert found["Glm4MoeForCausalLM"].draft == "Glm4MoeForCausalLMNextN"
    assert found["MiMoForCausalLM"].draft == "MiMoMTP"
    assert found["NemotronHForCausalLM"].draft == "NemotronHForCausalLMMTP"
    assert "LlamaForCausalLM" not in found
    methods = {method for rule in mtp.quantization for method in rule.methods}
    assert methods == ({"modelopt_fp4"} if name != "0.5.20" else {"modelopt_fp4", "modelopt_mixed"})


@pytest.mark.parametrize(
    ("name", "variable", "default"),
    [
        ("0.5.9", "SGLANG_ENABLE_SPEC_V2", False),
        ("0.5.12.post1", "SGLANG_ENABLE_SPEC_V2", True),
        ("0.5.9", "SGLANG_SIMULATE_ACC_LEN", -1),
        ("0.5.20", "SGLANG_SIMULATE_ACC_LEN", -1),
    ],
)
def test_switches_have_their_defaults(scanned, name, variable, default):
    found = {switch.name: switch for switch in scanned(name).env}
    assert found[variable].default == default
    assert found[variable].file == "sglang/srt/environ.py"


def test_a_switch_that_only_a_removal_notice_names_is_not_declared(scanned):
    declared = [s for s in scanned("0.5.20").env if s.file == "sglang/srt/environ.py"]
    assert "SGLANG_ENABLE_SPEC_V2" not in {switch.name for switch in declared}


def test_deprecated_flags_name_what_replaces_them(scanned):
    found = scanned("0.5.20").flag("--disable-cuda-graph")
    assert found.deprecated
    assert found.replacement == "--cuda-graph-backend-{decode,prefill}=disabled"


@pytest.mark.timing
def test_a_scan_takes_a_second_and_an_unchanged_tree_none(release, tmp_path):
    folder, paths = str(release("0.5.20")), StatePaths(tmp_path)
    began = time.perf_counter()
    cold = scan_source(open_source(folder))
    assert time.perf_counter() - began <= 2.5
    assert scan_engine(EngineKind.SGLANG, folder, paths) == cold
    began = time.perf_counter()
    assert scan_engine(EngineKind.SGLANG, folder, paths) == cold
    assert time.perf_counter() - began <= 0.05


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["0.5.10.post1", "0.5.11", "0.5.13.post1", "0.5.15.post1", "0.5.17", NEWEST])
def test_newer_releases_are_read_too(scanned, name):
    assert len(scanned(name).flags) == COUNTS[name]
