"""The compiled loops that write and read the symbols of the `tight` profile: coded symbols, raw bits, escapes.

A change is one *symbol*, which says roughly how far it is from the one before and how large its step is, and some raw
bits. Symbol `48 · kind + bucket` of a class whose shift is k:

    bucket   gap >> k, or 47: what is left of the gap >> k then follows in 20 − k bits
    kind     0: step of ±1; 1: ±2; 2: more, and an *extra* symbol follows

A magnitude of 3 or more is 2 + 2^b + b bits. Extra symbol 0 tells that b is 0; 2b − 1 and 2b tell b, and the sign:
large steps are those of small weights, which mostly grow.

Symbols are coded by `ans`. One state goes through a block, from class to class, and from symbol to extra symbol. Bits
fill each byte from the lowest on: in front zeros and a one, so that the last byte is full, and the state; then for each
change the sign (1: negative), the gap's k low bits, what takes the state on, of bucket 47 what is left of the gap, and,
of kind 2, what takes the state on once more and what is left of the magnitude. Where the extra symbol tells the sign,
the magnitude's lowest bit stands in the sign's place. No change takes more than 57 bits, which is what a load of 8
bytes is sure to give. The raw bits come first because a reader can skip them without knowing the symbol. The last state
is 0, where damaged bits mostly do not end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.unit_loops import inline, kernel, leading, load, prefetch, store, trailing
from p2psync.delta.tight.ans import STATE_BITS, STATES

BUCKETS, KINDS = 48, 3
#: Different b of large magnitudes; and extra symbols.
MAGNITUDE_LENGTHS = 15
EXTRAS = 2 * MAGNITUDE_LENGTHS - 1
SYMBOLS = KINDS * BUCKETS
FAR_BITS = 20
#: Kinds and extra symbols, told together.
_ALL_KINDS = KINDS - 1 + EXTRAS
#: Items that are noted, and then counted.
_BATCH = 512
#: So that the buckets of a class of 2^20 units, which is what a block has at most, are as fine as they should be.
MAX_SHIFT = 18
#: How many bytes of items ahead the writer fetches memory.
_FETCHED = 512
#: Bytes that the reader may look at after the last that holds bits.
READ_SLACK_BYTES = 16

_U = np.uint64
_ONE = _U(1)
_LAST = _U(BUCKETS - 1)
_SHORT, _LONG = np.empty(0, np.uint16), np.empty(0, np.uint64)
#: An item: a rank, or a sign and a gap; the symbol; the step.
_GAP, _SYMBOL, _STEP = _U(0xFFFFFF), _U(24), _U(32)


@kernel
def magnitude_of(step: Any) -> Any:
    """|step| of a 16-bit step, 1 to 32768."""
    return min(step, _U(65536) - step)


@kernel
def length_of(magnitude: Any) -> Any:
    """The b of a magnitude of 3 or more."""
    return _U(63) - leading(magnitude - _U(2))


@kernel
def count_symbols(
    sizes: NDArray[np.int64],
    items: NDArray[np.uint64],
    shifts: NDArray[np.uint8],
    signs: bool,
    counts: NDArray[np.int64],
    extras: NDArray[np.int64],
) -> None:
    """Add to `counts` (classes, SYMBOLS) and `extras` (classes, EXTRAS) the symbols of some blocks, and note them.

    Items of class c, of `sizes[block, c]` for each block in turn, are the first in row c of `items`. An item is a rank,
    and from bit 32 on a step; the rank becomes what stands in the sign's place and from bit 1 on a gap, and the symbol
    is put at bit 24. Without `signs` all steps count as positive.
    """
    # To find out what a change is takes vectors; to count it takes none. So each is done for some changes at a time. A
    # count that has just been stored is slow to load, so neighbours are counted apart.
    sign_bits, kinds, tallies = _U(signs), np.empty(_BATCH, np.uint16), np.empty((4, BUCKETS * _ALL_KINDS), np.uint32)
    for c in range(_U(shifts.size)):
        shift, row, end = _U(shifts[c]), items[c], _U(0)
        tallies[:] = 0
        for block in range(sizes.shape[0]):
            begin, after = end, _U(0)
            end += _U(sizes[block, c])
            while begin != end:
                size = min(end - begin, _U(_BATCH))
                after = _note(row, begin, size, after, shift, sign_bits, kinds)
                for j in range(size):
                    tallies[j & _U(3), kinds[j]] += 1
                begin += size
        for k in range(1, 4):
            for j in range(tallies.shape[1]):
                tallies[0, j] += tallies[k, j]
        for kind in range(_ALL_KINDS):
            mine, symbol = tallies[0, BUCKETS * kind : BUCKETS * (kind + 1)], BUCKETS * min(kind, KINDS - 1)
            for bucket in range(BUCKETS):
                counts[c, symbol + bucket] += mine[bucket]
            if kind >= KINDS - 1:
                extras[c, kind - KINDS + 1] += mine.sum()


@kernel
def _note(items: Any, begin: Any, size: Any, after: Any, shift: Any, sign_bits: Any, kinds: Any) -> Any:
    """Note the symbols of some items of a block, and tell bucket and kind of each: ±1, ±2, or one of the extra symbols.

    after: one more than the rank of the last item before these; returned is that of the last of these.
    """
    for j in range(size):
        item = items[begin + j]
        index, step = item & _GAP, item >> _STEP
        gap, after = index - after, index + _ONE
        magnitude = magnitude_of(step)
        bucket, kind = min(gap >> shift, _LAST), min(magnitude, _U(3)) - _ONE
        symbol, sign = bucket + _U(BUCKETS) * kind, step >> _U(15)
        # Of magnitudes up to 3 the last term is 0: no branch that nobody can predict.
        length = length_of(max(magnitude, _U(3)))
        kinds[j] = symbol + _U(BUCKETS) * (max(length + length + (sign & sign_bits), _ONE) - _ONE)
        front_bit = step & _ONE if magnitude > _U(3) else sign
        items[begin + j] = front_bit | gap << _ONE | symbol << _SYMBOL | step << _STEP
    return after


@kernel
def write_symbols(
    sizes: NDArray[np.int64],
    items: NDArray[np.uint64],
    shifts: NDArray[np.uint8],
    signs: bool,
    codebook: NDArray[np.uint64],
    next_states: NDArray[np.uint16],
    extra_codebook: NDArray[np.uint64],
    extra_next_states: NDArray[np.uint16],
    out: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> int:
    """Write the changes of some blocks; returns how many bytes, which are the last of `out`.

    That must hold `symbol_bytes_bound` of them. Items are as `count_symbols` leaves them; `ends` is told where each block's
    bytes end. For (class, symbol) and (class, extra symbol), books and states to follow are what `ans.fill_encode_table`
    makes. Without `signs` all steps count as positive.

    What is read last is written first, so all this goes backwards.
    """
    classes, sign_bits = shifts.size, _U(signs)
    places = np.empty(classes, np.uint64)
    for c in range(classes):
        places[c] = _U(items[c].ctypes.data) + (_U(sizes[:, c].sum()) << _U(3))
    at = last = _U(out.ctypes.data) + _U(out.size)
    for block in range(sizes.shape[0] - 1, -1, -1):
        fill, word, state = _U(0), _U(0), _U(STATES)
        for c in range(classes - 1, -1, -1):
            shift = _U(shifts[c])
            head = shift + sign_bits
            mine, next_states_at = _U(codebook[c].ctypes.data), _U(next_states[c].ctypes.data)
            extras, extra_next_states_at = _U(extra_codebook[c].ctypes.data), _U(extra_next_states[c].ctypes.data)
            place = places[c]
            first = places[c] = place - (_U(sizes[block, c]) << _U(3))
            # What comes next has long left the nearest caches, and nothing else asks for what is read backwards.
            for ahead in range(_U(0), _U(_FETCHED), _U(64)):
                prefetch(places[c - 1] - ahead)
            while place != first:
                place -= _U(8)
                prefetch(place - _U(_FETCHED))
                item = load(place, 0, _LONG)
                symbol = (item >> _SYMBOL) & _U(255)
                bits, size = _U(0), _U(0)
                if symbol >= _LAST:
                    state, bits, size = _write_rare(item, symbol, state, shift, sign_bits, extras, extra_next_states_at)
                state, count, code = _write_state(state, load(mine, np.int64(symbol), _LONG), next_states_at)
                # What is raw: the gap's low bits, and before them the sign, which is left out where it is not told.
                bits = (bits << count | code) << head | (item >> (_ONE - sign_bits)) & ((_ONE << head) - _ONE)
                size += head + count
                word = word << size | bits
                fill += size
                # Nothing is complete where there are no bits at all, and what is stored then does not matter.
                store(at - _U(8), 0, word << ((_U(64) - fill) & _U(63)), _LONG)
                at -= fill >> _U(3)
                fill &= _U(7)
        # The state, and before it a one: the zeros before that fill up the first byte.
        word = word << _U(STATE_BITS + 1) | (state - _U(STATES)) << _ONE | _ONE
        fill += _U(STATE_BITS + 1)
        store(at - _U(8), 0, word << (_U(64) - fill), _LONG)
        at -= (fill + _U(7)) >> _U(3)
        ends[block] = last - at
        last = at
    end = 0
    for k in range(ends.size):
        end += ends[k]
        ends[k] = end
    return int(end)


@inline
def _write_rare(item: Any, symbol: Any, state: Any, shift: Any, sign_bits: Any, extras: Any, next_states: Any) -> Any:
    """What is read after the symbol of a change that is not of the usual kind: the state before, bits, how many."""
    bits, size = _U(0), _U(0)
    if symbol >= _U(2 * BUCKETS):
        step = item >> _STEP
        magnitude = magnitude_of(step)
        length = length_of(magnitude)
        extra = max(length + length + ((step >> _U(15)) & sign_bits), _ONE) - _ONE
        state, size, bits = _write_state(state, load(extras, np.int64(extra), _LONG), next_states)
        told = min(length, sign_bits)
        bits |= ((magnitude - _U(2) - (_ONE << length)) >> told) << size
        size += length - told
    if symbol == _LAST or symbol == _LAST + _U(BUCKETS) or symbol == _LAST + _U(2 * BUCKETS):
        more = _U(FAR_BITS) - shift
        bits = bits << more | (((item & _GAP) >> (shift + _ONE)) - _LAST)
        size += more
    return state, bits, size


def symbol_bytes_bound(changes: int, blocks: int) -> int:
    """Bytes that `write_symbols` may need of its output."""
    return 8 * changes + 3 * blocks + READ_SLACK_BYTES


@inline
def _write_state(state: Any, entry: Any, next_states: Any) -> Any:
    """Write a symbol: the state before it, how many bits that takes, and these bits."""
    count = (state + (entry & _U(0xFFFFFFFF))) >> _U(16)
    # Places are told with so many added that they are never negative.
    place = (state >> count) + (entry >> _U(32))
    return load(next_states - _U(2 * STATES), np.int64(place), _SHORT), count, state & ((_ONE << count) - _ONE)


@kernel
def read_symbols(
    data: NDArray[np.uint8],
    spans: NDArray[np.int64],
    sizes: NDArray[np.int64],
    shifts: NDArray[np.uint8],
    signs: bool,
    tables: NDArray[np.uint64],
    extra_tables: NDArray[np.uint64],
    items: NDArray[np.uint64],
) -> bool:
    """Read two blocks' changes, each from bytes `spans[k, 0]` to `spans[k, 1]` of `data`, which has SLACK after them.

    `sizes[k, c]` changes of block k are of class c, their ranks below `spans[k, 2]`. An item becomes a rank, and from
    bit 32 on a step: first those of block 0, then those of block 1. Without `signs` all steps are positive. False
    unless the symbols are known, bits and states end where they should, and the ranks are below their bound. The tables
    hold, for (class, state), what `ans.fill_decode_table` makes of `symbol_templates` and `extra_templates`.

    A processor spends most of its time here in waiting for one change's state, so it reads two at once.
    """
    base, sign_bits = _U(data.ctypes.data), _U(signs)
    at_a, state_a = _begin(base, _U(spans[0, 0]), sizes[0].any())
    at_b, state_b = _begin(base, _U(spans[1, 0]), sizes[1].any())
    stop_a, stop_b = _U(spans[0, 1]) << _U(3), _U(spans[1, 1]) << _U(3)
    if (at_a > stop_a) | (at_b > stop_b):
        return False
    out_a = _U(items.ctypes.data)
    out_b = out_a + (_U(sizes[0].sum()) << _U(3))
    for c in range(_U(shifts.size)):
        shift = _U(shifts[c])
        table, extra = _U(tables[c].ctypes.data), _U(extra_tables[c].ctypes.data)
        index_a, index_b = ~_U(0), ~_U(0)
        both = min(_U(sizes[0, c]), _U(sizes[1, c]))
        # The bits of two changes that tell nothing unusual are in one word.
        twice = both >> _ONE if shift + sign_bits + _U(STATE_BITS) <= _U(28) else _U(0)
        for _ in range(twice):
            word_a, word_b = _bits_at(base, at_a), _bits_at(base, at_b)
            for k in range(2):
                at_a, word_a, state_a, index_a, step_a = _read_change(
                    base, at_a, stop_a, word_a, state_a, index_a, shift, sign_bits, table, extra
                )
                at_b, word_b, state_b, index_b, step_b = _read_change(
                    base, at_b, stop_b, word_b, state_b, index_b, shift, sign_bits, table, extra
                )
                store(out_a, k, index_a | step_a, _LONG)
                store(out_b, k, index_b | step_b, _LONG)
            if (at_a > stop_a) | (at_b > stop_b):
                return False
            out_a += _U(16)
            out_b += _U(16)
        both = twice << _ONE
        for k in range(2):
            at, state, index, out, stop = (
                (at_b, state_b, index_b, out_b, stop_b) if k else (at_a, state_a, index_a, out_a, stop_a)
            )
            for _ in range(both, _U(sizes[k, c])):
                at, _, state, index, step = _read_change(
                    base, at, stop, _bits_at(base, at), state, index, shift, sign_bits, table, extra
                )
                if at > stop:
                    return False
                store(out, 0, index | step, _LONG)
                out += _U(8)
            if sizes[k, c] and index >= _U(spans[k, 2]):
                return False
            if k:
                at_b, state_b, out_b = at, state, out
            else:
                at_a, state_a, out_a = at, state, out
    return bool(at_a == stop_a and at_b == stop_b and (state_a | state_b) == _U(0))


@inline
def _begin(base: Any, begin: Any, some: Any) -> Any:
    """The first bit of a block's changes, of which there are `some`, and the state; beyond all bits if it has none."""
    first = trailing(load(base + begin, 0, _LONG) & _U(0xFF)) + _ONE
    at = (begin << _U(3)) + first
    state = (load(base + begin, 0, _LONG) >> (first & _U(63))) & _U(STATES - 1)
    if not some:
        return begin << _U(3), _U(0)
    return (_ONE << _U(62) if first > _U(8) else at + _U(STATE_BITS)), state


