"""What a sequence leaves behind between steps: keys and values, delta-net states, and room for one verification."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from backend.reference.config import TextConfig


@dataclass
class KvPool:
    """Keys and values of some layers, [layers, kv heads, tokens, head_dim] each, float32."""

    keys: Tensor
    values: Tensor

    @cached_property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer."""
        return list(zip(self.keys.unbind(), self.values.unbind(), strict=True))

    @classmethod
    def allocate(cls, config: TextConfig, layers: int, tokens: int) -> "KvPool":
        """Zeroed, so that the memory is really taken at the start and not when the pool fills."""
        shape = (layers, config.num_key_value_heads, tokens, config.head_dim)
        return cls(torch.zeros(shape), torch.zeros(shape))

    @staticmethod
    def bytes_per_token(config: TextConfig, layers: int) -> int:
        """Bytes that one token takes in a pool of `layers` layers."""
        return 2 * layers * config.num_key_value_heads * config.head_dim * torch.float32.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of both tensors."""
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True)
class LayerState:
    """One layer's part of a StatePool for B slots, BH = B * heads: `ssm` [BH, dk, dv], `conv` [B, K-1, conv_dim],
    `key` [BH, T, dk], `written` [BH, T, dv], `passed` [BH, T, 1 + T], `window` [B, K-1+T, conv_dim]."""

    ssm: Tensor
    conv: Tensor
    key: Tensor
    written: Tensor
    passed: Tensor
    window: Tensor


@dataclass
class StatePool:
    """Delta-net states of `slots` sequences, and what a verification of `drafted` tokens keeps for its rollback.

    `ssm` [layers, slots, heads, dk, dv]; `conv` [layers, slots, K-1, conv_dim] float32. With speculation also
    `key` [layers, slots, heads, T, dk], `written` [.., T, dv], `passed` [.., T, 1 + T] (delta_net.decays) and
    `window` [layers, slots, K-1+T, conv_dim].
    """

    ssm: Tensor
    conv: Tensor
    key: Tensor
    written: Tensor
    passed: Tensor
    window: Tensor
    _views: "dict[tuple[int, int], list[LayerState]]" = field(default_factory=dict, repr=False)

    @classmethod
    def allocate(cls, config: TextConfig, slots: int, drafted: int, ssm_dtype: torch.dtype) -> "StatePool":
        """`drafted` is the number of tokens in one verification, 0 without speculation."""
        c = config
        layers = sum(not c.is_full_attention(n) for n in range(c.num_hidden_layers))
        heads, taps = c.linear_num_value_heads, c.linear_conv_kernel_dim
        key, value = c.linear_key_head_dim, c.linear_value_head_dim
        return cls(
            ssm=torch.zeros(layers, slots, heads, key, value, dtype=ssm_dtype),
            conv=torch.zeros(layers, slots, taps - 1, c.conv_dim),
            key=torch.zeros(layers, slots, heads, drafted, key),
            written=torch.zeros(layers, slots, heads, drafted, value),
            passed=torch.zeros(layers, slots, heads, drafted, 1 + drafted),
            window=torch.zeros(layers, slots, taps - 1 + drafted if drafted else 0, c.conv_dim),
        )

    def layers(self, slot: int, batch: int) -> "list[LayerState]":
        """Per layer, views of `batch` slots from `slot` on. Made once: a forward needs all of them each time."""
        if (slot, batch) not in self._views:
            rows = slice(slot, slot + batch)
            self._views[slot, batch] = [
                LayerState(
                    ssm=self.ssm[n, rows].flatten(0, 1),
                    conv=self.conv[n, rows],
                    key=self.key[n, rows].flatten(0, 1),
                    written=self.written[n, rows].flatten(0, 1),
                    passed=self.passed[n, rows].flatten(0, 1),
                    window=self.window[n, rows],
                )
                for n in range(self.ssm.shape[0])
            ]
        return self._views[slot, batch]

    def clear(self, slot: int) -> None:
        """Back to the state before any token."""
        self.ssm[:, slot] = 0
        self.conv[:, slot] = 0

    def move(self, source: int, target: int) -> None:
        """Give the sequence in slot `source` the slot `target`. Nothing may be pending for it."""
        self.ssm[:, target] = self.ssm[:, source]
        self.conv[:, target] = self.conv[:, source]

    def swap(self, one: int, other: int) -> None:
        """Exchange two slots. Nothing may be pending for either."""
        pair, turned = [one, other], [other, one]
        self.ssm[:, pair] = self.ssm[:, turned]
        self.conv[:, pair] = self.conv[:, turned]

    @property
    def state_nbytes(self) -> int:
        """Bytes of the states themselves."""
        return self.ssm.nbytes + self.conv.nbytes

    @property
    def intermediate_ssm_nbytes(self) -> int:
        """Bytes kept by a verification to advance the delta-net states afterwards."""
        return self.key.nbytes + self.written.nbytes + self.passed.nbytes

    @property
    def intermediate_conv_nbytes(self) -> int:
        """Bytes of the convolution windows that a verification keeps."""
        return self.window.nbytes


@dataclass
class Extents:
    """Hands out contiguous ranges of a pool of `size` tokens, first fit."""

    size: int
    taken: dict[int, int] = field(default_factory=dict)  # start: length

    def take(self, length: int) -> int | None:
        """Start of a free range of `length` tokens, or None when there is none now."""
        start = 0
        for begin in sorted(self.taken):
            if begin - start >= length:
                break
            start = begin + self.taken[begin]
        if start + length > self.size:
            return None
        self.taken[start] = length
        return start

    def give_back(self, start: int) -> None:
        """Free the range that starts at `start`."""
        del self.taken[start]

    @property
    def used(self) -> int:
        """Tokens in ranges that are taken."""
        return sum(self.taken.values())
