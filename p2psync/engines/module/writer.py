"""Writes prepared changes into live tensors with several threads: all changes, or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from p2psync.delta.tensors import Units
from p2psync.engines.device import unit_transfer as unit_transfer
from p2psync.engines.module.staging import TensorChange, prepare_change_writes
from p2psync.errors import EngineError

Write = Callable[[], None]
#: Calls from which on threads save more time than it takes to wake them.
_MIN_PARALLEL_WRITES = 64


class AtomicWriter:
    """A pool of threads that writes while nobody reads."""

    def __init__(self, threads: int | None = None, min_parallel: int | None = None) -> None:
        """threads: by default one per core, at most 16. min_parallel: calls from which on threads are used."""
        self._min_parallel = min_parallel
        self._threads = threads or min(16, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads, "p2psync-write")

    def write(self, changes: Sequence[TensorChange], writes: Sequence[Write], undo: Sequence[Units]) -> None:
        """Runs the prepared writes of these changes, or leaves everything as it was.

        undo: the old bits of each change. Raises `EngineError` if a write failed and was undone, and the error of the
        undoing if that failed too.
        """
        try:
            self._run(writes)
            synchronize(changes)
        except BaseException as error:
            write_back(changes, undo)
            if isinstance(error, Exception):
                raise EngineError(f"the weights could not be written, and are as they were: {error}") from error
            raise

    def _run(self, writes: Sequence[Write]) -> None:
        if len(writes) < (self._min_parallel or _MIN_PARALLEL_WRITES) or self._threads == 1:
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
    """Writes the old bits back. Bits are set, not added, so this is harmless where nothing was written.

    Moves one group at a time to a device, which may have no free memory after a failure.
    """
    for write in prepare_change_writes(changes, old, device_bytes=0):
        write()
    synchronize(changes)


def synchronize(changes: Sequence[TensorChange]) -> None:
    """Waits, once for each device, until all writes are visible to every reader."""
    for device in {c.tensor.device_bits.device for c in changes if c.tensor.device_bits is not None}:
        unit_transfer.synchronize(device)


def _run_all(writes: Sequence[Write]) -> None:
    for write in writes:
        write()
