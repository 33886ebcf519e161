"""Memory for the changes of a chunk of profile `tight`, taken once and kept for the thread.

Mapping memory anew costs as much as coding what is put there. What a thread has kept is nobody's until it is taken:
encoders of one thread may take turns. Only what is written to takes memory.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.simd import MAX_CLASSES
from p2psync.delta.kernels.unit_loops import GROUP
from p2psync.delta.tensors import Units
from p2psync.delta.tight.class_choice import IntArray

#: Most ranked blocks of one chunk.
MAX_TIGHT_BLOCKS = 1 << 14
#: Changes that room is kept for, and what is added so that rows lie apart: rows of a power of two would meet in the
#: same lines of a cache.
_KEPT_CHANGES, _ROW_PADDING = 3 << 20, 72
_local = threading.local()


class ScratchBuffers:
    """Blocks one after another, each with its changes, and the changes class after class.

    positions, olds, steps: changes of all blocks. items: (8, room), the changes of each class. places: (blocks, 4),
    row, first unit, units and changes. counts: (blocks, 2, 8), changes and units of each class.
    """

    def __init__(self) -> None:
        self.items = np.empty((MAX_CLASSES, _KEPT_CHANGES + _ROW_PADDING), np.uint64)
        self.positions, self.olds, self.steps = _found(_KEPT_CHANGES)
        self.places = np.empty((MAX_TIGHT_BLOCKS + 1, 4), np.int64)
        self.counts = np.empty((MAX_TIGHT_BLOCKS + 1, 2, MAX_CLASSES), np.int64)

    @classmethod
    def take(cls) -> ScratchBuffers:
        """What this thread has kept, or else a new one."""
        kept: ScratchBuffers | None = _local.__dict__.pop("room", None)
        return cls() if kept is None else kept

    def give(self) -> None:
        """Keep it for the thread; nobody may use it any more."""
        _local.room = self

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All of them: positions, olds, steps, items, places, counts."""
        return self.positions, self.olds, self.steps, self.items, self.places, self.counts

    def grow(self, kept: IntArray, changed: int, count: int) -> None:
        """Make room for `count` more changes, in any class, than there are and than may wait.

        changed: how many there are; kept: how many of each class, those that wait included.
        """
        wanted = changed + 2 * count
        if self.items.shape[1] < wanted:
            items = np.empty((MAX_CLASSES, 2 * wanted + _ROW_PADDING), np.uint64)
            for to, row, size in zip(items, self.items, kept, strict=True):
                to[:size] = row[:size]
            self.items = items
        if self.positions.size < wanted + GROUP:
            before = self.positions, self.olds, self.steps
            self.positions, self.olds, self.steps = after = _found(2 * wanted)
            for old, new in zip(before, after, strict=True):
                new[: old.size] = old

    def move_waiting(self, filled: IntArray, blocks: int, changed: int) -> None:
        """Leave only the block that comes after the first ones, which have so many changes, `filled[c]` of class c."""
        self.places[0], self.counts[0] = self.places[blocks], self.counts[blocks]
        for row, first, size in zip(self.items, filled, self.counts[0, 0], strict=True):
            row[:size] = row[first : first + size].copy()
        size = int(self.places[0, 3])
        for array in (self.positions, self.olds, self.steps):
            array[:size] = array[changed : changed + size].copy()


def _found(size: int) -> tuple[NDArray[np.uint32], Units, Units]:
    """Room for positions, old bits and steps."""
    size += GROUP
    return np.empty(size, np.uint32), np.empty(size, np.uint16), np.empty(size, np.uint16)
