"""A checkpoint directory in the Hugging Face layout of Qwen3.5-MoE, as SGLang and transformers read it."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from backend.errors import InputError
from backend.reference.config import TextConfig
from backend.reference.training import tokenizer as tok

WEIGHTS_FILE = "model.safetensors"
Weights = dict[str, torch.Tensor]
Shape = tuple[int, ...]


def tensor_shapes(config: TextConfig) -> dict[str, Shape]:
    """Every tensor of the text model and its MTP layer, by name."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, Shape] = {
        "model.language_model.embed_tokens.weight": (vocab, hidden),
        "model.language_model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(config.num_hidden_layers):
        full = config.is_full_attention(layer)
        shapes |= _prefixed(f"model.language_model.layers.{layer}.", _layer_shapes(config, full))
    if config.mtp_num_hidden_layers:
        shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
        for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            shapes[f"mtp.{norm}.weight"] = (hidden,)
        shapes |= _prefixed("mtp.layers.0.", _layer_shapes(config, full=True))
    return shapes


def _prefixed(prefix: str, shapes: dict[str, Shape]) -> dict[str, Shape]:
    return {prefix + name: shape for name, shape in shapes.items()}


def _layer_shapes(config: TextConfig, full: bool) -> dict[str, Shape]:
    hidden, experts = config.hidden_size, config.num_experts
    inner, shared = config.moe_intermediate_size, config.shared_expert_intermediate_size
    mixer = (
        _prefixed("self_attn.", _attention_shapes(config))
        if full
        else _prefixed("linear_attn.", _delta_net_shapes(config))
    )
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        **mixer,
        "mlp.gate.weight": (experts, hidden),
        "mlp.experts.gate_up_proj": (experts, 2 * inner, hidden),
        "mlp.experts.down_proj": (experts, hidden, inner),
        "mlp.shared_expert.gate_proj.weight": (shared, hidden),
        "mlp.shared_expert.up_proj.weight": (shared, hidden),
        "mlp.shared_expert.down_proj.weight": (hidden, shared),
        "mlp.shared_expert_gate.weight": (1, hidden),
    }


def _attention_shapes(config: TextConfig) -> dict[str, Shape]:
    hidden, head = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    return {
        "q_proj.weight": (2 * queries, hidden),
        "k_proj.weight": (keys, hidden),
        "v_proj.weight": (keys, hidden),
        "o_proj.weight": (hidden, queries),
        "q_norm.weight": (head,),
        "k_norm.weight": (head,),
    }


def _delta_net_shapes(config: TextConfig) -> dict[str, Shape]:
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    return {
        "in_proj_qkv.weight": (config.conv_dim, hidden),
        "in_proj_z.weight": (config.value_dim, hidden),
        "in_proj_a.weight": (heads, hidden),
        "in_proj_b.weight": (heads, hidden),
        "conv1d.weight": (config.conv_dim, 1, config.linear_conv_kernel_dim),
        "A_log": (heads,),
        "dt_bias": (heads,),
        "norm.weight": (config.linear_value_head_dim,),
        "out_proj.weight": (hidden, config.value_dim),
    }


def save_weights(directory: Path, config: TextConfig, weights: Weights) -> None:
    """Write `model.safetensors` in BF16. Raises ValueError unless names and shapes are exactly the table's."""
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    expected = tensor_shapes(config)
    if found != expected:
        wrong = sorted(set(found.items()) ^ set(expected.items()))
        raise ValueError(f"tensors do not fit the configuration, first differences: {wrong[:4]}")
    directory.mkdir(parents=True, exist_ok=True)
    rounded = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(rounded, directory / WEIGHTS_FILE, metadata={"format": "pt"})


def load_weights(directory: Path) -> Weights:
    """Tensors of a checkpoint directory as stored. Raises InputError when the file is missing."""
    file = directory / WEIGHTS_FILE
    if not file.exists():
        raise InputError(f"{file} is missing; train a checkpoint first.")
    return load_file(file)


def write_checkpoint(directory: Path, config: TextConfig, weights: Weights, tokenizer: Tokenizer) -> None:
    """Write a complete directory: weights, tokenizer, and the configuration files an engine asks for."""
    save_weights(directory, config, weights)
    tok.write_tokenizer(directory, tokenizer, config.max_position_embeddings)
    write_configs(directory, config)


def write_configs(directory: Path, config: TextConfig) -> None:
    """Write config.json, generation_config.json and the two preprocessor files."""
    image = _image_processor()
    video = {
        **image,
        "video_processor_type": "Qwen3VLVideoProcessor",
        "size": {"shortest_edge": 4096, "longest_edge": 25_165_824},
    }
    del video["image_processor_type"]
    files: dict[str, dict[str, Any]] = {
        "config.json": _config_json(config),
        "generation_config.json": {
            "eos_token_id": list(config.eos_token_ids),
            "pad_token_id": tok.END_OF_TEXT,
            "do_sample": False,
        },
        "preprocessor_config.json": image,
        "video_preprocessor_config.json": video,
    }
    for name, document in files.items():
        (directory / name).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _config_json(config: TextConfig) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "dtype": "bfloat16",
        "tie_word_embeddings": config.tie_word_embeddings,
        "image_token_id": tok.IMAGE_PAD,
        "video_token_id": tok.VIDEO_PAD,
        "vision_start_token_id": tok.VISION_START,
        "vision_end_token_id": tok.VISION_END,
        "text_config": _text_config(config),
        "vision_config": _vision_config(config),
    }


def _text_config(config: TextConfig) -> dict[str, Any]:
    names = [field.name for field in fields(config) if field.name not in ("rope_theta", "eos_token_ids")]
    kinds = ("linear_attention", "full_attention")
    return {
        "model_type": "qwen3_5_moe_text",
        **{name: getattr(config, name) for name in names},
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.partial_rotary_factor,
            "mrope_section": _mrope_section(config.rotary_dim // 2),
            "mrope_interleaved": True,
        },
        "layer_types": [kinds[config.is_full_attention(layer)] for layer in range(config.num_hidden_layers)],
        "intermediate_size": config.moe_intermediate_size,
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mtp_use_dedicated_embeddings": False,
        "eos_token_id": config.eos_token_ids[0],
        "pad_token_id": tok.END_OF_TEXT,
        "dtype": "bfloat16",
    }


def _mrope_section(pairs: int) -> list[int]:
    """Split the rotary pairs over time, height and width; engines require that the three sum to `pairs`."""
    side = pairs // 4
    return [pairs - 2 * side, side, side]


def _vision_config(config: TextConfig) -> dict[str, Any]:
    """The smallest tower an engine will build. The architecture demands one; this checkpoint has no weights for it."""
    return {
        "model_type": "qwen3_5_moe",
        "depth": 2,
        "hidden_size": 128,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 256,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": config.hidden_size,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
    }


def _image_processor() -> dict[str, Any]:
    return {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "patch_size": 16,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
