"""The second slot of a directory engine: locked, marked dirty, and brought to the live version before it is changed.

The second slot is usually one path behind the live one. It is brought to the live version by applying the last path's
chunks again if the store still holds them, else by comparing it with the live slot and writing what differs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from p2psync.engines.base import ChunkReader, PathStep, Position
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.directory import seals
from p2psync.engines.directory.in_place_apply import CrashHook, LocalTensors, PathApplier
from p2psync.engines.directory.live_slot import LiveSlot
from p2psync.engines.directory.seals import NO_SEAL
from p2psync.engines.directory.slots import (
    check_free_space,
    disk_bytes,
    disk_errors_as_engine_errors,
    lock_out_readers,
    mirror_files,
)
from p2psync.engines.directory.state import DirectoryFiles, SlotName, other_slot
from p2psync.errors import DigestMismatchError, EngineError, FormatError
from p2psync.store.records import grant_owner_access


class SecondSlot:
    """The slot that is not live."""

    def __init__(
        self, directory: DirectoryFiles, live: LiveSlot, reader: ChunkReader, reader_limit: float, hook: CrashHook
    ) -> None:
        """reader: reads chunks of the store. reader_limit: seconds to wait for readers of the slot."""
        self._directory = directory
        self._live = live
        self._reader = reader
        self._reader_limit = reader_limit
        self._hook = hook
        #: The last committed path of deltas, () if the second slot cannot be brought up by applying it.
        self.last_path: tuple[PathStep, ...] = ()
        #: The version that the slot held when it was marked dirty.
        self._held: Position | None = None
        #: The seal of the slot when it was brought to the live version.
        self.seal = NO_SEAL
        self._lock: tuple[SlotName, int] | None = None

    @property
    def name(self) -> SlotName:
        """The slot, between `begin` and `unlock`."""
        assert self._lock is not None
        return self._lock[0]

    def begin(self, nbytes: int) -> SlotName:
        """Chooses the second slot, locks readers out of it, and durably marks it dirty.

        nbytes: that it will hold. Raises `EngineError` if readers keep it or the disk has not enough free space.
        """
        self._directory.acquire()
        state = self._live.state
        second: SlotName = other_slot(state.live) if state.live is not None else "a"
        slot = self._directory.slot(second)
        with disk_errors_as_engine_errors(slot):
            grant_owner_access(slot)
            check_free_space(slot, max(0, nbytes - disk_bytes(slot)))
            if self._lock is None or self._lock[0] != second:
                self.unlock()
                self._lock = (second, lock_out_readers(slot, self._reader_limit))
        held = state.slot(second)
        self._held = held.position if held.seal == seals.seal_of(slot) else None
        self._live.save(state.with_slot(second, None, undo=False))
        self._hook("dirty")
        return second

    def update(self) -> None:
        """Makes the slot hold the live version. Raises `DigestMismatchError` if the live bits turn out to be wrong."""
        slot, position = self._directory.slot(self.name), self._live.position
        if self._held != position and not self._apply_last_path():
            assert self._live.checkpoint is not None
            with disk_errors_as_engine_errors(slot):
                mirror_files(self._live.checkpoint.files, slot)
            # All of it was read just now: a cheap time to check that the live bits are still right.
            with Checkpoint.open(slot) as copy:
                if position is not None and copy.digest() != position.digest:
                    raise DigestMismatchError(f"{self._directory.link} is no longer version {position.version}")
        self._hook("brought up")
        self.seal = seals.seal_of(slot)

    def applier(
        self, base: Checkpoint | None, digest: bytes, path: Sequence[PathStep], local: LocalTensors
    ) -> PathApplier:
        """Returns what applies `path` to the slot; see `PathApplier`."""
        slot = self._directory.slot(self.name)
        return PathApplier(slot, self._directory.build, base, digest, path, self._reader, local, self._hook)

    def open(self) -> Checkpoint:
        """Opens the slot's checkpoint for writing. Raises `EngineError`, `FormatError`."""
        base = Checkpoint.open(self._directory.slot(self.name), writable=True)
        if self._live.checkpoint is not None and base.layout != self._live.checkpoint.layout:
            raise EngineError(f"{base.root} was changed by someone else: stage again")
        return base

    def unlock(self) -> None:
        """Lets readers in. Again: no effect."""
        if self._lock is not None:
            os.close(self._lock[1])
            self._lock = None

    def _apply_last_path(self) -> bool:
        """Applies the last path again to the slot that it started from; returns False if that is not possible."""
        path, was, now = self.last_path, self._held, self._live.position
        if was is None or now is None or not path or path[0].manifest.base != was.version:
            return False
        if path[0].manifest.base_digest != was.digest or path[-1].manifest.digest != now.digest:
            return False
        try:
            base = Checkpoint.open(self._directory.slot(self.name), writable=True)
            applier = self.applier(base, was.digest, path, LocalTensors([]))
            applier.advance()
            for index, step in enumerate(path):
                for chunk in applier.wanted(index):
                    data = self._reader(step.id, chunk)
                    if data is None:
                        return False
                    applier.put(index, {chunk: data})
        except (EngineError, FormatError, OSError):
            return False  # comparing with the live slot repairs it
        return applier.complete and applier.mismatch is None
