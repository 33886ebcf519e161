"""Writes one rank's part of a version: checks it against the live bits during generation, writes it in the pause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from p2psync.delta.digest import MODULUS, digest_change, digest_units
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.device import unit_transfer as unit_transfer
from p2psync.engines.device.unit_transfer import TensorSelection
from p2psync.engines.module.live_tensors import live_tensor, torch_dtype
from p2psync.engines.module.staging import TensorChange, group_change_writes
from p2psync.engines.module.writer import AtomicWriter, Write, write_back
from p2psync.engines.vllm.derived_tensors import DerivedTensors
from p2psync.engines.vllm.live_map import LiveMap, PlacedPiece
from p2psync.engines.vllm.loader_probe import units_of_width
from p2psync.engines.vllm.nonfinite_caches import count_nonfinite
from p2psync.engines.vllm.strided_runs import BlockPart, iter_runs, live_rows, tensor_rows
from p2psync.errors import EngineError
from p2psync.parallel import in_parallel

#: Runs shorter than this (units) are digested together with their tensor; a call for each would cost more.
_SHORT_RUN = 256


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """New and old bits of a block of a checkpoint tensor.

    tensor: its number. The block is units [start, start + count), at rising offsets `positions` (None: all).
    """

    tensor: int
    start: int
    count: int
    positions: NDArray[np.uint32] | None
    old: Units
    new: Units


class RankWriter:
    """Writes the live parameters of one rank. One thread calls `prepare`, then one `write`; `prepare` starts over."""

    def __init__(
        self,
        live: LiveMap,
        parameters: Sequence[torch.Tensor],
        threads: int | None = None,
        derived: DerivedTensors | None = None,
    ) -> None:
        """parameters: those that `live.parameters` names; they hold the bits against which the map was checked.
        threads: that write; by default one per core. derived: the model's constants and copies.
        """
        self._derived = derived
        self._live = live
        self._parameters = parameters
        self._tensors = {
            (held.parameter, spec.width): live_tensor(_as_units(parameters[held.parameter], spec))
            for spec, pieces in zip(live.tensors, live.held, strict=True)
            for held in pieces
        }
        self._writer = AtomicWriter(threads, min_parallel=4)  # each call takes some hundred microseconds
        self._expected_digest = self._digest_all()
        #: Live units that are infinite or NaN.
        self.nonfinite = sum(in_parallel(self._count_nonfinite, range(len(live.tensors))))
        #: The prepared changes, the calls that write them, and what these add to the digest and to `nonfinite`.
        self._changes: list[TensorChange] = []
        self._writes: list[Write] = []
        self._digest_gain = self._nonfinite_gain = 0

    @property
    def tensors(self) -> Sequence[TensorSpec]:
        """The checkpoint's tensors; `Edit.tensor` is an index into them."""
        return self._live.tensors

    @property
    def units(self) -> int:
        """The number of live units that the prepared edits change on this rank."""
        return sum(change.new.size for change in self._changes)

    def prepare(self, edits: Sequence[Edit]) -> None:
        """Prepares the writes of the edits' new bits.

        Raises `EngineError`, with nothing prepared, if a live unit does not hold the old bits.
        """
        self.discard()
        if self._derived is not None:
            self._derived.check(reread=True)
        changes: list[TensorChange] = []
        digest_gain = nonfinite_gain = 0
        for mine, gained, more in in_parallel(self._translate, edits):
            changes += mine
            digest_gain += gained
            nonfinite_gain += more
        for change, bits in zip(changes, self._gather(changes), strict=True):
            if not np.array_equal(bits, change.old):
                raise EngineError("the live weights are not those of the version that this one builds on")
        self._writes = group_change_writes(changes, [change.new for change in changes])
        self._changes, self._digest_gain, self._nonfinite_gain = changes, digest_gain, nonfinite_gain

    def write(self) -> None:
        """Writes the prepared edits. Nothing may read the parameters meanwhile.

        Raises `EngineError` if it failed and all bits are as they were, any other error if they are not.
        """
        if self._derived is not None:
            self._derived.check()  # a forward pass may have filled a cache since `prepare`
        self._writer.write(self._changes, self._writes, [change.old for change in self._changes])
        self._account()
        try:
            self._refresh()
        except Exception as error:
            self.undo()
            raise EngineError(f"copies of weights could not be made, and all is as it was: {error}") from error

    def undo(self) -> None:
        """Undoes the last `write`."""
        write_back(self._changes, [change.old for change in self._changes])
        self._account()
        self._refresh()

    def discard(self) -> None:
        """Discards the prepared edits."""
        self._changes, self._writes, self._digest_gain, self._nonfinite_gain = [], [], 0, 0

    def is_intact(self) -> bool:
        """Returns whether every mapped live unit, and every copy, holds the bits loaded or written last. Reads all."""
        return self._digest_all() == self._expected_digest and (self._derived is None or self._derived.is_intact())

    def gather_into(self, tensor: int, units: Units) -> None:
        """Copies this rank's live bits of a tensor into `units`, an array of the whole tensor."""
        for held in self._live.held[tensor]:
            tensor_rows(held.piece, units)[:] = live_rows(held.piece, self._bits(held, self._live.tensors[tensor]))

    def _refresh(self) -> None:
        if self._derived is not None:
            self._derived.refresh()

    def _account(self) -> None:
        """Adds the prepared edits to digest and count after a write, and removes them after its undoing."""
        self._expected_digest = (self._expected_digest + self._digest_gain) % MODULUS
        self.nonfinite += self._nonfinite_gain
        self._digest_gain, self._nonfinite_gain = -self._digest_gain, -self._nonfinite_gain

    def _translate(self, edit: Edit) -> tuple[list[TensorChange], int, int]:
        """Returns the edit's changes here, and what it adds to the digest and to `nonfinite`."""
        spec = self._live.tensors[edit.tensor]
        changes, digest_gain, nonfinite_gain = [], 0, 0
        for parameter, part in self._live.parts(edit.tensor, edit.start, edit.count, edit.positions):
            old, new = edit.old[part.entries], edit.new[part.entries]
            changes.append(
                TensorChange(self._tensors[parameter, spec.width], part.start, part.count, part.positions, old, new)
            )
            digest_gain += _digest_gain(spec, edit, part, old, new)
            nonfinite_gain += count_nonfinite(spec, new) - count_nonfinite(spec, old)
        return changes, digest_gain, nonfinite_gain

    def _gather(self, changes: Sequence[TensorChange]) -> Iterator[Units]:
        """Returns the live bits at the changes, in order."""
        selections = [
            TensorSelection(c.tensor.device_bits, c.start, c.count, c.positions)
            for c in changes
            if c.tensor.device_bits is not None
        ]
        there = iter(unit_transfer.gather_units(selections))
        direct = [c for c in changes if c.tensor.device_bits is None]
        here = in_parallel(lambda c: c.tensor.gather(c.start, c.count, c.positions), direct)
        return (next(here if c.tensor.device_bits is None else there) for c in changes)

    def _digest_all(self) -> int:
        return sum(in_parallel(self._digest, range(len(self._live.tensors)))) % MODULUS

    def _digest(self, tensor: int) -> int:
        """Returns the digest of this rank's part of a tensor.

        If that part is in short runs, the digest covers the whole tensor with 0 in place of the rest, which is the same
        each time.
        """
        spec = self._live.tensors[tensor]
        if any(held.piece.length < _SHORT_RUN and held.piece.rows > 1 for held in self._live.held[tensor]):
            units = np.zeros(spec.count, spec.unit)
            self.gather_into(tensor, units)
            return digest_units(spec, units)
        return sum(digest_units(spec, bits, start) for start, bits in self._rows(tensor))

    def _count_nonfinite(self, tensor: int) -> int:
        spec = self._live.tensors[tensor]
        held = self._live.held[tensor]
        return sum(count_nonfinite(spec, live_rows(one.piece, self._bits(one, spec))) for one in held)

    def _bits(self, held: PlacedPiece, spec: TensorSpec) -> Units:
        """Returns the bits of the parameter in which a piece lies, in units of the piece's tensor."""
        return units_of_width(self._parameters[held.parameter], spec)

    def _rows(self, tensor: int) -> Iterator[tuple[int, Units]]:
        """Yields this rank's part of a tensor, as (first unit, live bits)."""
        for held in self._live.held[tensor]:
            bits, length = self._bits(held, self._live.tensors[tensor]), held.piece.length
            for start, at in iter_runs(held.piece):
                yield start, bits[at : at + length]


def _as_units(parameter: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Returns the parameter's memory in units of a tensor, if the tensor is narrower."""
    if parameter.element_size() <= spec.width:
        return parameter
    return parameter.reshape(-1).view(torch_dtype(spec))


def _digest_gain(spec: TensorSpec, edit: Edit, part: BlockPart, old: Units, new: Units) -> int:
    if isinstance(part.entries, slice) and edit.positions is None:
        return digest_change(spec, edit.start + part.entries.start, None, old, new)
    positions = part.entries.astype(np.uint32) if edit.positions is None else edit.positions[part.entries]  # type: ignore[union-attr]
    return digest_change(spec, edit.start, positions, old, new)
