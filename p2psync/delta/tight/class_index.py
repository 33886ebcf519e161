"""The compiled loops that turn positions into ranks within classes of the old weight, and back.

The *scale* of a 16-bit unit is the byte after its sign bit: of bfloat16 the exponent. Scales are cut into classes; the
units of a block that are of one class, in order, are numbered 0, 1, 2, … : a unit's *rank*. A receiver that holds the
old weights can count the same ranks.

Both directions go through a block in runs of 4096 units, 16 quads of 4 groups of 64. For each class and group there is
a mask of the units that are of the class, and the number of them in the run up to the group's end (`lanes`); from these
follow the rank of a position and the position of a rank. Both copies are read once, and while ranks are counted the
memory fetches what comes next.
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
    kernel,
    load,
    popcount,
    prefetch,
    store,
    trailing,
)
from p2psync.delta.tensors import Units

#: One group of so many is looked at to learn how frequent each scale is.
SAMPLED = 256
#: Units that a scan classifies before it ranks the changes among them.
_TURN = 1024
#: How many bytes ahead a scan fetches memory: the next turn, less what the processor itself has asked for by then. More
#: turns the processor's own fetching off (measured: 1.2 times slower), which reaches far enough while it goes on.
_AHEAD = 2 * _TURN + 512

_U = np.uint64
_ONE = _U(1)
_TINY, _UNIT = np.empty(0, np.uint8), np.empty(0, np.uint16)
_WORD, _LONG = np.empty(0, np.uint32), np.empty(0, np.uint64)

# Where things stand in the memory of a loop, in bytes: so many arrays would take all registers for their addresses.
_NEXT, _START, _STOP, _TABLE = 0, 64, 128, 192
_PADS = 256
# Of a scan: what `lanes` sums up of both copies, in rows of so many bytes.
_SUMS, _LANES = _TABLE + SUMS_OFFSET, 2 * GROUP
# Of a scan: for each scale 8 times its class; what differs; masks and ends of a turn; both copies of a short one.
_CLASS, _DIFFER, _MASKS = 1280, 1536, 1536 + _TURN // 8
_ENDS = _MASKS + _TURN
_PADDED = _ENDS + _TURN // 4
SCAN_BYTES = _PADDED + 4 * _TURN
# Of placing: for each class 64 zeros and the ends of a run's groups; set bits of the run, and how many are before each
# word; masks of this run and the one before; ends by quads, after those of none; the changes of the run.
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


@kernel
def _table(window: NDArray[np.uint8], table: NDArray[np.uint8]) -> None:
    """What `lanes` wants to know of a window."""
    table[0] = window[0]
    for k in range(1, WINDOW + 1):
        table[k] = window[k]
        table[WINDOW + k] = 1 << window[k]


@kernel
def count_scales(base: int, count: int, totals: NDArray[np.int64], like: Units) -> None:
    """Add to `totals` (256) about how often each scale occurs among `count` units, by one group of 256."""
    for begin in range(0, count, GROUP * SAMPLED):
        for i in range(begin, min(begin + GROUP, count)):
            totals[(load(base, i, like) >> _U(7)) & _U(255)] += SAMPLED


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
    """`kernels.scan`, and the changes class after class.

    What `kernels.scan` finds is written from entry `first` on. `counts[0, c]` and `counts[1, c]` become the numbers of
    changes and of units of class c of 8. To `items[c]` the changes of class c are appended, after `filled[c]` entries,
    with room for `count`: the rank, and from bit 32 on the step. `filled` is left as it is. sums: see `kernels.scan`.

    state: `SCAN_BYTES` of scratch. It is the caller's, because the loop knows it by its address alone: memory of its
    own would be freed after the last use of its name, and given to another thread.
    """
    at = _U(state.ctypes.data)
    state[:_TABLE] = 0
    state[_SUMS : _SUMS + 2 * _LANES] = 0
    _table(window, state[_TABLE:])
    for scale in range(_U(256)):
        state[_U(_CLASS) + scale] = class_of(scale, window) << 3
    for c in range(MAX_CLASSES):
        store(at + _U(_NEXT), c, _U(items[c].ctypes.data) + (_U(filled[c]) << _U(3)), _LONG)
    place_at = _U(positions.ctypes.data) + _U(4 * first)
    old_at, step_at = _U(olds.ctypes.data) + _U(2 * first), _U(steps.ctypes.data) + _U(2 * first)
    total: Any = _U(count)
    found, begin = total - total, total - total
    moved = found
    if sums:
        clear_sums(sums, _UNIT)
    while begin != total:
        left, right = _U(old) + begin + begin, _U(new) + begin + begin
        size = min(_U(_TURN), total - begin)
        if size != _U(_TURN):
            # Room for a turn, so that nothing beyond the last unit is looked at.
            left = _copy(left, size, at + _U(_PADDED))
            right = _copy(right, size, at + _U(_PADDED + 2 * _TURN))
        quads = (size + _U(QUAD - 1)) >> _U(8)
        _classify_turn(left, right, quads, at)
        known = found
        found = _emit(at + _U(_DIFFER), quads << _U(2), begin, found, place_at, left - begin - begin, right - left)
        _index_turn(left - begin - begin, right - begin - begin, known, found, place_at, old_at, step_at, at)
        if sums:
            for j in range(np.int64(known), np.int64(found)):
                moved += load(step_at, j, _UNIT)
            if begin & _U(TILE_UNITS - 1) == _U(TILE_UNITS - _TURN) or begin + size == total:
                add_groups(at + _U(_SUMS), 1, _U(sums) + _U(_LANES), _UNIT)
                add_groups(at + _U(_SUMS + _LANES), 1, _U(sums) + _U(3 * _LANES), _UNIT)
        # Ranks of the next turn are counted from the last ends of this one.
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
    """Masks and ends of each quad, and where it differs."""
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
def _index_turn(a: Any, b: Any, first: Any, found: Any, place_at: Any, old_at: Any, step_at: Any, at: Any) -> None:
    """Old bits, steps and items of changes `first` to `found`, all in this turn; `a` and `b` stand for position 0."""
    for j in range(np.int64(first), np.int64(found)):
        place = load(place_at, j, _WORD)
        before = load(a, np.int64(place), _UNIT)
        step = (load(b, np.int64(place), _UNIT) - before) & _U(0xFFFF)
        store(old_at, j, before, _UNIT)
        store(step_at, j, step, _UNIT)
        mine = at + load(at + _U(_CLASS), np.int64((before >> _U(7)) & _U(255)), _TINY)
        group = (place & _U(_TURN - 1)) >> _U(6)
        mask = load(mine + _U(_MASKS) + (group << _U(6)), 0, _LONG)
        end = load(mine + _U(_ENDS) + ((group >> _U(2)) << _U(6)), np.int64(group & _U(3)), _UNIT)
        index = load(mine + _U(_START), 0, _LONG) + end - popcount(mask >> (place & _U(63)))
        out = load(mine + _U(_NEXT), 0, _LONG)
        store(out, 0, index | step << _U(32), _LONG)
        store(mine + _U(_NEXT), 0, out + _U(8), _LONG)


@kernel
def _copy(base: Any, size: Any, out: Any) -> Any:
    """Copy units to address `out`, which is returned; zeros after them, up to the length of a turn."""
    for i in range(_TURN):
        store(out, i, load(base, i, _UNIT) if _U(i) < size else _U(0), _UNIT)
    return out


@kernel
def _pad(base: Any, size: Any, out: Any) -> Any:
    """Copy the last `size` < 256 units of a run to address `out`, and zeros after them; returns that address."""
    for i in range(QUAD):
        store(out, i, load(base, i, _UNIT) if _U(i) < size else _U(0), _UNIT)
    return out


@kernel
def _emit(bits: Any, groups: Any, begin: Any, filled: Any, out: Any, units: Any, other: Any) -> Any:
    """Append the places of the set bits of some words, counted from `begin`; returns how many entries there are.

    On the way, memory is fetched for both copies: that at `units`, and `other` bytes after it. Here and not where they
    are read: there, what is fetched from memory would hold up what comes from the cache (measured: 1.4 times slower).
    """
    for g in range(groups):
        rest = load(bits, np.int64(g), _LONG)
        place = begin + (g << _U(6))
        at = out + (filled << _U(2))
        filled += popcount(rest)
        ahead = units + place + place + _U(_AHEAD)
        for line in range(_U(0), _U(2 * GROUP), _U(64)):
            prefetch(ahead + line)
            prefetch(ahead + line + other)
        # Stores without asking are cheaper than a branch that nobody can predict.
        for k in range(3):
            store(at, k, place + trailing(rest), _WORD)
            rest &= rest - _ONE
        while rest != _U(0):
            store(at, 3, place + trailing(rest), _WORD)
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
    """The inverse: of each class `sizes[c]` changes, one after another, tell ranks, strictly rising, and steps.

    An item is a rank, and from bit 32 on a step; `READ_AHEAD_ITEMS` more may be read after the last. False if a rank is not below
    its class's total. state: `LOCATE_BYTES` of any contents, the caller's as in `scan_class_indices`.
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
    # While one run is classified, those changes are taken that are of the run before. Memory is asked for at an even
    # pace: for half of what comes while a run is classified, and for half while changes are looked up.
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
            some = _U(READ_AHEAD_ITEMS)
            while some == _U(READ_AHEAD_ITEMS):
                some = take_below(item, (stop - item) >> _U(3), start, start + end, c << _U(24), taken)
                taken += some << _U(3)
                item += some << _U(3)
            store(mine + _U(_NEXT), 0, item, _LONG)
            store(mine + _U(_START), 0, start + end, _LONG)
        fetched: Any = run + _U(4 * RUN)
        enough = fetched + _U(RUN)
        for place in range(at + _U(_TAKEN), taken, _U(8)):
            prefetch(fetched)
            fetched += _U(64)
            entry = load(place, 0, _LONG)
            c, index = (entry >> _U(24)) & _U(MAX_CLASSES - 1), entry & _U(0xFFFFFF)
            row = at + _U(_ROWS) + c * _U(_ROW)
            g = group_of_index(row, index)
            mask = load(before + (g << _U(6)) + (c << _U(3)), 0, _LONG)
            bit = select(mask, index - load(row, np.int64(g) - 1, _UNIT))
            word = at + _U(_BITS) + (g << _U(3))
            store(word, 0, load(word, 0, _LONG) | _ONE << bit, _LONG)
            store(place, 0, (entry >> _U(32)) << _U(32) | g << _U(6) | bit, _LONG)
        # Of a change in order stand so many before it as bits are set before its own.
        count_before(at + _U(_BITS), at + _U(_PLACES))
        for place in range(at + _U(_TAKEN), taken, _U(8)):
            prefetch(fetched)
            fetched += _U(64)
            entry = load(place, 0, _LONG)
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
        # What a short run lacks ends where its last unit does.
        for k in range(np.int64(quads) * 32, RUN // 8):
            store(at + _U(_LINES + 64), k, load(at + _U(_LINES), k | 3, _UNIT), _UNIT)
        transpose_ends(at + _U(_LINES + 64), at + _U(_ROWS))
    return bool(filled == _U(items.size) and _U(positions[items.size - 1]) < total)