@inline
def _bits_at(base: Any, at: Any) -> Any:
    """57 bits or more from bit `at` after address `base` on."""
    return load(base + (at >> _U(3)), 0, _LONG) >> (at & _U(7))


@inline
def _read_change(
    base: Any, at: Any, stop: Any, word: Any, state: Any, index: Any, shift: Any, sign_bits: Any, table: Any, extra: Any
) -> Any:
    """The next change at bit `at` after address `base`: the bit after it, state, rank, and the step at bit 32.

    word: the bits from `at` on, at least as many as a change takes that the table tells all of; what is left of them is
    returned after the bit. That is beyond all others where the symbol is not known. What is loaded here begins at bit
    `stop` at the latest.
    """
    entry = load(table, np.int64(state), _LONG)
    state = ((entry >> _U(32)) & _U(STATES - 1)) + ((word >> (shift + sign_bits)) & (entry >> _U(48)))
    magnitude = (entry >> _U(6)) & _U(3)
    index += _ONE + ((word >> sign_bits) & ((_ONE << shift) - _ONE))
    sign = word & sign_bits
    if magnitude != _U(0):
        index += (entry >> _U(8)) & _U(0xFFFFFF)
        at += entry & _U(63)
        word >>= entry & _U(63)
    else:
        more, state, over, magnitude, sign = _read_rare(
            _bits_at(base, min(at, stop)) >> (entry & _U(63)), entry, state, shift, sign_bits, sign, extra
        )
        at += (entry & _U(63)) + more
        index += over
        word = _bits_at(base, min(at, stop))
    step = ((magnitude ^ (~sign + _ONE)) + sign) & _U(0xFFFF)
    return at, word, state, index, step << _STEP


