"""The open payload files of a store: the most recently used ones.

A store with thousands of packs, in a process that runs for weeks, holds no more descriptors than a small one. A user of
a file keeps its `PayloadFile`, which is closed when the last user drops it, so no thread reads from a reused
descriptor.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path

from p2psync.errors import DamagedError

#: Payloads that one store keeps open: more than are in use at a time, and far fewer than a process may open. Each takes
#: up to two descriptors, one of them for its map.
MAX_OPEN_PAYLOADS = 32


class PayloadFile:
    """An open payload file, closed when its last reference is dropped."""

    def __init__(self, path: Path) -> None:
        """Open the file at `path`. Raises OSError, and `DamagedError` unless it is a plain file."""
        self.file = _open_plain(path)
        self._map: mmap.mmap | None = None

    def map(self, size: int) -> mmap.mmap:
        """A read-only map of the file, valid after the file is closed. Raises OSError."""
        if self._map is None:
            self._map = mmap.mmap(self.file, size, mmap.MAP_SHARED, mmap.PROT_READ)
        return self._map

    def forget_map(self) -> None:
        """Drop the map, because the file was cut or grew; `map` makes a new one."""
        self._map = None

    def size_and_time(self) -> tuple[int, int]:
        """Size (bytes) and time of the last write (ns). Raises OSError."""
        status = os.fstat(self.file)
        return status.st_size, status.st_mtime_ns

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)


class OpenPayloads:
    """Keeps the most recently used payloads of one store open. Thread-safe."""

    def __init__(self, most: int = MAX_OPEN_PAYLOADS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: OrderedDict[PayloadHandle, PayloadFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def handle(self, path: Path) -> PayloadHandle:
        """A handle of the file at `path`, which is opened when it is first used."""
        return PayloadHandle(self, path)

    def open(self, handle: PayloadHandle) -> PayloadFile:
        """See `PayloadHandle.open`."""
        with self._lock:
            found = self._open.get(handle)
            if found is not None:
                self._open.move_to_end(handle)
                return found
            if handle.closed:
                raise OSError(errno.EBADF, "removed while it was read")
            found = self._open[handle] = PayloadFile(handle.path)
            idle = self._open.popitem(last=False)[1] if len(self._open) > self._most else None
        del idle  # closed here, after the lock is released
        return found

    def close(self, handle: PayloadHandle) -> None:
        """See `PayloadHandle.close`."""
        with self._lock:
            handle.closed = True
            self._open.pop(handle, None)


class PayloadHandle:
    """A payload file by its path, open or not."""

    def __init__(self, payloads: OpenPayloads, path: Path) -> None:
        self.path = path
        self.closed = False
        self._payloads = payloads

    def open(self) -> PayloadFile:
        """The open file; the caller may use it even after `close`.

        Raises OSError, and `DamagedError` unless it is a plain file.
        """
        return self._payloads.open(self)

    def close(self) -> None:
        """Closes the file for good: another file may take its name."""
        self._payloads.close(self)


def _open_plain(path: Path) -> int:
    try:
        # Never follow a link: its target does not belong to the store.
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise DamagedError(f"its {path.name} is missing, or not a plain file") from None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise DamagedError(f"its {path.name} is not a plain file")
