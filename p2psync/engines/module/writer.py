"""Writing prepared changes into live tensors: on all threads, all of them or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from p2psync.delta.tensors import Units
from p2psync.engines.device import unit_transfer as unit_transfer
from p2psync.engines.module.staging import TensorChange, prepare_change_writes
from p2psync.errors import EngineError

Write = Callable[[], None]
# From about this many calls on, threads save more than it takes to wake them.
_PARALLEL_BLOCKS = 64


class AtomicWriter:
    """Threads that write while nobody reads."""

    def __init__(self, threads: int | None = None, least: int | None = None) -> None:
        """threads: by default one per core. least: calls for which threads are used."""
        self._least = least
        self._threads = threads or min(16, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads, "p2psync-write")

    def write(self, changes: Sequence[TensorChange], writes: Sequence[Write], undo: Sequence[Units]) -> None:
        """Run the prepared writes of these changes; what fails leaves everything as it was, where `undo` are the old
        bits. Raises `EngineError`, and what failed in undoing."""
        try:
            self._run(writes)
            synchronize(changes)
        except BaseException as error:
            write_back(changes, undo)
            if isinstance(error, Exception):
                raise EngineError(f"the weights could not be written, and are as they were: {error}") from error
            raise

    def _run(self, writes: Sequence[Write]) -> None:
        if len(writes) < (self._least or _PARALLEL_BLOCKS) or self._threads == 1:
            _run_all(writes)
            return
        # Every thread ends before this returns or raises, so that nothing writes after the pause.
        parts = [writes[k :: self._threads] for k in range(self._threads)]
        futures = [self._pool.submit(_run_all, part) for part in parts]
        wait(futures)
        failures = [failure for future in futures if (failure := future.exception()) is not None]
        if failures:
            raise failures[0]


def write_back(changes: Sequence[TensorChange], old: Sequence[Units]) -> None:
    """Write the old bits back. Bits are set, not added, so undoing what was never written does no harm.

    A little at a time: there may be no more memory on a device that has just failed.
    """
    for write in prepare_change_writes(changes, old, device_bytes=0):
        write()
    synchronize(changes)


def synchronize(changes: Sequence[TensorChange]) -> None:
    """Wait until all writes are visible to every reader: once for each device."""
    for device in {c.tensor.place.device for c in changes if c.tensor.place is not None}:
        unit_transfer.synchronize(device)


def _run_all(writes: Sequence[Write]) -> None:
    for write in writes:
        write()
