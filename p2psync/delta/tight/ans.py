"""Tables of the asymmetric numeral systems (J. Duda 2009, 2013) that write and read the symbols of the `tight` profile.

A coder has one of 2048 states. Each symbol has as many of them as its frequency says; to read one is to look up the
state's symbol, and to go on to a state that the entry and some bits tell. A symbol of frequency f takes 11 − log2 f
bits on average, also where that is less than one. The writer goes the other way, from the last symbol to the first.

Frequencies are told by *levels*: 0, the symbol does not occur; 1, it has one state; from 2 on, one state and a share of
those left over in proportion to a weight of three significant bits: 4, 5, 6, 7, 8, 10, 12, 14, 16, 20 …
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.unit_loops import inline, kernel, leading

STATE_BITS = 11
STATES = 1 << STATE_BITS
MAX_LEVEL = 49
#: From one state of a symbol to its next. It has no factor in common with the number of states, so all are reached.
_STRIDE = (STATES >> 1) + (STATES >> 3) + 3


@inline
def _weight(level: Any) -> Any:
    return (4 + ((level - 2) & 3)) << ((level - 2) >> 2) if level > 1 else 0


@kernel
def choose_levels(counts: NDArray[np.int64], levels: NDArray[np.uint8]) -> None:
    """The levels that suit symbols with these counts best."""
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
def choose_all(counts: NDArray[np.int64], levels: NDArray[np.uint8]) -> None:
    """`choose_levels` of each row."""
    for row in range(len(counts)):
        choose_levels(counts[row], levels[row])


@kernel
def share_states(levels: NDArray[np.uint8], frequencies: NDArray[np.int64]) -> bool:
    """The frequency of each symbol; False if there are symbols, but none has a weight."""
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
def share_all(levels: NDArray[np.uint8], frequencies: NDArray[np.int64]) -> bool:
    """`share_states` of each row; False if any has symbols, but no weight."""
    shared = True
    for row in range(len(levels)):
        shared &= share_states(levels[row], frequencies[row])
    return shared


@inline
def _spread(frequencies: Any, owners: Any) -> Any:
    """Which symbol each state belongs to; nothing if there are no symbols."""
    place = 0
    for symbol in range(frequencies.size):
        for _ in range(frequencies[symbol]):
            owners[place] = symbol
            place = (place + _STRIDE) & (STATES - 1)


@kernel
def fill_decode_table(
    frequencies: NDArray[np.int64], symbol_templates: NDArray[np.uint64], table: NDArray[np.uint64]
) -> None:
    """For each state what its symbol's template says, and how to go on.

    The number of bits to be read is added to the template; from bit 32 on stands the state that follows if they are
    all zero, from bit 48 on the mask that they have. All is zero if there are no symbols.
    """
    if frequencies.sum() != STATES:
        table[:] = 0
        return
    owners = np.empty(STATES, np.uint8)
    _spread(frequencies, owners)
    places = frequencies.copy()
    for state in range(STATES):
        symbol = owners[state]
        place = places[symbol]
        places[symbol] += 1
        # As many as make it one of the states again.
        bits = STATE_BITS - 63 + np.int64(leading(np.uint64(place)))
        base = (place << bits) - STATES
        table[state] = symbol_templates[symbol] + np.uint64(bits | base << 32 | ((1 << bits) - 1) << 48)


@kernel
def fill_encode_table(
    frequencies: NDArray[np.int64], codebook: NDArray[np.uint64], next_states: NDArray[np.uint16]
) -> None:
    """For each symbol how to go on from a state, of 2048 to 4095, and the states that then follow.

    Low half of `codebook`: what, added to the state, has in bits 16 on how many of the state's low bits are written. High
    half: what, added to the state's other bits, is 2048 more than the place in `next_states`. Nothing is written if there
    are no symbols.
    """
    if frequencies.sum() != STATES:
        return
    owners = np.empty(STATES, np.uint8)
    _spread(frequencies, owners)
    places = np.zeros(frequencies.size, np.int64)
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
        places[symbol] = begin
        begin += frequency
    for state in range(STATES):
        symbol = owners[state]
        next_states[places[symbol]] = STATES + state
        places[symbol] += 1


@kernel
def fill_encode_tables(
    frequencies: NDArray[np.int64], codebooks: NDArray[np.uint64], next_state_rows: NDArray[np.uint16]
) -> None:
    """`fill_encode_table` of each row."""
    for row in range(len(frequencies)):
        fill_encode_table(frequencies[row], codebooks[row], next_state_rows[row])
