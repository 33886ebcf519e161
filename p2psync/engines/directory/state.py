"""What a directory engine must remember over a crash, in one small file, and the link that readers follow.

    DIR/current                     → .p2psync/slots/a or …/b: the live version
    DIR/.p2psync/lock               held by the one process that writes here
    DIR/.p2psync/state.json         the live slot, each slot's position, and whether its bits can be trusted
    DIR/.p2psync/slots/{a,b}/       two whole checkpoints
    DIR/.p2psync/build/             files being laid out anew

The state decides which slot is live; the link follows it, and is repaired at the next start if a crash came between.
All of `.p2psync` is the engine's: what is damaged there is moved away and made anew. `current` is replaced only while
it is a link; a file or a directory at its place is somebody's, and refused.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from p2psync.engines.base import Position
from p2psync.engines.directory.seals import NO_SEAL
from p2psync.errors import EngineError, StoreError
from p2psync.store.disk import disk_errors, is_at, lock, sync_directory
from p2psync.store.records import clear, make_directory, recover_record, save_record

SlotName = Literal["a", "b"]
_OURS = ".p2psync"


class SlotState(msgspec.Struct, frozen=True):
    """position: the version in the slot; None: it is dirty, empty, or of unknown standing. seal: see `seal_of`."""

    position: Position | None = None
    seal: str = NO_SEAL


class DirectoryState(msgspec.Struct, frozen=True):
    """live: the slot that `current` names, if any. undo: the other slot holds the version before. boot: boot id."""

    boot: str
    live: SlotName | None = None
    a: SlotState = SlotState()
    b: SlotState = SlotState()
    undo: bool = False

    def slot(self, name: SlotName) -> SlotState:
        """The state of one slot."""
        return self.a if name == "a" else self.b

    def with_slot(
        self, name: SlotName, position: Position | None, seal: str = NO_SEAL, **others: object
    ) -> DirectoryState:
        """A copy in which slot `name` holds `position` under `seal`; `others` are further fields to replace."""
        return msgspec.structs.replace(self, **{name: SlotState(position, seal)}, **others)


def other_slot(name: SlotName) -> SlotName:
    """The other of the two slots."""
    return "b" if name == "a" else "a"


def boot_id() -> str:
    """The kernel's id of this boot; where it tells none, a new one each time, so that nothing unproved is trusted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return uuid.uuid4().hex


class EngineDirectory:
    """The paths of one directory engine, its state file and its link."""

    def __init__(self, root: Path) -> None:
        """Look at `root`, which need not exist. Raises `EngineError` if its `current` is not ours."""
        self.root = root
        self.link = root / "current"
        self.build = root / _OURS / "build"
        self._held: int | None = None
        if not (self.link.is_symlink() if self.exists() else self._target() is not None):
            self.refuse_foreign()

    def slot(self, name: SlotName) -> Path:
        """The directory of a slot."""
        return self.root / _OURS / "slots" / name

    def exists(self) -> bool:
        """Whether an engine has written here before."""
        return (self.root / _OURS / "slots").exists()

    def refuse_foreign(self) -> None:
        """Raise `EngineError` if anything stands at the link's place."""
        if self.link.is_symlink() or self.link.exists():
            raise EngineError(f"{self.link} is not a link made by p2psync: move it away, or choose another directory")

    def acquire(self) -> None:
        """Make the directories if need be, and take the lock. Raises `EngineError` if another process has it."""
        place = self.root / _OURS / "lock"
        with _refusals():
            for directory in (self.root / _OURS, self.root / _OURS / "slots", self.slot("a"), self.slot("b")):
                make_directory(directory)
            if self._held is not None and is_at(self._held, place):
                return
            self.release()
            with disk_errors(self.root):
                self._held = lock(place)
        if self._held is None:
            raise EngineError(f"{self.root} is kept by another process: stop it, or choose another directory")
        with suppress(OSError):  # then whoever builds there says so
            clear(self.build)

    def release(self) -> None:
        """Give the lock back."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def load(self, tell: Callable[[str], None]) -> DirectoryState | None:
        """The state; None where none was written, or it is damaged, which is told. Raises `EngineError`."""
        path = self.root / _OURS / "state.json"
        with _refusals():
            return recover_record(
                path, DirectoryState, tell, "the weights at hand are compared with the versions published"
            )

    def state_from_link(self) -> DirectoryState:
        """The state where it is lost: what the link says. Of the slots nothing is believed; their bits are at hand."""
        return DirectoryState(boot_id(), self._target())

    def save(self, state: DirectoryState) -> None:
        """Write the state durably. Raises `EngineError`."""
        with _refusals():
            save_record(self.root / _OURS / "state.json", state)

    def names(self, name: SlotName | None) -> bool:
        """Whether `current` names this slot (None: nothing stands there)."""
        if name is None:
            return not (self.link.is_symlink() or self.link.exists())
        return self._target() == name

    def switch(self, name: SlotName | None) -> None:
        """Make `current` name a slot, atomically, or nothing. Raises OSError, and `EngineError` for what is no link."""
        if self.names(name):
            return
        if not self.link.is_symlink():
            self.refuse_foreign()
        if name is None:
            self.link.unlink(missing_ok=True)
            return
        temporary = self.root / _OURS / "current.tmp"
        clear(temporary)
        temporary.symlink_to(f"{_OURS}/slots/{name}")
        temporary.replace(self.link)

    def settle(self) -> None:
        """Make the link itself durable."""
        sync_directory(self.root)

    def _target(self) -> SlotName | None:
        if not self.link.is_symlink():
            return None
        target = str(self.link.readlink())
        names: tuple[SlotName, SlotName] = ("a", "b")
        return next((name for name in names if target == f"{_OURS}/slots/{name}"), None)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise EngineError(str(error)) from error
