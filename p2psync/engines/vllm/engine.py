"""The live weights of a vLLM engine, all its ranks, as one place that holds one version.

Theory of operation. Rank 0 keeps a *mirror*: the published checkpoint's bits in host memory, in checkpoint coordinates,
which the live parameters of all ranks are known to hold, each its part (`livemap`). A version is staged against the
mirror as against any module, whatever its profile, without a question to a device. What changes goes to all ranks,
which compare their live bits with the old ones and make their writes ready (`ranks`); the mirror itself is written, as
nobody reads it; and then the commit waits at the crossing for a pause, in which only the new bits are written. What
fails is undone, in the live weights and in the mirror.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from p2psync.delta.tensors import Kind, TensorSpec, Units
from p2psync.engines.module.engine import ModuleEngine
from p2psync.engines.module.staging import TensorChange, prepare_change_writes
from p2psync.engines.module.writer import Write, write_back
from p2psync.engines.vllm.commit_handoff import CommitHandoff
from p2psync.engines.vllm.equal_tensors import check_still_equal
from p2psync.engines.vllm.loader_probe import units_to_tensor
from p2psync.engines.vllm.rank_writer import Edit
from p2psync.engines.vllm.ranks import Ranks
from p2psync.errors import EngineError, UnvouchedError
from p2psync.protocol.versions import Position


class LiveEngine(ModuleEngine):
    """What rank 0's node drives. One thread drives it; another one, in vLLM's pause, takes what it offers."""

    def __init__(
        self,
        ranks: Ranks,
        weights: Mapping[TensorSpec, Units],
        files: Mapping[str, bytes],
        handoff: CommitHandoff,
        refuse: Callable[[str], None],
        equal_tensors: Mapping[TensorSpec, TensorSpec] | None = None,
    ) -> None:
        """ranks: whose hands are ready. weights: the mirror, by TENSOR specs; it is kept, and written. files: headers
        and other files of the checkpoint. refuse: called when the live weights cannot be vouched for any more. twins:
        tensors that the loader leaves out, and those that must stay equal to them (`equal_tensors`)."""
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
        """See `Engine.units`. With one rank what is live; with several the mirror, see `scrub`."""
        units = super().units(spec)
        if self._ranks.size > 1 or spec.kind != Kind.TENSOR:
            return units
        live = units.copy()
        self._ranks.writer.gather_into(self._numbers[spec], live)
        return live

    def scrub(self) -> bool:
        """See `Engine.scrub`: the mirror and the live bits of all ranks. If these are wrong, nothing is served any
        more."""
        return self._check_live() and super().scrub()

    def close(self) -> None:
        """Send away a commit that waits. See `ClosableEngine`."""
        self._handoff.close()

    def _check_live(self) -> bool:
        sound = self._ranks.sound()
        if not sound:
            self._refuse("live weights are not what was committed: memory is at fault, or something else wrote them")
        return sound

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
            # What does not fit a version may be served no longer; what merely failed may.
            self._check_live()
            raise
        return prepare_change_writes(changes, values)

    def _write(
        self, changes: Sequence[TensorChange], writes: Sequence[Write], undo: Sequence[Units], then: Write
    ) -> float:
        def cross() -> None:
            self._ranks.write()
            then()

        self._writer.write(changes, writes, undo)
        try:
            return self._handoff.offer(self._target.version if self._target is not None else -1, cross)
        except BaseException as error:
            write_back(changes, undo)
            if isinstance(error, UnvouchedError):
                self._refuse(str(error))
            raise
