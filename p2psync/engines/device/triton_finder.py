"""Finds changed units with two Triton kernels. The first reads both versions once, the second only changed words.

The first kernel compares 64-bit words, 4 bf16 units at a time. For each tile it lists the words that differ, in the
tile's own slots. The second kernel reads the units of the listed words, counts the changes of its tile, reserves as
many entries by an atomic counter, and writes them there in order. So the changes of a tile are contiguous and in order.
The order of the tiles depends on the schedule; the table of runs (first entry and number, for each tile) restores it
when the host copies the changes out. The result is deterministic.

Memory traffic for each bf16 unit, with a share d of units changed: the first kernel reads 4 bytes; writing and reading
the list takes 2·w/4 bytes, where w = 1 − (1 − d)^4 is the share of words that changed; the second kernel reads 4·s
bytes again, where s = 1 − (1 − d)^16 is the share of 32-byte sectors with a change, and writes (4 + 2 + 2)·d. That is
4.7 bytes at d = 1 % and 6.4 at 4 %; a copy of one version moves 4. A count followed by a compaction of everything would
move 8.

The first kernel compares words because instructions would limit it otherwise: over single units it compiles to some 50
instructions a unit for sm_90, over words to less than 15. `python -m p2psync.bench.device` measures the rates.

Masters are compared one unit at a time (6 bytes each), and so are tensors that do not start at a multiple of 16 bytes.
One launch handles all blocks of a group, through a table of addresses, because a launch for each tensor costs more than
reading a tensor of a few MiB.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from p2psync.engines.device.buffers import MAX_GROUP_BLOCKS, ExtractionBuffers
from p2psync.engines.device.finder import BlockGroup, VersionPair

#: Words of a tile.
TILE_WORDS = 1024
#: Maximum words of a group. The list takes two bytes of device memory for each.
_GROUP_WORDS = 1 << 24
WORD_BYTES = 8
#: Units that the second kernel reads in one iteration.
STEP_UNITS = 256
#: Warps of the first and of the second kernel.
FIND_WARPS, WRITE_WARPS = 4, 2


@triton.jit
def round_bits(value, nan):  # type: ignore[no-untyped-def]
    """Rounds fp32 bits (uint32) to bf16 bits (int16): to nearest, ties to even, NaN to `nan` (`kernels.rounding`)."""
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
    """Lists the words of one tile of one block that differ.

    table: (blocks, 4) int64: the addresses of old and new bits, units, and the first slot in `words`. counts: the
    number of listed words of each tile. unit: a pointer to the unit's type. PACK: units of a word, 1 to compare single
    units.
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
    # A word that reaches past the block's end is not read; it is always listed.
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
    capacity,
    tiles,
    nan,
    PACK: tl.constexpr,
    TILE: tl.constexpr,
    STEP_UNITS: tl.constexpr,
    MASTERS: tl.constexpr,
):
    """Writes the changed units of one tile's listed words to entries that it reserves by `cursor`.

    Entries from `capacity` on are counted and not written.
    """
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
        lane = tl.arange(0, STEP_UNITS)
        for begin in range(0, listed, STEP_UNITS):
            old, new, offset, live = _units(
                old_base, new_base, slots, begin + lane, listed, tile * TILE, count, nan, PACK, MASTERS
            )
            found += tl.sum((live & (old != new)).to(tl.int32), 0)
        if found > 0:
            first = tl.atomic_add(cursor, found, sem="relaxed")
            base = first
            for begin in range(0, listed, STEP_UNITS):
                old, new, offset, live = _units(
                    old_base, new_base, slots, begin + lane, listed, tile * TILE, count, nan, PACK, MASTERS
                )
                flags = (live & (old != new)).to(tl.int32)
                at = base + tl.cumsum(flags, 0) - 1
                keep = (flags != 0) & (at < capacity)
                tl.store(positions + at, offset, mask=keep)
                tl.store(olds + at, old, mask=keep)
                tl.store(steps + at, new - old, mask=keep)
                base += tl.sum(flags, 0)
    tl.store(runs + row * 2, first)
    tl.store(runs + row * 2 + 1, found)


