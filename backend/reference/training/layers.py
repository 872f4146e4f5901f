"""Layers of the model in training form: whole sequences at once, no caches. Attribute names are the tensor names."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from backend.reference.config import TextConfig
from backend.reference.training.delta_rule import chunked_delta_rule

KeyValue = tuple[Tensor, Tensor]


class Linear(nn.Module):
    """Matrix product without bias in `compute` precision; parameters, input and output are FP32."""

    compute: torch.dtype = torch.float32

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.to(self.compute), self.weight.to(self.compute)).float()


class ZeroCentredNorm(nn.Module):
    """RMS norm whose factor is `1 + weight`."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), None, self.eps) * (1.0 + self.weight)


class GatedNorm(nn.Module):
    """RMS norm of each delta-net head, times `weight` and `silu(gate)`."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(width)), eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), None, self.eps) * self.weight * functional.silu(gate)


def rotate(x: Tensor, positions: Tensor, config: TextConfig) -> Tensor:
    """RoPE on the first `rotary_dim` values of [B,T,heads,head_dim]; `positions` is [T]."""
    width = config.rotary_dim
    exponent = torch.arange(0, width, 2, device=x.device, dtype=torch.float32) / width
    angle = positions[:, None].float() * config.rope_theta**-exponent
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    first, second, rest = torch.split(x, [width // 2, width // 2, x.shape[-1] - width], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def heads(x: Tensor, width: int) -> Tensor:
    """[..., heads * width] -> [..., heads, width]."""
    return x.reshape(*x.shape[:-1], -1, width)


class Attention(nn.Module):
    """Grouped-query attention with an output gate and per-head norms."""

    compute: torch.dtype = torch.float32

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, 2 * queries)
        self.k_proj = Linear(config.hidden_size, keys)
        self.v_proj = Linear(config.hidden_size, keys)
        self.o_proj = Linear(queries, config.hidden_size)
        self.q_norm = ZeroCentredNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = ZeroCentredNorm(config.head_dim, config.rms_norm_eps)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Query, key, value [B,heads,T,head_dim] (keys and values repeated to all query heads) and gate [B,T,·]."""
        head, repeat = self.config.head_dim, self.config.num_attention_heads // self.config.num_key_value_heads
        query, gate = heads(self.q_proj(x), 2 * head).chunk(2, -1)
        key, value = (heads(p(x), head) for p in (self.k_proj, self.v_proj))
        query = rotate(self.q_norm(query), positions, self.config)
        key = rotate(self.k_norm(key), positions, self.config)
        key, value = (t.repeat_interleave(repeat, 2).transpose(1, 2) for t in (key, value))
        return query.transpose(1, 2), key, value, gate.flatten(2)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        query, key, value, gate = self.project(x, positions)
        kind = self.compute
        mixed = functional.scaled_dot_product_attention(
            query.to(kind), key.to(kind), value.to(kind), is_causal=True
        ).float()
        return self.output(mixed, gate)

    def forward_draft(self, x: Tensor, positions: Tensor, chain: list[KeyValue]) -> Tensor:
        """One application of the MTP layer at every start position at once; appends its key and value to `chain`.

        `chain[0]` are the entries made from true hidden states: position t sees those up to t. Each later entry was
        made by re-application and belongs to its own start position alone. That is what decoding sees.
        """
        query, key, value, gate = self.project(x, positions)
        chain.append((key, value))
        kind, length = self.compute, x.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        own = torch.eye(length, dtype=torch.bool, device=x.device)
        visible = torch.cat([causal, *[own] * (len(chain) - 1)], 1)
        keys, values = (torch.cat(part, 2).to(kind) for part in zip(*chain, strict=True))
        mixed = functional.scaled_dot_product_attention(query.to(kind), keys, values, visible).float()
        return self.output(mixed, gate)

    def output(self, mixed: Tensor, gate: Tensor) -> Tensor:
        """Gate and output projection: mixed [B,heads,T,head_dim], gate [B,T,·] -> [B,T,H]."""
        result: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2) * torch.sigmoid(gate))
        return result


