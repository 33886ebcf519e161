"""Flags of chunks, and the bitmaps in which peers exchange them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: One flag per chunk of a manifest.
Bits = NDArray[np.bool_]


def pack_bitmap(flags: Bits) -> bytes:
    """Returns the bitmap of these flags: one bit each, the least significant one of each byte first."""
    return np.packbits(flags, bitorder="little").tobytes()


def unpack_bitmap(bitmap: bytes, chunks: int) -> Bits:
    """Returns `chunks` flags; missing bytes count as zeros, surplus ones are ignored."""
    raw = np.frombuffer(bitmap, np.uint8, min(len(bitmap), (chunks + 7) // 8))
    flags = np.zeros(chunks, np.bool_)
    bits = np.unpackbits(raw, bitorder="little")[:chunks].astype(np.bool_)
    flags[: len(bits)] = bits
    return flags