@kernel
def _read_rare(bits: Any, entry: Any, state: Any, shift: Any, sign_bits: Any, front_bit: Any, extra: Any) -> Any:
    """What an entry does not tell at once: bits used beyond those it tells of, state, gap less low part, magnitude, and
    the sign; front: what stands in its place."""
    symbol = (entry >> _U(8)) & _U(255)
    kind = _U(symbol >= _U(BUCKETS)) + _U(symbol >= _U(2 * BUCKETS))
    bucket, more = symbol - _U(BUCKETS) * kind, _U(0)
    if bucket == _LAST:
        more = _U(FAR_BITS) - shift
        bucket += bits & ((_ONE << more) - _ONE)
        bits >>= more
    magnitude = kind + _ONE
    unknown = entry == _U(0)
    if kind == _U(2):
        entry = load(extra, np.int64(state), _LONG)
        unknown = entry == _U(0)
        state = ((entry >> _U(32)) & _U(STATES - 1)) + (bits & (entry >> _U(48)))
        count, length = entry & _U(15), (entry >> _U(8)) & _U(15)
        told = min(length, sign_bits)
        low = (bits >> count) & ((_ONE << (length - told)) - _ONE)
        magnitude = _U(2) + (_ONE << length) + (low << told | front_bit & told)
        more += count + length - told
        front_bit = (entry >> _U(12)) & _ONE if told else front_bit
    return (_ONE << _U(62) if unknown else more), state, bucket << shift, magnitude, front_bit


@kernel
def symbol_templates(shift: int, signs: bool, out: NDArray[np.uint64]) -> None:
    """What `read_symbols` wants to know of each symbol of a class.

    6 bits: what comes before the state's bits. 2 bits: the magnitude, if it and the bucket say all. Then, in 24 bits,
    the gap less its low part; or, where the magnitude is 0, the symbol.
    """
    for symbol in range(SYMBOLS):
        bucket, head = symbol % BUCKETS, shift + int(signs)
        if symbol < 2 * BUCKETS and bucket != BUCKETS - 1:
            out[symbol] = head | (symbol // BUCKETS + 1) << 6 | bucket << (shift + 8)
        else:
            out[symbol] = head | symbol << 8


@kernel
def extra_templates(out: NDArray[np.uint64]) -> None:
    """What `read_symbols` wants to know of each extra symbol: at bit 8 b, at bit 12 the sign; bit 6, lest it be 0."""
    for extra in range(EXTRAS):
        out[extra] = 1 << 6 | (extra + 1) // 2 << 8 | (extra > 0 and extra % 2 == 0) << 12
