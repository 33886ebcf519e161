"""The engine of a vLLM instance: it keeps the live weights of all ranks at one version.

Theory of operation. Rank 0 keeps a *mirror*: the published checkpoint's bits in host memory, in checkpoint coordinates.
Each rank's live parameters hold a part of these bits (`live_map`). A version is staged against the mirror, as against
any module, in any profile, without access to a device. The changes go to all ranks, which compare their live bits with
the old ones and prepare their writes (`ranks`). Then the engine writes the mirror, which nobody reads, and offers the
commit to vLLM's thread (`commit_handoff`). In its pause only the new bits are written. A failure is undone in the live
weights and in the mirror.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from p2psync.delta.tensors import TensorKind, TensorSpec, Units
from p2psync.engines.module.engine import ModuleEngine
from p2psync.engines.module.staging import TensorChange, prepare_change_writes
from p2psync.engines.module.writer import Write, write_back
from p2psync.engines.vllm.commit_handoff import CommitHandoff
from p2psync.engines.vllm.equal_tensors import check_still_equal
from p2psync.engines.vllm.loader_probe import units_to_tensor
from p2psync.engines.vllm.rank_writer import Edit
from p2psync.engines.vllm.ranks import EngineRanks
from p2psync.errors import EngineError, UnvouchedError
from p2psync.protocol.versions import Position


class LiveEngine(ModuleEngine):
    """The engine that rank 0's node drives. One thread drives it; another, in vLLM's pause, runs its commits."""

    def __init__(
        self,
        ranks: EngineRanks,
        weights: Mapping[TensorSpec, Units],
        files: Mapping[str, bytes],
        handoff: CommitHandoff,
        refuse: Callable[[str], None],
        equal_tensors: Mapping[TensorSpec, TensorSpec] | None = None,
    ) -> None:
        """ranks: with their writers set. weights: the mirror, by TENSOR spec; the engine keeps and writes it. files:
        headers and other files of the checkpoint. refuse: called with the reason when the live weights are no known
        version any more. equal_tensors: tensors that the loader leaves out, and those that they must equal.
        """
        super().__init__({spec.name: units_to_tensor(spec, units) for spec, units in weights.items()}, files=files)
        self._ranks = ranks
        self._handoff = handoff
        self._refuse = refuse
        self._equal_tensors = equal_tensors or {}
        self._numbers = {spec: number for number, spec in enumerate(ranks.writer.tensors)}

    def adopt(self, position: Position) -> bool:
        """See `Engine.adopt`."""
        taken = super().adopt(position)
        if taken:
            self._handoff.on_offer()
        return taken

    def units(self, spec: TensorSpec) -> Units:
        """See `Engine.units`: with one rank the live bits, with several the mirror (see `scrub`)."""
        units = super().units(spec)
        if self._ranks.size > 1 or spec.kind != TensorKind.TENSOR:
            return units
        live = units.copy()
        self._ranks.writer.gather_into(self._numbers[spec], live)
        return live

    def scrub(self) -> bool:
        """See `Engine.scrub`: checks the live bits of all ranks and the mirror. Wrong live bits end the serving."""
        return self._check_live() and super().scrub()

    def close(self) -> None:
        """See `ClosableEngine`: fails a commit that waits."""
        self._handoff.close()

    def _check_live(self) -> bool:
        intact = self._ranks.is_intact()
        if not intact:
            self._refuse("live weights are not the committed ones: memory is at fault, or something else wrote them")
        return intact

    def _prepare(self, changes: Sequence[TensorChange], values: Sequence[Units], undo: Sequence[Units]) -> list[Write]:
        numbers = {id(tensor): self._numbers[spec] for spec, tensor in self._tensors.items()}
        edits = [
            Edit(numbers[id(c.tensor)], c.start, c.count, c.positions, old, new)
            for c, old, new in zip(changes, undo, values, strict=True)
        ]
        check_still_equal(self._equal_tensors, self._numbers, edits)
        try:
            self._ranks.prepare(edits)
        except EngineError:
            # Wrong live bits must not be served; after any other failure serving goes on.
            self._check_live()
            raise
        return prepare_change_writes(changes, values)

    def _write(
        self, changes: Sequence[TensorChange], writes: Sequence[Write], undo: Sequence[Units], then: Write
    ) -> float:
        def write_live() -> None:
            self._ranks.write()
            then()

        self._writer.write(changes, writes, undo)
        try:
            return self._handoff.offer(self._target.version if self._target is not None else -1, write_live)
        except BaseException as error:
            write_back(changes, undo)
            if isinstance(error, UnvouchedError):
                self._refuse(str(error))
            raise
