"""NVFP4: rounding, scales and packing against values worked out by hand."""

import pytest
import torch

from backend.reference.nvfp4 import Dequantizer, dequantize, e2m1_codes, quantize, scale_for, unpack

# 6 sets the block's scale: block amax / 6 = 1, times the global scale below.
ROW = [6.0, -6.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, 0.0]


def test_values_between_two_neighbours_go_to_the_nearer_and_ties_to_the_even_code():
    # Ties: 0.25 -> 0 (code 0), 0.75 -> 1 (2), 1.25 -> 1 (2), 1.75 -> 2 (4), 2.5 -> 2 (4), 3.5 -> 4 (6), 5 -> 4 (6).
    values = torch.tensor([0.24, 0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.01, 9.0, -0.75, -5.0, -0.1])
    assert e2m1_codes(values).tolist() == [0, 0, 1, 2, 2, 4, 4, 6, 6, 7, 7, 10, 14, 8]


def test_exact_values_survive_and_the_even_column_is_in_the_low_bits():
    packed, block_scale, global_scale = quantize(torch.tensor([ROW]))
    # amax 6: global 6 / (6 * 448) = 1/448, block scale 6 / 6 * 448 = 448, the largest FP8 number.
    assert global_scale.item() == pytest.approx(1 / 448)
    assert block_scale.float().tolist() == [[448.0]]
    # 6 is code 7 and -6 code 15: byte 0 = 7 + 16 * 15 = 247; 0 and 0.5: 0 + 16 * 1; 1 and 1.5: 2 + 16 * 3.
    assert packed[0, :3].tolist() == [247, 16, 50]
    assert packed.dtype == torch.uint8
    assert block_scale.dtype == torch.float8_e4m3fn
    assert dequantize(packed, block_scale, global_scale).tolist() == [pytest.approx(ROW)]


def test_each_block_has_its_own_scale_in_steps_of_fp8():
    # Second block of tenths: amax 0.6, wanted scale 0.1 * 448 = 44.8; FP8 has 44 and 48 there: 44, so 0.6 comes back
    # as 6 * 44 / 448 = 0.589.
    weight = torch.tensor([ROW + [value / 10 for value in ROW]])
    packed, block_scale, global_scale = quantize(weight)
    assert block_scale.float().tolist() == [[448.0, 44.0]]
    restored = dequantize(packed, block_scale, global_scale)
    assert restored[0, 16].item() == pytest.approx(6 * 44 / 448)
    assert restored[0, 16:].tolist() == pytest.approx([value * 44 / 448 for value in ROW])


def test_a_common_global_scale_leaves_room_for_the_larger_matrix():
    # The partner reaches 12, so this matrix's block scale is half of the largest: 448 / 2.
    packed, block_scale, global_scale = quantize(torch.tensor([ROW]), scale_for(torch.tensor(12.0)))
    assert global_scale.item() == pytest.approx(12 / (6 * 448))
    assert block_scale.float().tolist() == [[224.0]]
    assert dequantize(packed, block_scale, global_scale).tolist() == [pytest.approx(ROW)]


def test_zeros_stay_zeros():
    packed, block_scale, global_scale = quantize(torch.zeros(3, 32))
    assert global_scale.item() == 1.0
    assert not dequantize(packed, block_scale, global_scale).any()


def test_a_block_too_small_for_its_fp8_scale_becomes_zero_and_not_nan():
    # 1e-9 against 6: wanted block scale 7e-8 of full range, below FP8's smallest 2**-9.
    weight = torch.tensor([ROW, [1e-9] * 16])
    assert dequantize(*quantize(weight))[1].tolist() == [0.0] * 16


def test_a_width_that_is_no_multiple_of_the_block_is_refused():
    with pytest.raises(ValueError, match="blocks of 16"):
        quantize(torch.zeros(2, 24))


def test_stacked_matrices_with_their_own_scales_dequantise_together():
    parts = [quantize(torch.tensor([ROW]) * factor) for factor in (1.0, 3.0)]
    stacked = [torch.stack(part) for part in zip(*parts, strict=True)]
    dequantise = Dequantizer(stacked[1], stacked[2])
    # Both are exact: 3 * ROW scales global and leaves the codes alone.
    assert dequantise(stacked[0]).tolist() == [[pytest.approx(ROW)], [pytest.approx([3 * v for v in ROW])]]


def test_every_byte_unpacks_to_the_pair_of_its_nibbles():
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = magnitudes + [-value for value in magnitudes]
    pairs = unpack(torch.arange(256, dtype=torch.uint8).view(1, 256)).view(256, 2).tolist()
    assert pairs == [[values[byte % 16], values[byte // 16]] for byte in range(256)]


def test_normal_weights_lose_about_a_tenth():
    # Prototype measurement on normal weights: relative error 9.5 %.
    weight = torch.randn(256, 192, generator=torch.Generator().manual_seed(0))
    error = (dequantize(*quantize(weight)) - weight).norm() / weight.norm()
    assert 0.08 < error < 0.11
