"""What a trainer publishes from: anything that can name its tensors and give their bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np

from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.checkpoint import Checkpoint, signature
from p2psync.errors import FormatError

#: What `signature` gives: tells one state of a checkpoint's files from another.
Signature: TypeAlias = tuple[tuple[str, int, int, int], ...]


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

    def __init__(self, checkpoint: Checkpoint, before: Signature) -> None:
        """before: the signature of the files, taken before `checkpoint` was opened."""
        self.checkpoint = checkpoint
        self._before = before

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
