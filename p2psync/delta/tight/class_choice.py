"""Choice of the classes of old weights, from histograms of units and changes.

An element changes with a probability that about halves with every step of its exponent, and its steps shrink too.
Positions and steps, coded for each class alone, take the fewest bits if a class is a run of scales that behave alike.
Dynamic programming over 16 consecutive scales finds the best cut into classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.simd import WINDOW
from p2psync.delta.kernels.unit_loops import kernel
from p2psync.delta.tensors import Units
from p2psync.delta.tight.class_index import count_scales
from p2psync.delta.tight.sample import ChangeSample
from p2psync.delta.tight.symbols import MAGNITUDE_LENGTHS, length_of, magnitude_of

#: Kinds of steps in the histogram: ±1, ±2, and each length of larger magnitudes.
_KINDS = 2 + MAGNITUDE_LENGTHS
_BATCH = 512
#: Classes, at most. One more would save less than 0.02 bits a change, and would cost time in each 64 units.
MAX_CHOSEN_CLASSES = 8
#: The choice is made again when the histogram has doubled; other classes are taken if they save this share of bits.
_MIN_SAVING = 0.015
#: Counted changes after which only one block in four is counted.
_MANY_CHANGES = 1 << 15
#: Changes that a sample must have for a final choice of classes.
_MIN_SAMPLE_CHANGES = 256
#: Stands in `seen[2]` once the choice is final.
_FINAL = 1 << 60

_U = np.uint64
IntArray = NDArray[np.int64]


@kernel
def count_steps(olds: Units, steps: Units, counts: IntArray) -> None:
    """Add changes to the histogram `counts` (256 scales, 17 kinds of steps)."""
    # Computing indices vectorizes, counting does not, so both go batch by batch.
    indices, flat = np.empty(_BATCH, np.uint16), counts.ravel()
    for begin in range(_U(0), _U(steps.size), _U(_BATCH)):
        size = min(_U(_BATCH), _U(steps.size) - begin)
        for j in range(size):
            scale = (_U(olds[begin + j]) >> _U(7)) & _U(255)
            magnitude = magnitude_of(_U(steps[begin + j]))
            # For magnitudes 1 and 2 the last term is 0, which avoids an unpredictable branch.
            kind = min(magnitude, _U(3)) - _U(1) + length_of(max(magnitude, _U(3)))
            indices[j] = scale * _U(_KINDS) + kind
        for j in range(size):
            flat[indices[j]] += 1


@kernel
def count_block(
    base: int, count: int, olds: Units, steps: Units, units: IntArray, changes: IntArray, seen: IntArray
) -> bool:
    """Add a block of `count` units at address `base`, and its changes, to the two histograms.

    After `_MANY_CHANGES` only one block in four is counted. seen: blocks, changes, and changes when classes were last
    chosen. Returns whether to choose again.
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
def _bits(sums: NDArray[np.float64], low: Any, high: Any) -> float:
    """Bits of the positions and kinds of steps in a class of scales `low` to `high - 1`.

    The entropy, plus half of log2(changes) for each kind, the cost of learning its frequency (J. Rissanen 1978).
    Without the second term scales with hardly any change would seem to cost nothing.
    """
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
    """Set `sums` (257, 1 + kinds) to the units (column 0) and changes of each kind of all lower scales."""
    sums[0] = 0
    for scale in range(256):
        sums[scale + 1, 0] = sums[scale, 0] + units[scale]
        for kind in range(changes.shape[1]):
            sums[scale + 1, 1 + kind] = sums[scale, 1 + kind] + changes[scale, kind]


@kernel
def _equal_rows(sums: NDArray[np.float64], a: Any, b: Any) -> bool:
    """Whether no units and no changes lie between the scales `a` and `b`."""
    equal = True
    for kind in range(sums.shape[1]):
        equal &= sums[a, kind] == sums[b, kind]
    return equal


