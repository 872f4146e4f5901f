"""Routed experts in memory: as matrices that products read at once, or packed in NVFP4 and unpacked at every use.

Both forms are [in, out] per expert (the fastest orientation for few tokens on a CPU), gate and up projection side by
side. Packing is the checkpoint's own, turned: its bytes pair neighbours along the input, here along the output, so
that unpacking yields [in, out] and a block scale spans a whole row of outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from backend.reference.nvfp4 import BLOCK, pair_table


@cache
def _table() -> Tensor:
    return pair_table()


@dataclass(frozen=True)
class DenseExperts:
    """`gate_up` [E, H, gate|up = 2*I] and `out` [E, I, H]."""

    gate_up: Tensor
    out: Tensor

    @property
    def count(self) -> int:
        """Number of experts."""
        return self.out.shape[0]

    @cached_property
    def _views(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return self.gate_up.unbind(), self.out.unbind()

    def up(self, expert: int) -> Tensor:
        """[H, gate|up = 2*I] of one expert."""
        return self._views[0][expert]

    def down(self, expert: int) -> Tensor:
        """[I, H] of one expert."""
        return self._views[1][expert]

    def all(self) -> tuple[Tensor, Tensor]:
        """Matrices of all experts."""
        return self.gate_up, self.out


@dataclass(frozen=True)
class _Room:
    """Room for one unpacked matrix, used again and again so that it stays in the processor's cache."""

    index: Tensor
    pairs: Tensor
    blocks: Tensor
    matrix: Tensor


@cache
def _room(rows: int, columns: int) -> _Room:
    pairs = torch.empty(rows * columns // 2, dtype=torch.float64)
    values = pairs.view(torch.float32)
    index = torch.empty(rows * columns // 2, dtype=torch.int32)
    return _Room(index, pairs, values.view(-1, BLOCK, columns), values.view(rows, columns))


def _unpack_into(room: _Room, packed: Tensor, scale: Tensor) -> Tensor:
    room.index.copy_(packed)
    torch.index_select(_table(), 0, room.index, out=room.pairs)
    room.blocks.mul_(scale)
    return room.matrix


@dataclass(frozen=True)
class PackedExperts:
    """`packed` uint8 [E, bytes of up and then of down], `scale` float32 [E, one per BLOCK weights, in that order].

    `scale` is the product of block and global scale: taking both from their own types at each use costs more time
    than unpacking the weights does.
    """

    packed: Tensor
    scale: Tensor
    hidden: int
    inner: int

    @property
    def count(self) -> int:
        """Number of experts."""
        return self.packed.shape[0]

    @cached_property
    def _views(self) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
        """Bytes and scales of each expert's matrix [H, 2*I] and of its matrix [I, H]."""
        weights = [self.hidden * 2 * self.inner, self.inner * self.hidden]
        packed = self.packed.split_with_sizes([size // 2 for size in weights], 1)
        scale = self.scale.split_with_sizes([size // BLOCK for size in weights], 1)
        up, down = (
            list(zip(p.unbind(), s.view(self.count, -1, 1, columns).unbind(), strict=True))
            for p, s, columns in zip(packed, scale, (2 * self.inner, self.hidden), strict=True)
        )
        return up, down

    def up(self, expert: int) -> Tensor:
        """float32 [H, gate|up = 2*I] of one expert, unpacked now and valid until the next call."""
        return _unpack_into(_room(self.hidden, 2 * self.inner), *self._views[0][expert])

    def down(self, expert: int) -> Tensor:
        """float32 [I, H] of one expert, unpacked now and valid until the next call."""
        return _unpack_into(_room(self.inner, self.hidden), *self._views[1][expert])

    def all(self) -> tuple[Tensor, Tensor]:
        """float32 matrices of all experts, unpacked now."""
        return self._unpack(self.packed, self.scale)

    def some(self, experts: Tensor) -> tuple[Tensor, Tensor]:
        """float32 [U, H, 2*I] and [U, I, H] of the experts listed in `experts` [U], unpacked now."""
        return self._unpack(self.packed.index_select(0, experts), self.scale.index_select(0, experts))

    def _unpack(self, packed: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        count, split = packed.shape[0], self.hidden * 2 * self.inner
        values = _table().index_select(0, packed.flatten().int()).view(torch.float32).view(count, -1)
        up = values[:, :split].view(count, self.hidden // BLOCK, BLOCK, 2 * self.inner)
        down = values[:, split:].view(count, self.inner // BLOCK, BLOCK, self.hidden)
        up.mul_(scale[:, : split // BLOCK].view(count, -1, 1, 2 * self.inner))
        down.mul_(scale[:, split // BLOCK :].view(count, -1, 1, self.hidden))
        return up.view(count, self.hidden, -1), down.view(count, self.inner, self.hidden)


Experts = DenseExperts | PackedExperts


@dataclass(frozen=True)
class StoredMatrix:
    """One NVFP4 matrix of a checkpoint: `weight` uint8 [N, K/2], `block_scale` E4M3 [N, K/16], `global_scale` [1]."""

    weight: Tensor
    block_scale: Tensor
    global_scale: Tensor


def pack(experts: Sequence[tuple[StoredMatrix, StoredMatrix, StoredMatrix]]) -> PackedExperts:
    """From gate, up and down projection of each expert as the checkpoint stores them."""
    packed, scale = [], []
    for gate, up, down in experts:
        packed.append(torch.cat([_turned(torch.cat([gate.weight, up.weight])), _turned(down.weight)]))
        scale.append(torch.cat([torch.cat([_scale(gate), _scale(up)]).t().flatten(), _scale(down).t().flatten()]))
    inner, hidden = experts[0][0].weight.shape[0], experts[0][2].weight.shape[0]
    return PackedExperts(torch.stack(packed), torch.stack(scale), hidden, inner)


def _scale(matrix: StoredMatrix) -> Tensor:
    return matrix.block_scale.float() * matrix.global_scale


def _turned(weight: Tensor) -> Tensor:
    """Bytes [N, K/2] that pair columns to bytes that pair rows, [K, N/2], flat."""
    codes = torch.stack([weight & 15, weight >> 4], -1).flatten(-2).t()
    return (codes[:, 0::2] | codes[:, 1::2] << 4).flatten()


def expand(experts: PackedExperts, dtype: torch.dtype) -> DenseExperts:
    """Unpacked once and for all."""
    up, down = experts.all()
    return DenseExperts(up.to(dtype).contiguous(), down.to(dtype).contiguous())
