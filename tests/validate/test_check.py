"""Configurations in real releases: what each refuses, changes and leaves alone."""

import shlex

import pytest

from backend.schema.engine import EngineKind
from backend.schema.validate import CheckRequest
from backend.validate import check
from tests.checkpoint import families, synthetic
from tests.fakes.releases import RELEASES, installed

MTP = "--speculative-algorithm NEXTN"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return synthetic.write_qwen(tmp_path_factory.mktemp("qwen") / "model", synthetic.SMALL)


@pytest.fixture(scope="module")
def glm(tmp_path_factory):
    """Without linear attention."""
    return families.glm(tmp_path_factory.mktemp("glm") / "model")


def examine(name, model, flags, *, gpu=None, **env):
    request = CheckRequest(model=str(model), flags=shlex.split(flags), env=env, gpu=gpu)
    return check(EngineKind.SGLANG, str(installed(name)), request)


def severities(found):
    return {finding.rule: finding.severity for finding in found.findings}


@pytest.mark.parametrize("name", RELEASES)
def test_speculation_alone_is_given_48_running_requests(glm, name):
    found = examine(name, glm, MTP)
    assert severities(found)["running_requests_48"] == "override"
    assert found.effective["--max-running-requests"] == "48"
    evidence = next(f.evidence for f in found.findings if f.rule == "running_requests_48")
    lines = (installed(name) / evidence.file).read_text().splitlines()
    assert "Max running requests is reset to 48" in lines[evidence.line - 1]
    assert any("EAGLE" in line or "eagle_family" in line for line in lines[evidence.line - 16 : evidence.line])
    set_by_hand = examine(name, glm, f"{MTP} --max-running-requests 16")
    assert "running_requests_48" not in severities(set_by_hand)
    assert set_by_hand.effective["--max-running-requests"] == "16"
    assert "running_requests_48" not in severities(examine(name, glm, "--tp-size 2"))


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize(
    ("shape", "rule", "tokens"),
    [
        ((3, 1, 8), "draft_tokens_steps_plus_one", "4"),
        ((None, 1, 4), "steps_missing", "4"),
        ((1, 4, 16), "tree_too_small", "16"),  # a pool of 4
        ((2, 2, 7), None, "7"),  # a pool of 2 + 4 = 6, and the root
        ((3, 1, 4), None, "4"),
    ],
)
def test_steps_topk_and_tokens_go_together(glm, name, shape, rule, tokens):
    names = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")
    words = " ".join(f"{flag} {value}" for flag, value in zip(names, shape, strict=True) if value is not None)
    found = examine(name, glm, f"{MTP} --max-running-requests 8 {words}")
    about_shape = set(severities(found)) & {"draft_tokens_steps_plus_one", "steps_missing", "tree_too_small"}
    assert about_shape == ({rule} if rule else set())
    assert found.effective["--speculative-num-draft-tokens"] == tokens
    assert (found.verdict == "reject") == (rule in ("steps_missing", "tree_too_small"))


@pytest.mark.parametrize(
    ("name", "rule", "verdict"),
    [("0.5.9", "radix_dropped", "warn"), ("0.5.12.post1", "radix_refused", "reject"), ("0.5.20", None, "ok")],
)
def test_a_hybrid_model_with_mtp_and_the_prefix_cache(qwen, glm, name, rule, verdict):
    flags = f"{MTP} --max-running-requests 8"
    v2 = {"SGLANG_ENABLE_SPEC_V2": "1"} if name == "0.5.9" else {}
    found = examine(name, qwen, flags, **v2)
    assert {r for r in severities(found) if r.startswith("radix")} == ({rule} if rule else set())
    assert found.verdict == verdict
    assert not {r for r in severities(examine(name, glm, flags)) if r.startswith("radix")}
    if rule == "radix_refused":
        fix = next(f.fix for f in found.findings if f.rule == rule)
        assert fix == {"--mamba-scheduler-strategy": "extra_buffer"}
        mended = examine(name, qwen, f"{flags} --mamba-scheduler-strategy extra_buffer")
        assert mended.verdict == "ok"


def test_a_switch_that_is_gone_is_told_where_it_is_gone(glm):
    flags = f"{MTP} --max-running-requests 8"
    assert severities(examine("0.5.9", glm, flags)) == {"overlap_off": "override"}
    assert severities(examine("0.5.9", glm, flags, SGLANG_ENABLE_SPEC_V2="True")) == {}
    assert severities(examine("0.5.20", glm, flags, SGLANG_ENABLE_SPEC_V2="True")) == {"spec_v2_removed": "warning"}


