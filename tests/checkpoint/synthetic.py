"""Checkpoint directories of any size without their data: sparse files with true headers."""

import json
import math
from pathlib import Path

BITS = {"BF16": 16, "F32": 32, "F16": 16, "U8": 8, "F8_E4M3": 8, "I32": 32, "I64": 64}


def tensor(dtype, *shape):
    return dtype, shape


def write_file(file, tensors, data_bytes=None):
    """`tensors` maps names to (dtype, shape). The data is a hole; `data_bytes` makes the file another length."""
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    with Path(file).open("wb") as out:
        out.write(len(raw).to_bytes(8, "little") + raw)
        out.truncate(8 + len(raw) + (offset if data_bytes is None else data_bytes))


def write_checkpoint(folder, config, tensors, *, shards=1, quantization=None, index=None, sidecar=None):
    """`tensors` in `shards` files with an index (`index` False: none), `sidecar` maps further files to their tensors,
    which the index leaves out."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if quantization is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    names = list(tensors)
    size = -(-len(names) // shards)
    weight_map = {}
    for number in range(shards):
        part = names[number * size : (number + 1) * size]
        file = "model.safetensors" if shards == 1 else f"model-{number + 1:05}-of-{shards:05}.safetensors"
        write_file(folder / file, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    for file, more in (sidecar or {}).items():
        write_file(folder / file, more)
    if index is not False and (shards > 1 or index):
        document = {"metadata": {}, "weight_map": weight_map if index in (None, True) else index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(document))
    return folder


# ---- Qwen3.5-MoE. Dimensions of the 397B: 60 layers, hidden 4096, 512 experts of 1024, 32 heads of 256, 2 KV heads.

QWEN_397B = {
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 4096,
    "num_hidden_layers": 60,
    "full_attention_interval": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "attn_output_gate": True,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 64,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "dtype": "bfloat16",
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "tie_word_embeddings": False,
}
NVFP4 = {
    "quant_algo": "NVFP4",
    "kv_cache_quant_algo": "FP8",
    "group_size": 16,
    "exclude_modules": [
        "lm_head",
        "model.language_model.embed_tokens",
        "model.language_model.layers.*.linear_attn*",
        "model.language_model.layers.*.self_attn*",
        "model.language_model.layers.*.mlp.gate",
        "model.language_model.layers.*.mlp.shared_expert*",
        "model.visual*",
        "mtp*",
    ],
}


def qwen_config(text=None, **more):
    """config.json of the multimodal wrapper. `text` replaces fields of the 397B's language model."""
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "text_config": {**QWEN_397B, **(text or {})},
        **more,
    }


SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}


