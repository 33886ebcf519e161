"""The live slot of a directory engine: which slot `current` names, and whether its bits are still right.

Damage. A slot that nobody writes to has a seal (`seals`), which changes when another process writes there, removes a
file or adds one. A slot is used only under its seal; the engine compares the live one's every second. Under another
seal the digest decides (`settle`): the live slot stays; or the other slot goes live, with the version before, if its
digest is right; or nothing is live and `current` is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from p2psync.engines.base import Position
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.directory import seals
from p2psync.engines.directory.in_place_apply import CrashHook
from p2psync.engines.directory.seals import NO_SEAL
from p2psync.engines.directory.state import DirectoryFiles, DirectoryState, SlotName, other_slot
from p2psync.errors import EngineError, FormatError


class LiveSlot:
    """The durable state, the link, and the open checkpoint of the live version."""

    def __init__(
        self, directory: DirectoryFiles, boot: str, hook: CrashHook, before_fallback: Callable[[], None]
    ) -> None:
        """boot: id of this boot. before_fallback: called when the live version is found damaged, before the state says
        so."""
        self._directory = directory
        self._boot = boot
        self._hook = hook
        self._before_fallback = before_fallback
        self.state = DirectoryState(boot)
        #: The live version, open for reading; if nothing is live, what can be read of the last one; None if nothing.
        self.checkpoint: Checkpoint | None = None
        #: Damage that was found and not reported yet, a line each.
        self.damage: list[str] = []
        #: The last error of repairing the link, so that it is reported once.
        self._link_error = ""

    @property
    def position(self) -> Position | None:
        """The live version; None if nothing is live."""
        return self.state.slot(self.state.live).position if self.state.live is not None else None

    def recover(self, state: DirectoryState) -> None:
        """Starts from the state that was loaded: checks the live slot if it may have changed, and repairs the link.

        After a reboot pages that were not written may be lost, so the live slot is digested, and the other slot is not
        trusted.
        """
        rebooted = state.boot != self._boot
        self.state = msgspec.structs.replace(state, boot=self._boot)
        if state.live is None:
            return
        if self.position is None:
            self._read_from(None)
            return
        slot = self._directory.slot(state.live)
        if rebooted or seals.seal_of(slot) != state.slot(state.live).seal:
            self.settle()
        else:
            try:
                self.checkpoint = Checkpoint.open(slot)
            except FormatError:
                self.settle()
        if rebooted and self.state.live == state.live:
            # Pages of the other slot may have been lost too; it is compared with the live one before it is used.
            self.save(self.state.with_slot(other_slot(state.live), None, undo=False))
        self.relink(fell_back=True)

    def check_seal(self) -> None:
        """Settles which version is live if another process wrote to the live slot."""
        live = self.state.live
        if live is None or self.position is None:
            return
        if seals.seal_of(self._directory.slot(live)) != self.state.slot(live).seal:
            self.settle()

    def settle(self) -> None:
        """Chooses the live slot by digests: the recorded one, else the other one, else none."""
        live, was = self.state.live, self.position
        assert live is not None and was is not None
        wrong: list[str] = []
        for name in (live, other_slot(live)):
            slot, position = self._directory.slot(name), self.state.slot(name).position
            if position is None:
                continue
            seal = seals.seal_of(slot)
            try:
                checkpoint = _open_intact(slot, position)
                if seal == NO_SEAL:
                    raise FormatError(f"{slot} has links in it, or other things that are no files")
            except FormatError as error:
                if not wrong:
                    # A stage that wrote nothing yet leaves the very version that is damaged in the other slot.
                    self._before_fallback()
                wrong.append(str(error))
                self.save(self.state.with_slot(name, None, undo=False))
                continue
            self._read_from(checkpoint)
            undo = self.state.undo and name == live
            self.save(self.state.with_slot(name, position, seal, live=name, undo=undo))
            break
        else:
            self._read_from(None)
        self.relink(fell_back=bool(wrong))
        if wrong:
            now = f"version {self.position.version} is live" if self.position is not None else "nothing is live"
            self.damage.append(f"version {was.version} is damaged here ({wrong[0]}): {now} until it is repaired")

    def relink(self, *, fell_back: bool = False) -> None:
        """Makes `current` name the live slot. fell_back: the live slot has changed, so a wrong link is no damage."""
        name = self.state.live if self.position is not None else None
        if self._directory.links_to(name):
            return
        try:
            self._directory.switch_link(name)
        except (OSError, EngineError) as error:
            link = self._directory.link
            why = str(error) if isinstance(error, EngineError) else f"{link}: {error.strerror or error}"
            if why != self._link_error:
                self.damage.append(why)
            self._link_error = why
            return
        self._link_error = ""
        if not fell_back:
            self.damage.append(f"{self._directory.link} was removed or led elsewhere: made again")

    def switch(self, slot: SlotName, position: Position, *, undo: bool) -> float:
        """Records that `slot` is live and switches the link; returns the seconds that the switch took.

        The link is not durable before `sync_link`. Raises `EngineError`; then the state is as it was.
        """
        before = self.state
        self.save(before.with_slot(slot, position, seals.seal_of(self._directory.slot(slot)), live=slot, undo=undo))
        self._hook("recorded")
        try:
            live = Checkpoint.open(self._directory.slot(slot))
            begun = time.perf_counter()
            self._directory.switch_link(slot)
            pause = time.perf_counter() - begun
        except (OSError, FormatError) as error:
            self.save(before)
            raise EngineError(f"{self._directory.link} cannot be switched ({error}): check the disk") from error
        self.checkpoint = live
        return pause

    def sync_link(self) -> None:
        """Makes the link durable, as far as the disk allows."""
        with suppress(OSError):  # the state is durable, and the link follows it
            self._directory.sync_link()
        self._hook("switched")

    def save(self, state: DirectoryState) -> None:
        """Writes the state durably if it has changed. Raises `EngineError`."""
        if state != self.state:
            self._directory.save(state)
            self.state = state

    def close(self) -> None:
        """Closes the checkpoint."""
        if self.checkpoint is not None:
            self.checkpoint.close()

    def _read_from(self, checkpoint: Checkpoint | None) -> None:
        """Reads the live version from `checkpoint`. None: nothing is live, but undamaged tensors can be copied."""
        if checkpoint is None:
            with suppress(FormatError):
                checkpoint = Checkpoint.open(self._directory.slot(self.state.live or "a"))
        if checkpoint is not None:
            if self.checkpoint is not None:
                self.checkpoint.close()
            self.checkpoint = checkpoint


def _open_intact(slot: Path, position: Position) -> Checkpoint:
    """Opens the checkpoint in a slot. Raises `FormatError` if it does not have the digest of `position`."""
    checkpoint = Checkpoint.open(slot)
    try:
        if checkpoint.digest() != position.digest:
            raise FormatError(f"{slot} has other bits than were committed")
    except BaseException:
        checkpoint.close()
        raise
    return checkpoint
