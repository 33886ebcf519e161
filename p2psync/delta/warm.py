"""Compile, or load from numba's cache, what the first version would otherwise wait for: seconds, once a machine."""

from __future__ import annotations

import numpy as np

from p2psync.delta.algebra import apply_with_digest, gather, scatter
from p2psync.delta.container import ChunkEncoder, decode_chunk
from p2psync.delta.digest import digest_units
from p2psync.delta.tensors import Kind, Row, TensorSpec, Units

_BLOCK_UNITS = 1 << 16


def warm(dtypes: tuple[str, ...] = ("BF16", "U8", "F32")) -> None:
    """Go once the way of a version with a tiny tensor of each of these dtypes."""
    for dtype in dtypes:
        spec = TensorSpec(Kind.TENSOR, "warm", dtype, (4096,))
        old = np.arange(4096).astype(spec.unit)
        new = old.copy()
        new[::100] += 1
        for row in (Row(spec, True, True), Row(spec, False, True)):
            _go([row], old, new)
        digest_units(spec, new)


def warm_tight() -> None:
    """The same for profile tight, which takes longer: weights of 16 exponents, changed half as often with each."""
    spec = TensorSpec(Kind.TENSOR, "warm", "BF16", (_BLOCK_UNITS,))
    mixed = np.arange(_BLOCK_UNITS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    exponent = mixed >> np.uint64(60)
    old = ((np.uint64(112) + exponent << np.uint64(7)) + (mixed >> np.uint64(40) & np.uint64(127))).astype(spec.unit)
    new = old.copy()
    new[(mixed >> np.uint64(20) & (np.uint64(2) << exponent) - np.uint64(1)) == 0] += 1
    _go([Row(spec, True, True)], old, new, "tight")


def _go(rows: list[Row], old: Units, new: Units, profile: str = "fast") -> None:
    encoder = ChunkEncoder(rows, block_units=_BLOCK_UNITS, chunk_bytes=1 << 16, profile=profile)
    before = rows[0].before
    chunks = [*encoder.add(0, old if before else None, new), *encoder.finish()]
    target = old.copy() if before else np.zeros_like(old)
    for chunk in chunks:
        for block in decode_chunk(chunk.data, rows, _BLOCK_UNITS, lambda row: old):
            scatter(target, block, gather(target, block))
            apply_with_digest(rows[0].spec, target, block)
