"""`p2psync trainer --watch`: publish each checkpoint that appears in a directory, until told to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from p2psync.engines.checkpoint import Checkpoint, signature
from p2psync.errors import FormatError, StoreError, UsageError
from p2psync.observe.events import Event, Note, Published, Trouble
from p2psync.store.records import recover_record, save_record
from trainer.node import TrainerNode
from trainer.source import CheckpointSource, Signature
from trainer.watch import Found, Watcher

#: How often the directory is looked at (seconds). A look reads names and times only, until something is complete.
LOOK_EVERY = 0.2
#: Pauses before a checkpoint for which the disk had no room is tried again (seconds).
RETRY_FIRST, RETRY_LAST = 0.5, 10.0


class WatchDaemon:
    """Drives one watcher and one trainer."""

    def __init__(
        self,
        trainer: TrainerNode,
        root: Path,
        *,
        marker: str | None,
        settle: float,
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """Raises `UsageError` if `root` is no directory."""
        if not root.is_dir():
            raise UsageError(f"{root} is not a directory: --watch wants the one that the framework writes to")
        self._trainer = trainer
        self._emit = on_event
        self._memory = trainer.config.store / "watched.json"
        lost: list[str] = []
        loss = "of the checkpoints that are there only the newest is published"
        dealt_with = recover_record(self._memory, dict[str, Signature], lost.append, loss)
        for line in lost:
            self._emit(Trouble(line))
        self._watcher = Watcher(root, marker, settle, dealt_with or {})
        #: Whether it is not known any more what was published of what is there.
        self._forgot = bool(lost)
        self._told: dict[str, str] = {}
        self._pause = RETRY_FIRST
        self._unsaved = False
        self._saving: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Publish until cancelled. Raises `FencedError` once another trainer has taken the run over, and what no other
        checkpoint could mend."""
        try:
            while True:
                pause = LOOK_EVERY
                for found in await self._look():
                    if not await self._publish(found):
                        pause, self._pause = self._pause, min(RETRY_LAST, 2 * self._pause)
                        break
                    self._pause = RETRY_FIRST
                if self._unsaved:
                    self._saving = asyncio.create_task(self._save())
                    await asyncio.shield(self._saving)
                await asyncio.sleep(pause)
        finally:
            if self._saving is not None:
                await self._saving
            if self._unsaved:
                await self._save()

    async def _look(self) -> list[Found]:
        root = str(self._watcher.root)
        try:
            found = await asyncio.to_thread(self._watcher.scan, time.monotonic())
        except OSError as error:
            self._complain(root, f"{root}: {error.strerror or error}; still watching")
            return []
        self._told.pop(root, None)
        for path, message in self._watcher.complaints.items():
            self._complain(path, f"not complete yet: {message}")
        if self._forgot and found:
            for old in found[:-1]:
                self._watcher.deal_with(old)
            self._forgot, found = False, found[-1:]
        return found

    async def _publish(self, found: Found) -> bool:
        """Publish one checkpoint, or tell why not. False: to be tried again, since it changed or the disk is full."""
        name, before = found.path.name, self._trainer.position
        try:
            event = await publish_checkpoint(self._trainer, found.path, found.signature)
            if event is None:
                self._emit(Note(f"{name} holds the same bits as the last version: nothing to publish"))
        except (StoreError, OSError) as error:
            self._complain(str(found.path), f"{name} is not published yet: {error}")
            return False
        except FormatError as error:
            # Another state of the files is another try; this one is not tried again.
            self._emit(Trouble(f"{name} is not published: {error}"))
        except asyncio.CancelledError:
            # It was published all the same if that could not be stopped any more.
            if self._trainer.position != before:
                self._watcher.deal_with(found)
                self._unsaved = True
            raise
        self._watcher.deal_with(found)
        self._told.pop(str(found.path), None)
        self._unsaved = True
        return True

    async def _save(self) -> None:
        """Remember what was dealt with. If it cannot be, that costs a reading after the next restart."""
        try:
            await asyncio.to_thread(save_record, self._memory, self._watcher.done)
        except StoreError as error:
            self._complain(str(self._memory), f"{error}; what was published is not remembered yet")
        else:
            self._unsaved = False

    def _complain(self, path: str, message: str) -> None:
        if self._told.get(path) != message:
            self._told[path] = message
            self._emit(Trouble(message))


async def publish_checkpoint(trainer: TrainerNode, path: Path, before: Signature | None = None) -> Published | None:
    """Publish the checkpoint at `path`; None if it holds the same bits as the last version. Raises `P2PSyncError`.

    before: the state of its files that is meant; by default what it is now. Another one is not published.
    """
    if before is None:
        before = await asyncio.to_thread(_signature, path)
    with await asyncio.to_thread(Checkpoint.open, path) as checkpoint:
        source = CheckpointSource(checkpoint, before)
        return await trainer.publish(source, source.unchanged)


def _signature(path: Path) -> Signature:
    try:
        return signature(path)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}: not a readable checkpoint") from None