@pytest.mark.parametrize("name", RELEASES)
def test_a_faked_acceptance_is_refused(glm, name):
    found = examine(name, glm, "--tp-size 1", SGLANG_SIMULATE_ACC_LEN="3.5")
    assert (found.verdict, severities(found)) == ("reject", {"faked_acceptance": "error"})
    assert examine(name, glm, "--tp-size 1", SGLANG_SIMULATE_ACC_LEN="-1").verdict == "ok"


def test_words_that_a_release_does_not_know(glm):
    found = examine("0.5.20", glm, "--mamba-scheduler-strategy extra_buffer --tp-size two")
    assert severities(found) == {"unknown_flag": "error", "wrong_value": "error"}
    messages = " ".join(finding.message for finding in found.findings)
    assert "--mamba-scheduler-strategy is not a flag of this engine (0.5.20)" in messages
    assert "whole number" in messages
    assert severities(examine("0.5.20", glm, "--fp4-gemm-backend cutlass")) == {"wrong_value": "error"}
    assert severities(examine("0.5.12.post1", glm, "--fp4-gemm-backend cutlass")) == {}
    assert severities(examine("0.5.20", glm, "--disable-cuda-graph")) == {"deprecated_flag": "warning"}


@pytest.mark.parametrize("name", RELEASES)
def test_abbreviations_are_read_as_argparse_reads_them(glm, name):
    # `--tp` begins one spelling alone; the last of 0.5.20's several `--cuda-graph-max-bs…` came with the split in two.
    found = examine(name, glm, "--tp 8 --mem-frac 0.8")
    assert (found.verdict, severities(found)) == ("ok", {})
    assert found.effective["--mem-fraction-static"] == "0.8"
    assert "8" in (found.effective.get("--tp-size"), found.effective.get("--tensor-parallel-size"))
    ambiguous = severities(examine(name, glm, "--cuda-graph-max-bs 16")).get("ambiguous_flag")
    assert ambiguous == ("error" if name == "0.5.20" else None)


def test_the_drafts_moe_backend_is_refused_where_the_launch_asserts_on_it(glm):
    flags = f"{MTP} --max-running-requests 8 --speculative-moe-runner-backend flashinfer_trtllm"
    v2 = {"SGLANG_ENABLE_SPEC_V2": "1"}
    assert severities(examine("0.5.9", glm, flags, **v2)) == {"draft_moe_backend": "error"}
    assert severities(examine("0.5.12.post1", glm, flags)) == {}


@pytest.mark.parametrize(
    ("gpu", "rules"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", {"fp4_trtllm_on_sm120": "error"}),
        ("NVIDIA B200", {}),
        ("Voodoo 3", {"gpu_not_known": "info"}),
        (None, {}),
    ],
)
def test_rules_about_a_gpu_need_its_name(qwen, gpu, rules):
    found = examine("0.5.12.post1", qwen, "--fp4-gemm-backend flashinfer_trtllm", gpu=gpu)
    assert severities(found) == rules


def test_a_rule_without_its_words_in_the_source_is_unknown(glm, tmp_path):
    source = installed("0.5.9") / "sglang"
    for file in ("srt/server_args.py", "srt/environ.py", "srt/configs/model_config.py"):
        text = (source / file).read_text().replace("Max running requests is reset", "Something else is said")
        path = tmp_path / "sglang" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    request = CheckRequest(model=str(glm), flags=MTP.split())
    found = check(EngineKind.SGLANG, str(tmp_path), request)
    assert severities(found)["running_requests_48"] == "unknown"
    assert "--max-running-requests" not in found.effective


def test_the_reference_engine_is_checked_by_its_own_declarations():
    good = check(EngineKind.REFERENCE, None, CheckRequest(flags=["--moe-runner-backend", "grouped"]))
    assert (good.verdict, good.effective) == ("ok", {"--moe-runner-backend": "grouped"})
    bad = check(EngineKind.REFERENCE, None, CheckRequest(flags=["--moe-runner-backend", "marlin"]))
    assert (bad.verdict, severities(bad)) == ("reject", {"wrong_value": "error"})
