"""The compiled loops that write and read the symbols of the `tight` profile: Huffman codes, raw bits, escapes.

A change is one *symbol*, which says roughly how far it is from the one before and how large its step is, and some raw
bits. Symbol `48 · kind + bucket` of a class whose shift is k:

    bucket   gap >> k, or 47: what is left of the gap >> k then follows in 20 − k bits
    kind     0: step of ±1; 1: ±2; 2: more, and an *extra* symbol follows

Bits fill each byte from the lowest on: the sign (1: negative), the gap's k low bits, the code, of bucket 47 what is
left of the gap, and, of kind 2, the extra code b and b bits: the step's magnitude is 2 + 2^b + those bits. No change
takes more than 54 bits. The raw bits come first because a reader can skip them without knowing the symbol.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels import inline, kernel, load, store

BUCKETS, KINDS, EXTRAS = 48, 3, 15
SYMBOLS = KINDS * BUCKETS
#: Longest code of a symbol, and of an extra symbol.
CODE_BITS, EXTRA_BITS = 11, 8
FAR_BITS = 20
#: So that the buckets of a class of 2^20 units, which is what a block has at most, are as fine as they should be.
MAX_SHIFT = 18
#: Bytes that the reader may look at after the last that holds bits.
SLACK = 16

_U = np.uint64
_ONE = _U(1)
_LAST = _U(BUCKETS - 1)
_SHORT, _WORD, _LONG = np.empty(0, np.uint16), np.empty(0, np.uint32), np.empty(0, np.uint64)
#: An item: a gap or rank, the symbol, the step.
_GAP, _SYMBOL, _STEP, _SIGN = _U(0xFFFFFF), _U(24), _U(32), _U(47)


@kernel
def magnitude_of(step: Any) -> Any:
    """|step| of a 16-bit step, 1 to 32768."""
    return min(step, _U(65536) - step)


@kernel
def extra_of(magnitude: Any) -> Any:
    """The extra symbol of a magnitude of 3 or more."""
    b = _U(0)
    value = (magnitude - _U(2)) >> _ONE
    while value:
        value >>= _ONE
        b += _ONE
    return b


@kernel
def count_symbols(
    sizes: NDArray[np.int64],
    items: NDArray[np.uint64],
    shifts: NDArray[np.uint8],
    counts: NDArray[np.int64],
    extras: NDArray[np.int64],
) -> None:
    """Add to `counts` (classes, SYMBOLS) and `extras` (classes, EXTRAS) the symbols of some blocks, and note them.

    An item, of `sizes[block, c]` for each block and class, is a gap, and from bit 32 on a step; the symbol is put at
    bit 24.
    """
    end = _U(items.ctypes.data)
    for part in range(_U(sizes.size)):
        c = part % _U(shifts.size)
        shift, row = _U(shifts[c]), _U(counts[c].ctypes.data)
        begin = end
        end += _U(sizes.flat[part]) << _U(3)
        for place in range(begin, end, _U(8)):
            item = load(place, 0, _LONG)
            magnitude = magnitude_of(item >> _STEP)
            symbol = min((item & _GAP) >> shift, _LAST) + _U(BUCKETS) * (min(magnitude, _U(3)) - _ONE)
            store(row, np.int64(symbol), load(row, np.int64(symbol), _LONG) + _ONE, _LONG)
            store(place, 0, item | symbol << _SYMBOL, _LONG)
            if magnitude > _U(2):
                extras[c, extra_of(magnitude)] += 1


@kernel
def write_symbols(
    sizes: NDArray[np.int64],
    items: NDArray[np.uint64],
    shifts: NDArray[np.uint8],
    book: NDArray[np.uint32],
    extra_book: NDArray[np.uint32],
    signed: int,
    out: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> int:
    """Write the changes of some blocks; returns how many bytes. `out` must hold 7 bytes a change, and SLACK.

    signed: 1, or 0 for no signs. Items are as `count_symbols` leaves them; `ends` is told where each block's bytes end.
    The books hold, for (class, symbol), a code and, from bit 16 on, its length.
    """
    fill, word, sign = _U(0), _U(0), _U(signed)
    start = _U(out.ctypes.data)
    at, end = start, _U(items.ctypes.data)
    classes = _U(shifts.size)
    for part in range(_U(sizes.size)):
        c = part % classes
        shift = _U(shifts[c])
        low, head = ((_ONE << shift) - _ONE) << sign, shift + sign
        mine = _U(book[c].ctypes.data)
        begin = end
        end += _U(sizes.flat[part]) << _U(3)
        for place in range(begin, end, _U(8)):
            item = load(place, 0, _LONG)
            symbol = (item >> _SYMBOL) & _U(255)
            entry = load(mine, np.int64(symbol), _WORD)
            size = head + (entry >> _U(16))
            bits = ((item << sign) & low) | ((item >> _SIGN) & sign) | (entry & _U(0xFFFF)) << head
            if symbol >= _LAST and (symbol >= _U(2 * BUCKETS) or symbol == _LAST or symbol == _U(2 * BUCKETS - 1)):
                if symbol == _LAST or symbol == _LAST + _U(BUCKETS) or symbol == _LAST + _U(2 * BUCKETS):
                    bits |= (((item & _GAP) >> shift) - _LAST) << size
                    size += _U(FAR_BITS) - shift
                if symbol >= _U(2 * BUCKETS):
                    magnitude = magnitude_of(item >> _STEP)
                    b = extra_of(magnitude)
                    entry = _U(extra_book[c, b])
                    bits |= (entry & _U(0xFFFF)) << size
                    size += entry >> _U(16)
                    bits |= (magnitude - _U(2) - (_ONE << b)) << size
                    size += b
            word |= bits << fill
            fill += size
            store(at, 0, word, _LONG)
            at += fill >> _U(3)
            word >>= fill & ~_U(7)
            fill &= _U(7)
        if c + _ONE == classes:
            at += (fill + _U(7)) >> _U(3)
            fill, word = _U(0), _U(0)
            ends[part // classes] = at - start
    return int(at - start)


@kernel
def read_symbols(
    data: NDArray[np.uint8],
    spans: NDArray[np.int64],
    sizes: NDArray[np.int64],
    shifts: NDArray[np.uint8],
    tables: NDArray[np.uint32],
    extra_tables: NDArray[np.uint16],
    signed: int,
    items: NDArray[np.uint64],
) -> bool:
    """Read two blocks' changes, each from bytes `spans[k, 0]` to `spans[k, 1]` of `data`, which has SLACK after them.

    `sizes[k, c]` changes of block k are of class c, their ranks below `spans[k, 2]`. An item becomes a rank, and from
    bit 32 on a step: first those of block 0, then those of block 1. False unless the codes are known, the bits end
    where they should, and the ranks are below their bound. The tables hold, for (class, next bits), what `fill_table`
    and `fill_extra` put there. signed: as they were written; without signs all steps are upwards.

    A processor spends most of its time here in waiting for one change's length, so it reads two at once.
    """
    base, bit = _U(data.ctypes.data), _U(signed)
    at_a, at_b = _U(spans[0, 0]) << _U(3), _U(spans[1, 0]) << _U(3)
    stop_a, stop_b = _U(spans[0, 1]) << _U(3), _U(spans[1, 1]) << _U(3)
    out_a = _U(items.ctypes.data)
    out_b = out_a + (_U(sizes[0].sum()) << _U(3))
    for c in range(_U(shifts.size)):
        shift = _U(shifts[c])
        table, extra = _U(tables[c].ctypes.data), _U(extra_tables[c].ctypes.data)
        rank_a, rank_b = ~_U(0), ~_U(0)
        both = min(_U(sizes[0, c]), _U(sizes[1, c]))
        for _ in range(both):
            at_a, rank_a, step_a = _read_change(base, at_a, rank_a, shift, bit, table, extra)
            at_b, rank_b, step_b = _read_change(base, at_b, rank_b, shift, bit, table, extra)
            if (at_a > stop_a) | (at_b > stop_b):
                return False
            store(out_a, 0, rank_a | step_a, _LONG)
            store(out_b, 0, rank_b | step_b, _LONG)
            out_a += _U(8)
            out_b += _U(8)
        for k in range(2):
            at, rank, out, stop = (at_b, rank_b, out_b, stop_b) if k else (at_a, rank_a, out_a, stop_a)
            for _ in range(both, _U(sizes[k, c])):
                at, rank, step = _read_change(base, at, rank, shift, bit, table, extra)
                if at > stop:
                    return False
                store(out, 0, rank | step, _LONG)
                out += _U(8)
            if sizes[k, c] and rank >= _U(spans[k, 2]):
                return False
            if k:
                at_b, out_b = at, out
            else:
                at_a, out_a = at, out
    return bool(stop_a - at_a < _U(8) and stop_b - at_b < _U(8))


@inline
def _read_change(base: Any, at: Any, rank: Any, shift: Any, signed: Any, table: Any, extra: Any) -> Any:
    """The next change at bit `at` after address `base`: the bit after it, the rank, and the step at bit 32.

    The bit after it is beyond all others where the code is not known.
    """
    word = load(base + (at >> _U(3)), 0, _LONG) >> (at & _U(7))
    head = shift + signed
    entry = load(table, np.int64((word >> head) & _U((1 << CODE_BITS) - 1)), _WORD)
    magnitude = (entry >> _U(6)) & _U(3)
    rank += _ONE + ((word >> signed) & ((_ONE << shift) - _ONE))
    at += entry & _U(63)
    if magnitude != _U(0):
        rank += entry >> _U(8)
    else:
        more, over, magnitude = _look_closer(word >> (entry & _U(63)), entry, shift, extra)
        at += more
        rank += over
    sign = word & signed
    step = ((magnitude ^ (~sign + _ONE)) + sign) & _U(0xFFFF)
    return at, rank, step << _STEP


@kernel
def _look_closer(bits: Any, entry: Any, shift: Any, extra: Any) -> Any:
    """What a table's entry does not tell at once: bits used beyond those it tells of, gap less low part, magnitude."""
    symbol = entry >> _U(8)
    kind = _U(symbol >= _U(BUCKETS)) + _U(symbol >= _U(2 * BUCKETS))
    bucket, more = symbol - _U(BUCKETS) * kind, _U(0)
    if bucket == _LAST:
        more = _U(FAR_BITS) - shift
        bucket += bits & ((_ONE << more) - _ONE)
        bits >>= more
    magnitude = kind + _ONE
    unknown = entry == _U(0)
    if kind == _U(2):
        entry = load(extra, np.int64(bits & _U((1 << EXTRA_BITS) - 1)), _SHORT)
        unknown = entry == _U(0)
        b = entry >> _U(4)
        magnitude = _U(2) + (_ONE << b) + ((bits >> (entry & _U(15))) & ((_ONE << b) - _ONE))
        more += (entry & _U(15)) + b
    return (_ONE << _U(62) if unknown else more), bucket << shift, magnitude


