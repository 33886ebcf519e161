"""Finding changed units by two Triton kernels: both versions are read once, and then only what changed.

The first compares 64-bit words, 4 bf16 units at a time, and lists for each tile the words that differ, in the tile's
own slots. The second looks at the units of the listed words: it counts the changes of its tile, takes as much room from
a counter, and writes them there, in order. So a tile's finds lie together and in order; how tiles lie among one another
depends on who came first, and the table of runs (first entry and number, for each tile) puts them in order while they
are copied out on the host. The outcome is the same each time.

Bytes a bf16 unit, with a share d of units changed: 4 read by the first kernel; 2·w/4 written and read for the list, w
being 1 − (1 − d)^4, the share of words that changed; 4·s read again by the second, s being 1 − (1 − d)^16, the share of
32-byte sectors with a change; (4 + 2 + 2)·d written. That is 4.7 bytes at d = 1 %, 6.4 at 4 %, where copying one
version moves 4. So a device that copies B bytes a second, reading and writing counted, could read both versions at
0.85·B and 0.63·B. A count and then a compaction over everything would need 8 bytes and end below half.

Words, because instructions rule otherwise: one kernel over single units compiles to some 50 instructions a unit for
sm_90, which four schedulers on each of 132 multiprocessors at 1.7 GHz can issue for 2.2 TB/s of both versions, if they
never wait. These two compile to less than 15 a unit to find words, 8 to write at 1 % and some 24 at 4 %. All this is
counted, from the definition and from compiled code; `python -m p2psync.bench.device` measures.

Masters are compared a unit at a time, 6 bytes each; so are tensors that do not begin at a multiple of 16 bytes. All
blocks of a group go in one launch, through a table of addresses: launches for each tensor would cost more than reading
one of a few MiB.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from p2psync.engines.device.buffers import MAX_GROUP_BLOCKS, ExtractionBuffers
from p2psync.engines.device.finder import BlockGroup, VersionPair

#: Words of a tile, and most words of a group: two bytes of device memory each. Most blocks of a group are
#: `MAX_GROUP_BLOCKS`, and each may have a tile that is nearly empty.
TILE_WORDS = 1024
_GROUP_WORDS = 1 << 24
WORD_BYTES = 8
#: Units that the second kernel looks at in one turn; warps of each kernel.
LANES = 256
LOOK_WARPS, WRITE_WARPS = 4, 2


@triton.jit
def round_bits(value, nan):  # type: ignore[no-untyped-def]
    """fp32 bits (uint32) to bf16 bits (int16), nearest, ties to even, a NaN to `nan`: as `delta.kernels.rounding`."""
    rounded = (value + 0x7FFF + ((value >> 16) & 1)) >> 16
    return tl.where((value & 0x7FFFFFFF) > 0x7F800000, nan, rounded).to(tl.uint16).to(tl.int16, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def find_words(  # type: ignore[no-untyped-def]
    table,
    counts,
    words,
    unit,
    tiles,
    nan,
    PACK: tl.constexpr,
    TILE: tl.constexpr,
    MASTERS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """List the words of one tile of one block that differ.

    table: for each block the addresses of old and new, its units, and its first slot in `words`. counts: for each tile,
    how many words it has listed. unit: a pointer to the unit's type. PACK: units of a word, 1 if they are compared
    alone.
    """
    tile = tl.program_id(0)
    block = tl.program_id(1)
    entry = table + block * 4
    count = tl.load(entry + 2).to(tl.int32)
    begin = tile * TILE
    whole = count // PACK
    if begin * PACK >= count:
        tl.store(counts + block * tiles + tile, 0)
        return
    if PACK == 1:
        old_base = tl.load(entry).to(unit.dtype)
        new_base = tl.load(entry + 1).to(counts.dtype if MASTERS else unit.dtype)
    else:
        old_base = tl.load(entry).to(table.dtype)
        new_base = tl.load(entry + 1).to(table.dtype)
    if ALIGNED:
        old_base = tl.multiple_of(old_base, 16)
        new_base = tl.multiple_of(new_base, 16)
    lane = tl.arange(0, TILE)
    word = begin + lane
    if begin + TILE <= whole:
        # Without a mask, so that the compiler may load 16 bytes at a time.
        old = tl.load(old_base + word)
        new = tl.load(new_base + word)
    else:
        old = tl.load(old_base + word, mask=word < whole, other=0)
        new = tl.load(new_base + word, mask=word < whole, other=0)
    if MASTERS:
        new = round_bits(new.to(tl.uint32, bitcast=True), nan)
    changed = old != new
    # A word that the block ends in is not read, since it is more than the tensor; it is listed in any case.
    flags = (changed | ((word == whole) & (whole * PACK < count))).to(tl.int32)
    found = tl.sum(flags, 0)
    tl.store(counts + block * tiles + tile, found)
    if found > 0:
        at = tl.cumsum(flags, 0) - 1
        slots = words + tl.load(entry + 3) + begin
        tl.store(slots + at, lane.to(tl.int16), mask=flags != 0)


@triton.jit  # type: ignore[untyped-decorator]
def write_changes(  # type: ignore[no-untyped-def]
    table,
    counts,
    words,
    runs,
    cursor,
    positions,
    olds,
    steps,
    room,
    tiles,
    nan,
    PACK: tl.constexpr,
    TILE: tl.constexpr,
    LANES: tl.constexpr,
    MASTERS: tl.constexpr,
):
    """Write the changed units of one tile's listed words to room from `cursor`; what is beyond `room` entries is only
    counted."""
    tile = tl.program_id(0)
    block = tl.program_id(1)
    row = block * tiles + tile
    listed = tl.load(counts + row) * PACK
    found = 0
    first = 0
    if listed > 0:
        entry = table + block * 4
        count = tl.load(entry + 2).to(tl.int32)
        old_base = tl.load(entry).to(olds.dtype)
        new_base = tl.load(entry + 1).to(positions.dtype if MASTERS else olds.dtype)
        slots = words + tl.load(entry + 3) + tile * TILE
        lane = tl.arange(0, LANES)
        for begin in range(0, listed, LANES):
            old, new, offset, live = _units(
                old_base, new_base, slots, begin + lane, listed, tile * TILE, count, nan, PACK, MASTERS
            )
            found += tl.sum((live & (old != new)).to(tl.int32), 0)
        if found > 0:
            first = tl.atomic_add(cursor, found, sem="relaxed")
            base = first
            for begin in range(0, listed, LANES):
                old, new, offset, live = _units(
                    old_base, new_base, slots, begin + lane, listed, tile * TILE, count, nan, PACK, MASTERS
                )
                flags = (live & (old != new)).to(tl.int32)
                at = base + tl.cumsum(flags, 0) - 1
                keep = (flags != 0) & (at < room)
                tl.store(positions + at, offset, mask=keep)
                tl.store(olds + at, old, mask=keep)
                tl.store(steps + at, new - old, mask=keep)
                base += tl.sum(flags, 0)
    tl.store(runs + row * 2, first)
    tl.store(runs + row * 2 + 1, found)


@triton.jit  # type: ignore[untyped-decorator]
def _units(old_base, new_base, slots, lane, listed, begin, count, nan, PACK: tl.constexpr, MASTERS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Old and new bits and the offsets of the units of listed words, and which lanes have one."""
    word = begin + tl.load(slots + lane // PACK, mask=lane < listed, other=0).to(tl.int32)
    offset = word * PACK + lane % PACK
    live = (lane < listed) & (offset < count)
    old = tl.load(old_base + offset, mask=live, other=0)
    new = tl.load(new_base + offset, mask=live, other=0)
    if MASTERS:
        new = round_bits(new.to(tl.uint32, bitcast=True), nan)
    return old, new, offset, live


class TritonFinder:
    """The kernels above, on one stream: the list of words is used by one group at a time."""

    def __init__(self, nan: int) -> None:
        """nan: what a NaN among masters is rounded to; see `nan_bits`."""
        self._nan = nan
        self._words: torch.Tensor | None = None
        self._counts: torch.Tensor | None = None

    def tiles(self, span: int, pair: VersionPair) -> int:
        """See `ChangeFinder`."""
        return -(-span // (TILE_WORDS * units_of_word(pair)))

    def max_units(self, pair: VersionPair) -> int:
        """See `ChangeFinder`: the list of words must hold them."""
        return _GROUP_WORDS * units_of_word(pair)

    def look(self, group: BlockGroup, room: ExtractionBuffers, tiles: int) -> None:
        """See `ChangeFinder`: two launches, and the upload of their table."""
        blocks, pack = group.blocks, units_of_word(group.pieces[0].pair)
        if self._words is None or self._counts is None:
            device, slots = room.runs.device, _GROUP_WORDS + MAX_GROUP_BLOCKS * TILE_WORDS
            self._words = torch.empty(slots, dtype=torch.int16, device=device)
            self._counts = torch.empty(room.runs.shape[0], dtype=torch.int32, device=device)
        host = room.host_table[:blocks]
        host.numpy()[:] = _table(group, pack)
        room.table[:blocks].copy_(host, non_blocking=True)
        room.cursor.zero_()
        positions, olds, steps = room.arrays(group.width)
        find_words[(tiles, blocks)](
            room.table,
            self._counts,
            self._words,
            olds,
            tiles,
            self._nan,
            PACK=pack,
            TILE=TILE_WORDS,
            MASTERS=group.masters,
            ALIGNED=group.aligned,
            num_warps=LOOK_WARPS,
        )
        write_changes[(tiles, blocks)](
            room.table,
            self._counts,
            self._words,
            room.runs,
            room.cursor,
            positions,
            olds,
            steps,
            room.entries(group.width),
            tiles,
            self._nan,
            PACK=pack,
            TILE=TILE_WORDS,
            LANES=LANES,
            MASTERS=group.masters,
            num_warps=WRITE_WARPS,
        )

    def gather(self, group: BlockGroup, room: ExtractionBuffers, runs: NDArray[np.int32]) -> None:
        """See `ChangeFinder`: all was written by `look`."""


def units_of_word(pair: VersionPair) -> int:
    """Units that are compared at a time."""
    return WORD_BYTES // pair.spec.width if pair.aligned and not pair.masters else 1


def _table(group: BlockGroup, pack: int) -> NDArray[np.int64]:
    parts = []
    for piece, old in zip(group.pieces, group.olds, strict=True):
        rows = np.empty((piece.blocks, 4), np.int64)
        offsets = np.arange(0, piece.count, piece.span)
        new = piece.pair.new
        rows[:, 0] = old.data_ptr() + offsets * old.element_size()
        rows[:, 1] = new.data_ptr() + (piece.start + offsets) * new.element_size()
        rows[:, 2] = np.minimum(piece.span, piece.count - offsets)
        parts.append(rows)
    table = np.concatenate(parts)
    # Whole tiles for each block, so that every tile has slots of its own.
    slots = -(-table[:, 2] // (TILE_WORDS * pack)) * TILE_WORDS
    table[:, 3] = np.cumsum(slots) - slots
    return table