def nvfp4(name, rows, columns):
    """The four tensors of a ModelOpt NVFP4 weight [rows, columns]."""
    return {
        f"{name}.weight": tensor("U8", rows, columns // 2),
        f"{name}.weight_scale": tensor("F8_E4M3", rows, columns // 16),
        f"{name}.weight_scale_2": tensor("F32"),
        f"{name}.input_scale": tensor("F32"),
    }


def qwen_attention(prefix, c):
    hidden, width = c["hidden_size"], c["num_attention_heads"] * c["head_dim"]
    keys = c["num_key_value_heads"] * c["head_dim"]
    return {
        f"{prefix}self_attn.q_proj.weight": tensor("BF16", 2 * width, hidden),
        f"{prefix}self_attn.k_proj.weight": tensor("BF16", keys, hidden),
        f"{prefix}self_attn.v_proj.weight": tensor("BF16", keys, hidden),
        f"{prefix}self_attn.o_proj.weight": tensor("BF16", hidden, width),
        f"{prefix}self_attn.q_norm.weight": tensor("BF16", c["head_dim"]),
        f"{prefix}self_attn.k_norm.weight": tensor("BF16", c["head_dim"]),
    }


def qwen_linear_attention(prefix, c):
    hidden = c["hidden_size"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    heads, head = c["linear_num_value_heads"], c["linear_value_head_dim"]
    width = 2 * keys + heads * head
    return {
        f"{prefix}linear_attn.in_proj_qkv.weight": tensor("BF16", width, hidden),
        f"{prefix}linear_attn.in_proj_z.weight": tensor("BF16", heads * head, hidden),
        f"{prefix}linear_attn.in_proj_a.weight": tensor("BF16", heads, hidden),
        f"{prefix}linear_attn.in_proj_b.weight": tensor("BF16", heads, hidden),
        f"{prefix}linear_attn.conv1d.weight": tensor("BF16", width, 1, c["linear_conv_kernel_dim"]),
        f"{prefix}linear_attn.A_log": tensor("BF16", heads),
        f"{prefix}linear_attn.dt_bias": tensor("BF16", heads),
        f"{prefix}linear_attn.norm.weight": tensor("BF16", head),
        f"{prefix}linear_attn.out_proj.weight": tensor("BF16", hidden, heads * head),
    }


def qwen_moe(prefix, c, *, experts="nvfp4"):
    """`experts`: `nvfp4`, `each` (BF16, one by one) or `fused` (BF16)."""
    hidden, inner, shared = c["hidden_size"], c["moe_intermediate_size"], c["shared_expert_intermediate_size"]
    count = c["num_experts"]
    found = {
        f"{prefix}input_layernorm.weight": tensor("BF16", hidden),
        f"{prefix}post_attention_layernorm.weight": tensor("BF16", hidden),
        f"{prefix}mlp.gate.weight": tensor("BF16", count, hidden),
        f"{prefix}mlp.shared_expert.gate_proj.weight": tensor("BF16", shared, hidden),
        f"{prefix}mlp.shared_expert.up_proj.weight": tensor("BF16", shared, hidden),
        f"{prefix}mlp.shared_expert.down_proj.weight": tensor("BF16", hidden, shared),
        f"{prefix}mlp.shared_expert_gate.weight": tensor("BF16", 1, hidden),
    }
    if experts == "fused":
        found[f"{prefix}mlp.experts.gate_up_proj"] = tensor("BF16", count, 2 * inner, hidden)
        found[f"{prefix}mlp.experts.down_proj"] = tensor("BF16", count, hidden, inner)
        return found
    for number in range(count):
        for leaf, (rows, columns) in {
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }.items():
            name = f"{prefix}mlp.experts.{number}.{leaf}"
            wide = {f"{name}.weight": tensor("BF16", rows, columns)}
            found |= nvfp4(name, rows, columns) if experts == "nvfp4" else wide
    return found


def qwen_mtp(c, *, experts="each", prefix="mtp."):
    """`mtp.*`: 17 tensors and the experts."""
    hidden = c["hidden_size"]
    return {
        f"{prefix}fc.weight": tensor("BF16", hidden, 2 * hidden),
        f"{prefix}pre_fc_norm_embedding.weight": tensor("BF16", hidden),
        f"{prefix}pre_fc_norm_hidden.weight": tensor("BF16", hidden),
        f"{prefix}norm.weight": tensor("BF16", hidden),
        **qwen_attention(f"{prefix}layers.0.", c),
        **qwen_moe(f"{prefix}layers.0.", c, experts=experts),
    }


def qwen_main(c, *, experts="nvfp4"):
    """The language model without MTP."""
    hidden, vocab = c["hidden_size"], c["vocab_size"]
    found = {
        "model.language_model.embed_tokens.weight": tensor("BF16", vocab, hidden),
        "lm_head.weight": tensor("BF16", vocab, hidden),
        "model.language_model.norm.weight": tensor("BF16", hidden),
    }
    for layer in range(c["num_hidden_layers"]):
        prefix = f"model.language_model.layers.{layer}."
        full = (layer + 1) % c["full_attention_interval"] == 0
        found |= qwen_attention(prefix, c) if full else qwen_linear_attention(prefix, c)
        found |= qwen_moe(prefix, c, experts=experts)
    return found


def write_qwen(folder, text=None, *, shards=1, mtp="each", experts="nvfp4", **options):
    """A Qwen3.5-MoE checkpoint in NVFP4 with a BF16 MTP layer. `text` as for `qwen_config`; `mtp` None: without."""
    c = {**QWEN_397B, **(text or {})}
    tensors = qwen_main(c, experts=experts) | (qwen_mtp(c, experts=mtp) if mtp else {})
    options.setdefault("quantization", NVFP4 if experts == "nvfp4" else None)
    return write_checkpoint(folder, qwen_config(text), tensors, shards=shards, **options)


def write_397b(folder):
    """Qwen3.5-397B-A17B-NVFP4 at full size: 105 files, 371,000 tensors, no data."""
    return write_qwen(folder, shards=105)
