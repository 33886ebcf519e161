"""Which scales of the old weight are told apart, chosen from what is seen to change.

An element changes with a probability that about halves with every step of its exponent, and by steps that shrink too.
Positions and steps, coded for each class alone, take the fewest bits if classes are runs of scales that behave alike:
dynamic programming over 16 scales in a row finds the best cut into so many classes, from a histogram.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels import kernel
from p2psync.delta.lanes import WINDOW
from p2psync.delta.ranks import SAMPLED, count_scales
from p2psync.delta.symbols import EXTRAS, extra_of, magnitude_of
from p2psync.delta.tensors import Units

#: Kinds of steps that the choice tells apart: ±1, ±2, and each extra symbol.
_KINDS = 2 + EXTRAS
_BATCH = 512
#: Classes in use: one more would save less than 0.02 bits a change, and costs time in each 64 units.
CLASSES = 8
#: A choice is looked at again when twice as many changes are known, and given up if another saves this share.
_BETTER = 0.015
#: Another window than that over most changes is taken if it saves this share.
_CLEAR = 0.03
#: So many changes tell enough to look at a part of those that come then.
_PLENTY = 1 << 15

_U = np.uint64
Counts = NDArray[np.int64]


@kernel
def count_steps(olds: Units, steps: Units, counts: Counts) -> None:
    """Add changes to `counts` (256 scales, 17 kinds of steps)."""
    # To find places takes vectors, to count at them none: each is done for some changes at a time.
    places, flat = np.empty(_BATCH, np.uint16), counts.ravel()
    for begin in range(_U(0), _U(steps.size), _U(_BATCH)):
        size = min(_U(_BATCH), _U(steps.size) - begin)
        for j in range(size):
            scale = (_U(olds[begin + j]) >> _U(7)) & _U(255)
            magnitude = magnitude_of(_U(steps[begin + j]))
            # Of 1 and 2 the last term is 0: no branch that nobody can predict.
            kind = min(magnitude, _U(3)) - _U(1) + extra_of(max(magnitude, _U(3)))
            places[j] = scale * _U(_KINDS) + kind
        for j in range(size):
            flat[places[j]] += 1


@kernel
def see(base: int, count: int, olds: Units, steps: Units, units: Counts, changes: Counts, seen: Counts) -> bool:
    """Add a block of `count` units at address `base`, and its changes, to two histograms; of many, one in four.

    seen: blocks, changes, and changes when classes were last chosen. Returns whether to look at the choice again.
    """
    seen[0] += 1
    if seen[1] <= _PLENTY or seen[0] % 4 == 0:
        count_scales(base, count, units, olds)
        count_steps(olds, steps, changes)
        seen[1] += steps.size
    return bool(seen[1] >= 2 * seen[2])


@kernel
def _bits(units: float, counts: NDArray[np.float64]) -> float:
    """Bits that positions and kinds of steps take in a class of `units`, by entropy."""
    changed, bits = 0.0, 0.0
    for count in counts:
        changed += count
        if count > 0:
            bits -= count * np.log2(count)
    units = max(units, changed)
    # n·log2(n) of the kinds' entropy and of the positions' cancel out.
    if changed > 0:
        bits += units * np.log2(units)
        if units > changed:
            bits -= (units - changed) * np.log2(units - changed)
    return bits


@kernel
def _fold(first: int, units: Counts, counts: Counts, sums: NDArray[np.float64]) -> None:
    """Running sums over the window at `first` of units (column 0) and changes; `sums` is (WINDOW + 1, 1 + kinds)."""
    sums[:] = 0
    for scale in range(256):
        place = min(max(scale - first, 0), WINDOW - 1) + 1
        sums[place, 0] += units[scale]
        for kind in range(counts.shape[1]):
            sums[place, 1 + kind] += counts[scale, kind]
    for place in range(WINDOW):
        sums[place + 1] += sums[place]


@kernel
def _learned_bits(part: NDArray[np.float64]) -> float:
    """`_bits` of (units, changes of each kind), and what it takes to learn their frequencies: half of log2(changes)
    each (J. Rissanen 1978). Without that, scales of which hardly any change was seen would seem to cost nothing."""
    changed, kinds = 0.0, 0
    for count in part[1:]:
        changed += count
        kinds += count > 0
    return float(_bits(part[0], part[1:]) + 0.5 * kinds * np.log2(changed + 1))


@kernel
def _best_first(units: Counts, counts: Counts) -> int:
    """The window over most changes; or, if that is clearly less, at which positions and steps take the fewest bits,
    were each of its scales a class of its own: where many tiny weights change always, most changes tell little."""
    kinds = counts.shape[1]
    # Row s: all scales below s.
    sums = np.zeros((257, 1 + kinds))
    changed = np.zeros(257, np.int64)
    # Bits of each scale alone, of all below s together, and of all from s on.
    alone, below, above = np.zeros(257), np.zeros(257), np.zeros(257)
    for scale in range(256):
        sums[scale + 1] = sums[scale]
        sums[scale + 1, 0] += units[scale]
        for kind in range(kinds):
            sums[scale + 1, 1 + kind] += counts[scale, kind]
        changed[scale + 1] = changed[scale] + counts[scale].sum()
    above[0] = _learned_bits(sums[256])
    for scale in range(256):
        alone[scale + 1], below[scale + 1], above[scale + 1] = alone[scale], below[scale], above[scale]
        if units[scale] or changed[scale + 1] > changed[scale]:
            alone[scale + 1] += _learned_bits(sums[scale + 1] - sums[scale])
            below[scale + 1] = _learned_bits(sums[scale + 1])
            above[scale + 1] = _learned_bits(sums[256] - sums[scale + 1])
    best, least, most, usual = 0, np.inf, -1, 0
    bits = np.empty(256 - WINDOW + 1)
    for first in range(bits.size):
        last = first + WINDOW - 1
        bits[first] = below[first + 1] + (alone[last] - alone[first + 1]) + above[last]
        if bits[first] < least:
            best, least = first, bits[first]
        reached = changed[first + WINDOW] - changed[first]
        if reached > most:
            usual, most = first, reached
    # A sample says little of scales that hardly any unit has.
    return best if least < (1 - _CLEAR) * bits[usual] else usual


@kernel
def _cut(sums: NDArray[np.float64], most: int, classes: NDArray[np.uint8]) -> float:
    """The best cut of a window into `most` classes at most; returns its bits."""
    cost = np.full((most + 1, WINDOW + 1), np.inf)
    back = np.zeros((most + 1, WINDOW + 1), np.int64)
    cost[0, 0] = 0
    for low in range(WINDOW):
        for high in range(low + 1, WINDOW + 1):
            part = sums[high] - sums[low]
            bits = _bits(part[0], part[1:])
            for k in range(most):
                if cost[k, low] + bits < cost[k + 1, high]:
                    cost[k + 1, high] = cost[k, low] + bits
                    back[k + 1, high] = low
        # Rows are complete for `low + 1` now: every cut that ends there has been tried.
    best = 1
    for k in range(2, most + 1):
        if cost[k, WINDOW] < cost[best, WINDOW]:
            best = k
    high = WINDOW
    for k in range(best, 0, -1):
        low = back[k, high]
        classes[low:high] = k - 1
        high = low
    return float(cost[best, WINDOW])


@kernel
def _cost(sums: NDArray[np.float64], classes: NDArray[np.uint8]) -> float:
    """Bits that a given cut takes."""
    bits, low = 0.0, 0
    for place in range(1, WINDOW + 1):
        if place == WINDOW or classes[place] != classes[low]:
            part = sums[place] - sums[low]
            bits += _bits(part[0], part[1:])
            low = place
    return bits


@kernel
def _choose(units: Counts, changes: Counts, sums: NDArray[np.float64], window: NDArray[np.uint8]) -> float:
    """Choose classes by histograms of sampled units and of changes; returns the bits they take. `sums` is scratch."""
    scaled = units * SAMPLED
    window[:] = 0
    window[0] = _best_first(scaled, changes)
    _fold(int(window[0]), scaled, changes, sums)
    return _cut(sums, CLASSES, window[1:])


@kernel
def _choose_other(
    units: Counts,
    changes: Counts,
    sums: NDArray[np.float64],
    window: NDArray[np.uint8],
    other: NDArray[np.uint8],
) -> bool:
    """`_choose` other classes than those of `window`; returns whether they are worth a chunk of their own."""
    _fold(int(window[0]), units * SAMPLED, changes, sums)
    bits = _cost(sums, window[1:])
    better = _choose(units, changes, sums, other)
    return bool(bits > (1 + _BETTER) * better + 4096)


class Classes:
    """The classes in use, and the histograms that they come from: one for each encoder.

    window: a scale, and the classes of it and the next 15; scales below and above count as the first and the last.
    """

    def __init__(self) -> None:
        self.window: NDArray[np.uint8] | None = None
        self._units, self._changes = np.zeros(256, np.int64), np.zeros((256, _KINDS), np.int64)
        self._seen = np.zeros(3, np.int64)
        self._sums = np.empty((WINDOW + 1, 1 + _KINDS))

    @property
    def histograms(self) -> tuple[Counts, Counts, Counts]:
        """What `see` adds to."""
        return self._units, self._changes, self._seen

    def see(self, base: int, count: int, olds: Units, steps: Units) -> None:
        """Take a block of `count` units at address `base` into account, and choose classes if there are none."""
        see(base, count, olds, steps, *self.histograms)
        if self.window is None:
            self._seen[2] = self._seen[1]
            self.window = np.empty(1 + WINDOW, np.uint8)
            _choose(self._units, self._changes, self._sums, self.window)

    def stale(self) -> bool:
        """Whether other classes are worth a chunk of their own; if so they are chosen."""
        if self.window is None or self._seen[1] < 2 * self._seen[2]:
            return False
        self._seen[2] = self._seen[1]
        other = np.empty(1 + WINDOW, np.uint8)
        if not _choose_other(self._units, self._changes, self._sums, self.window, other):
            return False
        self.window = other
        return True

    def begin(self) -> None:
        """A new chunk: what was seen long ago counts less."""
        self._units >>= 1
        self._changes >>= 1
        self._seen[1:] = self._changes.sum()
