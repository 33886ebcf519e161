"""A checkpoint on disk as tensors over memory maps: one safetensors file, or a directory in the Hugging Face layout.

Every file is part of the checkpoint: weights as tensors, their headers byte for byte, and all other files as blobs.
Hidden files and directories (names that start with a dot) are not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np

from p2psync.delta.digest import MODULUS, digest_units
from p2psync.delta.tensors import TensorKind, TensorSpec, Units
from p2psync.engines.checkpoint.file_names import is_weights
from p2psync.engines.checkpoint.header import LENGTH_BYTES, header_bytes
from p2psync.engines.checkpoint.layout import CheckpointLayout, FileOffset, compute_layout
from p2psync.errors import FormatError
from p2psync.store.guarded_map import GuardedMap


class Checkpoint:
    """An open checkpoint; a context manager. Arrays from `units` stay valid after `close`.

    Another process may truncate, replace or write the files meanwhile. `units` refuses a file that has changed since it
    was opened. A file that is truncated while an array over it is read reads as zeros from there on; `verify` detects
    that.
    """

    def __init__(
        self,
        root: Path,
        paths: dict[str, Path],
        plan: CheckpointLayout,
        stamps: dict[str, FileStamp],
        *,
        writable: bool,
    ) -> None:
        """Use `Checkpoint.open`."""
        self._stamps = stamps
        self.root = root
        self.layout = plan
        self._paths = paths
        self._writable = writable
        self._maps: dict[str, GuardedMap] = {}

    @classmethod
    def open(cls, path: Path | str, *, writable: bool = False, single: str | None = None) -> Checkpoint:
        """Opens a directory, or a single .safetensors file. `writable`: arrays from `units` write to the files.

        single: the name of a single file within the checkpoint; by default its own. Raises `FormatError`, with the name
        of the file, for anything that is not a valid checkpoint.
        """
        root = Path(path)
        try:
            paths = _find_files(root, single)
            return cls(root, paths, *_read_layout(paths), writable=writable)
        except FormatError as error:
            raise FormatError(f"{root}: {error}") from None
        except OSError as error:
            raise FormatError(f"{error.filename or root}: {error.strerror}: not a readable checkpoint") from None

    @classmethod
    def of_files(cls, root: Path, files: Mapping[str, Path]) -> Checkpoint:
        """Opens the checkpoint of these files (path within it → file) for reading.

        Raises `FormatError` if it is not valid, and OSError where reading failed.
        """
        paths = dict(sorted(files.items()))
        return cls(root, paths, *_read_layout(paths), writable=False)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of all tensors of every kind, sorted."""
        return tuple(self.layout.offsets)

    @property
    def files(self) -> Mapping[str, Path]:
        """The files, by path within the checkpoint."""
        return self._paths

    def locate(self, spec: TensorSpec) -> tuple[Path, int]:
        """Returns the file of a tensor and the offset (bytes) of its start. Raises `FormatError` for an unknown one."""
        where = self._file_offset(spec)
        return self._paths[where.file], where.offset

    def units(self, spec: TensorSpec) -> Units:
        """Returns the bits of one tensor, flat, without a copy.

        The array is not aligned where the file does not align the tensor (`array.flags.aligned`). Raises `FormatError`
        if there is no such tensor, or its file cannot be mapped or has changed since it was opened. (Files of a
        writable checkpoint change all the time; only `verify` checks those.)
        """
        where = self._file_offset(spec)
        if not self._writable:
            self._verify(where.file)
        if spec.count == 0:
            return np.empty(0, spec.unit)
        return np.frombuffer(self._map(where.file).map, spec.unit, spec.count, where.offset)

    def verify_tensor(self, spec: TensorSpec) -> None:
        """Raises `FormatError` if the file of a tensor has changed since it was opened."""
        self._verify(self._file_offset(spec).file)

    def verify(self) -> None:
        """Raises `FormatError` if a file was replaced or its size changed; if read-only, also if its time changed."""
        for name in self._paths:
            self._verify(name)

    def blobs(self) -> dict[str, bytes]:
        """Returns the bytes of every HEADER and FILE, by path: all that is not weights."""
        return {spec.name: self.units(spec).tobytes() for spec in self.layout.offsets if spec.kind != TensorKind.TENSOR}

    def digest(self) -> bytes:
        """Returns the digest of everything (16 bytes, little-endian). Reads every byte."""
        total = sum(digest_units(spec, self.units(spec)) for spec in self.layout.offsets)
        self.verify()
        return (total % MODULUS).to_bytes(16, "little")

    def close(self) -> None:
        """Closes the maps; a map with arrays over it stays until the last of them is gone."""
        for mapped in self._maps.values():
            mapped.close()
        self._maps = {}

    def _file_offset(self, spec: TensorSpec) -> FileOffset:
        where = self.layout.offsets.get(spec)
        if where is None:
            raise FormatError(f"{self.root} has no {spec.name!r} of {spec.dtype} {list(spec.shape)}")
        return where

    def _verify(self, name: str) -> None:
        path, opened = self._paths[name], self._stamps[name]
        try:
            found = _stamp(path.stat())
        except OSError as error:
            raise FormatError(f"{path}: {error.strerror}: it was there before") from None
        if found.size != opened.size:
            raise FormatError(f"{path}: {found.size} bytes, it had {opened.size} before")
        if found.inode != opened.inode or (not self._writable and found.time != opened.time):
            raise FormatError(f"{path} was written by someone else")
        if name in self._maps and self._maps[name].torn:
            raise FormatError(f"{path} was cut short while it was open")

    def _map(self, name: str) -> GuardedMap:
        mapped = self._maps.get(name)
        if mapped is None:
            try:
                descriptor = os.open(self._paths[name], os.O_RDWR if self._writable else os.O_RDONLY)
                try:
                    if os.fstat(descriptor).st_size != self.layout.sizes[name]:
                        raise FormatError(f"{self._paths[name]} changed its size while it was open")
                    mapped = GuardedMap(descriptor, self.layout.sizes[name], writable=self._writable)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise FormatError(f"{self._paths[name]}: {error.strerror}: not a readable checkpoint") from None
            self._maps[name] = mapped
        return mapped


