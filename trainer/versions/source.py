"""What a trainer publishes from: anything that can name its tensors and give their bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from p2psync.delta.extract import Found
from p2psync.delta.kernels.block_sums import ScanSums
from p2psync.delta.tensors import Row, TensorSpec, Units
from p2psync.engines.checkpoint.files import Checkpoint, signature
from p2psync.errors import StoreError
from p2psync.protocol.versions import Position
from p2psync.trainer.watch.candidates import FileStates

#: What `signature` gives: tells one state of a checkpoint's files from another.
Signature: TypeAlias = tuple[tuple[str, int, int, int], ...]


class Source(Protocol):
    """A policy at rest: it must not change while it is published."""

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """Every tensor of every kind, sorted."""

    def units(self, spec: TensorSpec) -> Units:
        """The bits of one tensor, flat and contiguous; good until the next call."""


class FoundChanges(Protocol):
    """Changes that a source found by itself."""

    def of(self, row: int) -> Iterable[Found] | None:
        """The changed blocks of a row, to be run through before the next row is asked for; None if it must be read."""

    def sums(self, row: int) -> ScanSums | None:
        """What was summed up of a row's old and new bits while its blocks were found; None if nothing was."""


@runtime_checkable
class ChangeFindingSource(Protocol):
    """A source that can find changes where its tensors are."""

    def find(self, rows: Sequence[Row], block_units: int, base: BaseVersion) -> FoundChanges | None:
        """The changes from `base` in the rows that exist before and after; None if all of them must be read."""


class BaseVersion(Protocol):
    """The version that is compared with: a snapshot."""

    @property
    def position(self) -> Position | None:
        """Which it is."""

    def units(self, spec: TensorSpec) -> Units:
        """Its bits, on the host."""


class CheckpointReadError(StoreError):
    """A checkpoint could not be read this time: another try may go well, as it may after a full disk."""


class CheckpointSource:
    """A checkpoint that a framework wrote, and may rotate away or write over at any moment.

    Tensors are read, not mapped: a file that is cut short under a memory map would end the process, a short read is
    only an error. `unchanged` tells afterwards whether all reads saw the same files.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        before: Signature | FileStates,
        now: Callable[[], Signature | FileStates | None] | None = None,
    ) -> None:
        """before: the state of the files, taken before `checkpoint` was opened; now: takes it again (`signature`)."""
        self.checkpoint = checkpoint
        self._before = before
        self._now = now or (lambda: signature(checkpoint.root))

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """See `Source`."""
        return self.checkpoint.specs

    def units(self, spec: TensorSpec) -> Units:
        """See `Source`. Raises `CheckpointReadError` if the file cannot be read, has changed or is gone."""
        if spec.count == 0:
            return np.empty(0, spec.unit)
        path, offset = self.checkpoint.place(spec)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                units = np.fromfile(file, spec.unit, spec.count)
        except OSError as error:
            raise CheckpointReadError(f"{path}: {error.strerror or error} while it was read") from None
        if units.size != spec.count:
            raise CheckpointReadError(f"{path} became shorter while it was read")
        return units

    def unchanged(self) -> bool:
        """Whether every file is still the one that was opened, unmodified. Raises `CheckpointReadError`."""
        try:
            return self._now() == self._before
        except OSError as error:
            raise CheckpointReadError(f"{self.checkpoint.root}: {error.strerror or error} after it was read") from None

    def settled(self) -> bool:
        """True; raises `CheckpointReadError` unless `unchanged`."""
        if not self.unchanged():
            raise CheckpointReadError(f"{self.checkpoint.root} changed while it was read")
        return True
