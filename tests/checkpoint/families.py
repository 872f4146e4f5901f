"""Small checkpoints of other families, with the tensor names of the published ones."""

from tests.checkpoint import synthetic
from tests.checkpoint.synthetic import tensor, write_checkpoint

HIDDEN, VOCAB, EXPERTS, INNER = 64, 256, 4, 32


def _experts(prefix, dtype="BF16"):
    return {
        f"{prefix}mlp.experts.{n}.{leaf}.weight": tensor(dtype, *shape)
        for n in range(EXPERTS)
        for leaf, shape in {
            "gate_proj": (INNER, HIDDEN),
            "up_proj": (INNER, HIDDEN),
            "down_proj": (HIDDEN, INNER),
        }.items()
    }


def _norms(prefix):
    return {
        f"{prefix}{name}.weight": tensor("BF16", HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")
    }


def _dense(prefix):
    return {
        f"{prefix}mlp.gate_proj.weight": tensor("BF16", 2 * INNER, HIDDEN),
        f"{prefix}mlp.up_proj.weight": tensor("BF16", 2 * INNER, HIDDEN),
        f"{prefix}mlp.down_proj.weight": tensor("BF16", HIDDEN, 2 * INNER),
    }


def _attention(prefix, bias=False):
    found = {
        f"{prefix}self_attn.q_proj.weight": tensor("BF16", 64, HIDDEN),
        f"{prefix}self_attn.k_proj.weight": tensor("BF16", 32, HIDDEN),
        f"{prefix}self_attn.v_proj.weight": tensor("BF16", 32, HIDDEN),
        f"{prefix}self_attn.o_proj.weight": tensor("BF16", HIDDEN, 64),
    }
    if bias:
        found |= {
            f"{prefix}self_attn.{n}_proj.bias": tensor("BF16", rows) for n, rows in {"q": 64, "k": 32, "v": 32}.items()
        }
    return found


def _mla(prefix):
    return {
        f"{prefix}self_attn.q_a_proj.weight": tensor("BF16", 24, HIDDEN),
        f"{prefix}self_attn.q_a_layernorm.weight": tensor("BF16", 24),
        f"{prefix}self_attn.q_b_proj.weight": tensor("BF16", 4 * 24, 24),
        f"{prefix}self_attn.kv_a_proj_with_mqa.weight": tensor("BF16", 16 + 8, HIDDEN),
        f"{prefix}self_attn.kv_a_layernorm.weight": tensor("BF16", 16),
        f"{prefix}self_attn.kv_b_proj.weight": tensor("BF16", 4 * 32, 16),
        f"{prefix}self_attn.o_proj.weight": tensor("BF16", HIDDEN, 4 * 16),
    }


def _moe(prefix):
    return {
        f"{prefix}mlp.gate.weight": tensor("BF16", EXPERTS, HIDDEN),
        f"{prefix}mlp.gate.e_score_correction_bias": tensor("F32", EXPERTS),
        **_experts(prefix),
        f"{prefix}mlp.shared_experts.gate_proj.weight": tensor("BF16", INNER, HIDDEN),
        f"{prefix}mlp.shared_experts.up_proj.weight": tensor("BF16", INNER, HIDDEN),
        f"{prefix}mlp.shared_experts.down_proj.weight": tensor("BF16", HIDDEN, INNER),
    }


def _ends():
    return {
        "model.embed_tokens.weight": tensor("BF16", VOCAB, HIDDEN),
        "model.norm.weight": tensor("BF16", HIDDEN),
        "lm_head.weight": tensor("BF16", VOCAB, HIDDEN),
    }


def _config(architecture, model_type, layers, **more):
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "torch_dtype": "bfloat16",
        **more,
    }


def nextn_joint(prefix, *, own=True):
    """What DeepSeek and GLM put into the extra layer; `own` with an embedding and a head of its own."""
    found = {
        f"{prefix}eh_proj.weight": tensor("BF16", HIDDEN, 2 * HIDDEN),
        f"{prefix}enorm.weight": tensor("BF16", HIDDEN),
        f"{prefix}hnorm.weight": tensor("BF16", HIDDEN),
        f"{prefix}shared_head.norm.weight": tensor("BF16", HIDDEN),
    }
    if own:
        found[f"{prefix}embed_tokens.weight"] = tensor("BF16", VOCAB, HIDDEN)
        found[f"{prefix}shared_head.head.weight"] = tensor("BF16", VOCAB, HIDDEN)
    return found


def deepseek(folder, *, layers=4, nextn=True, declared=1, **options):
    """The first layer dense, the others MoE, multi-head latent attention; the MTP layer is one more."""
    tensors = _ends()
    for layer in range(layers + (1 if nextn else 0)):
        prefix = f"model.layers.{layer}."
        tensors |= _norms(prefix) | _mla(prefix) | (_moe(prefix) if layer else _dense(prefix))
    if nextn:
        tensors |= nextn_joint(f"model.layers.{layers}.")
    moe = {"n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": INNER}
    latent = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "num_nextn_predict_layers": declared}
    config = _config("DeepseekV3ForCausalLM", "deepseek_v3", layers, **moe, **latent)
    return write_checkpoint(folder, config, tensors, **options)


def glm(folder, *, layers=3, drop=(), **options):
    """GLM-4.5: ordinary attention, the MTP layer one more, with an embedding and a head of its own."""
    tensors = _ends()
    for layer in range(layers + 1):
        prefix = f"model.layers.{layer}."
        tensors |= _norms(prefix) | _attention(prefix, bias=True) | (_moe(prefix) if layer else _dense(prefix))
    tensors |= nextn_joint(f"model.layers.{layers}.")
    tensors = {name: kind for name, kind in tensors.items() if name not in drop}
    moe = {"n_routed_experts": EXPERTS, "moe_intermediate_size": INNER, "num_nextn_predict_layers": 1}
    return write_checkpoint(folder, _config("Glm4MoeForCausalLM", "glm4_moe", layers, **moe), tensors, **options)


