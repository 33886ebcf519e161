"""A checkpoint on disk as tensors over memory maps: one safetensors file, or a directory in the Hugging Face layout.

Every file counts: weights as tensors, their headers byte for byte, and all other files as blobs. Hidden files and
directories (names beginning with a dot) are not part of a checkpoint.
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
from p2psync.delta.tensors import Kind, TensorSpec, Units
from p2psync.engines.checkpoint.file_names import is_weights
from p2psync.engines.checkpoint.header import LENGTH_BYTES, header_bytes
from p2psync.engines.checkpoint.layout import CheckpointLayout, FileOffset, compute_layout
from p2psync.errors import FormatError
from p2psync.store.guarded_map import GuardedMap


class Checkpoint:
    """An open checkpoint; a context manager. Arrays that `units` gave stay good after `close`.

    Another process may cut, replace or write to the files meanwhile: `units` refuses a file that is not as it was when
    it was opened. A file that is cut while an array over it is read reads as zeros from there on: `verify` tells.
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
        """Open a directory, or a single .safetensors file. `writable`: `units` write through to the files.

        single: what a single file is called within the checkpoint; its own name unless told.
        Raises `FormatError`, naming the file, for anything that is not a sound checkpoint.
        """
        root = Path(path)
        try:
            paths = _find(root, single)
            return cls(root, paths, *_laid_out(paths), writable=writable)
        except FormatError as error:
            raise FormatError(f"{root}: {error}") from None
        except OSError as error:
            raise FormatError(f"{error.filename or root}: {error.strerror}: not a readable checkpoint") from None

    @classmethod
    def of_files(cls, root: Path, files: Mapping[str, Path]) -> Checkpoint:
        """Open the checkpoint that these files make up, by the path of each within it, to read it.

        Raises `FormatError` for what is not sound, and OSError where reading failed.
        """
        paths = dict(sorted(files.items()))
        return cls(root, paths, *_laid_out(paths), writable=False)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Every tensor of every kind, sorted."""
        return tuple(self.layout.places)

    @property
    def files(self) -> Mapping[str, Path]:
        """Where the bytes of every file are, by its path within the checkpoint."""
        return self._paths

    def place(self, spec: TensorSpec) -> tuple[Path, int]:
        """The file that holds a tensor and the byte at which it begins. Raises `FormatError` if there is none."""
        place = self._place(spec)
        return self._paths[place.file], place.offset

    def units(self, spec: TensorSpec) -> Units:
        """The bits of one tensor, flat, without a copy.

        The array is not aligned where the file does not align the tensor (`array.flags.aligned`).

        Raises `FormatError` if there is no such tensor, its file cannot be mapped, or was changed since it was opened.
        (Files of a writable checkpoint change all the time: there only `verify` looks.)
        """
        place = self._place(spec)
        if not self._writable:
            self._verify(place.file)
        if spec.count == 0:
            return np.empty(0, spec.unit)
        return np.frombuffer(self._map(place.file).map, spec.unit, spec.count, place.offset)

    def verify_tensor(self, spec: TensorSpec) -> None:
        """Raise `FormatError` if the file of a tensor was changed since it was opened."""
        self._verify(self._place(spec).file)

    def verify(self) -> None:
        """Raise `FormatError` if a file is not the one that was opened, in its size, or (read only) its time."""
        for name in self._paths:
            self._verify(name)

    def blobs(self) -> dict[str, bytes]:
        """The bytes of every HEADER and FILE, by path: what a checkpoint holds besides weights."""
        return {spec.name: self.units(spec).tobytes() for spec in self.layout.places if spec.kind != Kind.TENSOR}

    def digest(self) -> bytes:
        """The digest of everything (16 bytes, little-endian): reads every byte."""
        total = sum(digest_units(spec, self.units(spec)) for spec in self.layout.places)
        self.verify()
        return (total % MODULUS).to_bytes(16, "little")

    def close(self) -> None:
        """Let go of the maps; those with arrays over them end with the last array."""
        for mapped in self._maps.values():
            mapped.close()
        self._maps = {}

    def _place(self, spec: TensorSpec) -> FileOffset:
        place = self.layout.places.get(spec)
        if place is None:
            raise FormatError(f"{self.root} has no {spec.name!r} of {spec.dtype} {list(spec.shape)}")
        return place

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
    """What tells one state of a file from another: inode, bytes, and time of the last write (ns)."""

    inode: int
    size: int
    time: int


def _stamp(status: os.stat_result) -> FileStamp:
    return FileStamp(status.st_ino, status.st_size, status.st_mtime_ns)


def files_signature(root: Path) -> tuple[tuple[str, int, int, int], ...]:
    """What tells one state of a checkpoint's files from another: (path, size, mtime, ctime in ns) of each, sorted.

    The inode says nothing: network file systems change it at will. A file that replaced another has its own ctime.
    Hidden files do not count. Raises OSError only for `root` itself; files that vanish meanwhile are left out.
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


def _find(root: Path, single: str | None) -> dict[str, Path]:
    """Every file of the checkpoint at `root`, by its path within it."""
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


def _laid_out(paths: Mapping[str, Path]) -> tuple[CheckpointLayout, dict[str, FileStamp]]:
    headers = {name: read_header(file, name) for name, file in paths.items() if is_weights(name)}
    stamps = {name: _stamp(file.stat()) for name, file in paths.items()}
    plan = compute_layout(headers, {name: stamps[name].size for name in paths if not is_weights(name)})
    for name in headers:
        if (size := stamps[name].size) != plan.sizes[name]:
            raise FormatError(f"{name}: {size} bytes, its header describes {plan.sizes[name]}")
    return plan, stamps


def read_header(path: Path, name: str) -> bytes:
    """The header of a safetensors file, called `name` in errors. Raises `FormatError`, and OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(LENGTH_BYTES)
        rest = header_bytes(prefix, size, name) - LENGTH_BYTES
        data = prefix + file.read(rest)
    if len(data) != LENGTH_BYTES + rest:
        raise FormatError(f"{name}: cut short while it was read")
    return data
