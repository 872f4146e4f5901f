"""Checkpoints that are broken: each is refused with a message that names the file, the value and what to do."""

import dataclasses
import json
import shutil

import pytest
import torch
from engine_harness import EngineProcess
from safetensors.torch import load_file, save_file

from backend.errors import InputError, SlipstreamError, UsageError
from backend.reference import server_args
from backend.reference.engine import Engine
from backend.reference.export import export_bf16
from backend.reference.training.random_checkpoint import TINY, write_random_checkpoint
from backend.supervisor import diagnose_log

MTP = ("--speculative-algorithm", "NEXTN")
EXPERT = "model.language_model.layers.0.mlp.experts.0.gate_proj"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "checkpoint"
    write_random_checkpoint(path, nvfp4=True)
    return path


@pytest.fixture
def broken(whole, tmp_path):
    """A copy that a test may break."""
    return shutil.copytree(whole, tmp_path / "checkpoint")


def start(directory, *flags):
    """All of a start but the HTTP side."""
    args, _ = server_args.parse(["--model-path", str(directory), "--context-length", "128", *flags])
    return Engine(args)


def written(name, content):
    """A way to break a directory: file `name` holds `content`; None removes it."""

    def act(directory):
        file = directory / name
        file.unlink(missing_ok=True) if content is None else file.write_bytes(content)

    return act


def changed(name, section, **values):
    """A way to break a directory: these values in one section of a JSON file; the section itself for `None`."""

    def act(directory):
        document = json.loads((directory / name).read_text())
        (document if section is None else document[section]).update(values)
        (directory / name).write_text(json.dumps(document))

    return act


def weights(change):
    """A way to break a directory: `change` gets its tensors by name."""

    def act(directory):
        tensors = load_file(directory / WEIGHTS)
        change(tensors)
        save_file(tensors, directory / WEIGHTS)

    return act


def with_tensor(name, tensor):
    return weights(lambda tensors: tensors.update({name: tensor}))


def without(prefix):
    return weights(lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith(prefix)])


def retyped(name, dtype):
    return weights(lambda tensors: tensors.update({name: tensors[name].to(dtype)}))


def both(*ways):
    return lambda directory: [way(directory) for way in ways]


def truncated(directory):
    content = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(content[: len(content) // 2])


TEXT = ("config.json", "text_config")
FOREIGN = json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64}).encode()
NO_QUANT = both(written("hf_quant_config.json", None), changed("config.json", None, quantization_config=None))

