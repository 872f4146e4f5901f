"""A checkpoint directory in the Hugging Face layout of Qwen3.5-MoE, as SGLang and transformers read it.

Two layouts: all BF16, with the routed experts of a layer stacked in two tensors; and the one of ModelOpt's NVFP4
checkpoints, in which each routed expert of the main layers has its own packed matrices and scales.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from backend.reference.config import TextConfig
from backend.reference.export import QUANT_FILE, WEIGHTS_FILE, Weights, save_tensors, write_bf16
from backend.reference.nvfp4 import BLOCK, Quantised, dequantize, quantize, scale_for
from backend.reference.training import tokenizer as tok

Shape = tuple[int, ...]
PRODUCER = {"name": "slipstream", "version": "0.1.0"}


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


@dataclass(frozen=True)
class InputPeaks:
    """Largest magnitudes met at the inputs of one layer's experts, [E] each: of gate and up together, and of down."""

    gate_up: Tensor
    down: Tensor


def check_weights(config: TextConfig, weights: Weights) -> None:
    """Raises ValueError unless names and shapes are exactly the table's."""
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    expected = tensor_shapes(config)
    if found != expected:
        wrong = sorted(set(found.items()) ^ set(expected.items()))
        raise ValueError(f"tensors do not fit the configuration, first differences: {wrong[:4]}")


def save_weights(directory: Path, config: TextConfig, weights: Weights) -> None:
    """Write `model.safetensors`, all of it in BF16. Raises ValueError when the tensors do not fit `config`."""
    check_weights(config, weights)
    directory.mkdir(parents=True, exist_ok=True)
    write_bf16(weights, directory / WEIGHTS_FILE)


def is_quantised(name: str) -> bool:
    """Whether a tensor of the table is stored in NVFP4: the routed experts of the main layers."""
    return name.startswith("model.") and ".mlp.experts." in name


def quantised(matrix: Tensor) -> Quantised:
    """NVFP4 of one expert's matrix with ModelOpt's global scale, rounded up to a power of two.

    An E2M1 value times an FP8 scale has at most six significant bits, so with such a global scale BF16 holds every
    dequantised weight exactly: the BF16 copy is the same model.
    """
    mantissa, exponent = torch.frexp(scale_for(matrix.abs().amax()))
    return quantize(matrix, torch.ldexp(torch.ones_like(mantissa), exponent - (mantissa == 0.5).int()))


def as_stored(weights: Weights) -> Weights:
    """What the numbers of `weights` become when stored: NVFP4 for the routed experts, BF16 for the rest. FP32."""
    return {
        name: torch.stack([dequantize(*quantised(matrix)) for matrix in weight])
        if is_quantised(name)
        else weight.bfloat16().float()
        for name, weight in weights.items()
    }


def save_quantised(directory: Path, config: TextConfig, weights: Weights, peaks: Mapping[str, InputPeaks]) -> None:
    """Write `model.safetensors` in the shipped layout. `peaks` has an entry for each `...layers.N.mlp.experts`."""
    check_weights(config, weights)
    stored: Weights = {}
    for name, weight in weights.items():
        if is_quantised(name):
            experts, kind = name.rsplit(".", 1)
            stored |= _stored_experts(experts, kind, weight, peaks[experts])
        else:
            stored[name] = weight.detach().bfloat16()
    directory.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.cpu().contiguous() for name, tensor in stored.items()}
    save_tensors(contiguous, directory / WEIGHTS_FILE)


def _stored_experts(experts: str, kind: str, weight: Tensor, peaks: InputPeaks) -> Weights:
    """The tensors of `gate_up_proj` or `down_proj` [E, N, K] per expert. Gate and up, which engines fuse, share the
    global scale and the input scale."""
    names, largest = (("gate", "up"), peaks.gate_up) if kind == "gate_up_proj" else (("down",), peaks.down)
    stored: Weights = {}
    for number, matrix in enumerate(weight.detach()):
        packed, block_scale, global_scale = quantised(matrix)
        parts = zip(names, packed.chunk(len(names)), block_scale.chunk(len(names)), strict=True)
        for part, rows, scales in parts:
            prefix = f"{experts}.{number}.{part}_proj."
            stored[prefix + "weight"] = rows
            stored[prefix + "weight_scale"] = scales
            stored[prefix + "weight_scale_2"] = global_scale.clone()  # safetensors refuses tensors that share memory
            stored[prefix + "input_scale"] = scale_for(largest[number]).clone()
    return stored


def exclude_modules(config: TextConfig) -> list[str]:
    """The modules that are not quantised, as globs over module names in ModelOpt's manner."""
    layers = []
    for layer in range(config.num_hidden_layers):
        prefix = f"model.language_model.layers.{layer}."
        mixer = "self_attn*" if config.is_full_attention(layer) else "linear_attn*"
        layers += [prefix + mixer, prefix + "mlp.gate", prefix + "mlp.shared_expert*"]
    return ["lm_head", "model.language_model.embed_tokens", *layers, "model.visual*", "mtp*"]


def write_checkpoint(
    directory: Path, config: TextConfig, weights: Weights, tokenizer: Tokenizer, peaks: Mapping[str, InputPeaks] | None
) -> None:
    """Write a complete directory: weights, tokenizer, and the configuration files an engine asks for.

    With `peaks` the routed experts are stored in NVFP4, without everything is in BF16.
    """
    if peaks is None:
        save_weights(directory, config, weights)
    else:
        save_quantised(directory, config, weights, peaks)
    tok.write_tokenizer(directory, tokenizer, config.max_position_embeddings)
    write_configs(directory, config, nvfp4=peaks is not None)


def write_configs(directory: Path, config: TextConfig, nvfp4: bool = False) -> None:
    """Write config.json, generation_config.json and the two preprocessor files; for NVFP4 also hf_quant_config.json."""
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
    if nvfp4:
        files["config.json"]["quantization_config"] = _quantization_config(config)
        files[QUANT_FILE] = _hf_quant_config(config)
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


def _quantization_config(config: TextConfig) -> dict[str, Any]:
    form = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": BLOCK}
    return {
        "config_groups": {"group_0": {"input_activations": form, "weights": form, "targets": ["Linear"]}},
        "ignore": exclude_modules(config),
        "quant_algo": "NVFP4",
        "producer": PRODUCER,
        "quant_method": "modelopt",
    }


def _hf_quant_config(config: TextConfig) -> dict[str, Any]:
    return {
        "producer": PRODUCER,
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": BLOCK,
            "exclude_modules": exclude_modules(config),
        },
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
