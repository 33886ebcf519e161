"""Rounding gives the bits of torch, for every pattern."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from p2psync.delta.kernels.rounding import QUIET_NAN, round_bf16
from p2psync.engines.device.finder import nan_bits


def by_torch(bits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(bits.view(np.float32)).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def rounded(bits: np.ndarray, nan: int) -> np.ndarray:
    out = np.empty(bits.size, np.uint16)
    round_bf16(bits.view(np.float32), out, nan)
    return out


def test_rounding_is_right_for_every_deciding_pattern() -> None:
    # All 65536 values of sign, exponent and upper mantissa, with lower halves around the ties and the ends.
    lower = np.array([0, 1, 2, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF], np.uint32)
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    bits = (upper[:, None] | lower).reshape(-1)
    np.testing.assert_array_equal(rounded(bits, nan_bits(torch.device("cpu"))), by_torch(bits))


def test_rounding_is_right_for_sampled_patterns() -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 1 << 22, np.uint32)
    np.testing.assert_array_equal(rounded(bits, nan_bits(torch.device("cpu"))), by_torch(bits))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0x3F808000, 0x3F80),  # a tie, to even: down
        (0x3F818000, 0x3F82),  # a tie, to even: up
        (0x3F808001, 0x3F81),
        (0x00000001, 0x0000),  # the smallest subnormal
        (0x80018000, 0x8002),  # subnormals are kept
        (0x007FFFFF, 0x0080),  # into the normal ones
        (0x7F7F7FFF, 0x7F7F),
        (0x7F7F8000, 0x7F80),  # beyond the largest: an infinity
        (0xFF800000, 0xFF80),
        (0x7F800001, QUIET_NAN),  # a NaN that would lose all of its payload
        (0xFFFFFFFF, QUIET_NAN),  # and one that would overflow
    ],
)
def test_rounding_is_right_for_corner_cases(value: int, expected: int) -> None:
    assert rounded(np.array([value], np.uint32), QUIET_NAN)[0] == expected


def test_rounding_refuses_unfit_arguments() -> None:
    masters, out = np.zeros(8, np.float32), np.zeros(8, np.uint16)
    for bad in (masters[:7], masters[::2], masters.view(np.uint32), masters.reshape(2, 4)):
        with pytest.raises(ValueError, match=r"wanted|contiguous"):
            round_bf16(bad, out)
    with pytest.raises(ValueError, match="contiguous"):
        round_bf16(masters[::2], out[::2])
    for nan in (0x7F80, 0xFF80, 0, -1, 0x1FFFF):
        with pytest.raises(ValueError, match="no NaN"):
            round_bf16(masters, out, nan)
