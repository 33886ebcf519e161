"""`p2psync trainer --watch`: publish each checkpoint that appears in a directory, until told to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from p2psync.engines.checkpoint import Checkpoint
from p2psync.errors import P2PSyncError, StoreError, UsageError
from p2psync.observe.events import Event, Note, Published, Trouble
from p2psync.store.disk import disk_errors, write_durably
from trainer.node import TrainerNode
from trainer.source import CheckpointSource
from trainer.watch import Signature, Watcher

#: How often the directory is looked at (seconds). A look reads names and times only, until something is complete.
LOOK_EVERY = 0.2


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
        self._watcher = Watcher(root, marker, settle, _load(self._memory))
        self._told: dict[str, str] = {}

    async def run(self) -> None:
        """Publish until cancelled. Raises `FencedError` once another trainer has taken the run over."""
        while True:
            if self._trainer.fenced is not None:
                raise self._trainer.fenced
            for path in await self._look():
                await self._publish(path)
            await asyncio.sleep(LOOK_EVERY)

    async def _look(self) -> list[Path]:
        try:
            found = await asyncio.to_thread(self._watcher.scan, time.monotonic())
        except OSError as error:
            self._complain(str(self._watcher.root), f"{self._watcher.root}: {error.strerror}; still watching")
            return []
        for path, message in self._watcher.complaints.items():
            self._complain(path, f"not complete yet: {message}")
        return found

    async def _publish(self, path: Path) -> None:
        try:
            event = await self.publish_checkpoint(path)
        except P2PSyncError as error:
            if self._trainer.fenced is not None:
                raise
            # Another state of the files is another try; this one is not tried again unless the disk was to blame.
            self._complain(str(path), f"{path.name} is not published: {error}")
            if not isinstance(error, StoreError):
                self._watcher.deal_with(path)
            return
        if event is None:
            self._emit(Note(f"{path.name} holds the same bits as the last version: nothing to publish"))
        self._watcher.deal_with(path)
        with disk_errors(self._memory):
            await asyncio.to_thread(write_durably, self._memory, msgspec.json.encode(self._watcher.done))

    async def publish_checkpoint(self, path: Path) -> Published | None:
        """Publish one checkpoint; None if it holds the same bits as the last version. Raises `P2PSyncError`."""
        return await publish_checkpoint(self._trainer, path)

    def _complain(self, path: str, message: str) -> None:
        if self._told.get(path) != message:
            self._told[path] = message
            self._emit(Trouble(message))


async def publish_checkpoint(trainer: TrainerNode, path: Path) -> Published | None:
    """Publish the checkpoint at `path`; None if it holds the same bits as the last version. Raises `P2PSyncError`."""
    with await asyncio.to_thread(Checkpoint.open, path) as checkpoint:
        source = CheckpointSource(checkpoint)
        return await trainer.publish(source, source.unchanged)


def _load(path: Path) -> dict[str, Signature]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Signature])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"{path} cannot be read ({error}): remove it") from None
