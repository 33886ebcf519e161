"""The files of one pack: their names, and how they are made and removed."""

from __future__ import annotations

import os
from pathlib import Path

from p2psync.store.disk import reserve
from p2psync.store.records import clear

MANIFEST, PAYLOAD, PART, DONE = "manifest", "payload", "part", "done"


def reserve_payload(path: Path, size: int) -> None:
    """Make a payload file with `size` bytes reserved on disk. Raises `StoreError` if the disk is full, else OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        reserve(descriptor, size, path)
    finally:
        os.close(descriptor)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that does not exist yet. Raises OSError."""
    with path.open("xb") as file:
        file.write(data)


def touch_durably(path: Path) -> None:
    """Make an empty file and wait until the disk has it. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(path: Path) -> None:
    """Remove a pack's files and its directory. Foreign files stay, and then the directory too. Raises OSError."""
    for name in (DONE, MANIFEST, PART, PAYLOAD):
        clear(path / name)
    try:
        path.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        if not any(path.iterdir()):
            raise
