"""Finding changed units by a Triton kernel: both versions are read once, and only what changed is written.

Each program takes a tile of a block: it loads old and new, compares the bits, numbers the changes by a running sum, asks
a counter for as much room as there are changes, and writes them there, in order. So a tile's finds are together and in
order; where tiles lie among one another depends on who came first, and the table of runs (first entry and number, for
each tile) puts them in order while they are copied out on the host. The outcome is the same each time.

Bytes a unit of width w, with a share d of units changed: 2w read, (4 + 2w)·d written, 8 bytes a tile for the runs. With
bf16 at d = 1 % that is 4.08 bytes; copying one version moves 4. So a device that copies at B bytes a second (read and
written counted) could extract at 0.98·B, if instructions do not rule. Two passes (count, then compact) would read 8 bytes
and end just below half. What is left of B for instructions: some 25 a unit, half of them for stores that are masked out
99 times in 100; at 132 multiprocessors of four schedulers at 1.7 GHz that allows some 1.1e12 units a second, 2.2 TB/s of
bf16, where reading both versions at 4 TB/s would want 1.0e12. Masters: 6.08 bytes, the new side is fp32.

All blocks of a group go in one launch, through a table of addresses: a launch for each tensor would cost more than
reading one of a few MiB.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from p2psync.engines.device_find import Group
from p2psync.engines.device_rooms import TABLE_COLUMNS, Room

#: Bytes of one version that a program compares: 16 or more bytes for each of 256 threads.
_TILE_BYTES = 8192
_WARPS = 8
#: Addresses that are multiples of this are read 16 bytes at a time.
_ALIGNMENT = 16


@triton.jit
def round_bits(value, nan):  # type: ignore[no-untyped-def]
    """fp32 bits (uint32) to bf16 bits (int16), nearest and ties to even, a NaN to `nan`: as `delta.rounding`."""
    rounded = (value + 0x7FFF + ((value >> 16) & 1)) >> 16
    return tl.where((value & 0x7FFFFFFF) > 0x7F800000, nan, rounded).to(tl.uint16).to(tl.int16, bitcast=True)


@triton.jit
def find_changes(  # type: ignore[no-untyped-def]
    table,
    runs,
    cursor,
    positions,
    olds,
    steps,
    room,
    tiles,
    nan,
    TILE: tl.constexpr,
    MASTERS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One tile of one block. table: (address of old, address of new, units) for each block; room: entries that fit."""
    tile = tl.program_id(0)
    block = tl.program_id(1)
    entry = table + block * 3
    count = tl.load(entry + 2).to(tl.int32)
    begin = tile * TILE
    run = runs + (block * tiles + tile) * 2
    if begin >= count:
        tl.store(run, 0)
        tl.store(run + 1, 0)
        return
    old_base = tl.load(entry).to(olds.dtype)
    if MASTERS:
        new_base = tl.load(entry + 1).to(positions.dtype)
    else:
        new_base = tl.load(entry + 1).to(olds.dtype)
    if ALIGNED:
        old_base = tl.multiple_of(old_base, 16)
        new_base = tl.multiple_of(new_base, 16)
    offset = begin + tl.arange(0, TILE)
    if begin + TILE <= count:
        # Without a mask, so that the compiler may load 16 bytes at a time.
        old = tl.load(old_base + offset)
        raw = tl.load(new_base + offset)
    else:
        old = tl.load(old_base + offset, mask=offset < count, other=0)
        raw = tl.load(new_base + offset, mask=offset < count, other=0)
    if MASTERS:
        new = round_bits(raw.to(tl.uint32, bitcast=True), nan)
    else:
        new = raw
    changed = old != new
    flags = changed.to(tl.int32)
    found = tl.sum(flags, 0)
    first = 0
    if found > 0:
        first = tl.atomic_add(cursor, found, sem="relaxed")
        at = first + tl.cumsum(flags, 0) - 1
        keep = changed & (at < room)
        tl.store(positions + at, offset, mask=keep)
        tl.store(olds + at, old, mask=keep)
        tl.store(steps + at, new - old, mask=keep)
    tl.store(run, first)
    tl.store(run + 1, found)


class TritonFinder:
    """The kernel above. Masked units of a short tile load zeros on both sides, and fp32 zeros round to zeros."""

    def __init__(self, nan: int) -> None:
        """nan: what a NaN among masters is rounded to; see `nan_bits`."""
        self._nan = nan

    def tiles(self, span: int, width: int) -> int:
        """See `Finder`."""
        return -(-span * width // _TILE_BYTES)

    def look(self, group: Group, room: Room, tiles: int) -> None:
        """See `Finder`: one launch, and the upload of its table."""
        tile = _TILE_BYTES // group.width
        host = room.host_table[: len(group.pieces)]
        host.numpy()[:] = rows = _table(group)
        room.table[: len(group.pieces)].copy_(host, non_blocking=True)
        room.cursor.zero_()
        positions, olds, steps = room.arrays(group.width)
        find_changes[(tiles, len(group.pieces))](
            room.table,
            room.runs,
            room.cursor,
            positions,
            olds,
            steps,
            room.entries(group.width),
            tiles,
            self._nan,
            TILE=tile,
            MASTERS=group.masters,
            ALIGNED=not (rows[:, :2] % _ALIGNMENT).any(),
            num_warps=_WARPS,
        )

    def gather(self, group: Group, room: Room, runs: NDArray[np.int32]) -> None:
        """See `Finder`: all was written by `look`."""


def _table(group: Group) -> NDArray[np.int64]:
    rows = np.empty((len(group.pieces), TABLE_COLUMNS), np.int64)
    for k, (piece, old) in enumerate(zip(group.pieces, group.olds, strict=True)):
        new = piece.pair.new
        rows[k] = old.data_ptr(), new.data_ptr() + piece.start * new.element_size(), piece.count
    return rows
