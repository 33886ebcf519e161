"""What a trainer publishes from: anything that can name its tensors and give their bits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from p2psync.delta.tensors import Row, TensorSpec, Units
from p2psync.engines.checkpoint import Checkpoint
from p2psync.errors import FormatError


class Source(Protocol):
    """A policy at rest: it must not change while it is published."""

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """Every tensor of every kind, sorted."""

    def units(self, spec: TensorSpec) -> Units:
        """The bits of one tensor, flat and contiguous; good until the next call."""


class CheckpointSource:
    """A checkpoint that a framework wrote, and may rotate away or write over at any moment.

    Tensors are read, not mapped: a file that is cut short under a memory map would end the process, a short read is
    only an error. `unchanged` tells afterwards whether all reads saw the same files.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._before = signature(checkpoint.root)

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """See `Source`."""
        return self.checkpoint.specs

    def units(self, spec: TensorSpec) -> Units:
        """See `Source`. Raises `FormatError` if the file has changed or gone."""
        if spec.count == 0:
            return np.empty(0, spec.unit)
        path, offset = self.checkpoint.place(spec)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                units = np.fromfile(file, spec.unit, spec.count)
        except OSError as error:
            raise FormatError(f"{path}: {error.strerror} while it was read: not published") from None
        if units.size != spec.count:
            raise FormatError(f"{path} became shorter while it was read: not published")
        return units

    def unchanged(self) -> bool:
        """Whether every file is still the one that was opened, unmodified."""
        return signature(self.checkpoint.root) == self._before


def signature(root: Path) -> tuple[tuple[str, int, int, int], ...]:
    """What tells one state of a checkpoint's files from another: (path, inode, size, mtime in ns) of each, sorted.

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
        found.append((str(path.relative_to(root)), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def rows_between(old: Sequence[TensorSpec], new: Sequence[TensorSpec]) -> list[Row]:
    """The table of a delta from a version with tensors `old` to one with tensors `new`."""
    before, after = set(old), set(new)
    return [Row(spec, spec in before, spec in after) for spec in sorted(before | after)]
