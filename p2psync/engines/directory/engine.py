"""A directory whose `current` is byte-identical to the published checkpoint.

Theory of operation. There are two slots, each a whole checkpoint; `current` is a link to the live one. A path is
applied to the *second* slot, in place and in O(changed), while readers use the live one; the commit is the switch of
the link. The second slot is usually one path behind: it is first brought to the live version, by applying the last
path's chunks again if the store still holds them, else by comparing it with the live slot and writing what differs.

Crashes. Before the first write to the second slot it is durably marked as dirty, and a dirty slot is never trusted: it
is compared with the live one. The live slot is never written to. After a power loss (another boot id) page caches may
have been lost, so the live slot's digest is recomputed before it is trusted. `state` tells what is on disk.

Damage. A slot that is left alone has a seal (`seals`), which differs as soon as anyone else writes there, removes a
file or adds one. A slot is used only under its seal; the live one is looked at every second. Under another seal the
digest decides (`_settle`): the live slot stays, or the other one becomes live, with the version before, if its digest
is right, or nothing is live and `current` goes. From there the follower resolves anew, as from any other position.

Readers that open files of `current` one after the other may hold `flock -s DIR/current COMMAND` meanwhile: a slot is
not patched while someone holds that lock on it, and a reader who asks while it is patched waits until it is live again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec

from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.base import ChunkBytes, ChunkReader, CommitResult, Position, Step, rows_after
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.directory.in_place_apply import CrashHook, LocalTensors, PathApplier
from p2psync.engines.directory.seals import NO_SEAL, seal_of
from p2psync.engines.directory.slots import (
    check_free_space,
    disk_bytes,
    disk_errors_as_engine_errors,
    lock_out_readers,
    mirror_files,
    remove_others,
)
from p2psync.engines.directory.state import DirectoryState, EngineDirectory, SlotName, boot_id, other_slot
from p2psync.engines.path_checks import check_path, position_of
from p2psync.errors import DigestMismatchError, EngineError, FormatError
from p2psync.store.records import open_up

#: How long a stage waits for readers of the slot that it is about to patch (seconds), unless told otherwise.
DEFAULT_READER_LIMIT = 30.0


class DirectoryStage:
    """A path being applied to the second slot."""

    def __init__(self, engine: DirectoryEngine, patch: PathApplier) -> None:
        self._engine = engine
        self._patch = patch
        self._seconds = 0.0
        self._open = True

    def wanted(self, step: int) -> Sequence[int]:
        """See `Stage.wanted`: chunks of path[step] that were not put yet and are not at hand."""
        return self._patch.wanted(step)

    def put(self, step: int, chunks: Mapping[int, ChunkBytes]) -> None:
        """See `Stage.put`. Chunks that were put before, or are not wanted, are passed over.

        A chunk of a step whose turn has not come is read again through the chunk reader later, so keep it in the store.
        """
        self._check_open()
        begun = time.perf_counter()
        try:
            self._patch.put(step, chunks)
        finally:
            self._seconds += time.perf_counter() - begun

    def commit(self) -> CommitResult:
        """See `Stage.commit`."""
        self._check_open()
        commit = self._engine._commit(self._patch, self._seconds)
        self._open = False
        return commit

    def abandon(self) -> None:
        """See `Stage.abandon`. What was applied is kept for a later stage whose path begins with the same steps."""
        if self._open:
            self._open = False
            self._engine._abandon(self._patch)

    def _check_open(self) -> None:
        if not self._open or self._engine._patch is not self._patch:
            raise EngineError("this stage was committed or abandoned: stage again")


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
        """Open `root`; nothing is made before the first stage or adoption.

        prefill: a checkpoint on this machine whose tensors are taken where an anchor has the same. reader_limit:
        seconds that a stage waits for readers of the slot it will patch. boot: the boot id, if not the kernel's.
        hook: called with the name of each point at which a test may end the process.

        After a crash the link is repaired here, and after a reboot, or where someone else wrote to it, the live slot is
        digested (reads all of it).
        Raises `EngineError` if `root/current` is not ours, or another process keeps it.
        """
        self._home = EngineDirectory(root)
        self._reader = chunk_reader
        self._prefill = prefill
        self._reader_limit = reader_limit
        self._hook: CrashHook = hook or (lambda name: None)
        self._boot = boot or boot_id()
        self._state = DirectoryState(self._boot)
        self._live: Checkpoint | None = None
        self._patch: PathApplier | None = None
        self._trail: tuple[Step, ...] = ()
        self._second_was: Position | None = None
        #: The seal of the second slot when it was brought to the live version.
        self._brought = NO_SEAL
        self._lock: tuple[SlotName, int] | None = None
        #: Whether it is not known what the weights at hand are.
        self._unknown = False
        #: What `inspect` has to tell, and what keeps the link from being made anew.
        self._found: list[str] = []
        self._link_trouble = ""
        if self._home.exists():
            self._home.acquire()
            try:
                state = self._home.load(self._found.append)
                self._unknown = state is None
                self._recover(state or self._home.state_from_link())
            except BaseException:
                self._home.release()
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
        return self._state.slot(self._state.live).position if self._state.live is not None else None

    @property
    def live(self) -> Checkpoint | None:
        """The checkpoint that `current` names, open for reading; None if there is none that can be read."""
        return self._live

    def table(self) -> Sequence[TensorSpec]:
        """See `Engine.table`."""
        return self._live.specs if self._live is not None else ()

    def units(self, spec: TensorSpec) -> Units:
        """See `Engine.units`. The array may be unaligned."""
        if self._live is None:
            raise EngineError(f"{self._home.root} holds no version yet")
        return self._live.units(spec)

    def adopt(self, position: Position) -> bool:
        """See `Engine.adopt`: of `current` if there is one, else of the prefill, which is copied. Reads everything."""
        self._drop_patch()
        self._notice()
        if self._live is not None and self._state.live is not None and _has(self._live, position):
            self._make_live(self._state.live, position, undo=False)
            return True
        if self._prefill is None or self.position is not None:
            return False
        try:
            source = Checkpoint.open(self._prefill)
        except FormatError as error:
            self._found.append(f"{error}: it is of no use, everything is fetched")
            return False
        with source:
            if not _has(source, position):
                return False
            second = self._begin_second(source.layout.nbytes)
            with disk_errors_as_engine_errors(self._home.slot(second)):
                mirror_files(source.files, self._home.slot(second))
        with Checkpoint.open(self._home.slot(second)) as copied:
            if copied.digest() != position.digest:
                raise EngineError(f"{self._prefill} changed while it was copied: let its writer end, and try again")
        self._make_live(second, position, undo=False)
        return True

    def unidentified_digest(self) -> str:
        """See `InspectableEngine.unidentified_digest`."""
        if not self._unknown or self._live is None or self.position is not None:
            return ""
        try:
            return self._live.digest().hex()
        except FormatError:
            return ""

    def stage(self, path: Sequence[Step]) -> DirectoryStage:
        """See `Engine.stage`. Also raises `FormatError` for names or sizes that no checkpoint has, and `EngineError`
        if readers keep the second slot or the disk has no room; then nothing was changed. Raises it, too, if the live
        slot turns out to be damaged: `position` is another one then."""
        before = self.position
        self._notice()
        if self.position != before:
            raise EngineError(self._found.pop())
        check_path(path, self.position, self.table())
        if self._patch is not None and self._patch.follows(path):
            self._patch.reroute(path)
        else:
            self._drop_patch()
            self._patch = self._new_patch(path)
        self._patch.advance()
        return DirectoryStage(self, self._patch)

    def roll_back(self) -> Position | None:
        """See `Engine.roll_back`. The other slot holds the version before until a stage begins to patch it."""
        if not self._state.undo or self._state.live is None:
            raise EngineError("the version before is not there any more: nothing to roll back to")
        self._drop_patch()
        before = other_slot(self._state.live)
        position = self._state.slot(before).position
        if position is None or seal_of(self._home.slot(before)) != self._state.slot(before).seal:
            raise EngineError("the slot of the version before was patched since: it cannot be rolled back to")
        self._make_live(before, position, undo=False)
        return position

    def scrub(self) -> bool:
        """See `Engine.scrub`. Where bits are wrong, `position` is the version before, or None, from then on."""
        before = self.position
        if before is not None:
            self._settle()
        return self.position == before

    def inspect(self) -> list[str]:
        """See `InspectableEngine.inspect`. Raises `EngineError` if the disk refuses to note what was found."""
        self._notice()
        if self.position is not None:
            self._relink()
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """Give the directory back; `current` stays as it is."""
        self._drop_patch()
        self._unlock()
        if self._live is not None:
            self._live.close()
        self._home.release()

    # ---- staging

    def _new_patch(self, path: Sequence[Step]) -> PathApplier:
        needed = max(sum(spec.nbytes for spec in rows_after(step.manifest.rows())) for step in path)
        if path[0].manifest.base is None:
            local = self._local_copy()
            second = self._begin_second(needed)
            with disk_errors_as_engine_errors(self._home.slot(second)):
                remove_others(self._home.slot(second), {})
            return self._patch_of(second, None, b"", path, local)
        assert self._live is not None and self.position is not None
        second = self._begin_second(max(needed, self._live.layout.nbytes))
        self._bring_up(second)
        self._brought = seal_of(self._home.slot(second))
        base = Checkpoint.open(self._home.slot(second), writable=True)
        if base.layout != self._live.layout:
            raise EngineError(f"{base.root} was changed by someone else: stage again")
        return self._patch_of(second, base, self.position.digest, path, LocalTensors([]))

    def _patch_of(
        self, slot: SlotName, base: Checkpoint | None, digest: bytes, path: Sequence[Step], local: LocalTensors
    ) -> PathApplier:
        place = self._home.slot(slot)
        return PathApplier(place, self._home.build, base, digest, path, self._reader, local, self._hook)

    def _begin_second(self, nbytes: int) -> SlotName:
        """Choose the second slot, keep readers out of it, and mark it as dirty; `nbytes`: what it will hold."""
        self._home.acquire()
        second: SlotName = other_slot(self._state.live) if self._state.live is not None else "a"
        place = self._home.slot(second)
        with disk_errors_as_engine_errors(place):
            open_up(place)
            check_free_space(place, max(0, nbytes - disk_bytes(place)))
            if self._lock is None or self._lock[0] != second:
                self._unlock()
                self._lock = (second, lock_out_readers(place, self._reader_limit))
        held = self._state.slot(second)
        self._second_was = held.position if held.seal == seal_of(place) else None
        self._save(self._state.with_slot(second, None, undo=False))
        self._hook("dirty")
        return second

    def _bring_up(self, second: SlotName) -> None:
        """Make the second slot hold the live version."""
        if self._second_was != self.position and not self._retrace(second):
            assert self._live is not None
            with disk_errors_as_engine_errors(self._home.slot(second)):
                mirror_files(self._live.files, self._home.slot(second))
            # All of it was read just now anyway: so this is the moment to see that the live bits are still right.
            with Checkpoint.open(self._home.slot(second)) as copy:
                if self.position is not None and copy.digest() != self.position.digest:
                    raise DigestMismatchError(f"{self._home.link} is no longer version {self.position.version}")
        self._hook("brought up")

    def _retrace(self, second: SlotName) -> bool:
        """Apply the last path again, to the slot that it started from; False if it cannot be or did not work out."""
        trail, was, now = self._trail, self._second_was, self.position
        if was is None or now is None or not trail or trail[0].manifest.base != was.version:
            return False
        if trail[0].manifest.base_digest != was.digest or trail[-1].manifest.digest != now.digest:
            return False
        try:
            base = Checkpoint.open(self._home.slot(second), writable=True)
            patch = self._patch_of(second, base, was.digest, trail, LocalTensors([]))
            patch.advance()
            for index, step in enumerate(trail):
                for chunk in patch.wanted(index):
                    data = self._reader(step.id, chunk)
                    if data is None:
                        return False
                    patch.put(index, {chunk: data})
        except (EngineError, FormatError, OSError):
            return False  # whatever it was, comparing with the live slot mends it
        return patch.complete and patch.mismatch is None

    def _local_copy(self) -> LocalTensors:
        found: list[Checkpoint] = []
        if self._prefill is not None:
            with suppress(FormatError):  # it was removed or damaged since: then it is of no use
                found.append(Checkpoint.open(self._prefill))
        if self._live is not None:
            found.append(self._live)
        return LocalTensors(found)

    # ---- damage

    def _notice(self) -> None:
        """Where someone else wrote to the live slot, find out whether its bits are still right."""
        live = self._state.live
        if live is None or self.position is None:
            return
        if seal_of(self._home.slot(live)) != self._state.slot(live).seal:
            self._settle()

    def _settle(self) -> None:
        """Find out anew what is live, by digests: the slot that was, or else the other, or else nothing is."""
        live, was = self._state.live, self.position
        assert live is not None and was is not None
        wrong: list[str] = []
        for name in (live, other_slot(live)):
            slot, position = self._home.slot(name), self._state.slot(name).position
            if position is None:
                continue
            seal = seal_of(slot)
            try:
                checkpoint = _open_sound(slot, position)
                if seal == NO_SEAL:
                    raise FormatError(f"{slot} has links in it, or other things that are no files")
            except FormatError as error:
                if not wrong:
                    # A stage that wrote nothing yet leaves the very version that is damaged in the other slot.
                    self._drop_patch()
                wrong.append(str(error))
                self._save(self._state.with_slot(name, None, undo=False))
                continue
            self._take(checkpoint)
            undo = self._state.undo and name == live
            self._save(self._state.with_slot(name, position, seal, live=name, undo=undo))
            break
        else:
            self._take(None)
        self._relink(moved=bool(wrong))
        if wrong:
            self._trail = ()
            now = f"version {self.position.version} is live" if self.position is not None else "nothing is live"
            self._found.append(f"version {was.version} is damaged here ({wrong[0]}): {now} until it is mended")

    def _take(self, checkpoint: Checkpoint | None) -> None:
        """Read the live version from `checkpoint`; None: from none, but what is whole of the last is a local copy."""
        if checkpoint is None:
            with suppress(FormatError):
                checkpoint = Checkpoint.open(self._home.slot(self._state.live or "a"))
        if checkpoint is not None:
            if self._live is not None:
                self._live.close()
            self._live = checkpoint

    def _relink(self, *, moved: bool = False) -> None:
        """Make `current` name what is live. moved: what is live has just changed, so that there is nothing to tell."""
        name = self._state.live if self.position is not None else None
        if self._home.names(name):
            return
        try:
            self._home.switch(name)
        except (OSError, EngineError) as error:
            why = str(error) if isinstance(error, EngineError) else f"{self._home.link}: {error.strerror or error}"
            if why != self._link_trouble:
                self._found.append(why)
            self._link_trouble = why
            return
        self._link_trouble = ""
        if not moved:
            self._found.append(f"{self._home.link} was removed or led elsewhere: made anew")

    # ---- ending a stage

    def _commit(self, patch: PathApplier, seconds: float) -> CommitResult:
        if not patch.complete:
            missing = sum(len(patch.wanted(step)) for step in range(len(patch.path)))
            raise EngineError(f"{missing} chunks were not put yet: put them before the commit")
        if patch.mismatch is not None:
            self._drop_patch()
            raise DigestMismatchError(
                f"version {patch.mismatch} does not have the digest that its manifest signs; nothing was made live"
            )
        manifest = patch.path[-1].manifest
        try:
            patch.target.verify()
        except FormatError as error:
            self._drop_patch()
            raise EngineError(f"{error}: stage again") from error
        second = self._second()
        old = self._live
        had = self.position
        pause = self._make_live(second, position_of(manifest), undo=had is not None)
        self._trail = patch.path if patch.path[0].manifest.base is not None else ()
        self._patch = None
        if old is not None:
            old.close()
        return CommitResult(
            position=position_of(manifest), changed=patch.changed, pause_seconds=pause, stage_seconds=seconds
        )

    def _abandon(self, patch: PathApplier) -> None:
        if self._patch is patch and not patch.touched:
            self._drop_patch()

    def _second(self) -> SlotName:
        assert self._lock is not None
        return self._lock[0]

    def _drop_patch(self) -> None:
        """Forget the open patch. A slot that it never wrote to holds the live version, and is worth knowing."""
        patch, self._patch = self._patch, None
        if patch is None or patch.touched or patch.path[0].manifest.base is None:
            return
        self._save(self._state.with_slot(self._second(), self.position, self._brought))
        self._unlock()

    def _make_live(self, slot: SlotName, position: Position, *, undo: bool) -> float:
        """Record that `slot` is live, switch the link, let readers in; returns seconds of the switch."""
        before = self._state
        self._save(before.with_slot(slot, position, seal_of(self._home.slot(slot)), live=slot, undo=undo))
        self._hook("recorded")
        try:
            live = Checkpoint.open(self._home.slot(slot))
            begun = time.perf_counter()
            self._home.switch(slot)
            pause = time.perf_counter() - begun
        except (OSError, FormatError) as error:
            self._save(before)
            raise EngineError(f"{self._home.link} cannot be switched ({error}): check the disk") from error
        self._live = live
        self._unlock()
        with suppress(OSError):  # the state is durable, and the link follows it
            self._home.settle()
        self._hook("switched")
        return pause

    def _save(self, state: DirectoryState) -> None:
        if state != self._state:
            self._home.save(state)
            self._state = state

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock[1])
            self._lock = None

    # ---- starting after a crash

    def _recover(self, state: DirectoryState) -> None:
        rebooted = state.boot != self._boot
        self._state = msgspec.structs.replace(state, boot=self._boot)
        if state.live is None:
            return
        if self.position is None:
            self._take(None)
            return
        slot = self._home.slot(state.live)
        if rebooted or seal_of(slot) != state.slot(state.live).seal:
            self._settle()
        else:
            try:
                self._live = Checkpoint.open(slot)
            except FormatError:
                self._settle()
        if rebooted and self._state.live == state.live:
            # Of the other slot, too, pages may have been lost; it is compared with the live one before it is used.
            self._save(self._state.with_slot(other_slot(state.live), None, undo=False))
        self._relink(moved=True)


def _open_sound(slot: Path, position: Position) -> Checkpoint:
    """The checkpoint in a slot, if it has the digest of `position`. Raises `FormatError`."""
    checkpoint = Checkpoint.open(slot)
    try:
        if checkpoint.digest() != position.digest:
            raise FormatError(f"{slot} has other bits than were committed")
    except BaseException:
        checkpoint.close()
        raise
    return checkpoint


def _has(checkpoint: Checkpoint, position: Position) -> bool:
    """Whether a checkpoint has the digest of `position`; one that cannot be read has not."""
    try:
        return checkpoint.digest() == position.digest
    except FormatError:
        return False
