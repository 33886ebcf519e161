"""Compile, or load from numba's cache, what the first version would otherwise wait for: seconds, once a machine."""

from __future__ import annotations

import numpy as np

from p2psync.delta.algebra import apply_with_digest, gather, scatter
from p2psync.delta.container import ChunkEncoder, decode_chunk
from p2psync.delta.digest import digest_units
from p2psync.delta.fast.codec import FAST
from p2psync.delta.tensors import Kind, Row, TensorSpec, Units
from p2psync.delta.tight.change_finder import UNIT_BYTES
from p2psync.delta.tight.writer import TIGHT

_BLOCK_UNITS = 1 << 16


def warm(dtypes: tuple[str, ...] = ("BF16", "U8", "F32")) -> None:
    """Go once the way of a version with a tiny tensor of each of these dtypes."""
    for dtype in dtypes:
        spec = TensorSpec(Kind.TENSOR, "warm", dtype, (4096,))
        old = np.arange(4096).astype(spec.unit)
        new = old.copy()
        new[::100] += 1
        for row in (Row(spec, True, True), Row(spec, False, True)):
            _go([row], old, new, FAST)
        if spec.width == UNIT_BYTES:
            # Weights of sixteen scales, of which one changes: a step that is smaller as a tight chunk.
            draw = np.random.default_rng(0).integers(64, size=_BLOCK_UNITS)
            old = (draw % 16 << 7).astype(spec.unit)
            new = old + (draw == 15).astype(spec.unit)
            _go([Row(TensorSpec(Kind.TENSOR, "warm", dtype, (_BLOCK_UNITS,)), True, True)], old, new, TIGHT)
        digest_units(spec, new[: spec.count])


def _go(rows: list[Row], old: Units, new: Units, profile: str) -> None:
    encoder = ChunkEncoder(rows, block_units=_BLOCK_UNITS, chunk_bytes=1 << 16, profile=profile)
    before = rows[0].before
    chunks = [*encoder.add(0, old if before else None, new), *encoder.finish()]
    target = old.copy() if before else np.zeros_like(old)
    for chunk in chunks:
        for block in decode_chunk(chunk.data, rows, _BLOCK_UNITS, lambda row: old):
            scatter(target, block, gather(target, block))
            apply_with_digest(rows[0].spec, target, block)
