"""The model written plainly, for tests: one sequence, float32, one token after the other, straight from the tensors.

It shares no code with the engine; it follows the definition in `backend/reference/config.py`.
"""

import math

import torch
from safetensors.torch import load_file


class PlainModel:
    def __init__(self, directory, config):
        self.w = {name: tensor.float() for name, tensor in load_file(directory / "model.safetensors").items()}
        self.c = config

    def norm(self, x, name):
        return x / math.sqrt((x * x).mean().item() + self.c.rms_norm_eps) * (1 + self.w[name])

    def rope(self, head, position):
        c = self.c
        half = c.rotary_dim // 2
        out = head.clone()
        for i in range(half):
            angle = position * c.rope_theta ** (-2 * i / c.rotary_dim)
            out[i] = head[i] * math.cos(angle) - head[half + i] * math.sin(angle)
            out[half + i] = head[half + i] * math.cos(angle) + head[i] * math.sin(angle)
        return out

    def attention(self, x, prefix, position, past):
        """`past` is a list of (keys, values), one entry per earlier token; this token's is appended."""
        c, w = self.c, self.w
        q = (w[prefix + ".q_proj.weight"] @ x).view(c.num_attention_heads, 2, c.head_dim)
        k = (w[prefix + ".k_proj.weight"] @ x).view(c.num_key_value_heads, c.head_dim)
        v = (w[prefix + ".v_proj.weight"] @ x).view(c.num_key_value_heads, c.head_dim)
        keys = [self.rope(self.norm(head, prefix + ".k_norm.weight"), position) for head in k]
        past.append((keys, v))
        out = []
        for n, (query, gate) in enumerate(q):
            query = self.rope(self.norm(query, prefix + ".q_norm.weight"), position)
            source = n * c.num_key_value_heads // c.num_attention_heads
            scores = torch.stack([query @ entry[0][source] for entry in past]) / math.sqrt(c.head_dim)
            mix = sum(p * entry[1][source] for p, entry in zip(scores.softmax(0), past, strict=True))
            out.append(mix * torch.sigmoid(gate))
        return w[prefix + ".o_proj.weight"] @ torch.cat(out)

    def delta_net(self, x, prefix, state):
        c, w = self.c, self.w
        mixed = w[prefix + ".in_proj_qkv.weight"] @ x
        z = (w[prefix + ".in_proj_z.weight"] @ x).view(c.linear_num_value_heads, -1)
        a = w[prefix + ".in_proj_a.weight"] @ x
        b = torch.sigmoid(w[prefix + ".in_proj_b.weight"] @ x)
        taps = c.linear_conv_kernel_dim
        history = state.setdefault("conv", [torch.zeros(c.conv_dim)] * (taps - 1))
        window = torch.stack([*history, mixed])
        state["conv"] = list(window[1:])
        conv = torch.nn.functional.silu((window * w[prefix + ".conv1d.weight"][:, 0].t()).sum(0))
        q, k, v = conv.split([c.key_dim, c.key_dim, c.value_dim])
        q, k = (t.view(c.linear_num_key_heads, -1) for t in (q, k))
        v = v.view(c.linear_num_value_heads, -1)
        out = []
        for head in range(c.linear_num_value_heads):
            source = head * c.linear_num_key_heads // c.linear_num_value_heads
            qh = q[source] / math.sqrt((q[source] @ q[source]).item() + 1e-6) / math.sqrt(c.linear_key_head_dim)
            kh = k[source] / math.sqrt((k[source] @ k[source]).item() + 1e-6)
            rate = -w[prefix + ".A_log"][head].exp()
            decay = (rate * torch.nn.functional.softplus(a[head] + w[prefix + ".dt_bias"][head])).exp()
            s = state.setdefault(head, torch.zeros(c.linear_key_head_dim, c.linear_value_head_dim)) * decay
            s = s + torch.outer(kh, b[head] * (v[head] - kh @ s))
            state[head] = s
            o = qh @ s
            o = o / math.sqrt((o * o).mean().item() + c.rms_norm_eps) * w[prefix + ".norm.weight"]
            out.append(o * torch.nn.functional.silu(z[head]))
        return w[prefix + ".out_proj.weight"] @ torch.cat(out)

    def moe(self, x, prefix):
        c, w = self.c, self.w
        silu = torch.nn.functional.silu
        shares = (w[prefix + ".gate.weight"] @ x).softmax(0)
        best = shares.topk(c.num_experts_per_tok)
        total = torch.zeros_like(x)
        for share, expert in zip(best.values / best.values.sum(), best.indices.tolist(), strict=True):
            gate, up = (w[prefix + ".experts.gate_up_proj"][expert] @ x).chunk(2)
            total += share * (w[prefix + ".experts.down_proj"][expert] @ (silu(gate) * up))
        shared = prefix + ".shared_expert"
        hidden = silu(w[shared + ".gate_proj.weight"] @ x) * (w[shared + ".up_proj.weight"] @ x)
        return total + torch.sigmoid(w[prefix + ".shared_expert_gate.weight"] @ x) * (
            w[shared + ".down_proj.weight"] @ hidden
        )

    def run(self, tokens):
        """Hidden states after the final norm [T, H] and logits [T, V]."""
        c, w = self.c, self.w
        states = [{} for _ in range(c.num_hidden_layers)]
        past = [[] for _ in range(c.num_hidden_layers)]
        hidden = []
        for position, token in enumerate(tokens):
            x = w["model.language_model.embed_tokens.weight"][token]
            for n in range(c.num_hidden_layers):
                prefix = f"model.language_model.layers.{n}"
                normed = self.norm(x, prefix + ".input_layernorm.weight")
                if (n + 1) % c.full_attention_interval == 0:
                    x = x + self.attention(normed, prefix + ".self_attn", position, past[n])
                else:
                    x = x + self.delta_net(normed, prefix + ".linear_attn", states[n])
                x = x + self.moe(self.norm(x, prefix + ".post_attention_layernorm.weight"), prefix + ".mlp")
            hidden.append(self.norm(x, "model.language_model.norm.weight"))
        hidden = torch.stack(hidden)
        return hidden, hidden @ w["lm_head.weight"].t()

    def mtp(self, pairs, past):
        """MTP outputs for (hidden, next token, position) entries, appended to `past` in turn; normed, [N, H]."""
        w = self.w
        out = []
        for hidden, token, position in pairs:
            e = self.norm(w["model.language_model.embed_tokens.weight"][token], "mtp.pre_fc_norm_embedding.weight")
            x = w["mtp.fc.weight"] @ torch.cat([e, self.norm(hidden, "mtp.pre_fc_norm_hidden.weight")])
            layer = "mtp.layers.0"
            x = x + self.attention(
                self.norm(x, layer + ".input_layernorm.weight"), layer + ".self_attn", position, past
            )
            x = x + self.moe(self.norm(x, layer + ".post_attention_layernorm.weight"), layer + ".mlp")
            out.append(self.norm(x, "mtp.norm.weight"))
        return torch.stack(out)
