"""Small state files: written whole with a checksum, read as hostile input, moved aside if they are damaged.

A record is a JSON object whose last member is the checksum of the object without it:

    {"run":"…","epoch":3,"node":"…","blake3":"<64 hex digits>"}

A file without a checksum has an earlier layout, and is read too. Reading has three outcomes: the value, nothing (there
is no file), or `DamagedError`. `recover_record` turns the third into the second: it moves the file away.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from blake3 import blake3

from p2psync.errors import DamagedError, StoreError
from p2psync.store.disk import disk_errors, write_durably, write_whole

_T = TypeVar("_T")

#: Bytes of a state file, at most. The largest file holds the names of all checkpoints that were ever watched.
MAX_RECORD_BYTES = 64 << 20
#: The last member of a record.
_CHECKSUM = re.compile(rb',?"blake3":"([0-9a-f]{64})"\}\Z')
#: The suffix of a damaged file that was moved aside. A later one replaces it, so at most one is kept.
ASIDE = ".damaged"


def read_plain(path: Path, limit: int = MAX_RECORD_BYTES) -> bytes | None:
    """Read a small file whole; None if nothing is there.

    Raises `DamagedError` for anything but a plain file (a directory, a fifo, a dangling link), for a file of more than
    `limit` bytes, and for one that cannot be read.
    """
    try:
        # A fifo without a writer would block for ever, and so would a terminal.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if path.is_symlink():
            raise DamagedError(f"{path} is a link to nothing") from None
        return None
    except OSError as error:
        raise DamagedError(f"{path}: {error.strerror or error}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedError(f"{path} is not a plain file")
        if status.st_size > limit:
            raise DamagedError(f"{path}: {status.st_size} bytes, more than it ever has")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(limit)
    except OSError as error:
        raise DamagedError(f"{path}: {error.strerror or error}") from None
    finally:
        os.close(descriptor)


def load_record(path: Path, kind: type[_T]) -> _T | None:
    """Read a record; None if there is none. Raises `DamagedError`."""
    data = read_plain(path)
    if data is None:
        return None
    try:
        found = _CHECKSUM.search(data)
        if found is None:
            _refuse_unknown(path, data, kind)
            return msgspec.json.decode(data, type=kind)
        value = data[: found.start()] + b"}"
        if found[1].decode() != blake3(value).hexdigest():
            raise DamagedError(f"{path}: its checksum is wrong")
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"{path}: {error}") from None


def _refuse_unknown(path: Path, data: bytes, kind: type[object]) -> None:
    """Raise `DamagedError` for an object with unknown members: the remains of a damaged checksum."""
    members = msgspec.json.decode(data)
    known = getattr(kind, "__struct_fields__", None)
    if known is not None and isinstance(members, dict) and not members.keys() <= set(known):
        raise DamagedError(f"{path}: its checksum is damaged")


def recover_record(path: Path, kind: type[_T], tell: Callable[[str], None], loss: str) -> _T | None:
    """Read a record; move a damaged one aside, report that by `tell`, and return None.

    loss: the consequence of the loss, for the report. Raises `StoreError` if the record cannot be moved aside.
    """
    try:
        return load_record(path, kind)
    except DamagedError as error:
        set_aside(path)
        tell(f"{error}: moved to {path.name}{ASIDE}; {loss}")
        return None


def save_record(path: Path, value: object, *, durably: bool = True) -> None:
    """Write a record whole or not at all; a directory at its place is moved aside. Raises `StoreError`.

    durably: wait for the disk; else a power loss may leave the file empty or missing.
    """
    whole = msgspec.json.encode(value)
    checksum = f'"blake3":"{blake3(whole).hexdigest()}"}}'.encode()
    data = whole[:-1] + (b"" if whole == b"{}" else b",") + checksum
    make_directory(path.parent)
    with disk_errors(path):
        clear(path.with_name(path.name + ".tmp"))
        if is_directory(path):
            set_aside(path)
        if durably:
            write_durably(path, data)
        else:
            write_whole(path, data)


def set_aside(path: Path) -> None:
    """Moves the entry at `path` to its name with `ASIDE`, replacing an older one there. Raises `StoreError`."""
    aside = path.with_name(path.name + ASIDE)
    with disk_errors(path):
        if not os.path.lexists(path):
            return
        clear(aside)
        path.rename(aside)


def clear(path: Path) -> None:
    """Removes the entry at `path`: a file, a link, or a directory with all its contents. Raises OSError."""
    if is_directory(path):
        grant_owner_access(path)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_directory(path: Path) -> bool:
    """Returns whether `path` is a directory, and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def make_directory(path: Path) -> bool:
    """Make a directory and its parents; False if it was there. Anything else at its place is moved aside.

    Raises `StoreError`, also if a parent is not a directory.
    """
    with disk_errors(path):
        if path.is_dir():
            return False
        for parent in reversed(path.parents):
            if os.path.lexists(parent) and not parent.is_dir():
                raise StoreError(f"{parent} is not a directory: move it away, or choose another place")
        set_aside(path)
        path.mkdir(parents=True)
    return True


def grant_owner_access(path: Path) -> None:
    """Give the owner access to a directory and all directories below it. Raises OSError for another user's."""
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        path.chmod(0o755)
    for entry in path.iterdir():
        if is_directory(entry):
            grant_owner_access(entry)
