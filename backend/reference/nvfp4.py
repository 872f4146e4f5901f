"""NVFP4 as ModelOpt stores it: E2M1 values in pairs, an FP8 scale per block of 16, one FP32 scale per matrix.

    weight = e2m1 * block_scale * global_scale

E2M1 is a sign, two exponent bits and one mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6. The even column of a pair sits in
the low four bits of its byte. `global_scale` makes the largest weight meet the largest value (6) under the largest FP8
block scale (448). Written after the layout of NVIDIA's ModelOpt checkpoints (`weight`, `weight_scale`,
`weight_scale_2`, `input_scale`).
"""

import torch
from torch import Tensor

BLOCK = 16
E2M1_MAX, E4M3_MAX = 6.0, 448.0
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Halfway between neighbours. A tie goes to the value with an even mantissa bit, as IEEE rounding has it: down at the
# 1st, 3rd, 5th and 7th of these, up at the others.
MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)

Quantised = tuple[Tensor, Tensor, Tensor]
"""Packed weight uint8 [..., N, K/2], block scale float8_e4m3fn [..., N, K/16], global scale float32 (a scalar)."""


def scale_for(largest: Tensor) -> Tensor:
    """Global scale of a tensor whose largest magnitude is `largest`; 1 for a tensor of zeros."""
    return torch.where(largest > 0, largest.float() / (E2M1_MAX * E4M3_MAX), 1.0)


def quantize(weight: Tensor, global_scale: Tensor | None = None) -> Quantised:
    """Round `weight` [..., N, K] to NVFP4; K must be a multiple of 16. Matrices that an engine fuses need one common
    `global_scale`: `scale_for` of the larger of their largest magnitudes."""
    if weight.shape[-1] % BLOCK:
        raise ValueError(f"NVFP4 works on blocks of {BLOCK} columns; the weight has {weight.shape[-1]}.")
    blocks = weight.float().reshape(*weight.shape[:-1], -1, BLOCK)
    largest = blocks.abs().amax(-1)
    if global_scale is None:
        global_scale = scale_for(largest.amax())
    wanted = largest / (E2M1_MAX * global_scale)
    block_scale = wanted.clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    step = block_scale.float().unsqueeze(-1) * global_scale
    codes = e2m1_codes(torch.where(step > 0, blocks / step, 0.0)).flatten(-2)
    return codes[..., 0::2] | codes[..., 1::2] << 4, block_scale, global_scale.float()


def e2m1_codes(values: Tensor) -> Tensor:
    """Four-bit codes (sign in bit 3) of the nearest E2M1 values, beyond 6 the largest. uint8, the shape of `values`."""
    points = torch.tensor(MIDPOINTS, device=values.device)
    size = values.abs().contiguous()
    below, upto = torch.bucketize(size, points), torch.bucketize(size, points, right=True)
    nearest = torch.where(upto % 2 == 0, upto, below)  # they differ at a midpoint alone
    return (nearest + 8 * (values < 0)).to(torch.uint8)


def pair_table(device: torch.device | str = "cpu") -> Tensor:
    """For each byte its two values as FP32, seen as one float64 [256]: one lookup then yields both."""
    magnitudes = torch.tensor(MAGNITUDES)
    values = torch.cat([magnitudes, -magnitudes])
    codes = torch.arange(256)
    pairs = torch.stack([values[codes & 15], values[codes >> 4]], -1)
    return pairs.view(torch.float64).flatten().to(device)


def unpack(packed: Tensor, table: Tensor | None = None) -> Tensor:
    """E2M1 values [..., N, K] of packed bytes [..., N, K/2], before any scale. Keep `pair_table()` for repeated use."""
    table = pair_table(packed.device) if table is None else table
    pairs = table.index_select(0, packed.flatten().int())
    return pairs.view(torch.float32).view(*packed.shape[:-1], -1)


def dequantize(packed: Tensor, block_scale: Tensor, global_scale: Tensor) -> Tensor:
    """FP32 weight [..., N, K]."""
    return Dequantizer(block_scale, global_scale)(packed)


class Dequantizer:
    """`dequantize` for repeated use: table and combined scales are prepared once. `scale` is FP32 [..., N, K/16]."""

    def __init__(self, block_scale: Tensor, global_scale: Tensor) -> None:
        trailing = [1] * (block_scale.ndim - global_scale.ndim)
        self.scale = block_scale.float() * global_scale.view(*global_scale.shape, *trailing)
        self.table = pair_table(block_scale.device)

    def __call__(self, packed: Tensor) -> Tensor:
        """FP32 weight [..., N, K] of packed bytes [..., N, K/2]."""
        blocks = unpack(packed, self.table).view(*self.scale.shape, BLOCK)
        return blocks.mul_(self.scale.unsqueeze(-1)).flatten(-2)
