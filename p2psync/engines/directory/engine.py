"""A directory whose `current` is byte-identical to the published checkpoint.

Theory of operation. There are two slots, each a whole checkpoint; `current` is a link to the live one (`live_slot`). A
path is applied to the *second* slot (`second_slot`), in place and in O(changed), while readers use the live one. The
commit is the switch of the link.

Crashes. Before the first write to the second slot it is durably marked dirty. A dirty slot is never trusted: it is
compared with the live one before it is used. The live slot is never written. After a power loss (another boot id) page
caches may have been lost, so the live slot's digest is recomputed before it is trusted. `state` describes the files.

Damage. The live slot is checked every second, and the engine falls back to the version before, or to nothing, where its
bits are wrong (`live_slot`). The follower then resolves again, as from any other position.

Readers that open files of `current` one after another may hold `flock -s DIR/current COMMAND` meanwhile. A slot is not
changed while a reader holds that lock on it; a reader that asks while it is changed waits until it is live again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.base import ChunkReader, CommitResult, PathStep, Position, rows_after
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.directory import seals
from p2psync.engines.directory.in_place_apply import CrashHook, LocalTensors, PathApplier
from p2psync.engines.directory.live_slot import LiveSlot
from p2psync.engines.directory.second_slot import SecondSlot
from p2psync.engines.directory.slots import disk_errors_as_engine_errors, mirror_files, remove_others
from p2psync.engines.directory.stage import DirectoryStage
from p2psync.engines.directory.state import DirectoryFiles, SlotName, boot_id, other_slot
from p2psync.engines.path_checks import check_path, position_of
from p2psync.errors import DigestMismatchError, EngineError, FormatError

#: How long a stage waits for readers of the slot that it will change (seconds), unless told otherwise.
DEFAULT_READER_LIMIT = 30.0


class DirectoryEngine:
    """Keeps `root/current`. One process at a time, one thread at a time; a context manager."""

    def __init__(
        self,
        root: Path,
        chunk_reader: ChunkReader,
        *,
        prefill: Path | None = None,
        reader_limit: float = DEFAULT_READER_LIMIT,
        boot: str | None = None,
        hook: CrashHook | None = None,
    ) -> None:
        """Opens `root`. Makes nothing before the first stage or adoption.

        prefill: a checkpoint on this machine whose tensors are taken where an anchor has the same. reader_limit:
        seconds that a stage waits for readers of the slot that it will change. boot: the boot id, if not the kernel's.
        hook: called with the name of each point at which a test may end the process.

        Repairs the link after a crash. After a reboot, or if another process wrote to the live slot, digests it (reads
        all of it). Raises `EngineError` if `root/current` was not made by an engine, or another process keeps it.
        """
        self._directory = DirectoryFiles(root)
        self._prefill = prefill
        hook = hook or (lambda name: None)
        self._live = LiveSlot(self._directory, boot or boot_id(), hook, self._before_fallback)
        self._second = SecondSlot(self._directory, self._live, chunk_reader, reader_limit, hook)
        #: Applies the path of the open stage; None if no stage is open.
        self._applier: PathApplier | None = None
        #: Whether the record of what the weights are was lost.
        self._state_lost = False
        if self._directory.exists():
            self._directory.acquire()
            try:
                state = self._directory.load(self._live.damage.append)
                self._state_lost = state is None
                self._live.recover(state or self._directory.state_from_link())
            except BaseException:
                self._directory.release()
                raise

    def __enter__(self) -> DirectoryEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def position(self) -> Position | None:
        """See `Engine.position`."""
        return self._live.position

    @property
    def live(self) -> Checkpoint | None:
        """The checkpoint that `current` names, open for reading; None if there is none that can be read."""
        return self._live.checkpoint

    def table(self) -> Sequence[TensorSpec]:
        """See `Engine.table`."""
        return self._live.checkpoint.specs if self._live.checkpoint is not None else ()

    def units(self, spec: TensorSpec) -> Units:
        """See `Engine.units`. The array may be unaligned."""
        if self._live.checkpoint is None:
            raise EngineError(f"{self._directory.root} holds no version yet")
        return self._live.checkpoint.units(spec)

    def adopt(self, position: Position) -> bool:
        """See `Engine.adopt`: of `current` if there is one, else of the prefill, which is copied. Reads everything."""
        self._drop_applier()
        self._live.check_seal()
        live, state = self._live.checkpoint, self._live.state
        if live is not None and state.live is not None and _has(live, position):
            self._make_live(state.live, position, undo=False)
            return True
        if self._prefill is None or self.position is not None:
            return False
        try:
            source = Checkpoint.open(self._prefill)
        except FormatError as error:
            self._live.damage.append(f"{error}: it is of no use, everything is fetched")
            return False
        with source:
            if not _has(source, position):
                return False
            second = self._second.begin(source.layout.nbytes)
            with disk_errors_as_engine_errors(self._directory.slot(second)):
                mirror_files(source.files, self._directory.slot(second))
        with Checkpoint.open(self._directory.slot(second)) as copied:
            if copied.digest() != position.digest:
                raise EngineError(f"{self._prefill} changed while it was copied: let its writer end, and try again")
        self._make_live(second, position, undo=False)
        return True

    def unidentified_digest(self) -> str:
        """See `InspectableEngine.unidentified_digest`."""
        live = self._live.checkpoint
        if not self._state_lost or live is None or self.position is not None:
            return ""
        try:
            return live.digest().hex()
        except FormatError:
            return ""

    def stage(self, path: Sequence[PathStep]) -> DirectoryStage:
        """See `Engine.stage`.

        Also raises `FormatError` for names or sizes that no checkpoint has, and `EngineError` if readers keep the
        second slot or the disk has not enough free space; then nothing was changed. Raises `EngineError`, too, if the
        live slot turns out to be damaged: `position` is then another one.
        """
        before = self.position
        self._live.check_seal()
        if self.position != before:
            raise EngineError(self._live.damage.pop())
        check_path(path, self.position, self.table())
        if self._applier is not None and self._applier.can_switch_to(path):
            self._applier.switch_to(path)
        else:
            self._drop_applier()
            self._applier = self._new_applier(path)
        self._applier.advance()
        return DirectoryStage(self, self._applier)

    def roll_back(self) -> Position | None:
        """See `Engine.roll_back`. The other slot holds the version before until a stage starts to change it."""
        state = self._live.state
        if not state.undo or state.live is None:
            raise EngineError("the version before is not there any more: nothing to roll back to")
        self._drop_applier()
        before = other_slot(state.live)
        held = self._live.state.slot(before)
        if held.position is None or seals.seal_of(self._directory.slot(before)) != held.seal:
            raise EngineError("the slot of the version before was changed since: it cannot be rolled back to")
        self._make_live(before, held.position, undo=False)
        return held.position

    def scrub(self) -> bool:
        """See `Engine.scrub`. Where bits are wrong, `position` is the version before, or None, from then on."""
        before = self.position
        if before is not None:
            self._live.settle()
        return self.position == before

    def inspect(self) -> list[str]:
        """See `InspectableEngine.inspect`. Raises `EngineError` if the disk refuses to record what was found."""
        self._live.check_seal()
        if self.position is not None:
            self._live.relink()
        found, self._live.damage = self._live.damage, []
        return found

    def close(self) -> None:
        """Releases the directory; `current` stays as it is."""
        self._drop_applier()
        self._second.unlock()
        self._live.close()
        self._directory.release()

    # ---- for `DirectoryStage` --------------------------------------------------------------------------------------

    def is_open(self, applier: PathApplier) -> bool:
        """See `StageOwner`."""
        return self._applier is applier

    def commit_stage(self, applier: PathApplier, seconds: float) -> CommitResult:
        """See `StageOwner`."""
        if not applier.complete:
            missing = sum(len(applier.wanted(step)) for step in range(len(applier.path)))
            raise EngineError(f"{missing} chunks were not put yet: put them before the commit")
        if applier.mismatch is not None:
            self._drop_applier()
            raise DigestMismatchError(
                f"version {applier.mismatch} does not have the digest that its manifest signs; nothing was made live"
            )
        position = position_of(applier.path[-1].manifest)
        try:
            applier.target.verify()
        except FormatError as error:
            self._drop_applier()
            raise EngineError(f"{error}: stage again") from error
        old = self._live.checkpoint
        pause = self._make_live(self._second.name, position, undo=self.position is not None)
        self._second.last_path = applier.path if applier.path[0].manifest.base is not None else ()
        self._applier = None
        if old is not None:
            old.close()
        return CommitResult(position=position, changed=applier.changed, pause_seconds=pause, stage_seconds=seconds)

    def abandon_stage(self, applier: PathApplier) -> None:
        """See `StageOwner`."""
        if self._applier is applier and not applier.touched:
            self._drop_applier()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _new_applier(self, path: Sequence[PathStep]) -> PathApplier:
        needed = max(sum(spec.nbytes for spec in rows_after(step.manifest.rows())) for step in path)
        if path[0].manifest.base is None:
            local = self._local_tensors()
            second = self._second.begin(needed)
            with disk_errors_as_engine_errors(self._directory.slot(second)):
                remove_others(self._directory.slot(second), {})
            return self._second.applier(None, b"", path, local)
        assert self._live.checkpoint is not None and self.position is not None
        self._second.begin(max(needed, self._live.checkpoint.layout.nbytes))
        self._second.update()
        return self._second.applier(self._second.open(), self.position.digest, path, LocalTensors([]))

    def _local_tensors(self) -> LocalTensors:
        found: list[Checkpoint] = []
        if self._prefill is not None:
            with suppress(FormatError):  # it was removed or damaged since: then it is of no use
                found.append(Checkpoint.open(self._prefill))
        if self._live.checkpoint is not None:
            found.append(self._live.checkpoint)
        return LocalTensors(found)

    def _make_live(self, slot: SlotName, position: Position, *, undo: bool) -> float:
        """Makes `slot` live and lets readers in; returns the seconds that the switch of the link took."""
        pause = self._live.switch(slot, position, undo=undo)
        self._second.unlock()
        self._live.sync_link()
        return pause

    def _drop_applier(self) -> None:
        """Forgets the open path. If it wrote nothing, records that the second slot holds the live version."""
        applier, self._applier = self._applier, None
        if applier is None or applier.touched or applier.path[0].manifest.base is None:
            return
        self._live.save(self._live.state.with_slot(self._second.name, self.position, self._second.seal))
        self._second.unlock()

    def _before_fallback(self) -> None:
        self._drop_applier()
        self._second.last_path = ()


def _has(checkpoint: Checkpoint, position: Position) -> bool:
    """Returns whether a checkpoint has the digest of `position`; False if it cannot be read."""
    try:
        return checkpoint.digest() == position.digest
    except FormatError:
        return False
