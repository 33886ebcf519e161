"""Compiled loops that convert positions to class indices, and back.

The *scale* of a 16-bit unit is the byte after its sign bit: of bfloat16 the exponent. Scales are grouped into classes.
A unit's *class index* is its number, from 0 on, among the block's units of its class. A receiver that holds the old
weights counts the same class indices.

Both directions go through a block in runs of 4096 units, 16 quads of 4 groups of 64. For each class and group there is
a mask of the units of the class, and the number of them in the run up to the group's end (`simd`). From these follow
the class index of a position and the position of a class index. Both copies are read once, and the next units are
prefetched while class indices are counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.simd import (
    GROUP,
    MAX_CLASSES,
    QUAD,
    READ_AHEAD_ITEMS,
    RUN,
    SUMS_OFFSET,
    WINDOW,
    classify,
    classify_pair,
    count_before,
    group_of_index,
    select,
    take_below,
    transpose_ends,
)
from p2psync.delta.kernels.unit_loops import (
    SUM_ROWS,
    TILE_UNITS,
    add_groups,
    clear_sums,
    inline,
    kernel,
    load,
    popcount,
    prefetch,
    store,
    trailing,
)
from p2psync.delta.tensors import Units

#: Scales are counted in one of this many groups.
SAMPLED_GROUPS = 256
#: Units that a scan classifies before it computes the class indices of the changes among them: a *turn*.
_TURN = 1024
#: Bytes that a scan prefetches ahead: the next turn, less what the processor prefetches itself. A larger distance turns
#: the processor's own prefetching off, which is slower.
_PREFETCH_BYTES = 2 * _TURN + 512

_U = np.uint64
_ONE = _U(1)
_TINY, _UNIT = np.empty(0, np.uint8), np.empty(0, np.uint16)
_WORD, _LONG = np.empty(0, np.uint32), np.empty(0, np.uint64)

# Offsets in a loop's scratch memory, in bytes: separate arrays would take all registers for their addresses.
_NEXT, _START, _STOP, _TABLE = 0, 64, 128, 192
_PADS = 256
# A scan's memory: the sums of both copies (`simd`), and the bytes of a row of them.
_SUMS, _LANES = _TABLE + SUMS_OFFSET, 2 * GROUP
# A scan's memory: 8 · class of each scale; difference masks; masks and ends of a turn; padded copies of a short turn.
_CLASS, _DIFFER, _MASKS = 1280, 1536, 1536 + _TURN // 8
_ENDS = _MASKS + _TURN
_PADDED = _ENDS + _TURN // 4
SCAN_BYTES = _PADDED + 4 * _TURN
# Of locating: for each class 64 zeros and the ends of a run's groups; the run's set bits, and their number before each
# word; masks of this run and the previous one; ends by quads, after zeros; the changes of the run.
_ROWS, _ROW = 1344, 256
_BITS = _ROWS + _ROW * MAX_CLASSES
_PLACES = _BITS + RUN // 8
_RUN_MASKS = _PLACES + RUN // 8
_LINES = _RUN_MASKS + 2 * RUN
_TAKEN = _LINES + 64 + RUN // 4
LOCATE_BYTES = _TAKEN + 8 * (RUN + READ_AHEAD_ITEMS)


@kernel
def class_of(scale: Any, window: NDArray[np.uint8]) -> Any:
    """The class of a scale. `window` holds the first scale told apart from those below, and 16 classes from it on."""
    return window[_ONE + min(max(scale, _U(window[0])) - _U(window[0]), _U(WINDOW - 1))]


@inline
def _table(window: NDArray[np.uint8], table: NDArray[np.uint8]) -> None:
    """Write the table of a window that the operations of `simd` take."""
    table[0] = window[0]
    for k in range(1, WINDOW + 1):
        table[k] = window[k]
        table[WINDOW + k] = 1 << window[k]


@kernel
def count_scales(base: int, count: int, totals: NDArray[np.int64], like: Units) -> None:
    """Add an estimate of how often each scale occurs among `count` units to `totals` (256): counts one group in 256."""
    for begin in range(0, count, GROUP * SAMPLED_GROUPS):
        for i in range(begin, min(begin + GROUP, count)):
            totals[(load(base, i, like) >> _U(7)) & _U(255)] += SAMPLED_GROUPS


@kernel
def scan_class_indices(
    old: int,
    new: int,
    count: int,
    window: NDArray[np.uint8],
    positions: NDArray[np.uint32],
    olds: Units,
    steps: Units,
    first: int,
    counts: NDArray[np.int64],
    items: NDArray[np.uint64],
    filled: NDArray[np.int64],
    state: NDArray[np.uint8],
    sums: int,
) -> int:
    """`unit_loops.scan`, which also writes the changes class by class; returns the number of changes.

    positions, olds, steps: written from entry `first` on. counts: i64 (2, 8), set to the changes and units of each
    class. items: u64 (8, capacity); the changes of class c are written after its first `filled[c]` entries, as class
    index, and step from bit 32 on; each row needs `count` free entries. filled: not changed. sums: see
    `unit_loops.scan`.

    state: `SCAN_BYTES` of scratch, owned by the caller, because the loop uses its bare address: memory of its own could
    be freed after the last use of its name, and given to another thread.
    """
    at = _U(state.ctypes.data)
    state[:_TABLE] = 0
    state[_SUMS : _SUMS + 2 * _LANES] = 0
    _table(window, state[_TABLE:])
    for scale in range(_U(256)):
        state[_U(_CLASS) + scale] = class_of(scale, window) << 3
    for c in range(MAX_CLASSES):
        store(at + _U(_NEXT), c, _U(items[c].ctypes.data) + (_U(filled[c]) << _U(3)), _LONG)
    position_at = _U(positions.ctypes.data) + _U(4 * first)
    old_at, step_at = _U(olds.ctypes.data) + _U(2 * first), _U(steps.ctypes.data) + _U(2 * first)
    total: Any = _U(count)
    found, begin = total - total, total - total
    moved = found
    if sums:
        clear_sums(sums, olds)
    while begin != total:
        left, right = _U(old) + begin + begin, _U(new) + begin + begin
        size = min(_U(_TURN), total - begin)
        if size != _U(_TURN):
            # Padded copies, so that nothing beyond the last unit is read.
            left = _copy(left, size, at + _U(_PADDED))
            right = _copy(right, size, at + _U(_PADDED + 2 * _TURN))
        quads = (size + _U(QUAD - 1)) >> _U(8)
        _classify_turn(left, right, quads, at)
        known = found
        found = _emit(at + _U(_DIFFER), quads << _U(2), begin, found, position_at, left - begin - begin, right - left)
        _index_turn(left - begin - begin, right - begin - begin, known, found, position_at, old_at, step_at, at)
        if sums:
            for j in range(np.int64(known), np.int64(found)):
                moved += load(step_at, j, _UNIT)
            if begin & _U(TILE_UNITS - 1) == _U(TILE_UNITS - _TURN) or begin + size == total:
                add_groups(at + _U(_SUMS), 1, _U(sums) + _U(_LANES), _UNIT)
                add_groups(at + _U(_SUMS + _LANES), 1, _U(sums) + _U(3 * _LANES), _UNIT)
        # Class indices of the next turn continue from the last ends of this one.
        last = at + _U(_ENDS) + (quads << _U(6))
        for c in range(MAX_CLASSES):
            units = load(last - _U(64), 4 * c + 3, _UNIT)
            store(at + _U(_START), c, load(at + _U(_START), c, _LONG) + units, _LONG)
        begin += size
    for c in range(MAX_CLASSES):
        counts[0, c] = (np.int64(load(at + _U(_NEXT), c, _LONG) - _U(items[c].ctypes.data)) >> 3) - filled[c]
        counts[1, c] = np.int64(load(at + _U(_START), c, _LONG))
    counts[1, class_of(_U(0), window)] -= -count & (QUAD - 1)
    if sums:
        add_groups(at + _U(_SUMS), 1, _U(sums), _UNIT)
        add_groups(at + _U(_SUMS + _LANES), 1, _U(sums) + _U(2 * _LANES), _UNIT)
        store(_U(sums), (SUM_ROWS - 1) * GROUP, moved, _UNIT)
    return int(found)


@kernel
def _classify_turn(left: Any, right: Any, quads: Any, at: Any) -> None:
    """Write the masks, ends and difference masks of each quad."""
    line, ends = at + _U(_STOP), at + _U(_ENDS)
    masks, differ = at + _U(_MASKS), at + _U(_DIFFER)
    for _ in range(quads):
        classify_pair(left, right, at + _U(_TABLE), masks, line, ends, differ)
        line = ends
        left += _U(2 * QUAD)
        right += _U(2 * QUAD)
        masks += _U(QUAD)
        ends += _U(64)
        differ += _U(32)


@kernel
def _index_turn(a: Any, b: Any, first: Any, found: Any, position_at: Any, old_at: Any, step_at: Any, at: Any) -> None:
    """Write old bits, steps and items of changes `first` to `found` of this turn; `a`, `b`: addresses of position 0."""
    for j in range(np.int64(first), np.int64(found)):
        position = load(position_at, j, _WORD)
        before = load(a, np.int64(position), _UNIT)
        step = (load(b, np.int64(position), _UNIT) - before) & _U(0xFFFF)
        store(old_at, j, before, _UNIT)
        store(step_at, j, step, _UNIT)
        mine = at + load(at + _U(_CLASS), np.int64((before >> _U(7)) & _U(255)), _TINY)
        group = (position & _U(_TURN - 1)) >> _U(6)
        mask = load(mine + _U(_MASKS) + (group << _U(6)), 0, _LONG)
        end = load(mine + _U(_ENDS) + ((group >> _U(2)) << _U(6)), np.int64(group & _U(3)), _UNIT)
        index = load(mine + _U(_START), 0, _LONG) + end - popcount(mask >> (position & _U(63)))
        out = load(mine + _U(_NEXT), 0, _LONG)
        store(out, 0, index | step << _U(32), _LONG)
        store(mine + _U(_NEXT), 0, out + _U(8), _LONG)


@kernel
def _copy(base: Any, size: Any, out: Any) -> Any:
    """Copy `size` units to address `out`, and zeros up to the length of a turn; returns `out`."""
    for i in range(_TURN):
        store(out, i, load(base, i, _UNIT) if _U(i) < size else _U(0), _UNIT)
    return out


@kernel
def _pad(base: Any, size: Any, out: Any) -> Any:
    """Copy the last `size` < 256 units of a run to address `out`, and zeros up to a quad; returns `out`."""
    for i in range(QUAD):
        store(out, i, load(base, i, _UNIT) if _U(i) < size else _U(0), _UNIT)
    return out


@kernel
def _emit(bits: Any, groups: Any, begin: Any, filled: Any, out: Any, units: Any, other: Any) -> Any:
    """Append the positions of the set bits of some words, counted from `begin`; returns the number of entries.

    Also prefetches both copies: the one at `units`, and the other `other` bytes after it. Prefetching where the units
    are read would delay loads from the cache.
    """
    for g in range(groups):
        rest = load(bits, np.int64(g), _LONG)
        position = begin + (g << _U(6))
        at = out + (filled << _U(2))
        filled += popcount(rest)
        ahead = units + position + position + _U(_PREFETCH_BYTES)
        for line in range(_U(0), _U(2 * GROUP), _U(64)):
            prefetch(ahead + line)
            prefetch(ahead + line + other)
        # Unconditional stores are cheaper than an unpredictable branch.
        for k in range(3):
            store(at, k, position + trailing(rest), _WORD)
            rest &= rest - _ONE
        while rest != _U(0):
            store(at, 3, position + trailing(rest), _WORD)
            at += _U(4)
            rest &= rest - _ONE
    return filled


@kernel
def locate_changes(
    base: int,
    count: int,
    window: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    items: NDArray[np.uint64],
    positions: NDArray[np.uint32],
    steps: Units,
    state: NDArray[np.uint8],
) -> bool:
    """Convert class indices back to positions: the inverse of `scan_class_indices`.

    sizes: changes of each class. items: u64, the changes of one class after another, each as class index, strictly
    rising, and step from bit 32 on; `READ_AHEAD_ITEMS` more may be read after the last. positions, steps: written, in
    order of positions. Returns False if a class index is not below the number of the class's units. state:
    `LOCATE_BYTES` of any contents, owned by the caller as in `scan_class_indices`.
    """
    at = _U(state.ctypes.data)
    _table(window, state[_TABLE:])
    for k in range(_ROWS - 64, _PLACES, 8):
        store(at, k >> 3, _U(0), _LONG)
    item = _U(items.ctypes.data)
    for c in range(MAX_CLASSES):
        store(at + _U(_START), c, _U(0), _LONG)
        store(at + _U(_LINES), c, _U(0), _LONG)
        store(at + _U(_NEXT), c, item, _LONG)
        if c < sizes.size:
            item += _U(sizes[c]) << _U(3)
        store(at + _U(_STOP), c, item, _LONG)
    total: Any = _U(count)
    filled = total - total
    # While one run is classified, the changes of the previous run are located. Prefetches are spread evenly: one half
    # while a run is classified, the other half while changes are looked up.
    for begin in range(_U(0), total + _U(RUN), _U(RUN)):
        run = _U(base) + begin + begin
        quads = (min(_U(RUN), total - min(begin, total)) + _U(QUAD - 1)) >> _U(8)
        now, before = at + _U(_RUN_MASKS) + (begin & _U(RUN)), at + _U(_RUN_MASKS) + (begin & _U(RUN) ^ _U(RUN))
        taken = at + _U(_TAKEN)
        for c in range(_U(MAX_CLASSES)):
            for q in range(c + c, min(c + c + _U(2), quads)):
                units, line = run + (q << _U(9)), at + _U(_LINES) + (q << _U(6))
                for ahead in range(_U(3 * RUN), _U(3 * RUN + 256), _U(64)):
                    prefetch(run + (q << _U(8)) + ahead)
                if begin + (q << _U(8)) + _U(QUAD) > total:
                    units = _pad(units, total & _U(QUAD - 1), at + _U(_PADS))
                classify(units, _U(0), at + _U(_TABLE), now + (q << _U(8)), line, line + _U(64), _U(0))
            mine = at + (c << _U(3))
            start, end = (
                load(mine + _U(_START), 0, _LONG),
                load(at + _U(_ROWS - 2 + _ROW // 2) + c * _U(_ROW), 0, _UNIT),
            )
            item, stop = load(mine + _U(_NEXT), 0, _LONG), load(mine + _U(_STOP), 0, _LONG)
            count_taken = _U(READ_AHEAD_ITEMS)
            while count_taken == _U(READ_AHEAD_ITEMS):
                count_taken = take_below(item, (stop - item) >> _U(3), start, start + end, c << _U(24), taken)
                taken += count_taken << _U(3)
                item += count_taken << _U(3)
            store(mine + _U(_NEXT), 0, item, _LONG)
            store(mine + _U(_START), 0, start + end, _LONG)
        fetched: Any = run + _U(4 * RUN)
        enough = fetched + _U(RUN)
        for entry_at in range(at + _U(_TAKEN), taken, _U(8)):
            prefetch(fetched)
            fetched += _U(64)
            entry = load(entry_at, 0, _LONG)
            c, index = (entry >> _U(24)) & _U(MAX_CLASSES - 1), entry & _U(0xFFFFFF)
            row = at + _U(_ROWS) + c * _U(_ROW)
            g = group_of_index(row, index)
            mask = load(before + (g << _U(6)) + (c << _U(3)), 0, _LONG)
            bit = select(mask, index - load(row, np.int64(g) - 1, _UNIT))
            word = at + _U(_BITS) + (g << _U(3))
            store(word, 0, load(word, 0, _LONG) | _ONE << bit, _LONG)
            store(entry_at, 0, (entry >> _U(32)) << _U(32) | g << _U(6) | bit, _LONG)
        # A change's number in order of positions is the number of bits set before its own.
        count_before(at + _U(_BITS), at + _U(_PLACES))
        for entry_at in range(at + _U(_TAKEN), taken, _U(8)):
            prefetch(fetched)
            fetched += _U(64)
            entry = load(entry_at, 0, _LONG)
            unit = entry & _U(0xFFFFFFFF)
            g, below = np.int64(unit >> _U(6)), (_ONE << (unit & _U(63))) - _ONE
            j = filled + load(at + _U(_PLACES), g, _LONG) + popcount(load(at + _U(_BITS), g, _LONG) & below)
            positions[j] = begin - _U(RUN) + unit
            steps[j] = entry >> _U(32)
        while fetched < enough:
            prefetch(fetched)
            fetched += _U(64)
        filled += (taken - at - _U(_TAKEN)) >> _U(3)
        for g in range(RUN // GROUP):
            store(at + _U(_BITS), g, _U(0), _LONG)
        # The missing groups of a short run end where its last unit does.
        for k in range(np.int64(quads) * 32, RUN // 8):
            store(at + _U(_LINES + 64), k, load(at + _U(_LINES), k | 3, _UNIT), _UNIT)
        transpose_ends(at + _U(_LINES + 64), at + _U(_ROWS))
    return bool(filled == _U(items.size) and _U(positions[items.size - 1]) < total)
