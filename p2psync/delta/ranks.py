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

from p2psync.delta.kernels import kernel, load, popcount, prefetch, store, trailing
from p2psync.delta.lanes import (
    GROUP,
    MAX_CLASSES,
    QUAD,
    RUN,
    TABLE_BYTES,
    WINDOW,
    classify,
    classify_pair,
    group_of,
    select,
    turn_ends,
)
from p2psync.delta.tensors import Units

#: One group of so many is looked at to learn how frequent each scale is.
SAMPLED = 256
_GROUPS, _QUADS = RUN // GROUP, RUN // QUAD
#: u16 of the ends of a quad, and of a run with those before it.
_LINE = 4 * MAX_CLASSES
_ENDS = (_QUADS + 1) * _LINE
#: How many bytes ahead memory is fetched.
_AHEAD = 2 * RUN

_U = np.uint64
_ONE = _U(1)
_UNIT = np.empty(0, np.uint16)


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
    """Add to `totals` (256) how often each scale occurs in a sample of `count` units: one group of 256."""
    for begin in range(0, count, GROUP * SAMPLED):
        for i in range(begin, min(begin + GROUP, count)):
            totals[(load(base, i, like) >> _U(7)) & _U(255)] += 1


@kernel
def _pad(base: Any, size: Any, out: NDArray[np.uint16]) -> Any:
    """Copy the last `size` < 256 units of a run to `out`, and zeros after them; returns its address."""
    for i in range(_U(QUAD)):
        out[i] = load(base, np.int64(i), out) if i < size else _U(0)
    return _U(out.ctypes.data)


@kernel
def scan_ranked(
    old: int,
    new: int,
    count: int,
    window: NDArray[np.uint8],
    positions: NDArray[np.uint32],
    olds: Units,
    steps: Units,
    sizes: NDArray[np.int64],
    totals: NDArray[np.int64],
    gaps: NDArray[np.uint32],
    sorted_steps: Units,
) -> int:
    """`kernels.scan`, and the changes class after class: gaps of their ranks, and their steps.

    `sizes[c]` and `totals[c]` become the numbers of changes and of units of class c; there are 8 of each. A gap is the
    rank less that of the change before and 1. Those of class c begin at `gaps[c]`, which has room for `count`.
    """
    table, scale_class = np.empty(TABLE_BYTES, np.uint8), np.empty(256, np.uint8)
    _table(window, table)
    for scale in range(_U(256)):
        scale_class[scale] = class_of(scale, window)
    masks, differ = np.empty(_GROUPS * MAX_CLASSES, np.uint64), np.zeros(_GROUPS, np.uint64)
    ends = np.zeros(_ENDS, np.uint16)
    left, right = np.empty(QUAD, np.uint16), np.empty(QUAD, np.uint16)
    line, mask_at, end_at = _U(table.ctypes.data), _U(masks.ctypes.data), _U(ends.ctypes.data) + _U(2 * _LINE)
    differ_at = _U(differ.ctypes.data)
    starts, seen = np.zeros(MAX_CLASSES, np.uint64), np.zeros(MAX_CLASSES, np.uint64)
    filled = np.zeros(MAX_CLASSES, np.uint64)
    found = _U(0)
    for begin in range(_U(0), _U(count), _U(RUN)):
        size = min(_U(RUN), _U(count) - begin)
        a, b = _U(old) + (begin << _ONE), _U(new) + (begin << _ONE)
        quads = size >> _U(8)
        for q in range(quads):
            at = q << _U(9)
            for ahead in range(_U(_AHEAD), _U(_AHEAD + 512), _U(64)):
                prefetch(a + at + ahead)
                prefetch(b + at + ahead)
            classify_pair(a + at, b + at, line, mask_at + (q << _U(8)), end_at + (q << _U(6)), differ_at + (q << _U(5)))
        if size & _U(QUAD - 1):
            at, rest = quads << _U(9), size & _U(QUAD - 1)
            c, d = _pad(a + at, rest, left), _pad(b + at, rest, right)
            classify_pair(c, d, line, mask_at + (quads << _U(8)), end_at + (quads << _U(6)), differ_at + (quads << _U(5)))
            quads += _ONE
        first = found
        found = _emit(differ, quads << _U(2), begin, found, positions)
        for j in range(first, found):
            place = _U(positions[j])
            before = load(old, np.int64(place), _UNIT)
            step = load(new, np.int64(place), _UNIT) - before
            olds[j] = before
            steps[j] = step
            c = _U(scale_class[(before >> _U(7)) & _U(255)])
            place -= begin
            mask = masks[((place >> _U(6)) << _U(3)) + c]
            end = _U(ends[((place >> _U(8)) << _U(5)) + (c << _U(2)) + ((place >> _U(6)) & _U(3)) + _U(_LINE)])
            rank = starts[c] + end - popcount(mask >> (place & _U(63)))
            out = filled[c]
            filled[c] = out + _ONE
            gaps[c, out] = rank - seen[c]
            sorted_steps[c, out] = step
            seen[c] = rank + _ONE
        for k in range(_U(MAX_CLASSES)):
            starts[k] += _U(ends[quads * _U(_LINE) + _U(4) * k + _U(3)])
    for k in range(MAX_CLASSES):
        sizes[k] = filled[k]
        totals[k] = starts[k]
    padded = _U(-count) & _U(QUAD - 1)
    totals[class_of(_U(0), window)] -= padded
    return int(found)