BROKEN = {
    "weights cut off": (truncated, [WEIGHTS, "incomplete metadata", "copy it anew"]),
    "weights empty": (written(WEIGHTS, b""), [WEIGHTS, "header too small"]),
    "weights missing": (written(WEIGHTS, None), ["Cannot find any model weights in", "no *.safetensors file"]),
    "tokenizer missing": (written("tokenizer.json", None), ["tokenizer.json", "No such file", "name a directory"]),
    "tokenizer cut off": (written("tokenizer.json", b"{"), ["tokenizer.json", "EOF while parsing"]),
    "tokenizer of another model": (
        changed(*TEXT, vocab_size=100),
        ["tokenizer.json has 384 tokens", "knows 100", "--tokenizer-path"],
    ),
    "tokenizer_config damaged": (written("tokenizer_config.json", b"{"), ["tokenizer_config.json is not valid JSON"]),
    "template does not compile": (written("chat_template.jinja", b"{% if"), ["chat template of", "correct it"]),
    "template is no text": (written("chat_template.jinja", b"\xff\xff"), ["chat_template.jinja", "can't decode"]),
    "config missing": (written("config.json", None), ["is not a local folder", "no config.json", "--model-path"]),
    "config cut off": (written("config.json", b'{"a":'), ["config.json is not valid JSON: line 1"]),
    "config empty": (written("config.json", b""), ["config.json is not valid JSON"]),
    "config is a list": (written("config.json", b"[1]"), ["config.json holds a list"]),
    "config is binary": (written("config.json", b"\xff\xfe"), ["cannot read", "config.json"]),
    "config without end": (written("config.json", b"[" * 100_000), ["config.json", "nested too deeply"]),
    "foreign architecture": (written("config.json", FOREIGN), ["config.json", "LlamaForCausalLM", "qwen3_5_moe_text"]),
    "dimension null": (changed(*TEXT, num_experts=None), ["config.json", "num_experts, which is None"]),
    "dimension in words": (changed(*TEXT, hidden_size="big"), ["hidden_size, which is 'big' and no positive integer"]),
    "dimension zero": (changed(*TEXT, full_attention_interval=0), ["full_attention_interval, which is 0"]),
    "more experts than there are": (changed(*TEXT, num_experts_per_tok=9), ["num_experts_per_tok=9 of num_experts=6"]),
    "heads that do not divide": (changed(*TEXT, num_attention_heads=3), ["num_attention_heads=3", "key_value_heads=2"]),
    "context of a slip": (changed(*TEXT, max_position_embeddings=10**12), ["max_position_embeddings=1000000000000"]),
    "rope missing": (changed(*TEXT, rope_parameters=None), ["rope_parameters, which is None and no object"]),
    "end token in words": (written("generation_config.json", b'{"eos_token_id": "x"}'), ["'x'"]),
    "end token unknown": (written("generation_config.json", b'{"eos_token_id": [2, 384]}'), ["[2, 384]", "=384"]),
    "index names a missing file": (
        written(INDEX, b'{"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}'),
        ["model-00002.safetensors", INDEX, "copy that file too"],
    ),
    "index damaged": (written(INDEX, b"{"), [INDEX, "not valid JSON"]),
    "index without map": (written(INDEX, b'{"weight_map": {"a": 1}}'), [INDEX, "no weight_map", "remove it"]),
    "tensor missing": (without("lm_head.weight"), ["Weight lm_head.weight is missing in", "anew"]),
    "tensor of another shape": (
        with_tensor("lm_head.weight", torch.zeros(10, 20)),
        ["lm_head.weight is [10, 20], config.json says [384, 48]"],
    ),
    "tensor of another type": (retyped("lm_head.weight", torch.int32), ["lm_head.weight", "is int32", "bfloat16"]),
    "packed weights of another type": (retyped(f"{EXPERT}.weight", torch.int8), [EXPERT, "is int8", "uint8"]),
    "block scales of another type": (
        retyped(f"{EXPERT}.weight_scale", torch.float32),
        [f"{EXPERT}.weight_scale", "is float32", "float8_e4m3fn"],
    ),
    "block scales missing": (without(f"{EXPERT}.weight_scale"), [f"Weight {EXPERT}.weight_scale is missing"]),
    "quantised as FP8": (
        changed("hf_quant_config.json", "quantization", quant_algo="FP8"),
        ["hf_quant_config.json", "'FP8'", "'NVFP4'", "choose"],
    ),
    "blocks of another size": (
        changed("hf_quant_config.json", "quantization", group_size=32),
        ["hf_quant_config.json", "group_size 32"],
    ),
    "config says FP8": (changed("config.json", "quantization_config", quant_algo="FP8"), ["config.json", "'FP8'"]),
    "quantisation file damaged": (written("hf_quant_config.json", b"[]"), ["hf_quant_config.json holds a list"]),
    "quantised and nothing says so": (NO_QUANT, ["stored in NVFP4", "copy hf_quant_config.json"]),
}


