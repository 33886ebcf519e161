"""Which scales of the old weight are told apart, chosen from what is seen to change.

An element changes with a probability that about halves with every step of its exponent, and by steps that shrink too.
Positions and steps, coded for each class alone, take the fewest bits if classes are runs of scales that behave alike:
dynamic programming over 16 scales in a row finds the best cut into so many classes, from a histogram.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.simd import WINDOW
from p2psync.delta.kernels.unit_loops import kernel
from p2psync.delta.tensors import Units
from p2psync.delta.tight.class_index import count_scales
from p2psync.delta.tight.sample import ChangeSample
from p2psync.delta.tight.symbols import MAGNITUDE_LENGTHS, length_of, magnitude_of

#: Kinds of steps that the choice tells apart: ±1, ±2, and those of each length beyond.
_KINDS = 2 + MAGNITUDE_LENGTHS
_BATCH = 512
#: Classes in use: one more would save less than 0.02 bits a change, and costs time in each 64 units.
MAX_CHOSEN_CLASSES = 8
#: A choice is looked at again when twice as many changes are known, and given up if another saves this share.
_MIN_SAVING = 0.015
#: So many changes tell enough to look at a part of those that come then.
_MANY_CHANGES = 1 << 15
#: So many changes of a sample of all that is to come are enough to settle on classes; how that is noted.
_MIN_SAMPLE_CHANGES, _FINAL = 256, 1 << 60

_U = np.uint64
IntArray = NDArray[np.int64]


@kernel
def count_steps(olds: Units, steps: Units, counts: IntArray) -> None:
    """Add changes to `counts` (256 scales, 17 kinds of steps)."""
    # To find places takes vectors, to count at them none: each is done for some changes at a time.
    places, flat = np.empty(_BATCH, np.uint16), counts.ravel()
    for begin in range(_U(0), _U(steps.size), _U(_BATCH)):
        size = min(_U(_BATCH), _U(steps.size) - begin)
        for j in range(size):
            scale = (_U(olds[begin + j]) >> _U(7)) & _U(255)
            magnitude = magnitude_of(_U(steps[begin + j]))
            # Of 1 and 2 the last term is 0: no branch that nobody can predict.
            kind = min(magnitude, _U(3)) - _U(1) + length_of(max(magnitude, _U(3)))
            places[j] = scale * _U(_KINDS) + kind
        for j in range(size):
            flat[places[j]] += 1


@kernel
def count_block(
    base: int, count: int, olds: Units, steps: Units, units: IntArray, changes: IntArray, seen: IntArray
) -> bool:
    """Add a block of `count` units at address `base`, and its changes, to two histograms; of many, one in four.

    seen: blocks, changes, and changes when classes were last chosen. Returns whether to look at the choice again.
    """
    if seen[2] == _FINAL:
        return False
    seen[0] += 1
    if seen[1] <= _MANY_CHANGES or seen[0] % 4 == 0:
        count_scales(base, count, units, olds)
        count_steps(olds, steps, changes)
        seen[1] += steps.size
    return bool(seen[1] >= 2 * seen[2])


@kernel
def _bits(sums: NDArray[np.float64], low: int, high: int) -> float:
    """Bits that positions and kinds of steps take in a class of scales `low` to `high - 1`: by entropy, and what it
    takes to learn each kind's frequency, half of log2(changes) (J. Rissanen 1978). Without that, scales of which hardly
    any change was seen would seem to cost nothing."""
    changed, kinds, bits = 0.0, 0, 0.0
    for kind in range(1, sums.shape[1]):
        count = sums[high, kind] - sums[low, kind]
        if count > 0:
            changed += count
            kinds += 1
            bits -= count * np.log2(count)
    units = max(sums[high, 0] - sums[low, 0], changed)
    # n·log2(n) of the kinds' entropy and of the positions' cancel out.
    if changed > 0:
        bits += units * np.log2(units) + 0.5 * kinds * np.log2(changed + 1)
        if units > changed:
            bits -= (units - changed) * np.log2(units - changed)
    return bits


@kernel
def _sum_up(units: IntArray, changes: IntArray, sums: NDArray[np.float64]) -> None:
    """Of all scales below each, units (column 0) and changes of each kind: (257, 1 + kinds)."""
    sums[0] = 0
    for scale in range(256):
        sums[scale + 1, 0] = sums[scale, 0] + units[scale]
        for kind in range(changes.shape[1]):
            sums[scale + 1, 1 + kind] = sums[scale, 1 + kind] + changes[scale, kind]


@kernel
def _best_cut(sums: NDArray[np.float64], window: NDArray[np.uint8]) -> float:
    """The window and the classes at which positions and steps take the fewest bits; returns how many.

    Classes are cut where scales begin: at a first one, and at up to six more among the 14 scales after it.
    """
    low, high = 0, 256
    while low < 255 and sums[low + 1].sum() == 0:
        low += 1
    while high > low + 1 and (sums[high - 1] == sums[256]).all():
        high -= 1
    reach = WINDOW - 2
    bits = np.empty((257, reach + 1))
    for cut in range(low + 1, high):
        for size in range(1, min(reach, high - cut) + 1):
            bits[cut, size] = _bits(sums, cut, cut + size)
    window[:] = 0
    least = _bits(sums, 0, 256)
    # Of so many classes that end at the first cut and so many scales: the bits, and where the last of them begins.
    cost, back = np.empty((MAX_CHOSEN_CLASSES, reach + 1)), np.empty((MAX_CHOSEN_CLASSES, reach + 1), np.int64)
    for first in range(low + 1, high):
        cost[:] = np.inf
        cost[1, 0] = _bits(sums, 0, first)
        for at in range(min(reach, high - 1 - first) + 1):
            above = _bits(sums, first + at, 256)
            for k in range(1, MAX_CHOSEN_CLASSES):
                if cost[k, at] + above < least:
                    least = cost[k, at] + above
                    _note_cut(first, k, at, back, window)
                if k + 1 < MAX_CHOSEN_CLASSES:
                    for stop in range(at + 1, min(reach, high - 1 - first) + 1):
                        total = cost[k, at] + bits[first + at, stop - at]
                        if total < cost[k + 1, stop]:
                            cost[k + 1, stop], back[k + 1, stop] = total, at
    return float(least)


@kernel
def _note_cut(first: int, classes: int, last: int, back: IntArray, window: NDArray[np.uint8]) -> None:
    """Write down the classes: all below `first`, those that are cut up to `last` after it, and all from there on."""
    start = min(first - 1, 256 - WINDOW)
    window[0], window[1:] = start, classes
    while classes:
        for scale in range(start, first + last):
            window[1 + scale - start] = classes - 1
        last = back[classes, last] if classes > 1 else 0
        classes -= 1


@kernel
def _cost(sums: NDArray[np.float64], window: NDArray[np.uint8]) -> float:
    """Bits that given classes take."""
    bits, low = 0.0, 0
    for place in range(1, WINDOW + 1):
        if place == WINDOW or window[1 + place] != window[place]:
            high = 256 if place == WINDOW else window[0] + place
            bits += _bits(sums, low, high)
            low = high
    return bits


@kernel
def _choose(units: IntArray, changes: IntArray, sums: NDArray[np.float64], window: NDArray[np.uint8]) -> None:
    """Choose classes by histograms of units and of changes. `sums` is scratch."""
    _sum_up(units, changes, sums)
    _best_cut(sums, window)


@kernel
def _choose_other(
    units: IntArray,
    changes: IntArray,
    sums: NDArray[np.float64],
    window: NDArray[np.uint8],
    other: NDArray[np.uint8],
) -> bool:
    """`_choose` other classes than those of `window`; returns whether they are worth a chunk of their own."""
    _sum_up(units, changes, sums)
    return bool(_cost(sums, window) > (1 + _MIN_SAVING) * _best_cut(sums, other) + 4096)


def empty_changes() -> IntArray:
    """A histogram of changes: (256 scales, 17 kinds of steps)."""
    return np.zeros((256, _KINDS), np.int64)


def best_window(units: IntArray, changes: IntArray) -> NDArray[np.uint8]:
    """The classes that suit histograms of units (256 scales) and of changes best: a scale, and the classes of it and
    the next 15."""
    window = np.empty(1 + WINDOW, np.uint8)
    _choose(units, changes, np.empty((257, 1 + _KINDS)), window)
    return window


class ClassChooser:
    """The classes in use, and the histograms that they come from: one for each encoder.

    window: a scale, and the classes of it and the next 15; scales below and above count as the first and the last.
    """

    def __init__(self) -> None:
        self.window: NDArray[np.uint8] | None = None
        self._units, self._changes = np.zeros(256, np.int64), empty_changes()
        self._seen = np.zeros(3, np.int64)
        self._sums = np.empty((257, 1 + _KINDS))

    @property
    def histograms(self) -> tuple[IntArray, IntArray, IntArray]:
        """What `count_block` adds to."""
        return self._units, self._changes, self._seen

    def sample(self, sample: ChangeSample) -> None:
        """Take a sample of what is to come into account."""
        self._units += sample.units
        count_steps(sample.olds, sample.steps, self._changes)
        self._seen[1] += sample.steps.size

    def choose_from_sample(self) -> None:
        """Choose classes by the sample, once and for all; forget it if it is too small."""
        if self.window is not None or not self._seen[1]:
            return
        if self._seen[1] < _MIN_SAMPLE_CHANGES:
            self._units[:], self._changes[:], self._seen[:] = 0, 0, 0
            return
        self._take_best()
        self._seen[2] = _FINAL

    def count_block(self, base: int, count: int, olds: Units, steps: Units) -> None:
        """Take a block of `count` units at address `base` into account, and choose classes if there are none."""
        count_block(base, count, olds, steps, *self.histograms)
        if self.window is None:
            self._seen[2] = self._seen[1]
            self._take_best()

    def choose_again(self) -> bool:
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
        if self._seen[2] == _FINAL:
            return
        self._units >>= 1
        self._changes >>= 1
        self._seen[1:] = self._changes.sum()

    def _take_best(self) -> None:
        self.window = best_window(self._units, self._changes)
