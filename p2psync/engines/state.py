"""What a directory engine must remember over a crash, in one small file, and the link that readers follow.

    DIR/current                     → .p2psync/slots/a or …/b: the live version
    DIR/.p2psync/lock               held by the one process that writes here
    DIR/.p2psync/state.json         the live slot, each slot's position, and whether its bits can be trusted
    DIR/.p2psync/slots/{a,b}/       two whole checkpoints
    DIR/.p2psync/build/             files being laid out anew

The state decides which slot is live; the link follows it, and is repaired at the next start if a crash came between.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Literal

import msgspec

from p2psync.engines.base import Position
from p2psync.errors import EngineError, StoreError
from p2psync.store.disk import disk_errors, lock, sync_directory, write_durably

SlotName = Literal["a", "b"]
_OURS = ".p2psync"


class SlotState(msgspec.Struct, frozen=True):
    """position: the version in the slot; None: it is dirty, empty, or of unknown standing."""

    position: Position | None = None


class State(msgspec.Struct, frozen=True):
    """live: the slot that `current` names, if any. undo: the other slot holds the version before. boot: boot id."""

    boot: str
    live: SlotName | None = None
    a: SlotState = SlotState()
    b: SlotState = SlotState()
    undo: bool = False

    def slot(self, name: SlotName) -> SlotState:
        """The state of one slot."""
        return self.a if name == "a" else self.b

    def with_slot(self, name: SlotName, position: Position | None, **others: object) -> State:
        """A copy in which slot `name` holds `position`; `others` are further fields to replace."""
        return msgspec.structs.replace(self, **{name: SlotState(position)}, **others)


def other(name: SlotName) -> SlotName:
    """The other of the two slots."""
    return "b" if name == "a" else "a"


def boot_id() -> str:
    """The kernel's id of this boot; where it tells none, a new one each time, so that nothing unproved is trusted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return uuid.uuid4().hex


class Home:
    """The paths of one directory engine, its state file and its link."""

    def __init__(self, root: Path) -> None:
        """Look at `root`, which need not exist. Raises `EngineError` if its `current` is not ours."""
        self.root = root
        self.link = root / "current"
        self.build = root / _OURS / "build"
        self._held: int | None = None
        target = self._target()
        if (self.link.exists() or self.link.is_symlink()) and target is None:
            raise EngineError(f"{self.link} is not a link made by p2psync: move it away, or choose another directory")

    def slot(self, name: SlotName) -> Path:
        """The directory of a slot."""
        return self.root / _OURS / "slots" / name

    def exists(self) -> bool:
        """Whether an engine has written here before."""
        return (self.root / _OURS).is_dir()

    def claim(self) -> None:
        """Make the directories if need be, and take the lock. Raises `EngineError` if another process has it."""
        if self._held is not None:
            return
        try:
            with disk_errors(self.root):
                for name in ("a", "b"):
                    (self.root / _OURS / "slots" / name).mkdir(parents=True, exist_ok=True)
                self._held = lock(self.root / _OURS / "lock")
        except StoreError as error:
            raise EngineError(str(error)) from error
        if self._held is None:
            raise EngineError(f"{self.root} is kept by another process: stop it, or choose another directory")
        shutil.rmtree(self.build, ignore_errors=True)

    def release(self) -> None:
        """Give the lock back."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def load(self) -> State:
        """The state; where none was written, what the link tells. Raises `EngineError` if the file is broken."""
        path = self.root / _OURS / "state.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=State)
        except FileNotFoundError:
            return State(boot_id(), self._target())
        except (OSError, msgspec.MsgspecError) as error:
            raise EngineError(f"{path} cannot be read ({error}): remove it, and start again") from None

    def save(self, state: State) -> None:
        """Write the state durably. Raises `EngineError`."""
        path = self.root / _OURS / "state.json"
        try:
            with disk_errors(path):
                write_durably(path, msgspec.json.encode(state))
        except StoreError as error:
            raise EngineError(str(error)) from error

    def switch(self, name: SlotName | None) -> None:
        """Make `current` name a slot, atomically, or nothing. Raises OSError."""
        if name is None:
            self.link.unlink(missing_ok=True)
            return
        if self._target() == name:
            return
        temporary = self.root / _OURS / "current.tmp"
        temporary.unlink(missing_ok=True)
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
