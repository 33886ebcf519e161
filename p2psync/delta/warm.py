"""Compiles the codec's loops ahead of the first version: tens of seconds, once per machine.

Two processes may share the work after `warm_shared`: one runs `warm_encoder` and one `warm_rest`, which compile no
function in common. That matters because numba's index of a function on disk has one writer at a time.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from p2psync.delta.algebra import apply_with_digest, gather, scatter
from p2psync.delta.container import ChunkEncoder, decode_chunk
from p2psync.delta.digest import digest_units
from p2psync.delta.fast.codec import FAST
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec, Units
from p2psync.delta.tight.ans import frequencies_of
from p2psync.delta.tight.change_finder import UNIT_BYTES
from p2psync.delta.tight.writer import TIGHT

#: A dtype of each width (bytes of a unit): loops are compiled for units, not for dtypes.
_DTYPES = {1: "U8", 2: "BF16", 4: "F32", 8: "F64"}
_BLOCK_UNITS = 1 << 16
#: The chunk that `warm_encoder` makes: with it the decoder is compiled before there is an encoder.
_TIGHT_CHUNK = bytes.fromhex(
    "7002280f001e0006000010111111111111210700000b000002041ae6002e00000000000000000000000000400f404b81d9b66ddb6ddbb66ddbb66ddb"
)


def warm(widths: Collection[int] = (1, 2, 4)) -> None:
    """Compiles all loops that versions with units of these widths (bytes: 1, 2, 4 or 8) need, or loads them."""
    warm_shared(widths)
    warm_encoder(widths)
    warm_rest(widths)


def warm_shared(widths: Collection[int]) -> None:
    """Compiles what both `warm_encoder` and `warm_rest` need: the first part of `warm`."""
    if UNIT_BYTES in widths:
        _warm_fast(UNIT_BYTES)
        frequencies_of(np.zeros(1, np.uint8), np.zeros(1, np.int64))


def warm_encoder(widths: Collection[int]) -> None:
    """Compiles the encoder of the profile `tight`: the part of `warm` that takes the longest."""
    if UNIT_BYTES in widths:
        row, old, new = _tight_sample()
        _encode(row, old, new, TIGHT)


def warm_rest(widths: Collection[int]) -> None:
    """Compiles the decoder of `tight`, and what the widths need that `warm_shared` leaves out."""
    if UNIT_BYTES in widths:
        row, old, _ = _tight_sample()
        _decode([_TIGHT_CHUNK], row, old)
    for width in widths:
        if width != UNIT_BYTES:
            _warm_fast(width)


def _warm_fast(width: int) -> None:
    """Encodes and decodes a tiny tensor in the profile `fast`, with a base and without."""
    spec = TensorSpec(TensorKind.TENSOR, "warm", _DTYPES[width], (4096,))
    old = np.arange(4096).astype(spec.unit)
    new = old.copy()
    new[::100] += 1
    for row in (TableRow(spec, True, True), TableRow(spec, False, True)):
        _decode(_encode(row, old, new, FAST), row, old)
    digest_units(spec, new)


def _tight_sample() -> tuple[TableRow, Units, Units]:
    """A row, old and new bits of which `tight` makes the smaller chunk: only units of one scale in sixteen change."""
    spec = TensorSpec(TensorKind.TENSOR, "warm", _DTYPES[UNIT_BYTES], (8192,))
    index = np.arange(8192)
    old = (index % 16 << 7).astype(spec.unit)
    return TableRow(spec, True, True), old, old + (index % 256 == 15).astype(spec.unit)


def _encode(row: TableRow, old: Units, new: Units, profile: str) -> list[bytes]:
    encoder = ChunkEncoder([row], block_units=_BLOCK_UNITS, chunk_bytes=1 << 16, profile=profile)
    return [chunk.data for chunk in (*encoder.add(0, old if row.before else None, new), *encoder.finish())]


def _decode(chunks: list[bytes], row: TableRow, old: Units) -> None:
    target = old.copy() if row.before else np.zeros_like(old)
    for chunk in chunks:
        for block in decode_chunk(chunk, [row], _BLOCK_UNITS, lambda row: old):
            scatter(target, block, gather(target, block))
            apply_with_digest(row.spec, target, block)