class ShortConvolution(nn.Module):
    """Causal depthwise convolution over time."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel))

    def forward(self, x: Tensor) -> Tensor:
        kernel, length = self.weight.shape[-1], x.shape[1]
        padded = functional.pad(x, (0, 0, kernel - 1, 0))
        taps = [padded[:, i : i + length] * self.weight[:, 0, i] for i in range(kernel)]
        return torch.stack(taps).sum(0)


class GatedDeltaNet(nn.Module):
    """Linear attention by the gated delta rule."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        heads, hidden = config.linear_num_value_heads, config.hidden_size
        self.in_proj_qkv = Linear(hidden, config.conv_dim)
        self.in_proj_z = Linear(hidden, config.value_dim)
        self.in_proj_a = Linear(hidden, heads)
        self.in_proj_b = Linear(hidden, heads)
        self.conv1d = ShortConvolution(config.conv_dim, config.linear_conv_kernel_dim)
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.norm = GatedNorm(config.linear_value_head_dim, config.rms_norm_eps)
        self.out_proj = Linear(config.value_dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(chunked_delta_rule(*self.rule_inputs(self.conv1d(self.in_proj_qkv(x)), x)), x)

    def rule_inputs(self, mixed: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v, log decay and write strength of the delta rule from the convolution's output and the input x."""
        config = self.config
        query, key, value = torch.split(functional.silu(mixed), [config.key_dim, config.key_dim, config.value_dim], -1)
        repeat = config.linear_num_value_heads // config.linear_num_key_heads
        query, key = (heads(t, config.linear_key_head_dim) for t in (query, key))
        query = unit(query) * config.linear_key_head_dim**-0.5
        query, key = (t.repeat_interleave(repeat, 2).transpose(1, 2) for t in (query, unit(key)))
        value = heads(value, config.linear_value_head_dim).transpose(1, 2)
        log_decay = -self.A_log.exp() * functional.softplus(self.in_proj_a(x) + self.dt_bias)
        beta = torch.sigmoid(self.in_proj_b(x))
        return query, key, value, log_decay.transpose(1, 2), beta.transpose(1, 2)

    def output(self, read: Tensor, x: Tensor) -> Tensor:
        """Gated norm and output projection of what the rule read [B,heads,T,dv], with the input x -> [B,T,H]."""
        gate = heads(self.in_proj_z(x), self.config.linear_value_head_dim)
        result: Tensor = self.out_proj(self.norm(read.transpose(1, 2), gate).flatten(2))
        return result


def unit(x: Tensor) -> Tensor:
    """L2-normalised along the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


class Experts(nn.Module):
    """All experts on all tokens, as two wide products: at this size cheaper than sorting tokens, and free of syncs."""

    compute: torch.dtype = torch.float32

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        count, inner, hidden = config.num_experts, config.moe_intermediate_size, config.hidden_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(count, hidden, inner))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """x [N,H] and weights [N,E] (0 for experts not chosen) -> [N,H]."""
        count, hidden, inner = self.down_proj.shape
        active = self.activation(x) * weights.unsqueeze(-1).to(self.compute)
        down = self.down_proj.transpose(0, 1).reshape(hidden, count * inner).to(self.compute)
        return functional.linear(active.flatten(1), down).float()

    def activation(self, x: Tensor) -> Tensor:
        """What enters the down projections: [N,H] -> [N,E,I]."""
        count, _, inner = self.down_proj.shape
        wide = functional.linear(x.to(self.compute), self.gate_up_proj.flatten(0, 1).to(self.compute))
        gate, up = wide.view(-1, count, 2 * inner).chunk(2, -1)
        return functional.silu(gate) * up


class SharedExpert(nn.Module):
    """A gated feed-forward layer that every token passes."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        inner = config.shared_expert_intermediate_size
        self.gate_proj = Linear(config.hidden_size, inner)
        self.up_proj = Linear(config.hidden_size, inner)
        self.down_proj = Linear(inner, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class SparseMoe(nn.Module):
    """Top-k routed experts plus the shared one."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.top_k, self.count = config.num_experts_per_tok, config.num_experts
        self.gate = Linear(config.hidden_size, config.num_experts)
        self.experts = Experts(config)
        self.shared_expert = SharedExpert(config)
        self.shared_expert_gate = Linear(config.hidden_size, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Output and the load-balance loss (1 when tokens spread evenly; Fedus et al., "Switch Transformers")."""
        flat = x.flatten(0, 1)
        probability = self.gate(flat).softmax(-1)
        chosen, index = probability.topk(self.top_k, -1)
        weights = torch.zeros_like(probability).scatter(-1, index, chosen / chosen.sum(-1, keepdim=True))
        share = (weights > 0).float().mean(0) / self.top_k
        balance = self.count * (share * probability.mean(0)).sum()
        routed = self.experts(flat, weights)
        shared = torch.sigmoid(self.shared_expert_gate(flat)) * self.shared_expert(flat)
        return (routed + shared).view_as(x), balance


class DecoderLayer(nn.Module):
    """Mixer (full attention or delta-net) and mixture of experts, each behind a norm and a residual."""

    def __init__(self, config: TextConfig, full: bool) -> None:
        super().__init__()
        self.full = full
        self.input_layernorm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)
        if full:
            self.self_attn = Attention(config)
        else:
            self.linear_attn = GatedDeltaNet(config)
        self.mlp = SparseMoe(config)

    def forward(self, x: Tensor, positions: Tensor, chain: list[KeyValue] | None = None) -> tuple[Tensor, Tensor]:
        """Hidden states and balance loss; with `chain` the layer is an MTP layer (see `Attention.forward_draft`)."""
        normed = self.input_layernorm(x)
        if chain is not None:
            mixed: Any = self.self_attn.forward_draft(normed, positions, chain)
        elif self.full:
            mixed = self.self_attn(normed, positions)
        else:
            mixed = self.linear_attn(normed)
        x = x + mixed
        update, balance = self.mlp(self.post_attention_layernorm(x))
        return x + update, balance
