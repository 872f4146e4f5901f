"""Traces of checkpoints in real releases, and in releases that somebody edited: one edit flips one step."""

import shutil

import pytest

from backend.errors import InputError
from backend.paths import TINY_CHECKPOINT
from backend.schema.engine import EngineKind
from backend.schema.validate import TraceRequest
from backend.tracetext import trace_markdown
from backend.validate import trace
from backend.validate.question import PROPOSITIONS
from tests.checkpoint import families, synthetic
from tests.fakes.releases import RELEASES, installed

QWEN = "Qwen3_5MoeForConditionalGeneration"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return synthetic.write_qwen(tmp_path_factory.mktemp("qwen") / "model", synthetic.SMALL)


def follow(engine, model, *flags, **env):
    return trace(EngineKind.SGLANG, str(engine), TraceRequest(model=str(model), flags=list(flags), env=env))


def status(found):
    return {step.id: step.status for step in found.steps}


@pytest.mark.parametrize("name", RELEASES)
def test_a_whole_checkpoint_is_supported_with_evidence_for_each_step(qwen, name):
    found = follow(installed(name), qwen)
    assert (found.verdict, found.version) == ("supported", name)
    assert list(status(found)) == list(PROPOSITIONS)
    assert set(status(found).values()) == {"confirmed"}
    assert found.assumed == ["--speculative-algorithm NEXTN, as none is given"]
    for step in found.steps[2:]:
        line = (installed(name) / step.file).read_text().splitlines()[step.line - 1]
        assert line in step.excerpt.splitlines(), step.id
    assert {item.id for item in found.verify_after_launch} == {
        "weights_load",
        "speculation_active",
        "alias_lossless",
        "acceptance_worth_it",
    }


# Lines read by hand in the three releases.
LINES = {
    "0.5.9": {"algorithm_alias": 2352, "draft_path": 251, "draft_flag": 324, "architecture_redirect": 328},
    "0.5.12.post1": {"algorithm_alias": 344, "draft_path": 391, "draft_flag": 341, "architecture_redirect": 475},
    "0.5.20": {"algorithm_alias": 70, "draft_path": 744, "draft_flag": 476, "architecture_redirect": 919},
}


@pytest.mark.parametrize("name", RELEASES)
def test_evidence_stands_at_the_lines_that_a_reader_finds(qwen, name):
    found = {step.id: step.line for step in follow(installed(name), qwen).steps}
    assert {step: found[step] for step in LINES[name]} == LINES[name]


@pytest.mark.parametrize(
    ("write", "draft"),
    [
        (families.deepseek, "DeepseekV3ForCausalLMNextN"),
        (families.glm, "Glm4MoeForCausalLMNextN"),
        (families.mimo, "MiMoMTP"),
    ],
)
def test_other_families_have_their_own_class(tmp_path, write, draft):
    found = follow(installed("0.5.12.post1"), write(tmp_path / "model"))
    assert found.verdict == "supported"
    assert draft in next(step.detail for step in found.steps if step.id == "draft_class")


def test_a_model_without_mtp_is_unsupported(tmp_path):
    found = follow(installed("0.5.12.post1"), families.llama(tmp_path / "model"))
    assert found.verdict == "unsupported"
    refuted = {step for step, state in status(found).items() if state == "refuted"}
    assert refuted == {"checkpoint_declares_mtp", "checkpoint_has_mtp_tensors", "architecture_redirect"}


def test_a_stripped_checkpoint_is_unsupported_although_it_declares_mtp(tmp_path):
    found = follow(installed("0.5.20"), families.deepseek(tmp_path / "model", nextn=False))
    assert (found.verdict, status(found)["checkpoint_declares_mtp"]) == ("unsupported", "confirmed")
    assert status(found)["checkpoint_has_mtp_tensors"] == "refuted"


def test_what_lies_in_a_missing_file_is_not_known(tmp_path):
    folder = synthetic.write_qwen(tmp_path / "model", synthetic.SMALL, shards=4)
    (folder / "model-00004-of-00004.safetensors").unlink()
    found = follow(installed("0.5.20"), folder)
    assert (found.verdict, status(found)["checkpoint_has_mtp_tensors"]) == ("uncertain", "unknown")


# ---- flags


@pytest.mark.parametrize(
    ("name", "flags", "refuted"),
    [
        ("0.5.9", ["--speculative-moe-runner-backend", "flashinfer_trtllm"], "speculative_moe_backend"),
        ("0.5.12.post1", ["--speculative-moe-runner-backend", "flashinfer_trtllm"], None),
        ("0.5.9", ["--speculative-moe-runner-backend", "marlin"], "speculative_moe_backend"),
        ("0.5.12.post1", ["--speculative-moe-runner-backend", "marlin"], None),
        ("0.5.9", ["--speculative-algorithm", "nextn"], "algorithm_alias"),
        ("0.5.20", ["--speculative-algorithm", "EAGLE"], None),
        ("0.5.20", ["--speculative-algorithm", "NGRAM"], "algorithm_alias"),
        ("0.5.20", ["--speculative-algorithm", "MEDUSA"], "algorithm_alias"),
    ],
)
def test_flags_decide_where_a_release_lets_them(qwen, name, flags, refuted):
    found = follow(installed(name), qwen, *flags)
    assert {step for step, state in status(found).items() if state == "refuted"} == ({refuted} if refuted else set())
    assert found.verdict == ("unsupported" if refuted else "supported")


