"""Compiled loops that write and read the symbols of profile `tight`.

A change is coded as one *symbol*, for the rough gap to the previous change and the rough size of its step, and raw
bits. Symbol `48 · kind + bucket` of a class whose shift is k:

    bucket   gap >> k; or 47, and then (gap >> k) − 47 follows in 20 − k bits
    kind     0: step of ±1; 1: ±2; 2: larger, and an *extra* symbol follows

A magnitude of 3 or more is 2 + 2^b + b bits. Extra symbol 0 stands for b = 0; 2b − 1 and 2b stand for b and a positive
or negative sign: large steps are those of small weights, which mostly grow.

Symbols are coded by `ans`, with one state for all symbols and extra symbols of a block, class after class. Bits fill
each byte from the lowest on. A block begins with zeros and a one, so that its last byte is full, and the first state.
Then follow, for each change: the sign (1: negative), the gap's k low bits, the bits of the next state, for bucket 47
the rest of the gap, and for kind 2 the bits of the state after the extra symbol, and the rest of the magnitude. If the
extra symbol gives the sign, the magnitude's lowest bit stands in the sign's place. A change takes at most 57 bits,
which a load of 8 bytes always holds. The raw bits come first because a reader can skip them without knowing the symbol.
The last state is 0, which damaged bits mostly do not end in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.unit_loops import inline, kernel, leading, load, prefetch, store, trailing
from p2psync.delta.tight.ans import STATE_BITS, STATES

BUCKETS, KINDS = 48, 3
#: Values of b of magnitudes of 3 or more.
MAGNITUDE_LENGTHS = 15
EXTRAS = 2 * MAGNITUDE_LENGTHS - 1
SYMBOLS = KINDS * BUCKETS
FAR_BITS = 20
#: Kinds 0 and 1, and the extra symbols of kind 2, numbered together.
_ALL_KINDS = KINDS - 1 + EXTRAS
#: Items whose symbols are computed, and then counted, in one batch.
_BATCH = 512
#: Large enough for the buckets of a class of 2^20 units, the most that a block has.
MAX_SHIFT = 18
#: Bytes of items that the writer prefetches ahead.
_PREFETCH_BYTES = 512
#: Bytes that the reader may read after the last one that holds bits.
READ_SLACK_BYTES = 16

_U = np.uint64
_ONE = _U(1)
_LAST = _U(BUCKETS - 1)
_SHORT, _LONG = np.empty(0, np.uint16), np.empty(0, np.uint64)
#: Fields of an item: class index, or sign and gap; symbol; step.
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
    """Add the symbols of some blocks to `counts` (classes, SYMBOLS) and `extras` (classes, EXTRAS), and to their items.

    items: row c begins with the changes of class c, `sizes[block, c]` for each block in turn. An item holds a class
    index, and the step from bit 32 on. This loop replaces the class index by the bit in the sign's place and, from bit
    1 on, the gap, and puts the symbol at bit 24. Without `signs` all steps count as positive.
    """
    # Computing symbols vectorizes, counting does not, so both go batch by batch. A count that was just stored is slow
    # to load, so neighbours go to different tallies.
    sign_bits, kinds, tallies = _U(signs), np.empty(_BATCH, np.uint16), np.empty((4, BUCKETS * _ALL_KINDS), np.uint32)
    for c in range(_U(shifts.size)):
        shift, row, end = _U(shifts[c]), items[c], _U(0)
        tallies[:] = 0
        for block in range(sizes.shape[0]):
            begin, after = end, _U(0)
            end += _U(sizes[block, c])
            while begin != end:
                size = min(end - begin, _U(_BATCH))
                after = _set_symbols(row, begin, size, after, shift, sign_bits, kinds)
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
def _set_symbols(items: Any, begin: Any, size: Any, after: Any, shift: Any, sign_bits: Any, kinds: Any) -> Any:
    """Put the symbols of some items of a block into them, and write bucket and kind of each (with its extra symbol).

    after: one more than the class index of the item before these. Returns the same of the last of these.
    """
    for j in range(size):
        item = items[begin + j]
        index, step = item & _GAP, item >> _STEP
        gap, after = index - after, index + _ONE
        magnitude = magnitude_of(step)
        bucket, kind = min(gap >> shift, _LAST), min(magnitude, _U(3)) - _ONE
        symbol, sign = bucket + _U(BUCKETS) * kind, step >> _U(15)
        # For magnitudes up to 3 the last term is 0, which avoids an unpredictable branch.
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
    """Write the changes of some blocks; returns the number of bytes, which are the last of `out`.

    out: u8, at least `symbol_bytes_bound` bytes. items: as `count_symbols` leaves them. ends: i64 (blocks), set to the
    end of each block's bytes. codebook, next_states, extra_codebook, extra_next_states: for (class, symbol) and (class,
    extra symbol), as `ans.fill_encode_table` fills them. Without `signs` all steps count as positive.

    A reader goes forwards, so the writer goes backwards.
    """
    classes, sign_bits = shifts.size, _U(signs)
    item_ends = np.empty(classes, np.uint64)
    for c in range(classes):
        item_ends[c] = _U(items[c].ctypes.data) + (_U(sizes[:, c].sum()) << _U(3))
    at = last = _U(out.ctypes.data) + _U(out.size)
    for block in range(sizes.shape[0] - 1, -1, -1):
        fill, word, state = _U(0), _U(0), _U(STATES)
        for c in range(classes - 1, -1, -1):
            shift = _U(shifts[c])
            raw_bits = shift + sign_bits
            mine, next_states_at = _U(codebook[c].ctypes.data), _U(next_states[c].ctypes.data)
            extras, extra_next_states_at = _U(extra_codebook[c].ctypes.data), _U(extra_next_states[c].ctypes.data)
            item_at = item_ends[c]
            first = item_ends[c] = item_at - (_U(sizes[block, c]) << _U(3))
            # The next class's items have left the nearest caches, and processors do not prefetch backwards here.
            for ahead in range(_U(0), _U(_PREFETCH_BYTES), _U(64)):
                prefetch(item_ends[c - 1] - ahead)
            while item_at != first:
                item_at -= _U(8)
                prefetch(item_at - _U(_PREFETCH_BYTES))
                item = load(item_at, 0, _LONG)
                symbol = (item >> _SYMBOL) & _U(255)
                bits, size = _U(0), _U(0)
                if symbol >= _LAST:
                    state, bits, size = _write_rare(item, symbol, state, shift, sign_bits, extras, extra_next_states_at)
                state, count, code = _write_state(state, load(mine, np.int64(symbol), _LONG), next_states_at)
                # The raw bits: the sign, unless signs are left out, and the gap's low bits.
                bits = (bits << count | code) << raw_bits | (item >> (_ONE - sign_bits)) & ((_ONE << raw_bits) - _ONE)
                size += raw_bits + count
                word = word << size | bits
                fill += size
                # If fill is 0, no byte is complete, and the stored value does not matter.
                store(at - _U(8), 0, word << ((_U(64) - fill) & _U(63)), _LONG)
                at -= fill >> _U(3)
                fill &= _U(7)
        # The state, and in front of it a one, and zeros that fill up the first byte.
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
    """The bits after the symbol of a rare change (bucket 47 or kind 2): the previous state, the bits, their number."""
    bits, size = _U(0), _U(0)
    if symbol >= _U(2 * BUCKETS):
        step = item >> _STEP
        magnitude = magnitude_of(step)
        length = length_of(magnitude)
        extra = max(length + length + ((step >> _U(15)) & sign_bits), _ONE) - _ONE
        state, size, bits = _write_state(state, load(extras, np.int64(extra), _LONG), next_states)
        bits_in_front = min(length, sign_bits)
        bits |= ((magnitude - _U(2) - (_ONE << length)) >> bits_in_front) << size
        size += length - bits_in_front
    if symbol == _LAST or symbol == _LAST + _U(BUCKETS) or symbol == _LAST + _U(2 * BUCKETS):
        more = _U(FAR_BITS) - shift
        bits = bits << more | (((item & _GAP) >> (shift + _ONE)) - _LAST)
        size += more
    return state, bits, size


def symbol_bytes_bound(changes: int, blocks: int) -> int:
    """Bytes that the output of `write_symbols` must have."""
    return 8 * changes + 3 * blocks + READ_SLACK_BYTES


@inline
def _write_state(state: Any, entry: Any, next_states: Any) -> Any:
    """Write a symbol: returns the previous state, the number of bits, and the bits."""
    count = (state + (entry & _U(0xFFFFFFFF))) >> _U(16)
    # The entry adds enough that the index is never negative.
    index = (state >> count) + (entry >> _U(32))
    return load(next_states - _U(2 * STATES), np.int64(index), _SHORT), count, state & ((_ONE << count) - _ONE)


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
    """Read two blocks' changes; returns whether they are well formed.

    spans: i64 (2, 3), begin and end of each block's bytes in `data`, and the number of its units; `READ_SLACK_BYTES`
    follow the bytes. sizes: i64 (2, classes), changes of each class. items: written, first those of block 0, then those
    of block 1: class index, and step from bit 32 on. tables, extra_tables: for (class, state), as
    `ans.fill_decode_table` fills them from `symbol_templates` and `extra_templates`. Without `signs` all steps are
    positive. Returns False if a symbol is unknown, if bits or states do not end where they should, or if a class index
    is not below the number of units.

    A processor mostly waits for one change's state here, so two blocks are read at once.
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
        # The bits of two common changes fit one word.
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
    """The first bit of a block's changes, and the first state; a bit beyond all others if the block is malformed."""
    first = trailing(load(base + begin, 0, _LONG) & _U(0xFF)) + _ONE
    at = (begin << _U(3)) + first
    state = (load(base + begin, 0, _LONG) >> (first & _U(63))) & _U(STATES - 1)
    if not some:
        return begin << _U(3), _U(0)
    return (_ONE << _U(62) if first > _U(8) else at + _U(STATE_BITS)), state