@kernel
def code_lengths(counts: NDArray[np.int64], limit: int, lengths: NDArray[np.uint8]) -> None:
    """Huffman code lengths, none above `limit`, of symbols with these counts; 0 of those that do not occur."""
    order = np.empty(counts.size, np.int64)
    weights = np.empty(2 * counts.size, np.int64)
    parents = np.empty(2 * counts.size, np.int64)
    flat = 0
    while True:
        n = 0
        for symbol in range(counts.size):
            lengths[symbol] = 0
            if counts[symbol]:
                weight = ((counts[symbol] - 1) >> flat) + 1
                k = n
                while k and weights[k - 1] > weight:
                    weights[k], order[k] = weights[k - 1], order[k - 1]
                    k -= 1
                weights[k], order[k] = weight, symbol
                n += 1
        if n < 2:
            for k in range(n):
                lengths[order[k]] = 1
            return
        deepest = _grow(weights, parents, n)
        if deepest <= limit:
            for k in range(n):
                lengths[order[k]] = parents[k]
            return
        flat += 1


@kernel
def _grow(weights: NDArray[np.int64], parents: NDArray[np.int64], n: int) -> int:
    """From n rising weights: each one's depth in the tree, in `parents`; returns the deepest."""
    leaf, node = 0, n
    for made in range(n, 2 * n - 1):
        weights[made] = 0
        for _ in range(2):
            if leaf < n and (node >= made or weights[leaf] <= weights[node]):
                pick = leaf
                leaf += 1
            else:
                pick = node
                node += 1
            weights[made] += weights[pick]
            parents[pick] = made
    parents[2 * n - 2] = 0
    deepest = 0
    for k in range(2 * n - 3, -1, -1):
        parents[k] = parents[parents[k]] + 1
        deepest = max(deepest, parents[k])
    return deepest


