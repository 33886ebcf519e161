"""What a delta must cost, and what published formats make it cost: bits per changed unit, on the same weights.

Bounds are empirical entropies, so no coder that knows no more can do better on average. The formats are rebuilt from
their descriptions, only as far as their size goes: positions and values of bf16 weights, without headers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

Bits = NDArray[np.uint16]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bits per changed unit. `units`: how many units of the model were looked at."""

    units: int
    changed: int
    entropy: float
    """Gaps and steps, each coded by its own frequencies."""
    entropy_given_exponent: float
    """Both coded given the exponent of the old weight, which a receiver knows."""
    int32_raw: float
    """A 32-bit index and the new value."""
    leb128_raw: float
    """LEB128 gaps and the new value (SparrowRL)."""
    gaps16_zstd: float
    """16-bit gaps and the new value, zstd-1 (near PULSE)."""
    gaps_xor_zstd: float
    """LEB128 gaps and old ^ new, zstd-1 (near NeMo-RL)."""


def measure_bounds(pairs: Sequence[tuple[Bits, Bits]], limit: int = 1 << 25) -> Bounds:
    """Look at (old, new) pairs of flat bf16 arrays until `limit` units were seen."""
    units, gaps, steps, exponents, values, xors = 0, [], [], [], [], []
    seen = np.zeros(256, np.int64)
    for old, new in pairs:
        if units >= limit:
            break
        old, new = old[: limit - units], new[: limit - units]
        where = np.flatnonzero(old != new)
        units += old.size
        seen += np.bincount(_exponent(old), minlength=256)
        gaps.append(np.diff(where, prepend=-1) - 1)
        steps.append(new[where] - old[where])
        exponents.append(_exponent(old[where]))
        values.append(new[where])
        xors.append(new[where] ^ old[where])
    gap, step, exponent, value, xor = (np.concatenate(x) for x in (gaps, steps, exponents, values, xors))
    n = max(1, gap.size)
    leb = _leb128(gap)
    given = _position_bits(seen, np.bincount(exponent, minlength=256)) + sum(
        _entropy(step[exponent == e]) for e in np.unique(exponent)
    )
    return Bounds(
        units=units,
        changed=gap.size,
        entropy=(_position_bits(np.array([units]), np.array([gap.size])) + _entropy(step)) / n,
        entropy_given_exponent=given / n,
        int32_raw=48.0,
        leb128_raw=(8 * leb.size + 16 * gap.size) / n,
        gaps16_zstd=(_zstd(np.minimum(gap, 65535).astype(np.uint16)) + _zstd(value)) / n,
        gaps_xor_zstd=(_zstd(leb) + _zstd(xor)) / n,
    )


def _exponent(units: Bits) -> NDArray[np.intp]:
    return ((units >> 7) & 0xFF).astype(np.intp)


def _entropy(values: Bits) -> float:
    """Bits that all of `values` take, each coded by its frequency among them."""
    counts = np.unique_counts(values).counts
    return float(-(counts * np.log2(counts / max(1, values.size))).sum())


def _position_bits(units: NDArray[np.int64], changed: NDArray[np.int64]) -> float:
    """Bits that say which units changed, per class of units, where the classes are known."""
    p = changed / np.maximum(units, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = -units * (p * np.log2(p) + (1 - p) * np.log2(1 - p))
    return float(np.nansum(bits))


def _leb128(values: NDArray[np.int64]) -> NDArray[np.uint8]:
    parts = [(values >> (7 * k)) & 0x7F | np.where(values >> (7 * k + 7), 0x80, 0) for k in range(5)]
    used = np.stack([np.ones(values.size, bool)] + [(values >> (7 * k)) > 0 for k in range(1, 5)], axis=1)
    leb: NDArray[np.uint8] = np.stack(parts, axis=1)[used].astype(np.uint8)
    return leb


def _zstd(array: NDArray[np.integer]) -> int:
    return 8 * len(zstandard.ZstdCompressor(level=1).compress(array.tobytes()))