@pytest.mark.parametrize(("way", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_checkpoint_is_refused_by_name(broken, way, words):
    way(broken)
    with pytest.raises(InputError) as refusal:
        start(broken)
    assert [word for word in words if word not in str(refusal.value)] == []
    classes = {"checkpoint_damaged", "model_not_found", "missing_weights", "shape_mismatch"}
    assert failure_class_of(refusal.value) in classes


def failure_class_of(error):
    """What is made of the line in which the engine reports it."""
    return diagnose_log(f"[2026-01-01 10:00:00] {type(error).__name__}: {error}").failure.failure_class


def test_a_tokenizer_of_another_model_that_was_named_is_a_setting_and_no_damage(whole, tmp_path):
    other = tmp_path / "other"
    write_random_checkpoint(other, config=dataclasses.replace(TINY, vocab_size=TINY.vocab_size + 16))
    with pytest.raises(UsageError, match="--tokenizer-path") as refusal:
        start(whole, "--tokenizer-path", str(other))
    assert failure_class_of(refusal.value) == "config_rejected"


def test_the_whole_checkpoint_starts(whole):
    assert start(whole, *MTP).ledger["mtp_weights"] > 0


def test_a_plain_checkpoint_that_claims_to_be_quantised_is_refused(tmp_path):
    write_random_checkpoint(tmp_path / "plain")
    quant = {"quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (tmp_path / "plain" / "hf_quant_config.json").write_text(json.dumps(quant))
    with pytest.raises(InputError, match=r"hf_quant_config\.json says that the weights are quantised"):
        start(tmp_path / "plain")


def test_the_config_alone_may_declare_the_quantisation(broken):
    (broken / "hf_quant_config.json").unlink()
    start(broken)


def test_without_mtp_tensors_it_serves_and_speculation_is_refused(broken):
    without("mtp.")(broken)
    assert "mtp_weights" not in start(broken).ledger
    with pytest.raises(InputError, match=r"mtp\.fc\.weight is missing .* leave out --speculative-algorithm"):
        start(broken, *MTP)
    with pytest.raises(InputError, match=r"Cannot find any model weights in .*nowhere"):
        start(broken, *MTP, "--speculative-draft-model-path", str(broken / "nowhere"))


@pytest.mark.parametrize("threads", ["many", "0", "-1", "1.5"])
def test_a_number_of_threads_that_is_none_is_refused(whole, monkeypatch, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    with pytest.raises(UsageError, match=f"OMP_NUM_THREADS is '{threads}'"):
        start(whole)


def test_a_context_that_the_checkpoint_is_not_made_for_is_refused(whole):
    # TINY is made for 4,096 tokens.
    with pytest.raises(UsageError, match=r"--context-length 4097 is longer than .* the 4096 tokens") as refusal:
        start(whole, "--context-length", "4097")
    assert failure_class_of(refusal.value) == "config_rejected"


@pytest.mark.parametrize("flag", ["--max-total-tokens", "--context-length"])
def test_too_little_room_for_the_warm_up_is_refused_with_the_least_value(whole, flag):
    # The warm-up's prompt has 4 tokens and its answer 8.
    with pytest.raises(UsageError, match=rf"{flag} 11.* the warm-up needs 12") as refusal:
        start(whole, flag, "11")
    assert failure_class_of(refusal.value) == "config_rejected"
    assert start(whole, flag, "12").plan.kv_tokens >= 12
    assert start(whole, flag, "5", "--skip-server-warmup").plan


def test_memory_that_does_not_suffice_is_told_with_both_sizes(whole):
    with pytest.raises(SlipstreamError, match=r"Please try to increase --mem-fraction-static.* GiB now"):
        start(whole, "--max-running-requests", "100000000")


@pytest.mark.engine
@pytest.mark.parametrize(
    ("way", "words"),
    [
        (truncated, "InputError: "),
        (
            with_tensor("lm_head.weight", torch.full((384, 48), float("nan"))),
            "EngineError: Initialization failed. warm",
        ),
    ],
    ids=["weights cut off", "weights that are no numbers"],
)
def test_the_process_ends_with_status_1_and_one_line(broken, tmp_path, free_port, way, words):
    way(broken)
    engine = EngineProcess(tmp_path / "log", broken, free_port(), "--context-length", "128", wait=False)
    assert engine.process.wait(30) == 1
    engine.end()
    assert words in engine.text().splitlines()[-1]
    assert "Traceback" not in engine.text()
    assert "ready to roll" not in engine.text()


def test_the_bf16_copy_of_a_broken_checkpoint_is_refused_before_anything_is_written(broken, tmp_path):
    (broken / "config.json").write_text('{"a":')
    with pytest.raises(InputError, match=r"config\.json is not valid JSON"):
        export_bf16(broken, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
