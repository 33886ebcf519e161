"""Coding tables of asymmetric numeral systems (J. Duda 2009, 2013), which code the symbols of profile `tight`.

A coder has one of 2048 states, and each symbol owns as many states as its frequency. A reader looks up the state's
symbol, and computes the next state from the table entry and some bits. A symbol of frequency f takes 11 − log2 f bits
on average, also if that is less than one. The writer goes the other way, from the last symbol to the first.

Frequencies are stored as *levels*: 0, the symbol does not occur; 1, it has one state; from 2 on, one state and a share
of the remaining states in proportion to a weight of three significant bits: 4, 5, 6, 7, 8, 10, 12, 14, 16, 20 …
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.unit_loops import inline, kernel, leading

STATE_BITS = 11
STATES = 1 << STATE_BITS
MAX_LEVEL = 49
#: The step from one assigned state to the next. It is coprime to the number of states, so all are reached.
_STRIDE = (STATES >> 1) + (STATES >> 3) + 3


@inline
def _weight(level: Any) -> Any:
    return (4 + ((level - 2) & 3)) << ((level - 2) >> 2) if level > 1 else 0


@kernel
def choose_levels(counts: NDArray[np.int64], levels: NDArray[np.uint8]) -> None:
    """Choose the levels for symbols with these counts. counts: i64 (symbols). levels: u8 (symbols), written."""
    total = counts.sum()
    for symbol in range(counts.size):
        levels[symbol] = 0
        if counts[symbol]:
            # A weight of 4 stands for one state.
            weight = 4 * (counts[symbol] * STATES - total) // total
            levels[symbol] = 1
            if weight >= 3:
                level = 2
                while level < MAX_LEVEL and _weight(level) + _weight(level + 1) <= 2 * weight:
                    level += 1
                levels[symbol] = level


@kernel
def choose_level_rows(counts: NDArray[np.int64], levels: NDArray[np.uint8]) -> None:
    """`choose_levels` of each row."""
    for row in range(len(counts)):
        choose_levels(counts[row], levels[row])


@kernel
def frequencies_of(levels: NDArray[np.uint8], frequencies: NDArray[np.int64]) -> bool:
    """Compute the frequency of each symbol from its level; False if there are symbols but none has a weight."""
    used, total = 0, 0
    for level in levels:
        used += int(level > 0)
        total += _weight(int(level))
    done, left = 0, STATES - used
    for symbol in range(levels.size):
        upto = done + _weight(int(levels[symbol]))
        frequencies[symbol] = 0
        if levels[symbol] and total:
            frequencies[symbol] = 1 + upto * left // total - done * left // total
        done = upto
    return total > 0 or used == 0


@kernel
def frequency_rows(levels: NDArray[np.uint8], frequencies: NDArray[np.int64]) -> bool:
    """`frequencies_of` of each row; False if a row has symbols but no weight."""
    shared = True
    for row in range(len(levels)):
        shared &= frequencies_of(levels[row], frequencies[row])
    return shared


@inline
def _spread(frequencies: Any, owners: Any) -> Any:
    """Assign each state to a symbol; writes nothing if there are no symbols."""
    state = 0
    for symbol in range(frequencies.size):
        for _ in range(frequencies[symbol]):
            owners[state] = symbol
            state = (state + _STRIDE) & (STATES - 1)


@kernel
def fill_decode_table(
    frequencies: NDArray[np.int64], symbol_templates: NDArray[np.uint64], table: NDArray[np.uint64]
) -> None:
    """Fill the entry of each state: its symbol's template, and the next state.

    The number of bits to read is added to the template. From bit 32 on stands the next state if these bits are zero,
    from bit 48 on their mask. All entries are 0 if there are no symbols.
    """
    if frequencies.sum() != STATES:
        table[:] = 0
        return
    owners = np.empty(STATES, np.uint8)
    _spread(frequencies, owners)
    numbers = frequencies.copy()
    for state in range(STATES):
        symbol = owners[state]
        number = numbers[symbol]
        numbers[symbol] += 1
        # As many bits as lead back into the range of states.
        bits = STATE_BITS - 63 + np.int64(leading(np.uint64(number)))
        base = (number << bits) - STATES
        table[state] = symbol_templates[symbol] + np.uint64(bits | base << 32 | ((1 << bits) - 1) << 48)


@kernel
def fill_encode_table(
    frequencies: NDArray[np.int64], codebook: NDArray[np.uint64], next_states: NDArray[np.uint16]
) -> None:
    """Fill the codebook entry of each symbol, and the states that follow each of its states, 2048 to 4095.

    codebook: u64 (symbols). The low half of an entry, added to the state, has from bit 16 on the number of low bits of
    the state to write; the high half, added to the state's remaining bits, is 2048 more than an index in
    `next_states`. next_states: u16 (2048). Writes nothing if there are no symbols.
    """
    if frequencies.sum() != STATES:
        return
    owners = np.empty(STATES, np.uint8)
    _spread(frequencies, owners)
    indices = np.zeros(frequencies.size, np.int64)
    begin = 0
    for symbol in range(frequencies.size):
        frequency = frequencies[symbol]
        if frequency:
            bits = 0
            while frequency << bits < STATES:
                bits += 1
            # States from frequency << bits on leave that many bits, those below one less; with 2048 there are none.
            low = max(0, (bits << 16) - (frequency << bits))
            codebook[symbol] = np.uint64(low | (STATES + begin - frequency) << 32)
        indices[symbol] = begin
        begin += frequency
    for state in range(STATES):
        symbol = owners[state]
        next_states[indices[symbol]] = STATES + state
        indices[symbol] += 1


@kernel
def fill_encode_tables(
    frequencies: NDArray[np.int64], codebooks: NDArray[np.uint64], next_state_rows: NDArray[np.uint16]
) -> None:
    """`fill_encode_table` of each row."""
    for row in range(len(frequencies)):
        fill_encode_table(frequencies[row], codebooks[row], next_state_rows[row])