def mimo(folder):
    """Dense, with `model.mtp_layers.0`."""
    tensors = _ends()
    for prefix in ("model.layers.0.", "model.layers.1.", "model.mtp_layers.0."):
        tensors |= _norms(prefix) | _attention(prefix, bias=True) | _dense(prefix)
    joint = {name: tensor("BF16", HIDDEN) for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")}
    tensors |= {f"model.mtp_layers.0.{name}.weight": kind for name, kind in joint.items()}
    tensors["model.mtp_layers.0.input_proj.weight"] = tensor("BF16", HIDDEN, 2 * HIDDEN)
    config = _config("MiMoForCausalLM", "mimo", 2, num_nextn_predict_layers=1)
    return write_checkpoint(folder, config, tensors)


def llama(folder, **options):
    """Dense, no MTP."""
    tensors = _ends()
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        tensors |= _norms(prefix) | _attention(prefix) | _dense(prefix)
    return write_checkpoint(folder, _config("LlamaForCausalLM", "llama", 2), tensors, **options)


def awq(folder):
    """Llama in AWQ: eight four-bit weights in an I32 along the outputs."""
    tensors = _ends()
    prefix = "model.layers.0."
    tensors |= _norms(prefix)
    for name in ("self_attn.q_proj", "mlp.up_proj"):
        tensors[f"{prefix}{name}.qweight"] = tensor("I32", HIDDEN, 64 // 8)
        tensors[f"{prefix}{name}.qzeros"] = tensor("I32", HIDDEN // 32, 64 // 8)
        tensors[f"{prefix}{name}.scales"] = tensor("F16", HIDDEN // 32, 64)
    config = _config("LlamaForCausalLM", "llama", 1)
    config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    return write_checkpoint(folder, config, tensors)


def step(folder):
    """Step3.5: three MTP layers behind the main ones, their inside under `transformer.`, dense beside MoE ones."""
    tensors = _ends()
    for layer in range(3):
        prefix = f"model.layers.{layer}."
        tensors |= _norms(prefix) | _attention(prefix) | (_moe(prefix) if layer else _dense(prefix))
    for layer in range(3, 6):
        prefix = f"model.layers.{layer}."
        tensors |= nextn_joint(prefix, own=False)
        inside = f"{prefix}transformer."
        tensors |= _norms(inside) | _attention(inside) | _dense(inside)
        tensors[f"{prefix}transformer.shared_head.output.weight"] = tensor("BF16", VOCAB, HIDDEN)
    moe = {"moe_num_experts": EXPERTS, "moe_intermediate_size": INNER, "num_nextn_predict_layers": 3}
    return write_checkpoint(folder, _config("Step3p5ForCausalLM", "step3p5", 3, **moe), tensors)


def nemotron(folder, drop=()):
    """Nemotron-H: Mamba, attention and MoE in layers of their own; one MTP layer of two numbered parts."""
    tensors = {name.replace("model.", "backbone."): kind for name, kind in _ends().items()}
    mamba = {"A_log": (4,), "D": (4,), "dt_bias": (4,), "conv1d.weight": (96, 1, 4), "in_proj.weight": (160, HIDDEN)}
    attention = {"q_proj.weight": (64, HIDDEN), "k_proj.weight": (32, HIDDEN), "v_proj.weight": (32, HIDDEN)}
    attention["o_proj.weight"] = (HIDDEN, 64)
    experts = {f"experts.{n}.up_proj.weight": (INNER, HIDDEN) for n in range(EXPERTS)}
    experts |= {f"experts.{n}.down_proj.weight": (HIDDEN, INNER) for n in range(EXPERTS)}
    experts["gate.weight"] = (EXPERTS, HIDDEN)
    parts = [("backbone.layers.0.", mamba), ("backbone.layers.1.", attention), ("backbone.layers.2.", experts)]
    for prefix, inside in [*parts, ("mtp.layers.0.", attention), ("mtp.layers.1.", experts)]:
        tensors[f"{prefix}norm.weight"] = tensor("BF16", HIDDEN)
        tensors |= {f"{prefix}mixer.{name}": tensor("BF16", *shape) for name, shape in inside.items()}
    for name in ("enorm", "hnorm"):
        tensors[f"mtp.layers.0.{name}.weight"] = tensor("BF16", HIDDEN)
    tensors["mtp.layers.0.eh_proj.weight"] = tensor("BF16", HIDDEN, 2 * HIDDEN)
    tensors["mtp.layers.1.final_layernorm.weight"] = tensor("BF16", HIDDEN)
    more = {"hybrid_override_pattern": "M*E", "mtp_hybrid_override_pattern": "*E", "num_nextn_predict_layers": 1}
    moe = {"n_routed_experts": EXPERTS, "moe_intermediate_size": INNER}
    config = _config("NemotronHForCausalLM", "nemotron_h", 3, **more, **moe)
    return write_checkpoint(folder, config, {name: kind for name, kind in tensors.items() if name not in drop})


def qwen_next(folder):
    """Qwen3-Next: as Qwen3.5 without the multimodal wrapper, and nothing in config.json about MTP."""
    c = {
        **synthetic.QWEN_397B,
        **synthetic.SMALL,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
    }
    main = {name.replace("model.language_model.", "model."): kind for name, kind in synthetic.qwen_main(c).items()}
    config = {name: value for name, value in c.items() if not name.startswith("mtp_")}
    return write_checkpoint(folder, config, main | synthetic.qwen_mtp(c), quantization=synthetic.NVFP4)