@kernel
def _emit(bits: NDArray[np.uint64], groups: Any, begin: Any, filled: Any, positions: NDArray[np.uint32]) -> Any:
    """Append the places of the set bits of `groups` words, counted from `begin`; returns how many entries there are."""
    for g in range(groups):
        rest = bits[g]
        after = filled + popcount(rest)
        at = begin + (g << _U(6))
        # Two stores without asking are cheaper than a branch that nobody can predict.
        for k in range(_U(2)):
            positions[filled + k] = np.uint32(at + trailing(rest))
            rest &= rest - _ONE
        place = filled + _U(2)
        while rest != _U(0):
            positions[place] = np.uint32(at + trailing(rest))
            rest &= rest - _ONE
            place += _ONE
        filled = after
    return filled


@kernel
def join_classes(sizes: NDArray[np.int64], parts: NDArray[Any], out: NDArray[Any]) -> None:
    """Put what `scan_ranked` found of each class one after another."""
    j = 0
    for c in range(sizes.size):
        for k in range(sizes[c]):
            out[j + k] = parts[c, k]
        j += sizes[c]


@kernel
def place_changes(
    base: int,
    count: int,
    window: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    ranks: NDArray[np.uint32],
    sorted_steps: Units,
    positions: NDArray[np.uint32],
    steps: Units,
) -> bool:
    """The inverse: `ranks` strictly rise within each class. False if a rank is not below its class's total.

    `positions` must have room for 2 more entries than there are ranks.
    """
    table = np.empty(TABLE_BYTES, np.uint8)
    _table(window, table)
    masks, bits = np.empty(_GROUPS * MAX_CLASSES, np.uint64), np.zeros(_GROUPS, np.uint64)
    ends, rows = np.zeros(_ENDS, np.uint16), np.empty(MAX_CLASSES * _GROUPS, np.uint16)
    last, step_at = np.empty(QUAD, np.uint16), np.empty(RUN, np.uint16)
    line, mask_at, end_at = _U(table.ctypes.data), _U(masks.ctypes.data), _U(ends.ctypes.data) + _U(2 * _LINE)
    row_at = _U(rows.ctypes.data)
    starts = np.zeros(MAX_CLASSES, np.uint64)
    places, stops = np.zeros(MAX_CLASSES + 1, np.uint64), np.zeros(MAX_CLASSES, np.uint64)
    for c in range(sizes.size):
        stops[c] = places[c] + _U(sizes[c])
        places[c + 1] = stops[c]
    filled, total = _U(0), _U(ranks.size)
    for begin in range(_U(0), _U(count), _U(RUN)):
        size = min(_U(RUN), _U(count) - begin)
        a = _U(base) + (begin << _ONE)
        quads = size >> _U(8)
        for q in range(quads):
            at = q << _U(9)
            for ahead in range(_U(_AHEAD), _U(_AHEAD + 512), _U(64)):
                prefetch(a + at + ahead)
            classify(a + at, _U(0), line, mask_at + (q << _U(8)), end_at + (q << _U(6)), _U(0))
        if size < _U(RUN):
            # What a short run lacks ends where its last unit does.
            if size & _U(QUAD - 1):
                c = _pad(a + (quads << _U(9)), size & _U(QUAD - 1), last)
                classify(c, _U(0), line, mask_at + (quads << _U(8)), end_at + (quads << _U(6)), _U(0))
                quads += _ONE
            for k in range(quads * _U(_LINE), _U(_QUADS * _LINE)):
                ends[k + _U(_LINE)] = ends[k | _U(3)]
        turn_ends(end_at, row_at)
        for c in range(_U(sizes.size)):
            row, start = row_at + (c << _U(7)), starts[c]
            end = _U(rows[(c << _U(6)) + _U(_GROUPS - 1)])
            j = places[c]
            while j < stops[c] and _U(ranks[j]) - start < end:
                rank = _U(ranks[j]) - start
                g = group_of(row, rank)
                mask = masks[(g << _U(3)) + c]
                bit = select(mask, rank + popcount(mask) - _U(rows[(c << _U(6)) + g]))
                bits[g] |= _ONE << bit
                step_at[(g << _U(6)) + bit] = sorted_steps[j]
                j += _ONE
            places[c] = j
            starts[c] = start + end
        first = filled
        filled = _emit(bits, _U(_GROUPS), begin, filled, positions)
        bits[:] = 0
        for j in range(first, filled):
            steps[j] = step_at[_U(positions[j]) - begin]
    return bool(filled == total and _U(positions[total - _ONE]) < _U(count))