@kernel
def assign_codes(lengths: NDArray[np.uint8], book: NDArray[np.uint32]) -> bool:
    """The code of each symbol, with its length from bit 16 on; False if there are more codes than fit.

    Codes are canonical: by length, then by symbol, counted up; their bits are then turned round, first bit lowest.
    """
    code = 0
    for size in range(1, CODE_BITS + 1):
        code <<= 1
        for symbol in range(lengths.size):
            if lengths[symbol] == size:
                turned = 0
                for k in range(size):
                    turned |= ((code >> k) & 1) << (size - 1 - k)
                book[symbol] = turned | size << 16
                code += 1
        if code > 1 << size:
            return False
    return True


@kernel
def fill_table(
    book: NDArray[np.uint32], lengths: NDArray[np.uint8], shift: int, signed: int, table: NDArray[np.uint32]
) -> None:
    """The table that gives for the next bits the symbol, as `read_symbols` wants it.

    6 bits: what comes up to the code's end, a sign (if `signed` is 1) and `shift` bits before it included. 2 bits: the
    magnitude, if it and the bucket say all. Then the gap less its low part; or, where the magnitude is 0, the symbol.
    """
    for symbol in range(lengths.size):
        size = int(lengths[symbol])
        if size:
            bucket = symbol % BUCKETS
            entry = (size + shift + signed) | symbol << 8
            if symbol < 2 * BUCKETS and bucket != BUCKETS - 1:
                entry = (size + shift + signed) | (symbol // BUCKETS + 1) << 6 | bucket << (shift + 8)
            for place in range(int(book[symbol]) & 0xFFFF, table.size, 1 << size):
                table[place] = entry


@kernel
def fill_extra(book: NDArray[np.uint32], lengths: NDArray[np.uint8], table: NDArray[np.uint16]) -> None:
    """The table that gives for the next bits the extra symbol: the code's length in 4 bits, then the symbol."""
    for symbol in range(lengths.size):
        size = int(lengths[symbol])
        if size:
            for place in range(int(book[symbol]) & 0xFFFF, table.size, 1 << size):
                table[place] = size | symbol << 4
