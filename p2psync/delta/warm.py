"""Compilation of the codec's loops ahead of the first version: seconds, once per machine."""

from __future__ import annotations

import numpy as np

from p2psync.delta.algebra import apply_with_digest, gather, scatter
from p2psync.delta.container import ChunkEncoder, decode_chunk
from p2psync.delta.digest import digest_units
from p2psync.delta.fast.codec import FAST
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec, Units
from p2psync.delta.tight.change_finder import UNIT_BYTES
from p2psync.delta.tight.writer import TIGHT

_BLOCK_UNITS = 1 << 16


def warm(dtypes: tuple[str, ...] = ("BF16", "U8", "F32")) -> None:
    """Compile, or load from numba's cache, all loops that a version of these dtypes needs.

    Encodes, decodes and applies a tiny tensor of each dtype.
    """
    for dtype in dtypes:
        spec = TensorSpec(TensorKind.TENSOR, "warm", dtype, (4096,))
        old = np.arange(4096).astype(spec.unit)
        new = old.copy()
        new[::100] += 1
        for row in (TableRow(spec, True, True), TableRow(spec, False, True)):
            _round_trip([row], old, new, FAST)
        if spec.width == UNIT_BYTES:
            # Only one of sixteen scales changes, so the tight chunk is the smaller one.
            draw = np.random.default_rng(0).integers(64, size=_BLOCK_UNITS)
            old = (draw % 16 << 7).astype(spec.unit)
            new = old + (draw == 15).astype(spec.unit)
            _round_trip(
                [TableRow(TensorSpec(TensorKind.TENSOR, "warm", dtype, (_BLOCK_UNITS,)), True, True)], old, new, TIGHT
            )
        digest_units(spec, new[: spec.count])


def _round_trip(rows: list[TableRow], old: Units, new: Units, profile: str) -> None:
    encoder = ChunkEncoder(rows, block_units=_BLOCK_UNITS, chunk_bytes=1 << 16, profile=profile)
    before = rows[0].before
    chunks = [*encoder.add(0, old if before else None, new), *encoder.finish()]
    target = old.copy() if before else np.zeros_like(old)
    for chunk in chunks:
        for block in decode_chunk(chunk.data, rows, _BLOCK_UNITS, lambda row: old):
            scatter(target, block, gather(target, block))
            apply_with_digest(rows[0].spec, target, block)
