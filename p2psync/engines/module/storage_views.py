"""Strided views of memory: whether a view visits an address twice, and how two views share bytes. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Cached answers of `relation`: a module whose parameters interleave asks the same ones at every publish.
_RELATIONS_KEPT = 4096


class Relation(Enum):
    """The relation of the bytes of a second view to those of a first one."""

    APART = auto()
    INSIDE = auto()
    OVERLAP = auto()


@dataclass(frozen=True, slots=True)
class StorageView:
    """A view with at least one element. start: first address. width: bytes of an element. strides: in elements."""

    start: int
    width: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.width

    @property
    def stop(self) -> int:
        """The address after the last byte."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return self.start + (last + 1) * self.width

    @property
    def is_dense(self) -> bool:
        """Whether every byte from `start` to `stop` belongs to the view."""
        return self.stop - self.start == self.nbytes

    def repeats(self) -> bool:
        """Returns whether two elements may share an address, as in an expanded or unfolded tensor.

        Also True for a few views whose elements interleave without sharing an address; no common operation makes them.
        """
        reach = 0
        for stride, size in sorted((t, s) for s, t in zip(self.shape, self.strides, strict=True) if s > 1):
            if stride <= reach:
                return True
            reach += (size - 1) * stride
        return False


def relation(one: StorageView, two: StorageView) -> Relation:
    """Returns how `two` shares bytes with `one`. Neither view may repeat an address."""
    if one == two:
        return Relation.INSIDE
    if two.stop <= one.start or one.stop <= two.start:
        return Relation.APART
    if one.is_dense and one.start <= two.start and two.stop <= one.stop:
        return Relation.INSIDE
    base = min(one.start, two.start)
    return _compare(replace(one, start=one.start - base), replace(two, start=two.start - base))


@lru_cache(maxsize=_RELATIONS_KEPT)
def _compare(one: StorageView, two: StorageView) -> Relation:
    """Marks the bytes of one view and reads the marks through the other. Takes memory of the span of both."""
    unit = math.gcd(one.width, two.width, one.start, two.start)
    marks = np.zeros(max(one.stop, two.stop) // unit, np.bool_)
    _through(marks, one, unit)[...] = True
    seen = _through(marks, two, unit)
    if not seen.any():
        return Relation.APART
    return Relation.INSIDE if seen.all() else Relation.OVERLAP


def _through(marks: NDArray[np.bool_], view: StorageView, unit: int) -> NDArray[Any]:
    """Returns a view of the marks of a view's bytes, one mark for each `unit` bytes."""
    each = view.width // unit
    return np.lib.stride_tricks.as_strided(
        marks[view.start // unit :], (*view.shape, each), (*(stride * each for stride in view.strides), 1)
    )
