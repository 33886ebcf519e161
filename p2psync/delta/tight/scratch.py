"""Scratch buffers for the changes of a chunk of profile `tight`, kept for the thread.

Mapping new memory costs as much as coding what is written to it. Buffers that a thread keeps belong to no encoder until
one takes them, so encoders of one thread may take turns. Pages that are never written take no memory.
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

#: Tight blocks of one chunk, at most.
MAX_TIGHT_BLOCKS = 1 << 14
#: Changes that kept buffers hold, and entries added to each row, because rows of a power of two bytes would map to the
#: same cache lines.
_KEPT_CHANGES, _ROW_PADDING = 3 << 20, 72
_local = threading.local()


class ScratchBuffers:
    """The changes of a chunk's tight blocks, in order of blocks, and in order of classes.

    positions (u32), olds, steps (u16): changes of all blocks. items: u64 (8, capacity), the changes of each class.
    block_table: i64 (blocks, 4), row, first unit, units and changes. counts: i64 (blocks, 2, 8), changes and units of
    each class.
    """

    def __init__(self) -> None:
        self.items = np.empty((MAX_CLASSES, _KEPT_CHANGES + _ROW_PADDING), np.uint64)
        self.positions, self.olds, self.steps = _change_arrays(_KEPT_CHANGES)
        self.block_table = np.empty((MAX_TIGHT_BLOCKS + 1, 4), np.int64)
        self.counts = np.empty((MAX_TIGHT_BLOCKS + 1, 2, MAX_CLASSES), np.int64)

    @classmethod
    def take(cls) -> ScratchBuffers:
        """Take the buffers that this thread keeps, or new ones."""
        kept: ScratchBuffers | None = _local.__dict__.pop("buffers", None)
        return cls() if kept is None else kept

    def give(self) -> None:
        """Keep the buffers for the thread; the caller may not use them any more."""
        _local.buffers = self

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """positions, olds, steps, items, block_table, counts."""
        return self.positions, self.olds, self.steps, self.items, self.block_table, self.counts

    def grow(self, kept: IntArray, changed: int, count: int) -> None:
        """Grow the buffers, if need be, for `count` more changes of any class, besides those of a waiting block.

        changed: number of changes kept. kept: i64 (8), changes of each class, those of a waiting block included.
        """
        wanted = changed + 2 * count
        if self.items.shape[1] < wanted:
            items = np.empty((MAX_CLASSES, 2 * wanted + _ROW_PADDING), np.uint64)
            for to, row, size in zip(items, self.items, kept, strict=True):
                to[:size] = row[:size]
            self.items = items
        if self.positions.size < wanted + GROUP:
            before = self.positions, self.olds, self.steps
            self.positions, self.olds, self.steps = after = _change_arrays(2 * wanted)
            for old, new in zip(before, after, strict=True):
                new[: old.size] = old

    def move_waiting(self, filled: IntArray, blocks: int, changed: int) -> None:
        """Keep only the waiting block, after `blocks` blocks with `changed` changes, `filled[c]` of them of class c."""
        self.block_table[0], self.counts[0] = self.block_table[blocks], self.counts[blocks]
        for row, first, size in zip(self.items, filled, self.counts[0, 0], strict=True):
            row[:size] = row[first : first + size].copy()
        size = int(self.block_table[0, 3])
        for array in (self.positions, self.olds, self.steps):
            array[:size] = array[changed : changed + size].copy()


def _change_arrays(size: int) -> tuple[NDArray[np.uint32], Units, Units]:
    """Arrays for positions, old bits and steps of `size` changes, and one group."""
    size += GROUP
    return np.empty(size, np.uint32), np.empty(size, np.uint16), np.empty(size, np.uint16)
