"""Receive buffers for chunks, reused once nobody refers to them.

Fresh memory of a chunk's size costs more than what is done with the chunk afterwards: the kernel hands it out page by
page, cleared, and the allocator returns it at once.
"""

from __future__ import annotations

import weakref
from functools import partial

import numpy as np
from numpy.typing import NDArray

_Buffer = NDArray[np.uint8]


class BufferPool:
    """Leases buffers in sizes of powers of two. A lease ends when its last view is dropped, by any thread."""

    def __init__(self, max_idle_bytes: int) -> None:
        """max_idle_bytes: bytes of idle buffers that the pool keeps at most."""
        self._idle_bytes_left = max_idle_bytes
        self._idle: dict[int, list[_Buffer]] = {}
        self._leases: dict[int, weakref.ref[_Buffer]] = {}

    @property
    def leased(self) -> int:
        """Number of buffers in use."""
        return len(self._leases)

    def take(self, size: int) -> memoryview:
        """Lease `size` writable bytes, not cleared, for as long as this view, or a view of it, lives."""
        size_bits = (size - 1).bit_length()
        buffer = self._take_idle(size_bits)
        lease = buffer[:size]
        key = id(lease)
        self._leases[key] = weakref.ref(lease, partial(self._end_lease, key, size_bits, buffer))
        return lease.data

    def _take_idle(self, size_bits: int) -> _Buffer:
        try:
            buffer = self._idle[size_bits].pop()
        except (KeyError, IndexError):
            return np.empty(1 << size_bits, np.uint8)
        self._idle_bytes_left += len(buffer)
        return buffer

    def _end_lease(self, key: int, size_bits: int, buffer: _Buffer, _lease: object) -> None:
        del self._leases[key]
        if len(buffer) <= self._idle_bytes_left:
            self._idle_bytes_left -= len(buffer)
            self._idle.setdefault(size_bits, []).append(buffer)