@inline
def _bits_at(base: Any, at: Any) -> Any:
    """Returns at least 57 bits, from bit `at` after address `base` on."""
    return load(base + (at >> _U(3)), 0, _LONG) >> (at & _U(7))


@inline
def _read_change(
    base: Any, at: Any, stop: Any, word: Any, state: Any, index: Any, shift: Any, sign_bits: Any, table: Any, extra: Any
) -> Any:
    """Read the change at bit `at` after address `base`.

    word: the bits from `at` on, at least those of a common change, which its table entry describes whole. Returns the
    bit after the change (beyond all others if the symbol is unknown), the rest of `word`, the state, the class index,
    and the step at bit 32. Loads begin at bit `stop` at the latest.
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
    """Read the rest of a rare change: the bits beyond its entry's, the state, the gap less its low part, the magnitude,
    and the sign. front_bit: the bit in the sign's place.
    """
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
        bits_in_front = min(length, sign_bits)
        low = (bits >> count) & ((_ONE << (length - bits_in_front)) - _ONE)
        magnitude = _U(2) + (_ONE << length) + (low << bits_in_front | front_bit & bits_in_front)
        more += count + length - bits_in_front
        front_bit = (entry >> _U(12)) & _ONE if bits_in_front else front_bit
    return (_ONE << _U(62) if unknown else more), state, bucket << shift, magnitude, front_bit


@kernel
def symbol_templates(shift: int, signs: bool, out: NDArray[np.uint64]) -> None:
    """Write the part of a table entry that depends on the symbol alone, for each symbol of a class with this shift.

    6 bits: the number of raw bits. 2 bits: the magnitude of a common change, or 0. Then, in 24 bits, the gap less its
    low part of a common change, or the symbol.
    """
    for symbol in range(SYMBOLS):
        bucket, head = symbol % BUCKETS, shift + int(signs)
        if symbol < 2 * BUCKETS and bucket != BUCKETS - 1:
            out[symbol] = head | (symbol // BUCKETS + 1) << 6 | bucket << (shift + 8)
        else:
            out[symbol] = head | symbol << 8


@kernel
def extra_templates(out: NDArray[np.uint64]) -> None:
    """Returns a template of each extra symbol: b at bit 8, the sign at bit 12; bit 6 is set, so that no entry is 0."""
    for extra in range(EXTRAS):
        out[extra] = 1 << 6 | (extra + 1) // 2 << 8 | (extra > 0 and extra % 2 == 0) << 12