class FileStamp(NamedTuple):
    """Identifies one state of a file: inode, size (bytes), and time of the last write (ns)."""

    inode: int
    size: int
    time: int


def _stamp(status: os.stat_result) -> FileStamp:
    return FileStamp(status.st_ino, status.st_size, status.st_mtime_ns)


def files_signature(root: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Identifies one state of a checkpoint's files: returns (path, size, mtime, ctime in ns) of each, sorted.

    Inodes are left out, because network file systems change them at will; a file that replaced another has its own
    ctime. Skips hidden files and files that vanish meanwhile. Raises OSError only for `root` itself.
    """
    if root.is_file():
        paths = [root]
    else:
        paths = []
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            paths += [Path(folder) / name for name in files if not name.startswith(".")]
    found = []
    for path in sorted(paths):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found.append((str(path.relative_to(root)), status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return tuple(found)


def _find_files(root: Path, single: str | None) -> dict[str, Path]:
    """Returns every file of the checkpoint at `root`, by its path within it."""
    if not root.is_dir():
        if not is_weights(root.name):
            raise FormatError("neither a directory nor a .safetensors file")
        return {single or root.name: root}
    found: dict[str, Path] = {}
    pending = [("", root)]
    while pending:
        prefix, directory = pending.pop()
        for entry in sorted(directory.iterdir()):
            if entry.name.startswith("."):
                continue
            name = prefix + entry.name
            mode = entry.stat().st_mode
            if stat.S_ISREG(mode):
                found[name] = entry
            elif stat.S_ISDIR(mode) and not entry.is_symlink():
                pending.append((name + "/", entry))
            else:
                raise FormatError(f"{name} is neither a file nor a plain directory: move it away")
    return dict(sorted(found.items()))


def _read_layout(paths: Mapping[str, Path]) -> tuple[CheckpointLayout, dict[str, FileStamp]]:
    headers = {name: read_header(file, name) for name, file in paths.items() if is_weights(name)}
    stamps = {name: _stamp(file.stat()) for name, file in paths.items()}
    plan = compute_layout(headers, {name: stamps[name].size for name in paths if not is_weights(name)})
    for name in headers:
        if (size := stamps[name].size) != plan.sizes[name]:
            raise FormatError(f"{name}: {size} bytes, its header describes {plan.sizes[name]}")
    return plan, stamps


def read_header(path: Path, name: str) -> bytes:
    """Reads the header of a safetensors file, called `name` in errors. Raises `FormatError`, OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(LENGTH_BYTES)
        rest = header_bytes(prefix, size, name) - LENGTH_BYTES
        data = prefix + file.read(rest)
    if len(data) != LENGTH_BYTES + rest:
        raise FormatError(f"{name}: cut short while it was read")
    return data