def test_a_list_of_leaves_in_compressed_tensors_is_a_risk_and_unquant_ends_it(tmp_path):
    config = synthetic.qwen_config(
        synthetic.SMALL,
        quantization_config={
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 16}}},
            "ignore": ["re:mtp.*"],
        },
    )
    c = {**synthetic.QWEN_397B, **synthetic.SMALL}
    tensors = synthetic.qwen_main(c) | synthetic.qwen_mtp(c)
    folder = synthetic.write_checkpoint(tmp_path / "model", config, tensors)
    assert status(follow(installed("0.5.20"), folder))["draft_quantization"] == "unknown"
    forced = follow(installed("0.5.20"), folder, "--speculative-draft-model-quantization", "unquant")
    assert (forced.verdict, status(forced)["draft_quantization"]) == ("supported", "confirmed")


def test_an_exclude_list_that_misses_a_module_is_fatal_without_a_rule(tmp_path):
    # Qwen3-Next's class has no rule for ModelOpt, so the list decides; here it forgets mtp.fc.
    quantization = {**synthetic.NVFP4, "exclude_modules": ["mtp.layers.0*"]}
    folder = synthetic.write_qwen(tmp_path / "model", synthetic.SMALL, quantization=quantization)
    text = (folder / "config.json").read_text().replace(QWEN, "Qwen3NextForCausalLM")
    (folder / "config.json").write_text(text)
    found = {step.id: step for step in follow(installed("0.5.12.post1"), folder).steps}
    assert found["draft_quantization"].status == "refuted"
    assert "mtp.fc" in found["draft_quantization"].detail


# ---- edited trees

FILES = (
    "srt/server_args.py",
    "srt/environ.py",
    "srt/configs/model_config.py",
    "srt/managers/tp_worker.py",
    "srt/speculative/spec_info.py",
    "srt/models/qwen3_5_mtp.py",
)
EDITS = {
    "algorithm_alias": ("srt/server_args.py", 'self.speculative_algorithm == "NEXTN"', "False", "unknown"),
    "draft_path": ("srt/configs/model_config.py", "model_path or server_args.model_path", "model_path", "unknown"),
    "draft_flag": ("srt/managers/tp_worker.py", "is_draft_model=self.is_draft_worker", "other=1", "unknown"),
    "worker_class": ("srt/speculative/spec_info.py", "def create_worker", "def make_worker", "unknown"),
    "architecture_redirect": ("srt/configs/model_config.py", f'"{QWEN}"', '"OtherForCausalLM"', "refuted"),
    "draft_class": ("srt/models/qwen3_5_mtp.py", "EntryClass", "Others", "refuted"),
    "draft_quantization": ("srt/models/qwen3_5_mtp.py", '"modelopt_fp4"', '"another"', "confirmed"),
    "speculative_moe_backend": ("srt/server_args.py", '"--speculative-moe-runner-backend"', '"--gone"', "unknown"),
}


@pytest.mark.parametrize("step", EDITS)
def test_an_edit_of_the_source_flips_its_step(qwen, tmp_path, step):
    engine = tmp_path / "engine"
    for file in FILES:
        (engine / "sglang" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(installed("0.5.9") / "sglang" / file, engine / "sglang" / file)
    assert set(status(follow(engine, qwen)).values()) == {"confirmed"}
    file, old, new, expected = EDITS[step]
    path = engine / "sglang" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    found = {s.id: s for s in follow(engine, qwen).steps}
    assert found[step].status == expected
    if step == "draft_quantization":  # without the rule it hangs on the exclude list, which covers the layer
        assert "exclude list covers" in found[step].detail


def test_an_engine_that_is_none_is_an_error(qwen, tmp_path):
    with pytest.raises(InputError, match="holds no SGLang"):
        follow(tmp_path, qwen)


# ---- the reference engine, and Markdown


def test_the_tiny_checkpoint_is_supported_by_the_reference_engine():
    found = trace(EngineKind.REFERENCE, None, TraceRequest())
    assert (found.verdict, found.model) == ("supported", str(TINY_CHECKPOINT))
    assert all(step.file and step.line for step in found.steps if step.id not in list(PROPOSITIONS)[:2])
    refused = trace(EngineKind.REFERENCE, None, TraceRequest(flags=["--speculative-moe-runner-backend", "marlin"]))
    assert refused.verdict == "unsupported"


def test_markdown_has_the_verdict_and_a_row_for_each_step(qwen):
    text = trace_markdown(follow(installed("0.5.9"), qwen))
    assert text.startswith("# MTP trace: supported\n")
    assert "`sglang/srt/server_args.py:2352`" in text
    assert text.count("\n| ") == 1 + len(PROPOSITIONS)
