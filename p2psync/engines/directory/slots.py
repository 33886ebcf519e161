"""Files of a slot: copies them, compares them, changes their layout, and locks readers out.

A slot is a directory that holds one whole checkpoint and nothing else. Its files are always fully allocated copies,
never shared extents (reflinks). Deltas are applied to a slot in place through memory maps, and a write to a shared
extent needs a new block: on a full disk that raises SIGBUS instead of an error. Since every page of a model holds some
changed elements, sharing would not survive the first delta anyway.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.tensors import TensorSpec
from p2psync.engines.checkpoint.layout import CheckpointLayout
from p2psync.errors import EngineError, StoreError
from p2psync.store.disk import free_bytes, reserve, write_all
from p2psync.store.records import clear, is_directory

_PAGE_BYTES = 4096
_COPY_BYTES = 4 << 20
_LOCK_POLL_SECONDS = 0.02


def check_free_space(directory: Path, needed: int) -> None:
    """Raises `EngineError` if the file system of `directory` has fewer than `needed` bytes free."""
    free = free_bytes(directory)
    if needed > free:
        raise EngineError(f"{directory}: {needed - free} bytes are missing for {needed}: free disk space there")


def disk_bytes(slot: Path) -> int:
    """Returns the bytes that the files of a slot occupy on disk."""
    total = 0
    for directory, _, names in os.walk(slot):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512  # noqa: PTH118
    return total


def mirror_files(files: Mapping[str, Path], slot: Path) -> None:
    """Makes `slot` hold exactly `files` (path within the slot → source file), byte for byte.

    Compares a file of the right size, and writes only pages that differ. Raises OSError or `EngineError`.
    """
    remove_others(slot, files)
    for name, source in files.items():
        target = slot / name
        target.parent.mkdir(parents=True, exist_ok=True)
        size = source.stat().st_size
        if _is_writable_file(target, size):
            _copy_differing(source, target, size)
        else:
            clear(target)
            descriptor = create_allocated(target, size)
            try:
                copy_range(source, 0, descriptor, 0, size)
            finally:
                os.close(descriptor)


def remove_others(slot: Path, keep: Mapping[str, object]) -> None:
    """Removes everything in `slot` except the files in `keep` and their directories. Raises OSError."""
    keep_directories = {parent for name in keep for parent in PurePosixPath(name).parents}
    for path in slot.iterdir():
        _remove_others(path, PurePosixPath(path.name), keep, keep_directories)


def _remove_others(
    path: Path, name: PurePosixPath, keep: Mapping[str, object], directories: Collection[PurePosixPath]
) -> None:
    if is_directory(path):
        if name not in directories:
            clear(path)
            return
        for entry in path.iterdir():
            _remove_others(entry, name / entry.name, keep, directories)
    elif str(name) not in keep:
        path.unlink()


def create_allocated(path: Path, size: int) -> int:
    """Creates a file of `size` zero bytes, fully allocated; returns its descriptor. Raises `EngineError`, OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        reserve(descriptor, size, path)
    except StoreError as error:
        os.close(descriptor)
        path.unlink()
        raise EngineError(str(error)) from None
    except OSError:
        os.close(descriptor)
        path.unlink()
        raise
    return descriptor


def copy_range(source: Path, start: int, descriptor: int, offset: int, size: int) -> None:
    """Copies `size` bytes of `source` from `start` into an open file at `offset`. Raises OSError if it is shorter."""
    with source.open("rb", buffering=0) as file:
        os.lseek(descriptor, offset, os.SEEK_SET)
        while size:
            sent = os.sendfile(descriptor, file.fileno(), start, min(size, 1 << 30))
            if not sent:
                raise OSError(errno.EIO, "cut short while it was copied", str(source))
            start, size = start + sent, size - sent


