"""The files of a directory engine: its durable state, its slots, and the link that readers follow.

    DIR/current                     → .p2psync/slots/a or …/b: the live version
    DIR/.p2psync/lock               locked by the one process that writes here
    DIR/.p2psync/state.json         the live slot, each slot's position, and whether its bits can be trusted
    DIR/.p2psync/slots/{a,b}/       two whole checkpoints
    DIR/.p2psync/build/             files of a new layout that are being built

The state decides which slot is live. The link follows it, and is repaired at the next start if a crash came between.
`.p2psync` belongs to the engine, which moves damaged files there away and makes them again. `current` is replaced only
while it is a link; a file or directory of that name belongs to the user, and is refused.
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
from p2psync.store.disk import disk_errors, lock, path_names_file, sync_directory
from p2psync.store.records import clear, make_directory, recover_record, save_record

SlotName = Literal["a", "b"]
_ENGINE_FOLDER = ".p2psync"


class SlotState(msgspec.Struct, frozen=True):
    """One slot. position: its version; None: it is dirty, empty, or unknown. seal: see `seal_of`."""

    position: Position | None = None
    seal: str = NO_SEAL


class DirectoryState(msgspec.Struct, frozen=True):
    """The durable state. boot: boot id. live: the slot of `current`. undo: the other slot has the version before."""

    boot: str
    live: SlotName | None = None
    a: SlotState = SlotState()
    b: SlotState = SlotState()
    undo: bool = False

    def slot(self, name: SlotName) -> SlotState:
        """Returns the state of one slot."""
        return self.a if name == "a" else self.b

    def with_slot(
        self, name: SlotName, position: Position | None, seal: str = NO_SEAL, **others: object
    ) -> DirectoryState:
        """Returns a copy in which slot `name` holds `position` under `seal`; `others` are further fields to replace."""
        return msgspec.structs.replace(self, **{name: SlotState(position, seal)}, **others)


def other_slot(name: SlotName) -> SlotName:
    """Returns the other of the two slots."""
    return "b" if name == "a" else "a"


def boot_id() -> str:
    """Returns the kernel's id of this boot; a new id at each call where there is none, so that no state is trusted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return uuid.uuid4().hex


class DirectoryFiles:
    """The directory of one engine: its paths, state file, lock and link."""

    def __init__(self, root: Path) -> None:
        """root: need not exist. Raises `EngineError` if its `current` was not made by an engine."""
        self.root = root
        self.link = root / "current"
        self.build = root / _ENGINE_FOLDER / "build"
        self._held: int | None = None
        if not (self.link.is_symlink() if self.exists() else self._target() is not None):
            self.refuse_foreign()

    def slot(self, name: SlotName) -> Path:
        """Returns the directory of a slot."""
        return self.root / _ENGINE_FOLDER / "slots" / name

    def exists(self) -> bool:
        """Returns whether an engine has written here before."""
        return (self.root / _ENGINE_FOLDER / "slots").exists()

    def refuse_foreign(self) -> None:
        """Raises `EngineError` if anything is at the link's path."""
        if self.link.is_symlink() or self.link.exists():
            raise EngineError(f"{self.link} is not a link made by p2psync: move it away, or choose another directory")

    def acquire(self) -> None:
        """Makes missing directories and takes the lock. Raises `EngineError` if another process has it."""
        lock_file = self.root / _ENGINE_FOLDER / "lock"
        with _refusals():
            for directory in (
                self.root / _ENGINE_FOLDER,
                self.root / _ENGINE_FOLDER / "slots",
                self.slot("a"),
                self.slot("b"),
            ):
                make_directory(directory)
            if self._held is not None and path_names_file(self._held, lock_file):
                return
            self.release()
            with disk_errors(self.root):
                self._held = lock(lock_file)
        if self._held is None:
            raise EngineError(f"{self.root} is kept by another process: stop it, or choose another directory")
        with suppress(OSError):  # a later build there raises the error
            clear(self.build)

    def release(self) -> None:
        """Releases the lock."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def load(self, tell: Callable[[str], None]) -> DirectoryState | None:
        """Loads the state; None if there is none, or it is damaged, which `tell` is told. Raises `EngineError`."""
        path = self.root / _ENGINE_FOLDER / "state.json"
        with _refusals():
            return recover_record(
                path, DirectoryState, tell, "the weights at hand are compared with the versions published"
            )

    def state_from_link(self) -> DirectoryState:
        """Returns a state for when the file is lost: the link names the live slot, the versions are unknown."""
        return DirectoryState(boot_id(), self._target())

    def save(self, state: DirectoryState) -> None:
        """Writes the state durably. Raises `EngineError`."""
        with _refusals():
            save_record(self.root / _ENGINE_FOLDER / "state.json", state)

    def links_to(self, name: SlotName | None) -> bool:
        """Returns whether `current` links to this slot (None: whether there is no link)."""
        if name is None:
            return not (self.link.is_symlink() or self.link.exists())
        return self._target() == name

    def switch_link(self, name: SlotName | None) -> None:
        """Makes `current` link to a slot, atomically, or removes it (None).

        Raises OSError, and `EngineError` if `current` is not a link.
        """
        if self.links_to(name):
            return
        if not self.link.is_symlink():
            self.refuse_foreign()
        if name is None:
            self.link.unlink(missing_ok=True)
            return
        temporary = self.root / _ENGINE_FOLDER / "current.tmp"
        clear(temporary)
        temporary.symlink_to(f"{_ENGINE_FOLDER}/slots/{name}")
        temporary.replace(self.link)

    def sync_link(self) -> None:
        """Makes the link durable."""
        sync_directory(self.root)

    def _target(self) -> SlotName | None:
        if not self.link.is_symlink():
            return None
        target = str(self.link.readlink())
        names: tuple[SlotName, SlotName] = ("a", "b")
        return next((name for name in names if target == f"{_ENGINE_FOLDER}/slots/{name}"), None)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise EngineError(str(error)) from error
