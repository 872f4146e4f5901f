"""The main model and its MTP layer over their caches: prefill, one-token decode, verification with rollback, drafting.

Sequences that run together sit in slots 0 … B-1 of the state pool. KV ranges may lie anywhere in the pool.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from backend.reference import delta_net
from backend.reference.attention import Rotary, Span, attention, remember
from backend.reference.cache import KvPool, LayerState, StatePool
from backend.reference.config import TextConfig
from backend.reference.moe import RUNNERS, Runner
from backend.reference.ops import linear, rms_norm
from backend.reference.weights import AttentionWeights, DeltaNetWeights, MtpWeights, TargetWeights

Record = Callable[[int, int, Tensor, Tensor], None]
"""(delta-net layer, tokens done, state [heads, dk, dv], convolution inputs [K-1 + T, conv_dim]) during a prefill."""


class TargetModel:
    """The main model. `states` and `kv` are its caches; they know nothing of requests."""

    def __init__(
        self, config: TextConfig, weights: TargetWeights, kv: KvPool, states: StatePool, rotary: Rotary, moe_runner: str
    ) -> None:
        self.config = config
        self.weights = weights
        self.kv = kv
        self.states = states
        self.rotary = rotary
        self.moe: Runner = RUNNERS[moe_runner]

    def embed(self, tokens: Tensor) -> Tensor:
        """[N] token ids to [N, H] float32."""
        return F.embedding(tokens, self.weights.embedding).float()

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] final hidden states to [N, V]."""
        return linear(hidden, self.weights.head)

    def prefill(self, tokens: Tensor, span: Span, slot: int, record: Record | None = None) -> Tensor:
        """A chunk of one prompt, [T], into `slot`; its states advance, and `record` is told on the way. Returns final
        hidden states [T, H]."""
        return self._forward(tokens, [span], slot, commit=True, record=record)

    def decode(self, tokens: Tensor, spans: Sequence[Span]) -> Tensor:
        """One token for each of the slots 0 … B-1, [B]; states advance. Returns [B, H]."""
        return self._forward(tokens, spans, 0, commit=True)

    def verify(self, tokens: Tensor, spans: Sequence[Span]) -> Tensor:
        """T tokens for each of the slots 0 … B-1, packed [B*T]; states wait for `accept`. Returns [B*T, H]."""
        return self._forward(tokens, spans, 0, commit=False)

    def accept(self, kept: Sequence[int]) -> None:
        """After `verify`: keep the first `kept[b]` >= 1 tokens of each slot b and forget the rest."""
        s = self.states
        for slot, count in enumerate(kept):
            s.conv[:, slot] = s.window[:, slot, count : count + s.conv.shape[2]]
            for head in range(s.ssm.shape[2]):  # of all layers at once
                state = s.ssm[:, slot, head]
                working = state.float()  # the state itself when it is float32
                passed = s.passed[:, slot, head, count - 1]
                delta_net.advance(working, passed, s.key[:, slot, head], s.written[:, slot, head])
                if working is not state:
                    state.copy_(working)

    def _forward(
        self, tokens: Tensor, spans: Sequence[Span], slot: int, commit: bool, record: Record | None = None
    ) -> Tensor:
        eps = self.config.rms_norm_eps
        positions = self.rotary.at(spans)
        x = self.embed(tokens)
        keys_values = iter(self.kv.layers)
        states = iter(enumerate(self.states.layers(slot, len(spans))))
        for layer in self.weights.layers:
            normed = rms_norm(x, layer.input_norm, eps)
            if isinstance(layer.mixer, AttentionWeights):
                x = attention(self.config, layer.mixer, normed, x, positions, *next(keys_values))
            else:
                number, state = next(states)
                told = partial(record, number) if record is not None else None
                x = self._delta_net(layer.mixer, state, normed, x, len(spans), commit, told)
            x = self.moe(self.config, layer.moe, rms_norm(x, layer.post_norm, eps), x)
        return rms_norm(x, self.weights.norm, eps)

    def _delta_net(
        self,
        weights: DeltaNetWeights,
        layer: LayerState,
        x: Tensor,
        residual: Tensor,
        batch: int,
        commit: bool,
        record: Callable[[int, Tensor, Tensor], None] | None,
    ) -> Tensor:
        tokens = x.shape[0] // batch
        taps = layer.conv.shape[1]
        window = x.new_empty(batch, taps + tokens, layer.conv.shape[2]) if commit else layer.window
        inputs, z = delta_net.project(self.config, weights, x, layer.conv, window)
        working = layer.ssm.float()  # the state itself when it is float32
        if commit:
            if record is not None:
                o = delta_net.prefill(inputs, working, lambda done: record(done, working, window[0]))
            else:
                o = delta_net.step(inputs, working) if tokens == 1 else delta_net.prefill(inputs, working)
            layer.conv.copy_(window[:, -taps:])
            if working is not layer.ssm:
                layer.ssm.copy_(working)
        else:
            o, written, _ = delta_net.block(inputs, working, layer.passed)
            layer.key.copy_(inputs.qk[:, :, 1])
            layer.written.copy_(written)
        return delta_net.output(self.config, weights, o, z, batch, residual)