def rebuild_layout(
    slot: Path,
    build: Path,
    old: CheckpointLayout,
    new: CheckpointLayout,
    headers: Mapping[str, bytes],
    sources: Mapping[TensorSpec, tuple[Path, int]],
) -> None:
    """Changes the files of `slot` from the layout `old` to `new`, with these `headers`.

    Keeps files whose layout is the same. Builds the others in the directory `build`: a tensor takes its bytes from
    `sources` (file, byte offset), or is zeros. Removes old files only when all new ones are built. Raises `EngineError`
    before anything is changed if the disk has not enough free space.
    """
    before, after = old.contents(), new.contents()
    changed = [name for name in new.sizes if after[name] != before.get(name)]
    check_free_space(slot, sum(new.sizes[name] for name in changed))
    clear(build)
    build.mkdir(parents=True)
    for index, name in enumerate(changed):
        descriptor = create_allocated(build / str(index), new.sizes[name])
        try:
            for spec, offset in after[name].items():
                if spec in sources and spec.nbytes:
                    copy_range(*sources[spec], descriptor, offset, spec.nbytes)
        finally:
            os.close(descriptor)
    remove_others(slot, {name: None for name in new.sizes if name not in changed})
    for index, name in enumerate(changed):
        (slot / name).parent.mkdir(parents=True, exist_ok=True)
        if is_directory(slot / name):
            clear(slot / name)
        (build / str(index)).replace(slot / name)
    shutil.rmtree(build)
    for name, header in headers.items():
        _write_header(slot / name, header)


@contextmanager
def disk_errors_as_engine_errors(directory: Path) -> Iterator[None]:
    """Turns an OSError into an `EngineError` of one line."""
    try:
        yield
    except OSError as error:
        where = error.filename or directory
        raise EngineError(f"{where}: {error.strerror or error}: check the disk and its permissions") from error


def lock_out_readers(slot: Path, limit: float) -> int:
    """Waits, at most `limit` seconds, until no reader holds `flock -s SLOT`; returns the descriptor of our lock.

    Raises `EngineError` that names the processes that still read.
    """
    descriptor = os.open(slot, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + limit
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holders = _lock_holders(os.fstat(descriptor).st_ino)
                os.close(descriptor)
                raise EngineError(
                    f"{slot} is still read by {holders or 'a process elsewhere'} after {limit:g} s: "
                    "end that reader, and try again"
                ) from None
            time.sleep(_LOCK_POLL_SECONDS)
        except OSError:
            os.close(descriptor)
            raise


def _lock_holders(inode: int) -> str:
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return ""
    # A line: "1: FLOCK  ADVISORY  READ 4242 fe:00:1234 0 EOF"
    found = [line.split() for line in lines if "FLOCK" in line and "->" not in line]
    pids = sorted({parts[4] for parts in found if parts[5].endswith(f":{inode}")})
    return "process " + ", ".join(pids) if pids else ""


def _write_header(path: Path, header: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.pread(descriptor, len(header), 0) != header:
            write_all(descriptor, header, 0)
    finally:
        os.close(descriptor)


def _copy_differing(source: Path, target: Path, size: int) -> None:
    if not size:
        return
    # Read, not mapped: a file that is truncated under a map ends the process.
    good, held = np.empty(min(size, _COPY_BYTES), np.uint8), np.empty(min(size, _COPY_BYTES), np.uint8)
    with source.open("rb", buffering=0) as theirs, target.open("r+b", buffering=0) as ours:
        for start in range(0, size, _COPY_BYTES):
            count = min(_COPY_BYTES, size - start)
            for file, buffer in ((theirs, good), (ours, held)):
                if os.preadv(file.fileno(), [buffer[:count].data], start) != count:
                    raise OSError(errno.EIO, "cut short while it was copied", file.name)
            for first, last in _differing_runs(good[:count], held[:count]):
                write_all(ours.fileno(), good[first:last].data, start + first)


def _is_writable_file(path: Path, size: int) -> bool:
    """Returns whether this is a plain, writable file of this size, without links to it: it may be written in place."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return (
        stat.S_ISREG(found.st_mode)
        and found.st_size == size
        and found.st_nlink == 1
        and os.access(path, os.R_OK | os.W_OK)
    )


def _differing_runs(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Returns the byte ranges, in whole pages, in which two arrays of bytes differ."""
    whole = a.size - a.size % _PAGE_BYTES
    left, right = (x[:whole].view(np.uint64).reshape(-1, _PAGE_BYTES // 8) for x in (a, b))
    differ = np.append((left != right).any(axis=1), not np.array_equal(a[whole:], b[whole:]))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], differ, [False]]).astype(np.int8)))
    return [(int(low) * _PAGE_BYTES, min(int(high) * _PAGE_BYTES, a.size)) for low, high in edges.reshape(-1, 2)]
