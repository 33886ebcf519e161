"""Rounding of fp32 masters to the published bf16 bits, part by part, without a copy of the whole.

Nearest, ties to even, on the bits alone: subnormals are kept, values out of range become infinities. A NaN becomes one
pattern that the caller gives, because libraries differ there and drop the payload all alike: torch gives 0xFFFF where
it converts in vectors on a CPU, 0x7FC0 where it does not, 0x7FFF on CUDA.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.unit_loops import kernel

#: The default pattern of a NaN: quiet, without payload.
QUIET_NAN = 0x7FC0


def round_bf16(masters: NDArray[np.float32], out: NDArray[np.uint16], nan: int = QUIET_NAN) -> None:
    """Write the bf16 bits of `masters` to `out`; both flat, contiguous and of one length.

    Raises `ValueError` for other arrays, or if `nan` is not a NaN.
    """
    if masters.dtype != np.float32 or out.dtype != np.uint16 or masters.ndim != 1 or masters.shape != out.shape:
        raise ValueError("flat fp32 masters and as many 16-bit units are wanted")
    if not (masters.flags.carray and out.flags.carray):
        raise ValueError("masters and units must be contiguous and aligned")
    if not 0 <= nan <= 0xFFFF or nan & 0x7FFF <= 0x7F80:
        raise ValueError(f"{nan:#x} is no NaN of bf16")
    _round(masters.view(np.uint32), np.uint16(nan), out)


@kernel
def _round(bits: NDArray[np.uint32], nan: np.uint16, out: NDArray[np.uint16]) -> None:
    half, one, exponent, sign = np.uint32(0x7FFF), np.uint32(1), np.uint32(0x7F800000), np.uint32(0x7FFFFFFF)
    for i in range(bits.size):
        value = bits[i]
        # Carries run into the exponent, which is what rounding up a full mantissa means.
        rounded = np.uint16((value + half + ((value >> np.uint32(16)) & one)) >> np.uint32(16))
        out[i] = nan if (value & sign) > exponent else rounded
