"""Memory for the chunks that come: lent out, and used again once nobody refers to it.

Fresh memory of a chunk's size costs more than what is done with the chunk afterwards: the kernel gives it page by page,
cleared, and the allocator gives it back at once.
"""

from __future__ import annotations

import weakref
from functools import partial

import numpy as np
from numpy.typing import NDArray

_Buffer = NDArray[np.uint8]


class BufferPool:
    """Lends memory in sizes of powers of two. What was lent comes back by itself; any thread may drop it."""

    def __init__(self, spare: int) -> None:
        """spare: bytes that are kept at most while nobody needs them."""
        self._spare = spare
        self._free: dict[int, list[_Buffer]] = {}
        self._lent: dict[int, weakref.ref[_Buffer]] = {}

    @property
    def lent(self) -> int:
        """How many pieces are in use."""
        return len(self._lent)

    def take(self, size: int) -> memoryview:
        """So many writable bytes, not cleared; they are lent as long as this view, or one of it, lives."""
        kind = (size - 1).bit_length()
        slab = self._reuse(kind)
        lease = slab[:size]
        key = id(lease)
        self._lent[key] = weakref.ref(lease, partial(self._back, key, kind, slab))
        return lease.data

    def _reuse(self, kind: int) -> _Buffer:
        try:
            slab = self._free[kind].pop()
        except (KeyError, IndexError):
            return np.empty(1 << kind, np.uint8)
        self._spare += len(slab)
        return slab

    def _back(self, key: int, kind: int, slab: _Buffer, _gone: object) -> None:
        del self._lent[key]
        if len(slab) <= self._spare:
            self._spare -= len(slab)
            self._free.setdefault(kind, []).append(slab)
