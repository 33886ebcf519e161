"""The file operations that crash safety depends on, with errors that name the path."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2psync.errors import StoreError

#: Objects that can be written to a file.
BytesLike = bytes | bytearray | memoryview


def free_bytes(path: Path) -> int:
    """Free bytes, for this user, on the file system of `path` or of its nearest existing parent."""
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def reserve(descriptor: int, size: int, path: Path, offset: int = 0) -> None:
    """Reserve `size` bytes of disk for an open file from `offset` on. Raises `StoreError` if too few are free."""
    if size == 0:
        return
    free = free_bytes(path)
    try:
        os.posix_fallocate(descriptor, offset, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        missing = f"{size - free} bytes are missing" if size > free else "too few bytes are free"
        raise StoreError(f"{path.parent}: {missing} for {size}: free disk space there, or use another disk") from None


def write_all(descriptor: int, data: BytesLike, offset: int) -> None:
    """Write all of `data` at `offset`. Raises OSError."""
    view = memoryview(data).cast("B")
    written = os.pwrite(descriptor, view, offset)
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], offset + written)


def read_exactly(descriptor: int, size: int, offset: int) -> bytes:
    """Read `size` bytes at `offset`, fewer if the file ends before. Raises OSError."""
    parts: list[bytes] = []
    while size:
        part = os.pread(descriptor, size, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are durable. Raises OSError."""
    _sync(path, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Wait until the contents of a file are durable. Raises OSError."""
    _sync(path, 0)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: BytesLike) -> None:
    """Replace a file durably: after a crash it holds the old bytes or the new ones, never a mixture. Raises OSError."""
    _replace(path, data, durably=True)
    sync_directory(path.parent)


def write_whole(path: Path, data: BytesLike) -> None:
    """Replace a file atomically; after a power loss it may be empty or missing. Raises OSError."""
    _replace(path, data, durably=False)


def _replace(path: Path, data: BytesLike, *, durably: bool) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            if durably:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def lock(path: Path) -> int | None:
    """Take the lock file `path` for this process; returns its descriptor, or None if another holds it.

    The lock ends with the process, however it ends.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def path_names_file(descriptor: int, path: Path) -> bool:
    """Returns whether `path` still names the open file, which was neither removed nor replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn an OSError in the context into a `StoreError` that says what to do. place: the path to name."""
    try:
        yield
    except OSError as error:
        raise disk_error(place, error) from error


def disk_error(place: Path, error: OSError) -> StoreError:
    """The `StoreError` of an OSError, for code in which a `with` would cost too much."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(f"{place}: the disk is full: free space there, or use another disk")
    return StoreError(f"{place}: {error.strerror or error}: check the path and its permissions")
