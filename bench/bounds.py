"""Lower bounds on the size of a delta, by how much a coder knows: empirical entropies, in bits per changed unit.

Positions are coded as one binary choice a unit, steps as a symbol each, both given a context. An entropy estimated
from few samples is too low, since every context is then fitted to its own noise; the more contexts, the lower. So:
- a context of steps needs `MIN_CHANGED` of them, else it is joined with the next one (of positions every unit, changed
  or not, is a sample of a single number, so no context is too small);
- steps are symbols only up to ±`EXACT`; beyond, the symbol is the step's sign and the length of its magnitude, and the
  bits below the leading one count whole, as a coder would write them;
- to each entropy (Miller 1955) half a parameter's worth is added, (symbols − 1) / 2 nats, which is its bias to first
  order. That is also about the cost of telling a receiver the frequencies.
Contexts are counted over the whole model. A coder that adapts to tensors knows more, and may come out below a bound
where tensors differ much, as in the first step of a model whose embedding has many tiny weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numba
import numpy as np
from numpy.typing import NDArray

from p2psync.bench.deltas import Bits, ModelHistory

MIN_CHANGED = 256
EXACT = 8
#: Ages of an element's last change, in steps: 1, 2, 3–4, 5–8, more, never; the upper ends.
AGES = (1, 2, 4, 8)
_AGE_CLASSES = len(AGES) + 2
_SYMBOLS = 2 * EXACT + 1 + 2 * 17
_NEVER = _AGE_CLASSES - 1
_Counts = NDArray[np.int64]


class EntropyBound(msgspec.Struct, frozen=True, kw_only=True):
    """Bits per changed unit."""

    positions: float
    steps: float
    contexts: int
    """In which the steps were counted, after joining."""

    @property
    def bits(self) -> float:
        """Both."""
        return self.positions + self.steps


class EntropyBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds on one delta, over all of its units."""

    units: int
    changed: int
    independent: EntropyBound
    """Nothing is known but how many units changed, and how often each step occurs."""
    exponent: EntropyBound
    """The exponent of the old weight is known, too."""
    history: EntropyBound | None
    """And how long ago the unit changed last (in classes), and for its step, in which direction."""

    @property
    def entropy(self) -> float:
        """Bits without any context."""
        return self.independent.bits

    @property
    def entropy_given_exponent(self) -> float:
        """Bits given the exponent of the old weight."""
        return self.exponent.bits


def measure_bounds(
    pairs: Sequence[tuple[Bits, Bits]], history: ModelHistory | None = None, step: int = 0
) -> EntropyBounds:
    """Count all units of (old, new) pairs of flat bf16 arrays, and estimate.

    `history` is that of all units, pair after pair, before step number `step`.
    """
    totals = np.zeros((256, _AGE_CLASSES), np.int64)
    changed = np.zeros((256, _AGE_CLASSES), np.int64)
    steps = np.zeros((256, _AGE_CLASSES, 2, _SYMBOLS), np.int64)
    ages = _age_classes(step)
    last, rose = np.zeros(0, np.uint8), np.zeros(0, np.bool_)
    offset = 0
    for old, new in pairs:
        if history is not None:
            last, rose = history.last[offset : offset + old.size], history.rose[offset : offset + old.size]
        _count(old, new, last, rose, ages, totals, changed, steps)
        offset += old.size
    tail_bits = float((steps.sum((0, 1, 2)) * _TAIL_BITS).sum())
    by_history = None
    if history is not None:
        by_history = _bound(totals, changed, _join_exponents(steps, changed), tail_bits)
    return EntropyBounds(
        units=int(totals.sum()),
        changed=int(changed.sum()),
        independent=_bound(totals.sum((0, 1)), changed.sum((0, 1)), steps.sum((0, 1, 2)), tail_bits),
        exponent=_bound(totals.sum(1), changed.sum(1), steps.sum((1, 2)), tail_bits),
        history=by_history,
    )


def _bound(totals: _Counts, changed: _Counts, steps: _Counts, tail_bits: float) -> EntropyBound:
    """`totals` and `changed` by context of positions; `steps` by context of steps, and symbol."""
    n = max(1, int(changed.sum()))
    totals, changed, steps = totals.reshape(-1), changed.reshape(-1), steps.reshape(-1, _SYMBOLS)
    symbols = _joined(steps)
    return EntropyBound(
        positions=sum(map(entropy_bits, np.stack([totals - changed, changed], 1))) / n,
        steps=(sum(map(entropy_bits, symbols)) + tail_bits) / n,
        contexts=len(symbols),
    )


def entropy_bits(counts: _Counts) -> float:
    """Bits that symbols occurring so often take in all, with Miller's correction."""
    counts = counts[counts > 0]
    if counts.size < 2:
        return 0.0
    plain = -(counts * np.log2(counts / counts.sum())).sum()
    return float(plain + (counts.size - 1) / (2 * np.log(2)))


def _joined(table: _Counts) -> list[_Counts]:
    """Rows of counts, each joined with those after it until it counts `MIN_CHANGED`; the rest joins the last."""
    out: list[_Counts] = []
    row = np.zeros(table.shape[1], np.int64)
    for more in table:
        row = row + more
        if row.sum() >= MIN_CHANGED:
            out.append(row)
            row = np.zeros_like(row)
    if row.any():
        if out:
            out[-1] = out[-1] + row
        else:
            out.append(row)
    return out


def _join_exponents(table: _Counts, changed: _Counts) -> _Counts:
    """Join exponents, for all ages alike, until each group has `MIN_CHANGED` changed units for every age class."""
    groups: list[_Counts] = []
    row, seen = np.zeros_like(table[0]), 0
    for more, count in zip(table, changed.sum(1), strict=True):
        row, seen = row + more, seen + int(count)
        if seen >= _AGE_CLASSES * MIN_CHANGED:
            groups.append(row)
            row, seen = np.zeros_like(row), 0
    if groups and row.any():
        groups[-1] = groups[-1] + row
    return np.stack(groups or [row])


def _age_classes(step: int) -> NDArray[np.uint8]:
    """Returns for each step that may have changed a unit last, the class of its age at `step`; 0 is never."""
    classes = np.full(256, _NEVER, np.uint8)
    for last in range(1, step):
        classes[last] = np.searchsorted(AGES, step - last)
    return classes


def _tail_bits() -> NDArray[np.float64]:
    """Bits written after each symbol."""
    bits = np.zeros(_SYMBOLS)
    for length in range(17):
        bits[2 * EXACT + 1 + 2 * length : 2 * EXACT + 3 + 2 * length] = max(0, length - 1)
    return bits


_TAIL_BITS = _tail_bits()


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _symbol(step: int) -> int:
    """The symbol of a step in −2^15 … 2^15 − 1."""
    if -EXACT <= step <= EXACT:
        return step + EXACT
    magnitude, length = abs(step), 0
    while magnitude:
        magnitude >>= 1
        length += 1
    return 2 * EXACT + 1 + 2 * length + (1 if step < 0 else 0)


@numba.njit(nogil=True, cache=True)
def _count(old, new, last, rose, ages, totals, changed, steps):  # type: ignore[no-untyped-def]
    for i in range(old.size):
        exponent = (old[i] >> 7) & 0xFF
        age = ages[last[i]] if last.size else ages[0]
        totals[exponent, age] += 1
        if old[i] != new[i]:
            step = (np.int64(new[i]) - np.int64(old[i])) & 0xFFFF
            if step >= 0x8000:
                step -= 0x10000
            way = np.int64(rose[i]) if last.size else 0
            changed[exponent, age] += 1
            steps[exponent, age, way, _symbol(step)] += 1
