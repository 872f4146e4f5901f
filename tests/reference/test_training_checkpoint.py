"""Checkpoint directories: tensor names and shapes, configuration files, the shipped one."""

import fnmatch
import json
import re
from pathlib import Path

import jinja2
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from backend.errors import InputError
from backend.reference.config import TextConfig
from backend.reference.export import export_bf16, read_weights
from backend.reference.training.calibrate import input_peaks
from backend.reference.training.checkpoint import as_stored, save_weights, tensor_shapes
from backend.reference.training.model import TextModel
from backend.reference.training.random_checkpoint import TINY, random_weights, write_random_checkpoint
from backend.reference.training.tokenizer import SPECIAL_TOKENS, render_chat

SHIPPED = Path(__file__).parents[2] / "assets" / "tiny-qwen3.5-moe"
LAYER = {
    "input_layernorm.weight": [48],
    "post_attention_layernorm.weight": [48],
    "mlp.gate.weight": [6, 48],
    "mlp.experts.gate_up_proj": [6, 64, 48],  # E, 2 * 32, H
    "mlp.experts.down_proj": [6, 48, 32],
    "mlp.shared_expert.gate_proj.weight": [40, 48],
    "mlp.shared_expert.up_proj.weight": [40, 48],
    "mlp.shared_expert.down_proj.weight": [48, 40],
    "mlp.shared_expert_gate.weight": [1, 48],
}
ATTENTION = {
    "self_attn.q_proj.weight": [128, 48],  # 4 heads of 16, query and gate
    "self_attn.k_proj.weight": [32, 48],
    "self_attn.v_proj.weight": [32, 48],
    "self_attn.o_proj.weight": [48, 64],
    "self_attn.q_norm.weight": [16],
    "self_attn.k_norm.weight": [16],
}
DELTA_NET = {
    "linear_attn.in_proj_qkv.weight": [128, 48],  # 2 * (2 * 12) + 4 * 20
    "linear_attn.in_proj_z.weight": [80, 48],
    "linear_attn.in_proj_a.weight": [4, 48],
    "linear_attn.in_proj_b.weight": [4, 48],
    "linear_attn.conv1d.weight": [128, 1, 4],
    "linear_attn.A_log": [4],
    "linear_attn.dt_bias": [4],
    "linear_attn.norm.weight": [20],
    "linear_attn.out_proj.weight": [48, 80],
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    write_random_checkpoint(path)
    return path


def test_the_written_tensors_are_those_of_the_published_layout(directory):
    expected = {
        "model.language_model.embed_tokens.weight": [384, 48],
        "model.language_model.norm.weight": [48],
        "lm_head.weight": [384, 48],
        "mtp.fc.weight": [48, 96],
        "mtp.pre_fc_norm_embedding.weight": [48],
        "mtp.pre_fc_norm_hidden.weight": [48],
        "mtp.norm.weight": [48],
    }
    layers = {0: DELTA_NET, 1: ATTENTION, 2: DELTA_NET, 3: ATTENTION}  # every second layer is full attention
    for index, mixer in layers.items():
        prefix = f"model.language_model.layers.{index}."
        expected |= {prefix + name: shape for name, shape in (LAYER | mixer).items()}
    expected |= {"mtp.layers.0." + name: shape for name, shape in (LAYER | ATTENTION).items()}
    with safe_open(directory / "model.safetensors", "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        assert {name: found.get_shape() for name, found in slices.items()} == expected
        assert {found.get_dtype() for found in slices.values()} == {"BF16"}


def test_a_wrong_tensor_is_refused(tmp_path):
    weights = random_weights(TINY)
    del weights["mtp.fc.weight"]
    with pytest.raises(ValueError, match=r"mtp\.fc\.weight"):
        save_weights(tmp_path, TINY, weights)


def test_the_configuration_reads_back_as_it_was_written(directory):
    assert TextConfig.from_dir(directory) == TINY


def test_the_configuration_says_what_an_engine_needs(directory):
    config = json.loads((directory / "config.json").read_text())
    text = config["text_config"]
    assert config["architectures"] == ["Qwen3_5MoeForConditionalGeneration"]
    assert text["full_attention_interval"] == 2
    assert text["layer_types"] == ["linear_attention", "full_attention"] * 2
    # Heads of 16, half of them turned: 4 pairs, to be shared among time, height and width.
    assert text["rope_parameters"]["mrope_section"] == [2, 1, 1]
    assert config["vision_config"]["out_hidden_size"] == text["hidden_size"]
    assert config["vision_config"]["deepstack_visual_indexes"] == []


def test_a_directory_without_a_configuration_is_named_with_the_remedy(tmp_path):
    with pytest.raises(InputError, match=r"config\.json is missing; name a checkpoint directory"):
        TextConfig.from_dir(tmp_path)


def test_another_architecture_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(InputError, match="LlamaForCausalLM"):
        TextConfig.from_dir(tmp_path)


def test_a_missing_dimension_is_named(directory, tmp_path):
    config = json.loads((directory / "config.json").read_text())
    del config["text_config"]["head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="head_dim"):
        TextConfig.from_dir(tmp_path)


def test_the_chat_template_renders_what_training_saw(directory):
    config = json.loads((directory / "tokenizer_config.json").read_text())
    template = jinja2.Environment().from_string(config["chat_template"])  # noqa: S701 (text, not HTML)
    plain = [{"role": "user", "content": " def f():\n"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": " def f():\n"}]}]
    assert template.render(messages=plain, add_generation_prompt=True) == render_chat(" def f():\n")
    assert template.render(messages=parts, add_generation_prompt=True) == render_chat(" def f():\n")


@pytest.fixture(scope="module")
def quantised_directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("nvfp4")
    write_random_checkpoint(path, nvfp4=True)
    return path


def test_only_the_routed_experts_of_main_layers_are_quantised(quantised_directory):
    with safe_open(quantised_directory / "model.safetensors", "pt") as file:
        stored = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        expert = "model.language_model.layers.3.mlp.experts.5."
        assert {name.removeprefix(expert): slice_.get_shape() for name, slice_ in stored.items() if expert in name} == {
            "gate_proj.weight": [32, 24],  # 48 columns, two in a byte
            "gate_proj.weight_scale": [32, 3],  # in blocks of 16
            "gate_proj.weight_scale_2": [],
            "gate_proj.input_scale": [],
            "up_proj.weight": [32, 24],
            "up_proj.weight_scale": [32, 3],
            "up_proj.weight_scale_2": [],
            "up_proj.input_scale": [],
            "down_proj.weight": [48, 16],
            "down_proj.weight_scale": [48, 2],
            "down_proj.weight_scale_2": [],
            "down_proj.input_scale": [],
        }
        kinds = {name: slice_.get_dtype() for name, slice_ in stored.items()}
    assert kinds[expert + "up_proj.weight"] == "U8"
    assert kinds[expert + "up_proj.weight_scale"] == "F8_E4M3"
    assert kinds[expert + "up_proj.weight_scale_2"] == kinds[expert + "up_proj.input_scale"] == "F32"
    assert len([name for name in kinds if ".experts." in name and name.startswith("model.")]) == 4 * 6 * 3 * 4
    assert kinds["mtp.layers.0.mlp.experts.down_proj"] == "BF16"
    rest = {name: kind for name, kind in kinds.items() if not re.search(r"^model\..*\.experts\.", name)}
    assert set(rest.values()) == {"BF16"}


def test_gate_and_up_share_what_a_fused_product_needs_to_share(quantised_directory):
    stored = load_file(quantised_directory / "model.safetensors")
    prefix = "model.language_model.layers.0.mlp.experts.2."
    for scale in ("weight_scale_2", "input_scale"):
        assert stored[f"{prefix}gate_proj.{scale}"] == stored[f"{prefix}up_proj.{scale}"]
    # write_random_checkpoint states a largest input of 5: 5 / (6 * 448).
    assert stored[f"{prefix}down_proj.input_scale"].item() == pytest.approx(5 / 2688)


def is_excluded(module, patterns):
    return any(fnmatch.fnmatchcase(module, pattern) for pattern in patterns)


def test_the_exclude_list_matches_every_unquantised_linear_and_no_routed_expert(quantised_directory):
    config = json.loads((quantised_directory / "config.json").read_text())["quantization_config"]
    document = json.loads((quantised_directory / "hf_quant_config.json").read_text())["quantization"]
    patterns = document["exclude_modules"]
    assert config["ignore"] == patterns
    assert (config["quant_method"], config["quant_algo"]) == ("modelopt", "NVFP4")
    assert document["quant_algo"] == "NVFP4"
    assert document["group_size"] == 16
    for name, tensor in load_file(quantised_directory / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if tensor.dtype == torch.uint8:
            assert not is_excluded(module, patterns), name
        elif tensor.ndim >= 2 and tensor.dtype == torch.bfloat16:
            assert is_excluded(module, patterns), name


def test_the_bf16_copy_is_the_same_model_without_a_word_of_quantisation(quantised_directory, tmp_path):
    copy = tmp_path / "copy"
    export_bf16(quantised_directory, copy)
    assert {file.name for file in copy.iterdir() if file.stat().st_mode & 0o444 != 0o444} == set()  # all may read it
    ours, theirs = read_weights(quantised_directory), read_weights(copy)
    assert {name: tuple(tensor.shape) for name, tensor in theirs.items()} == tensor_shapes(TINY)
    assert {tensor.dtype for tensor in theirs.values()} == {torch.bfloat16}
    assert all(torch.equal(ours[name].float(), theirs[name].float()) for name in theirs)
    assert "quantization_config" not in json.loads((copy / "config.json").read_text())
    left = {file.name for file in quantised_directory.iterdir()} - {file.name for file in copy.iterdir()}
    assert left == {"hf_quant_config.json"}


def test_quantising_moves_the_experts_a_little_and_nothing_else(quantised_directory):
    before, after = random_weights(TINY), read_weights(quantised_directory)
    name = "model.language_model.layers.1.mlp.experts.down_proj"
    error = (after[name] - before[name]).norm() / before[name].norm()
    assert 0.05 < error < 0.13  # FP4 on normal weights: about a tenth
    assert torch.equal(after["mtp.fc.weight"], before["mtp.fc.weight"].bfloat16())


def test_stored_numbers_are_stored_again_unchanged(quantised_directory):
    stored = {name: tensor.float() for name, tensor in read_weights(quantised_directory).items()}
    again = as_stored(stored)
    assert all(torch.equal(again[name], stored[name]) for name in stored)


def test_a_copy_over_something_else_is_refused(quantised_directory, tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="not empty"):
        export_bf16(quantised_directory, tmp_path)


def test_a_checkpoint_that_lacks_a_scale_is_named(quantised_directory, tmp_path):
    stored = load_file(quantised_directory / "model.safetensors")
    del stored["model.language_model.layers.0.mlp.experts.0.up_proj.weight_scale_2"]
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"experts\.0\.up_proj\.weight_scale_2"):
        read_weights(tmp_path)


def test_calibration_takes_each_experts_largest_input():
    model = TextModel(TINY)
    model.load_state_dict(random_weights(TINY))
    tokens = torch.randint(7, 384, (2, 40), generator=torch.Generator().manual_seed(0))
    peaks = input_peaks(model, tokens)
    assert sorted(peaks) == [f"model.language_model.layers.{n}.mlp.experts" for n in range(4)]
    # The first layer's input can be followed by hand: what enters its mixture, expert by expert.
    seen = {}
    layer = model.model.language_model.layers[0]
    handle = layer.mlp.experts.register_forward_pre_hook(lambda _, inputs: seen.update(x=inputs[0], weights=inputs[1]))
    with torch.no_grad():
        model.hidden(tokens)
    handle.remove()
    found = peaks["model.language_model.layers.0.mlp.experts"]
    for expert in range(6):
        rows = seen["x"][seen["weights"][:, expert] > 0]
        assert found.gate_up[expert] == rows.abs().max()
        gate, up = (rows @ layer.mlp.experts.gate_up_proj[expert].T).detach().chunk(2, -1)
        assert found.down[expert] == pytest.approx((torch.nn.functional.silu(gate) * up).abs().max().item(), rel=1e-4)


def test_the_shipped_directory_is_complete_and_small():
    files = {file.name: file.stat().st_size for file in SHIPPED.iterdir()}
    assert files.keys() >= {
        "config.json",
        "generation_config.json",
        "hf_quant_config.json",
        "merges.txt",
        "model.safetensors",
        "preprocessor_config.json",
        "README.md",
        "tokenizer.json",
        "tokenizer_config.json",
        "video_preprocessor_config.json",
        "vocab.json",
    }
    assert sum(files.values()) <= 12 * 2**20


def test_the_shipped_configuration_tokenizer_and_weights_fit_together():
    config = TextConfig.from_dir(SHIPPED)
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    assert config == TextConfig()
    assert tokenizer.get_vocab_size() == config.vocab_size
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    with safe_open(SHIPPED / "model.safetensors", "pt") as file:
        assert file.get_slice("lm_head.weight").get_shape() == [1024, 192]
        assert file.get_slice("mtp.layers.0.mlp.experts.down_proj").get_shape() == [4, 192, 192]
        assert file.get_slice("model.language_model.layers.11.mlp.experts.3.down_proj.weight").get_shape() == [192, 96]
