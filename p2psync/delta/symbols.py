"""The compiled loops that write and read the symbols of the `tight` profile: Huffman codes, raw bits, escapes.

A change is one *symbol*, which says roughly how far it is from the one before and how large its step is, and some raw
bits. Symbol `48 · kind + bucket` of a class whose shift is k:

    bucket   gap >> k, or 47: the gap less 47 << k follows in 20 bits, instead of the gap's k low bits
    kind     0: step of ±1; 1: ±2; 2: more, and an *extra* symbol follows

Bits fill each byte from the lowest on: the code, the gap's low bits, the sign (1: negative), and, of kind 2, the extra
code b and b bits: the step's magnitude is 2 + 2^b + those bits. No change takes more than 54 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels import kernel, load, store
from p2psync.delta.tensors import Units

BUCKETS, KINDS, EXTRAS = 48, 3, 15
SYMBOLS = KINDS * BUCKETS
#: Longest code of a symbol, and of an extra symbol.
CODE_BITS, EXTRA_BITS = 11, 8
FAR_BITS = 20
MAX_SHIFT = 20
#: Bytes that the reader may look at after the last that holds bits.
SLACK = 16

_U = np.uint64
_ONE = _U(1)
_LAST = _U(BUCKETS - 1)
_LONG = np.empty(0, np.uint64)
#: A table's entry: 4 bits of length, 2 of magnitude (0: look closer), then the bucket or the symbol.
_PLAIN, _VALUE = _U(4), _U(6)


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
    gaps: NDArray[np.uint32],
    steps: Units,
    shifts: NDArray[np.uint8],
    counts: NDArray[np.int64],
    extras: NDArray[np.int64],
) -> None:
    """Add to `counts` (classes, SYMBOLS) and `extras` (classes, EXTRAS) the symbols of one block."""
    j = _U(0)
    for c in range(_U(sizes.size)):
        shift = _U(shifts[c])
        for _ in range(sizes[c]):
            magnitude = magnitude_of(_U(steps[j]))
            bucket = min(_U(gaps[j]) >> shift, _LAST)
            counts[c, bucket + _U(BUCKETS) * (min(magnitude, _U(3)) - _ONE)] += 1
            if magnitude > _U(2):
                extras[c, extra_of(magnitude)] += 1
            j += _ONE


@kernel
def write_symbols(
    sizes: NDArray[np.int64],
    gaps: NDArray[np.uint32],
    steps: Units,
    shifts: NDArray[np.uint8],
    book: NDArray[np.uint32],
    extra_book: NDArray[np.uint32],
    out: NDArray[np.uint8],
) -> int:
    """Write one block's changes; returns how many bytes. `out` must hold 7 bytes a change, and SLACK.

    The books hold, for (class, symbol), a code and, from bit 16 on, its length.
    """
    at, fill, word = _U(0), _U(0), _U(0)
    base = _U(out.ctypes.data)
    j = _U(0)
    for c in range(_U(sizes.size)):
        shift = _U(shifts[c])
        low = (_ONE << shift) - _ONE
        for _ in range(sizes[c]):
            gap, step = _U(gaps[j]), _U(steps[j])
            j += _ONE
            magnitude = magnitude_of(step)
            bucket = min(gap >> shift, _LAST)
            entry = _U(book[c, bucket + _U(BUCKETS) * (min(magnitude, _U(3)) - _ONE)])
            bits, size = entry & _U(0xFFFF), entry >> _U(16)
            sign = step >> _U(15)
            if bucket == _LAST:
                bits |= (gap - (_LAST << shift)) << size
                size += _U(FAR_BITS)
            else:
                bits |= (gap & low) << size
                size += shift
            bits |= sign << size
            size += _ONE
            if magnitude > _U(2):
                b = extra_of(magnitude)
                entry = _U(extra_book[c, b])
                bits |= (entry & _U(0xFFFF)) << size
                size += entry >> _U(16)
                bits |= (magnitude - _U(2) - (_ONE << b)) << size
                size += b
            word |= bits << fill
            fill += size
            store(base + at, 0, word, _LONG)
            at += fill >> _U(3)
            word >>= fill & ~_U(7)
            fill &= _U(7)
    return int(at + ((fill + _U(7)) >> _U(3)))


@kernel
def read_symbols(
    data: NDArray[np.uint8],
    begin: int,
    end: int,
    sizes: NDArray[np.int64],
    shifts: NDArray[np.uint8],
    tables: NDArray[np.uint16],
    extra_tables: NDArray[np.uint16],
    count: int,
    ranks: NDArray[np.uint32],
    steps: Units,
) -> bool:
    """Read one block's changes from bytes `begin` to `end` of `data`, which has SLACK after them: ranks, and steps.

    False unless the codes are known, the bits end where they should, and the ranks are below `count`. The tables hold,
    for (class, next bits), what `symbol_table` puts there.
    """
    base = _U(data.ctypes.data)
    # `word` holds the next `have` bits, and rubbish above them; what comes next is at `at`.
    at, word, have = base + _U(begin), _U(0), _U(0)
    stop, limit = (base + _U(end)) << _U(3), _U(count)
    peek, extra_peek = _U((1 << CODE_BITS) - 1), _U((1 << EXTRA_BITS) - 1)
    j = _U(0)
    for c in range(_U(sizes.size)):
        shift = _U(shifts[c])
        low = (_ONE << shift) - _ONE
        rank = _U(0)
        for _ in range(sizes[c]):
            word |= load(at, 0, _LONG) << have
            at += (_U(63) - have) >> _U(3)
            have |= _U(56)
            entry = _U(tables[c, word & peek])
            size = entry & _U(15)
            bits = word >> size
            magnitude = (entry >> _PLAIN) & _U(3)
            if magnitude != _U(0):
                rank += ((entry >> _VALUE) << shift) + (bits & low)
                bits >>= shift
                size += shift + _ONE
            else:
                if size == _U(0):
                    return False
                symbol = entry >> _VALUE
                kind = _U(symbol >= _U(BUCKETS)) + _U(symbol >= _U(2 * BUCKETS))
                bucket = symbol - _U(BUCKETS) * kind
                raw = _U(FAR_BITS) if bucket == _LAST else shift
                rank += (bucket << shift) + (bits & ((_ONE << raw) - _ONE))
                bits >>= raw
                size += raw + _ONE
                magnitude = kind + _ONE
                if kind == _U(2):
                    entry = _U(extra_tables[c, (bits >> _ONE) & extra_peek])
                    if entry == _U(0):
                        return False
                    b = entry >> _VALUE
                    value = (bits >> (_ONE + (entry & _U(15)))) & ((_ONE << b) - _ONE)
                    magnitude = _U(2) + (_ONE << b) + value
                    size += (entry & _U(15)) + b
            word >>= size
            have -= size
            if (at << _U(3)) - have > stop or rank >= limit:
                return False
            ranks[j] = rank
            steps[j] = (magnitude ^ (~(bits & _ONE) + _ONE)) + (bits & _ONE)
            rank += _ONE
            j += _ONE
    return bool(stop - ((at << _U(3)) - have) < _U(8))


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
def fill_table(book: NDArray[np.uint32], lengths: NDArray[np.uint8], plain: bool, table: NDArray[np.uint16]) -> None:
    """The table that gives for the next bits the symbol: length; magnitude, if that and the bucket say all; value."""
    for symbol in range(lengths.size):
        size = int(lengths[symbol])
        if size:
            entry = size | symbol << 6
            if plain and symbol < 2 * BUCKETS and symbol % BUCKETS != BUCKETS - 1:
                entry = size | (symbol // BUCKETS + 1) << 4 | (symbol % BUCKETS) << 6
            for place in range(int(book[symbol]) & 0xFFFF, table.size, 1 << size):
                table[place] = entry
