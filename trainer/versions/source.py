"""The sources that a trainer publishes from: they name their tensors and give their bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from p2psync.delta.extract import FoundChanges
from p2psync.delta.kernels.block_sums import ScanSums
from p2psync.delta.tensors import TableRow, TensorSpec, Units
from p2psync.engines.checkpoint.files import Checkpoint, files_signature
from p2psync.errors import StoreError
from p2psync.protocol.versions import Position
from p2psync.trainer.watch.candidates import FileStates

#: The value of `files_signature`: it tells one state of a checkpoint's files from another.
Signature: TypeAlias = tuple[tuple[str, int, int, int], ...]


class Source(Protocol):
    """A policy that does not change while it is published."""

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """All tensors of all kinds, sorted."""

    def units(self, spec: TensorSpec) -> Units:
        """Returns the bits of one tensor: flat, contiguous, of `spec.count` elements of dtype `spec.unit`.

        They are valid until the next call.
        """


class SourceChanges(Protocol):
    """The changes that a source found by itself."""

    def of(self, row: int) -> Iterable[FoundChanges] | None:
        """Returns the changed blocks of a row; None if the row must be read.

        The caller consumes them before it calls this for the next row.
        """

    def sums(self, row: int) -> ScanSums | None:
        """Returns the sums of a row's old and new bits, taken while its blocks were found; None if there are none."""


@runtime_checkable
class ChangeFindingSource(Protocol):
    """A source that can find changes where its tensors are, such as on a GPU."""

    def find(self, rows: Sequence[TableRow], block_units: int, base: BaseVersion) -> SourceChanges | None:
        """Returns the changes from `base` in the rows that exist before and after; None if all must be read.

        block_units: units in a whole block; see `block_span`.
        """


class BaseVersion(Protocol):
    """The version that a source is compared with: a snapshot."""

    @property
    def position(self) -> Position | None:
        """The version that the policy is, None if it is none."""

    def units(self, spec: TensorSpec) -> Units:
        """Returns the bits of one tensor, on the host."""


class CheckpointReadError(StoreError):
    """A checkpoint could not be read this time; another try may succeed."""


class CheckpointSource:
    """A checkpoint that a framework wrote, and may remove or overwrite at any moment.

    Tensors are read, not mapped: a file that is cut short under a memory map would end the process, a short read only
    raises. `unchanged` tells afterwards whether all reads saw the same files.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        before: Signature | FileStates,
        now: Callable[[], Signature | FileStates | None] | None = None,
    ) -> None:
        """before: the state of the files, taken before `checkpoint` was opened. now: takes it again
        (`files_signature`)."""
        self.checkpoint = checkpoint
        self._before = before
        self._now = now or (lambda: files_signature(checkpoint.root))

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """See `Source`."""
        return self.checkpoint.specs

    def units(self, spec: TensorSpec) -> Units:
        """See `Source`. Raises `CheckpointReadError` if the file cannot be read, has changed or is gone."""
        if spec.count == 0:
            return np.empty(0, spec.unit)
        path, offset = self.checkpoint.locate(spec)
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
        """Returns whether every file is still the one that was opened, unmodified. Raises `CheckpointReadError`."""
        try:
            return self._now() == self._before
        except OSError as error:
            raise CheckpointReadError(f"{self.checkpoint.root}: {error.strerror or error} after it was read") from None

    def settled(self) -> bool:
        """True; raises `CheckpointReadError` unless `unchanged`."""
        if not self.unchanged():
            raise CheckpointReadError(f"{self.checkpoint.root} changed while it was read")
        return True
