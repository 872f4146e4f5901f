"""Greedy decoding with the training form: many sequences at once, a token at a time, from states of fixed size.

It exists for text to train on, of which much is needed fast. Its sums run in another order than those over whole
sequences, so a choice between two nearly equal tokens may differ from theirs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from backend.reference.training.delta_rule import delta_step
from backend.reference.training.layers import Attention, GatedDeltaNet
from backend.reference.training.model import TextModel
from backend.reference.training.replay import Replayed


class AttentionState:
    """Keys and values of `rows` sequences of up to `width` tokens."""

    def __init__(self, layer: Attention, rows: int, width: int, device: torch.device) -> None:
        shape = rows, layer.config.num_attention_heads, width, layer.config.head_dim
        self.layer = layer
        self.keys, self.values = (torch.zeros(shape, dtype=layer.compute, device=device) for _ in "kv")

    def clear(self) -> None:
        """Nothing: what stands behind the present place is never seen."""

    def step(self, x: Tensor, place: Tensor) -> Tensor:
        """Mixed [R,1,H] of the normed inputs [R,1,H] of the tokens at `place` [1]."""
        query, key, value, gate = self.layer.project(x, place)
        self.keys.index_copy_(2, place, key.to(self.keys.dtype))
        self.values.index_copy_(2, place, value.to(self.values.dtype))
        visible = (torch.arange(self.keys.shape[2], device=x.device) <= place).expand(x.shape[0], 1, 1, -1)
        mixed = functional.scaled_dot_product_attention(query.to(self.keys.dtype), self.keys, self.values, visible)
        return self.layer.output(mixed.float(), gate)


class DeltaNetState:
    """Recurrent state of `rows` sequences, and the last inputs of their convolution."""

    def __init__(self, layer: GatedDeltaNet, rows: int, device: torch.device) -> None:
        config = layer.config
        self.layer = layer
        self.window = torch.zeros(rows, config.linear_conv_kernel_dim, config.conv_dim, device=device)
        heads, key, value = (
            config.linear_num_value_heads,
            config.linear_key_head_dim,
            config.linear_value_head_dim,
        )
        self.state = torch.zeros(rows, heads, key, value, device=device)

    def clear(self) -> None:
        self.window.zero_()
        self.state.zero_()

    def step(self, x: Tensor, place: Tensor) -> Tensor:
        """As `AttentionState.step`; the place does not matter."""
        self.window.copy_(torch.cat([self.window[:, 1:], self.layer.in_proj_qkv(x)], 1))
        mixed = (self.window * self.layer.conv1d.weight[:, 0].T).sum(1, keepdim=True)
        state, output = delta_step(self.state, *self.layer.rule_inputs(mixed, x))
        self.state.copy_(state)
        return self.layer.output(output, x)


class GreedyDecoder:
    """Continues `rows` prompts to `width` tokens each."""

    def __init__(self, model: TextModel, rows: int, width: int) -> None:
        self.model = model
        device = next(model.parameters()).device
        self.tokens = torch.zeros(rows, width, dtype=torch.long, device=device)
        self.given = torch.ones(rows, width, dtype=torch.bool, device=device)
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        layers: Any = model.model.language_model.layers
        self.states = [
            AttentionState(layer.self_attn, rows, width, device)
            if layer.full
            else DeltaNetState(layer.linear_attn, rows, device)
            for layer in layers
        ]
        self.step = Replayed(self._step, device)

    def __call__(self, prompts: Tensor, lengths: Tensor) -> Tensor:
        """[R,P] prompts, of which row r uses the first `lengths` [R], to [R,width]."""
        width = self.tokens.shape[1]
        self.given.copy_(torch.arange(width, device=lengths.device) < lengths[:, None])
        self.tokens.copy_(functional.pad(prompts, (0, width - prompts.shape[1])) * self.given)
        self.place.zero_()
        for state in self.states:
            state.clear()
        for _ in range(width - 1):
            self.step()
        return self.tokens.clone()

    @torch.no_grad()
    def _step(self) -> None:
        """Read the tokens at `place` and write those after it, where they are not given."""
        body: Any = self.model.model.language_model
        x = self.model.embed(self.tokens.index_select(1, self.place))
        for layer, state in zip(body.layers, self.states, strict=True):
            x = x + state.step(layer.input_layernorm(x), self.place)
            x = x + layer.mlp(layer.post_attention_layernorm(x))[0]
        choice = self.model.logits(body.norm(x)).argmax(-1)
        self.place.add_(1)
        given, token = (part.index_select(1, self.place) for part in (self.given, self.tokens))
        self.tokens.index_copy_(1, self.place, torch.where(given, token, choice))