@kernel
def _best_cut(sums: NDArray[np.float64], window: NDArray[np.uint8]) -> float:
    """Choose the window and classes with the fewest bits; returns these bits.

    Classes are cut where scales begin: at a first one, and at up to six more among the 14 scales after it.
    """
    low, high, lowest, highest = 0, 256, np.int64(0), np.int64(256)  # literals would be compiled for anew
    while low < 255 and _equal_rows(sums, low + 1, lowest):
        low += 1
    while high > low + 1 and _equal_rows(sums, high - 1, highest):
        high -= 1
    reach = WINDOW - 2
    bits = np.empty((257, reach + 1))
    for cut in range(low + 1, high):
        for size in range(1, min(reach, high - cut) + 1):
            bits[cut, size] = _bits(sums, cut, cut + size)
    window[:] = 0
    least = _bits(sums, lowest, highest)
    # By number of classes, and by the last class's end in scales from the first cut: bits, and the last class's start.
    cost, back = np.empty((MAX_CHOSEN_CLASSES, reach + 1)), np.empty((MAX_CHOSEN_CLASSES, reach + 1), np.int64)
    for first in range(low + 1, high):
        cost[:] = np.inf
        cost[1, 0] = _bits(sums, lowest, first)
        for at in range(min(reach, high - 1 - first) + 1):
            above = _bits(sums, first + at, highest)
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
    """Write the classes to `window`: scales below `first`, the cuts up to `last` scales after it, scales from there."""
    start = min(first - 1, 256 - WINDOW)
    window[0], window[1:] = start, classes
    while classes:
        for scale in range(start, first + last):
            window[1 + scale - start] = classes - 1
        last = back[classes, last] if classes > 1 else 0
        classes -= 1


@kernel
def _cost(sums: NDArray[np.float64], window: NDArray[np.uint8]) -> float:
    """Bits at the classes of `window`."""
    bits, low = 0.0, 0
    for k in range(1, WINDOW + 1):
        if k == WINDOW or window[1 + k] != window[k]:
            high = 256 if k == WINDOW else window[0] + k
            bits += _bits(sums, low, high)
            low = high
    return bits


@kernel
def _choose(units: IntArray, changes: IntArray, sums: NDArray[np.float64], window: NDArray[np.uint8]) -> None:
    """Choose classes by histograms of units and of changes. sums: scratch."""
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
    """Choose classes into `other`; returns whether they save enough over `window` for a new chunk."""
    _sum_up(units, changes, sums)
    return bool(_cost(sums, window) > (1 + _MIN_SAVING) * _best_cut(sums, other) + 4096)


def empty_changes() -> IntArray:
    """An empty histogram of changes: i64 (256 scales, 17 kinds of steps)."""
    return np.zeros((256, _KINDS), np.int64)


def best_window(units: IntArray, changes: IntArray) -> NDArray[np.uint8]:
    """The best window of classes for histograms of units (256 scales) and of changes: u8 (17).

    Entry 0 is a scale, entries 1 to 16 the classes of this scale and the next 15.
    """
    window = np.empty(1 + WINDOW, np.uint8)
    _choose(units, changes, np.empty((257, 1 + _KINDS)), window)
    return window


class ClassChooser:
    """An encoder's current classes, and the histograms that they are chosen from.

    window: as of `best_window`; lower scales count as the window's first, higher ones as its last. None before the
    first choice.
    """

    def __init__(self) -> None:
        self.window: NDArray[np.uint8] | None = None
        self._units, self._changes = np.zeros(256, np.int64), empty_changes()
        self._seen = np.zeros(3, np.int64)
        self._sums = np.empty((257, 1 + _KINDS))

    @property
    def histograms(self) -> tuple[IntArray, IntArray, IntArray]:
        """The arrays that `count_block` updates: units, changes, seen."""
        return self._units, self._changes, self._seen

    def sample(self, sample: ChangeSample) -> None:
        """Add a sample of the changes to come to the histograms."""
        self._units += sample.units
        count_steps(sample.olds, sample.steps, self._changes)
        self._seen[1] += sample.steps.size

    def choose_from_sample(self) -> None:
        """Choose classes by the samples, finally; discard the samples if they have too few changes."""
        if self.window is not None or not self._seen[1]:
            return
        if self._seen[1] < _MIN_SAMPLE_CHANGES:
            self._units[:], self._changes[:], self._seen[:] = 0, 0, 0
            return
        self._take_best()
        self._seen[2] = _FINAL

    def count_block(self, base: int, count: int, olds: Units, steps: Units) -> None:
        """Count a block of `count` units at address `base`, and choose classes if there are none."""
        count_block(base, count, olds, steps, *self.histograms)
        if self.window is None:
            self._seen[2] = self._seen[1]
            self._take_best()

    def choose_again(self) -> bool:
        """Choose classes again if the histogram has doubled; returns whether they changed."""
        if self.window is None or self._seen[1] < 2 * self._seen[2]:
            return False
        self._seen[2] = self._seen[1]
        other = np.empty(1 + WINDOW, np.uint8)
        if not _choose_other(self._units, self._changes, self._sums, self.window, other):
            return False
        self.window = other
        return True

    def begin_chunk(self) -> None:
        """Begin a new chunk: halve the histograms, so that older blocks count less."""
        if self._seen[2] == _FINAL:
            return
        self._units >>= 1
        self._changes >>= 1
        self._seen[1:] = self._changes.sum()

    def _take_best(self) -> None:
        self.window = best_window(self._units, self._changes)