class MtpModel:
    """The MTP layer as a drafter. Its KV pool has the target's token ranges; embedding and head are the target's."""

    def __init__(self, target: TargetModel, weights: MtpWeights, kv: KvPool, moe_runner: str) -> None:
        self.target = target
        if not isinstance(weights.layer.mixer, AttentionWeights):
            raise TypeError("the MTP layer is a full-attention layer")
        self.weights = weights
        self.mixer = weights.layer.mixer
        self.kv = kv
        self.moe: Runner = RUNNERS[moe_runner]

    def extend(self, hidden: Tensor, next_tokens: Tensor, spans: Sequence[Span]) -> Tensor:
        """Entries for tokens whose true hidden states [N, H] are known, each with the token after it, [N].

        Writes their KV (over that of earlier drafts) and returns the layer's normed output for the last token of each
        span, [B, H]: drafts start there, so of the others nothing but keys and values is computed.
        """
        x = self._join(hidden, next_tokens)
        if x.shape[0] > len(spans):
            normed = rms_norm(x, self.weights.layer.input_norm, self.target.config.rms_norm_eps)
            remember(self.target.config, self.mixer, normed, self.target.rotary.at(spans), *self.kv.layers[0])
            x = x.index_select(0, torch.tensor([end - 1 for end in accumulate(span.count for span in spans)]))
        return self._layer(x, [Span(span.start, span.past + span.count - 1, 1) for span in spans])

    def draft(self, hidden: Tensor, spans: Sequence[Span], steps: int) -> Tensor:
        """Chain of `steps` greedy drafts [B, steps] from the last output [B, H] of each sequence.

        `spans` say where the entries of the second step on go: `past` is the number of true entries.
        """
        drafts = [self.target.logits(hidden).argmax(-1)]
        for n in range(1, steps):
            here = [Span(span.start, span.past + n - 1, 1) for span in spans]
            hidden = self._layer(self._join(hidden, drafts[-1]), here)
            drafts.append(self.target.logits(hidden).argmax(-1))
        return torch.stack(drafts, 1)

    def _join(self, hidden: Tensor, next_tokens: Tensor) -> Tensor:
        """The layer's input [N, H] of hidden states [N, H] and the tokens after them [N]."""
        w, eps = self.weights, self.target.config.rms_norm_eps
        embedded = rms_norm(self.target.embed(next_tokens), w.embedding_norm, eps)
        return linear(torch.cat([embedded, rms_norm(hidden, w.hidden_norm, eps)], -1), w.fc)

    def _layer(self, x: Tensor, spans: Sequence[Span]) -> Tensor:
        config, layer = self.target.config, self.weights.layer
        eps = config.rms_norm_eps
        positions = self.target.rotary.at(spans)
        x = attention(config, self.mixer, rms_norm(x, layer.input_norm, eps), x, positions, *self.kv.layers[0])
        x = self.moe(config, layer.moe, rms_norm(x, layer.post_norm, eps), x)
        return rms_norm(x, self.weights.norm, eps)
