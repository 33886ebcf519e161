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

from p2psync.delta.kernels import kernel, load, store

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
_WORD, _LONG = np.empty(0, np.uint32), np.empty(0, np.uint64)
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
    out: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> int:
    """Write the changes of some blocks; returns how many bytes. `out` must hold 7 bytes a change, and SLACK.

    Items are as `count_symbols` leaves them; `ends` is told where each block's bytes end. The books hold, for
    (class, symbol), a code and, from bit 16 on, its length.
    """
    fill, word = _U(0), _U(0)
    start = _U(out.ctypes.data)
    at, end = start, _U(items.ctypes.data)
    classes = _U(shifts.size)
    for part in range(_U(sizes.size)):
        c = part % classes
        shift = _U(shifts[c])
        low, head = ((_ONE << shift) - _ONE) << _ONE, shift + _ONE
        mine = _U(book[c].ctypes.data)
        begin = end
        end += _U(sizes.flat[part]) << _U(3)
        for place in range(begin, end, _U(8)):
            item = load(place, 0, _LONG)
            symbol = (item >> _SYMBOL) & _U(255)
            entry = load(mine, np.int64(symbol), _WORD)
            size = head + (entry >> _U(16))
            bits = ((item + item) & low) | ((item >> _SIGN) & _ONE) | (entry & _U(0xFFFF)) << head
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
    begin: int,
    end: int,
    sizes: NDArray[np.int64],
    shifts: NDArray[np.uint8],
    tables: NDArray[np.uint32],
    extra_tables: NDArray[np.uint16],
    count: int,
    items: NDArray[np.uint64],
) -> bool:
    """Read one block's changes from bytes `begin` to `end` of `data`, which has SLACK after them.

    An item becomes a rank, and from bit 32 on a step. False unless the codes are known, the bits end where they should,
    and the ranks are below `count`. The tables hold, for (class, next bits), what `fill_table` puts there.
    """
    base = _U(data.ctypes.data)
    at, stop = _U(begin) << _U(3), _U(end) << _U(3)
    peek, extra_peek = _U((1 << CODE_BITS) - 1), _U((1 << EXTRA_BITS) - 1)
    last = _U(items.ctypes.data)
    for c in range(_U(sizes.size)):
        shift = _U(shifts[c])
        low, head, table = (_ONE << shift) - _ONE, shift + _ONE, _U(tables[c].ctypes.data)
        rank = ~_U(0)
        first = last
        last += _U(sizes[c]) << _U(3)
        for place in range(first, last, _U(8)):
            word = load(base + (at >> _U(3)), 0, _LONG) >> (at & _U(7))
            entry = load(table, np.int64((word >> head) & peek), _WORD)
            sign, magnitude = word & _ONE, (entry >> _U(6)) & _U(3)
            rank += _ONE + ((word >> _ONE) & low)
            at += entry & _U(63)
            if magnitude != _U(0):
                rank += entry >> _U(8)
            else:
                if entry == _U(0):
                    return False
                bits, symbol = word >> (entry & _U(63)), entry >> _U(8)
                kind = _U(symbol >= _U(BUCKETS)) + _U(symbol >= _U(2 * BUCKETS))
                bucket = symbol - _U(BUCKETS) * kind
                if bucket == _LAST:
                    raw = _U(FAR_BITS) - shift
                    bucket += bits & ((_ONE << raw) - _ONE)
                    bits >>= raw
                    at += raw
                rank += bucket << shift
                magnitude = kind + _ONE
                if kind == _U(2):
                    entry = _U(extra_tables[c, bits & extra_peek])
                    if entry == _U(0):
                        return False
                    b = entry >> _U(4)
                    magnitude = _U(2) + (_ONE << b) + ((bits >> (entry & _U(15))) & ((_ONE << b) - _ONE))
                    at += (entry & _U(15)) + b
            if at > stop:
                return False
            step = ((magnitude ^ (~sign + _ONE)) + sign) & _U(0xFFFF)
            store(place, 0, rank | step << _STEP, _LONG)
        if first < last and rank >= _U(count):
            return False
    return bool(stop - at < _U(8))


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
def fill_table(book: NDArray[np.uint32], lengths: NDArray[np.uint8], shift: int, table: NDArray[np.uint32]) -> None:
    """The table that gives for the next bits the symbol, as `read_symbols` wants it.

    6 bits: what comes up to the code's end, a sign and `shift` bits before it included. 2 bits: the magnitude, if it
    and the bucket say all. Then the gap less its low part; or, where the magnitude is 0, the symbol.
    """
    for symbol in range(lengths.size):
        size = int(lengths[symbol])
        if size:
            bucket = symbol % BUCKETS
            entry = (size + shift + 1) | symbol << 8
            if symbol < 2 * BUCKETS and bucket != BUCKETS - 1:
                entry = (size + shift + 1) | (symbol // BUCKETS + 1) << 6 | bucket << (shift + 8)
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
