"""Checkpoint directories: tensor names and shapes, configuration files, the shipped one."""

import json
from pathlib import Path

import jinja2
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from backend.errors import InputError
from backend.reference.config import TextConfig
from backend.reference.training.checkpoint import save_weights
from backend.reference.training.random_checkpoint import TINY, random_weights, write_random_checkpoint
from backend.reference.training.tokenizer import SPECIAL_TOKENS, render_chat

SHIPPED = Path(__file__).parents[2] / "assets" / "tiny-qwen3.5-moe"
LAYER = {
    "input_layernorm.weight": [48],
    "post_attention_layernorm.weight": [48],
    "mlp.gate.weight": [6, 48],
    "mlp.experts.gate_up_proj": [6, 48, 48],  # E, 2 * 24, H
    "mlp.experts.down_proj": [6, 48, 24],
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


def test_the_shipped_directory_is_complete_and_small():
    files = {file.name: file.stat().st_size for file in SHIPPED.iterdir()}
    assert files.keys() >= {
        "config.json",
        "generation_config.json",
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
        assert file.get_slice("lm_head.weight").get_shape() == [1024, 128]
        assert file.get_slice("mtp.layers.0.mlp.experts.down_proj").get_shape() == [8, 128, 128]
