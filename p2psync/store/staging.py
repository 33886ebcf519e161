"""Staged files and directories: made beside their target, and moved there in one step when they are complete.

Until then the target is unchanged, also if the process is killed. A killed process leaves a hidden name beside the
target, which the next stager of the same target removes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from p2psync.errors import StoreError
from p2psync.store.disk import disk_errors, sync_directory

# renameat2(2): fail if the new name exists; swap the two names.
_NOREPLACE, _EXCHANGE = 1, 2
_AT_FDCWD = -100
#: Error numbers of file systems that do not know these flags.
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class StagedPath:
    """A context manager: fill `path`, then call `place`. Leaving it without `place` removes `path`."""

    def __init__(self, target: Path, *, directory: bool, force: bool = False) -> None:
        """target: the final path. directory: make a directory, else an empty file. force: replace an existing target.

        Raises `StoreError` if the target exists and `force` is not given, or nothing can be made beside it.
        """
        whole = target.resolve() if target.name in ("", "..") else target
        self.target = whole.parent.resolve() / whole.name
        self._force = force
        if not force:
            refuse_existing(self.target)
        elif self.target.exists() and self.target.is_dir() != directory:
            made = "directory" if directory else "file"
            raise StoreError(f"{target} is no {made}, so it is not replaced by one: choose another place")
        #: Where the file or directory is made.
        self.path = self.target.with_name(f".{self.target.name}.{os.getpid()}.tmp")
        with disk_errors(target):
            self._remove_unfinished()
            if directory:
                self.path.mkdir()
            else:
                self.path.touch(exist_ok=False)
            self._lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def __enter__(self) -> StagedPath:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove `path` unless it was placed; a second call has no effect."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1

    def place(self) -> None:
        """Make everything durable, and move it to the target. Raises `StoreError`; then the target is unchanged."""
        with disk_errors(self.target):
            _sync(self.path)
            if self._force and (self.target.exists() or self.target.is_symlink()):
                # The old target takes the name of `path`, and is removed with it when the context ends.
                _rename(self.path, self.target, _EXCHANGE, _step_aside)
            else:
                _rename(self.path, self.target, _NOREPLACE, _unless_there)
            sync_directory(self.target.parent)

    def _remove_unfinished(self) -> None:
        ours = re.compile(rf"\.{re.escape(self.target.name)}\.\d+\.tmp")
        for stale in self.target.parent.iterdir():
            if not ours.fullmatch(stale.name):
                continue
            with suppress(OSError):  # still in use by another process, or not removable
                descriptor = os.open(stale, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(stale)
                finally:
                    os.close(descriptor)


def refuse_existing(target: Path) -> None:
    """Raise `StoreError` if anything stands at `target`."""
    if target.exists() or target.is_symlink():
        raise StoreError(f"{target} exists: choose another name, or give --force to replace it")


def _rename(source: Path, target: Path, flags: int, otherwise: Callable[[Path, Path], None]) -> None:
    """Rename by renameat2, or by `otherwise` if the system has none. Raises OSError."""
    call = _renameat2()
    if call is None:
        otherwise(source, target)
    elif call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) != 0:
        number = ctypes.get_errno()
        if number not in _UNKNOWN:
            raise OSError(number, os.strerror(number), str(target))
        otherwise(source, target)


def _unless_there(source: Path, target: Path) -> None:
    refuse_existing(target)
    source.rename(target)


def _step_aside(source: Path, target: Path) -> None:
    """Swap the two names; not atomic: for a moment there is no `target`."""
    aside = source.with_name(source.name + ".old")
    target.rename(aside)
    try:
        source.rename(target)
    except OSError:
        aside.rename(target)
        raise
    aside.rename(source)


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function


def _sync(path: Path) -> None:
    """Make a file, or a directory with all that is in it, durable."""
    if path.is_dir():
        for entry in path.iterdir():
            _sync(entry)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
