"""The files of packs that are open: those that were used last, and no others.

A store of thousands of packs, in a process of weeks, holds no more descriptors than one of a few. Whoever uses a file
holds on to its `Payload`; it is closed when nobody does, so that no thread reads by a descriptor that was given away.
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

#: Payloads that one store keeps open: more than are in use at a time, and far fewer than a process may open files. Each
#: takes up to two descriptors, one of them for its map.
MOST_OPEN = 32


class Payload:
    """An open file, closed when nobody refers to it any more."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, or `DamagedError` unless there is a plain file."""
        self.file = _open_plain(path)
        self._map: mmap.mmap | None = None

    def map(self, size: int) -> mmap.mmap:
        """All of it, read only; good after the file is closed. Raises OSError."""
        if self._map is None:
            self._map = mmap.mmap(self.file, size, mmap.MAP_SHARED, mmap.PROT_READ)
        return self._map

    def forget_map(self) -> None:
        """Map the file anew when it is next asked for: it was cut, or grew."""
        self._map = None

    def size_and_time(self) -> tuple[int, int]:
        """Bytes, and time of the last write (ns). Raises OSError."""
        status = os.fstat(self.file)
        return status.st_size, status.st_mtime_ns

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)


class OpenPayloads:
    """The payloads of one store; any thread may use it."""

    def __init__(self, most: int = MOST_OPEN) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: OrderedDict[Handle, Payload] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def handle(self, path: Path) -> Handle:
        """A file that is opened when it is used."""
        return Handle(self, path)

    def open(self, handle: Handle) -> Payload:
        """See `Handle.open`."""
        with self._lock:
            found = self._open.get(handle)
            if found is not None:
                self._open.move_to_end(handle)
                return found
            if handle.closed:
                raise OSError(errno.EBADF, "removed while it was read")
            found = self._open[handle] = Payload(handle.path)
            idle = self._open.popitem(last=False)[1] if len(self._open) > self._most else None
        del idle  # closed here, where nobody waits for the lock
        return found

    def close(self, handle: Handle) -> None:
        """See `Handle.close`."""
        with self._lock:
            handle.closed = True
            self._open.pop(handle, None)


class Handle:
    """One file, open or not."""

    def __init__(self, payloads: OpenPayloads, path: Path) -> None:
        self.path = path
        self.closed = False
        self._payloads = payloads

    def open(self) -> Payload:
        """The open file. Who holds it may go on with it even if it is closed for all others.

        Raises OSError, or `DamagedError` unless there is a plain file.
        """
        return self._payloads.open(self)

    def close(self) -> None:
        """Do not open it any more: another file may take its name."""
        self._payloads.close(self)


def _open_plain(path: Path) -> int:
    try:
        # Not along a link: what it leads to is not ours to write to.
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise DamagedError(f"its {path.name} is missing, or not a plain file") from None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise DamagedError(f"its {path.name} is not a plain file")