@triton.jit  # type: ignore[untyped-decorator]
def _units(old_base, new_base, slots, lane, listed, begin, count, nan, PACK: tl.constexpr, MASTERS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns old bits, new bits and offsets of the units of listed words, and which lanes have a unit."""
    word = begin + tl.load(slots + lane // PACK, mask=lane < listed, other=0).to(tl.int32)
    offset = word * PACK + lane % PACK
    live = (lane < listed) & (offset < count)
    old = tl.load(old_base + offset, mask=live, other=0)
    new = tl.load(new_base + offset, mask=live, other=0)
    if MASTERS:
        new = round_bits(new.to(tl.uint32, bitcast=True), nan)
    return old, new, offset, live


class TritonFinder:
    """Runs the two kernels on one stream. One group at a time uses the list of words."""

    def __init__(self, nan: int) -> None:
        """nan: what a NaN among masters is rounded to; see `nan_bits`."""
        self._nan = nan
        self._words: torch.Tensor | None = None
        self._counts: torch.Tensor | None = None

    def tiles(self, span: int, pair: VersionPair) -> int:
        """See `DeviceChangeFinder`."""
        return -(-span // (TILE_WORDS * units_of_word(pair)))

    def max_units(self, pair: VersionPair) -> int:
        """See `DeviceChangeFinder`: as many as the list of words holds."""
        return _GROUP_WORDS * units_of_word(pair)

    def scan(self, group: BlockGroup, buffers: ExtractionBuffers, tiles: int) -> None:
        """See `DeviceChangeFinder`: two launches, and the upload of their table."""
        blocks, pack = group.blocks, units_of_word(group.block_runs[0].pair)
        if self._words is None or self._counts is None:
            device, slots = buffers.runs.device, _GROUP_WORDS + MAX_GROUP_BLOCKS * TILE_WORDS
            self._words = torch.empty(slots, dtype=torch.int16, device=device)
            self._counts = torch.empty(buffers.runs.shape[0], dtype=torch.int32, device=device)
        host = buffers.host_table[:blocks]
        host.numpy()[:] = _table(group, pack)
        buffers.table[:blocks].copy_(host, non_blocking=True)
        buffers.cursor.zero_()
        positions, olds, steps = buffers.arrays(group.width)
        find_words[(tiles, blocks)](
            buffers.table,
            self._counts,
            self._words,
            olds,
            tiles,
            self._nan,
            PACK=pack,
            TILE=TILE_WORDS,
            MASTERS=group.masters,
            ALIGNED=group.aligned,
            num_warps=FIND_WARPS,
        )
        write_changes[(tiles, blocks)](
            buffers.table,
            self._counts,
            self._words,
            buffers.runs,
            buffers.cursor,
            positions,
            olds,
            steps,
            buffers.entries(group.width),
            tiles,
            self._nan,
            PACK=pack,
            TILE=TILE_WORDS,
            STEP_UNITS=STEP_UNITS,
            MASTERS=group.masters,
            num_warps=WRITE_WARPS,
        )

    def collect(self, group: BlockGroup, buffers: ExtractionBuffers, runs: NDArray[np.int32]) -> None:
        """See `DeviceChangeFinder`: does nothing, since `scan` has written the changes."""


def units_of_word(pair: VersionPair) -> int:
    """Returns how many units are compared at a time."""
    return WORD_BYTES // pair.spec.width if pair.aligned and not pair.masters else 1


def _table(group: BlockGroup, pack: int) -> NDArray[np.int64]:
    parts = []
    for run, old in zip(group.block_runs, group.olds, strict=True):
        rows = np.empty((run.blocks, 4), np.int64)
        offsets = np.arange(0, run.count, run.span)
        new = run.pair.new
        rows[:, 0] = old.data_ptr() + offsets * old.element_size()
        rows[:, 1] = new.data_ptr() + (run.start + offsets) * new.element_size()
        rows[:, 2] = np.minimum(run.span, run.count - offsets)
        parts.append(rows)
    table = np.concatenate(parts)
    # Whole tiles for each block, so that every tile has slots of its own.
    slots = -(-table[:, 2] // (TILE_WORDS * pack)) * TILE_WORDS
    table[:, 3] = np.cumsum(slots) - slots
    return table
