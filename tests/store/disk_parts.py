"""A full disk: a small tmpfs, which only root can mount."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_MNT_DETACH = 2

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small tmpfs")


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes mounted at `place`."""
    place.mkdir(parents=True, exist_ok=True)
    if _LIBC.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, f"size={size}".encode()):
        pytest.skip(f"cannot mount a tmpfs here: {os.strerror(ctypes.get_errno())}")
    try:
        yield place
    finally:
        _LIBC.umount2(os.fsencode(place), _MNT_DETACH)
