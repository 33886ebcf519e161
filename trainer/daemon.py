"""`p2psync trainer --watch`: publish each new policy that appears in a directory, until told to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from p2psync.engines.checkpoint.files import Checkpoint, files_signature
from p2psync.engines.checkpoint.framework_names import printable
from p2psync.errors import FormatError, StoreError, UsageError
from p2psync.observe.events import Event, Note, Published, Trouble, Watching
from p2psync.trainer.node import TrainerNode
from p2psync.trainer.versions.source import CheckpointReadError, CheckpointSource
from p2psync.trainer.watch.candidates import Candidate, find_candidates
from p2psync.trainer.watch.locations import CheckpointRules
from p2psync.trainer.watch.memory_store import MEMORY, load_memory, save_memory
from p2psync.trainer.watch.scanner import DirectoryScanner
from p2psync.trainer.watch.watcher import CheckpointWatcher

#: How often the directory is scanned (seconds), and the largest share of the time that scanning may take: a directory
#: of 100,000 files on a slow disk is scanned less often. A scan reads names, times and new headers.
SCAN_EVERY_SECONDS, MAX_SCAN_SHARE = 0.2, 0.2
#: Pauses before publishing is tried again after the store's disk refused (seconds).
RETRY_FIRST, RETRY_LAST = 0.5, 10.0


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """The settings of watching a directory.

    settle, backlog: see `CheckpointWatcher`. secrets: files that are never published.
    """

    rules: CheckpointRules = field(default_factory=CheckpointRules)
    settle: float = 1.0
    backlog: bool = False
    secrets: tuple[Path, ...] = ()


class WatchDaemon:
    """Drives one watcher and one trainer."""

    def __init__(
        self,
        trainer: TrainerNode,
        root: Path,
        *,
        marker: str | None = None,
        settle: float = 1.0,
        config: WatchConfig | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """marker, settle: used where `config` is None. Raises `UsageError` if `root` is no directory."""
        if not root.is_dir():
            raise UsageError(f"{root} is not a directory: --watch wants the one that the framework writes to")
        config = config or WatchConfig(rules=CheckpointRules(marker=marker), settle=settle)
        store = trainer.config.store
        rules = replace(config.rules, secrets=config.rules.secrets | _identities(store, config.secrets))
        self._trainer = trainer
        self._emit = on_event
        self._scanner = DirectoryScanner(root, rules, [store])
        self._memory_file = store / MEMORY
        self._watcher = CheckpointWatcher(
            rules,
            config.settle,
            config.backlog,
            load_memory(store, self._scanner.root, lambda line: on_event(Trouble(line))),
        )
        self._saved = b""
        self._warned: dict[str, str] = {}
        self._pause = RETRY_FIRST
        self._saving: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Publish until cancelled. Raises `FencedError` once another trainer has taken the run over, and any error that
        another checkpoint would meet too."""
        try:
            self._begin()
            while True:
                pause = 0.0
                began = time.monotonic()
                candidate = await self._scan()
                if candidate is None:
                    pause = max(SCAN_EVERY_SECONDS, (time.monotonic() - began) / MAX_SCAN_SHARE)
                elif not await self._publish(candidate):
                    pause, self._pause = self._pause, min(RETRY_LAST, 2 * self._pause)
                else:
                    self._pause = RETRY_FIRST
                await self._save()
                await asyncio.sleep(pause)
        finally:
            if self._saving is not None:
                await asyncio.gather(self._saving, return_exceptions=True)
            await self._save()

    def _begin(self) -> None:
        """Find out which checkpoint is live, and tell people."""
        position = self._trainer.position
        self._watcher.resume(position.version if position is not None else None)
        live = self._watcher.memory.live
        known = live is not None and position is not None and live.version == position.version
        path = self._display_name(live.path) if live is not None and known else ""
        self._emit(
            Watching(printable(str(self._scanner.root)), path, position.version if position is not None else None)
        )

    async def _scan(self) -> Candidate | None:
        """Scan once; returns the checkpoint to publish now, if any."""
        root = str(self._scanner.root)
        try:
            candidate = await asyncio.to_thread(self._scan_now)
        except OSError as error:
            self._warn_once(root, f"{printable(root)}: {error.strerror or error}; still watching")
            return None
        self._warned.pop(root, None)
        for notice in self._watcher.notices():
            self._emit(Trouble(notice.text) if notice.warning else Note(notice.text))
        return candidate

    def _scan_now(self) -> Candidate | None:
        self._watcher.observe(self._scanner.listing(), time.monotonic())
        for candidate in self._watcher.without_fingerprint():
            try:
                fingerprint = self._scanner.fingerprint_of(candidate)
            except OSError as error:
                self._watcher.unreadable(candidate, f"{error.strerror or error}: trying again")
            else:
                self._watcher.learn(candidate, fingerprint)
        return self._watcher.next()

    async def _publish(self, candidate: Candidate) -> bool:
        """Publish one checkpoint, or tell why not. Returns False if the store's disk refused, so that none can be."""
        name, before = self._display_name(candidate.path), self._trainer.position
        try:
            self._watcher.begin(candidate, before.version if before is not None else None)
            await self._write()
            event = await _publish(self._trainer, self._scanner, candidate)
        except FormatError as error:
            # This state of the files is not tried again; another state is.
            self._watcher.refused(candidate)
            self._warn_once(name, f"{name} is not published: {printable(str(error))}")
            return True
        except CheckpointReadError as error:
            self._watcher.failed(candidate, time.monotonic())
            self._warn_once(name, f"{name} is not published yet: {printable(str(error))}: trying again")
            return True
        except StoreError as error:
            self._warn_once(name, f"{name} is not published yet: {printable(str(error))}")
            return False
        except asyncio.CancelledError:
            # It may have been published all the same, where it was too late to stop.
            after = self._trainer.position
            if after is not None and after != before:
                self._watcher.published(candidate, after.version)
            raise
        position = self._trainer.position
        version = event.version if event is not None else position.version if position is not None else -1
        if event is None:
            self._emit(Note(f"{name} holds the same bits as the last version, {version}: nothing to publish"))
            self._watcher.same(candidate, version)
        else:
            self._watcher.published(candidate, version)
        self._warned.pop(name, None)
        return True

    async def _save(self) -> None:
        """Save the watcher's memory; a failure is told, and tried again at the next scan."""
        try:
            await self._write()
        except StoreError as error:
            self._warn_once(str(self._memory_file), f"{error}; published versions are not remembered yet")
        else:
            self._warned.pop(str(self._memory_file), None)

    async def _write(self) -> None:
        """Make the memory durable if it has changed. Raises `StoreError`."""
        data = msgspec.json.encode(self._watcher.memory)
        if data != self._saved:
            self._saving = asyncio.create_task(asyncio.to_thread(save_memory, self._trainer.config.store, data))
            await asyncio.shield(self._saving)
            self._saved = data

    def _warn_once(self, about: str, message: str) -> None:
        if self._warned.get(about) != message:
            self._warned[about] = message
            self._emit(Trouble(message))

    def _display_name(self, path: str) -> str:
        return printable(path or self._scanner.root.name)


async def publish_checkpoint(
    trainer: TrainerNode, path: Path, rules: CheckpointRules | None = None
) -> Published | None:
    """Publish the checkpoint at `path`; returns None if it holds the bits of the last version. Raises `P2PSyncError`.

    path: a directory that is a checkpoint or holds one, or a .safetensors file.
    """
    if not path.is_dir():  # noqa: ASYNC240 (one look, before anything runs)
        return await _publish_file(trainer, path)
    scanner = DirectoryScanner(path, rules or CheckpointRules(), [trainer.config.store])
    return await _publish(trainer, scanner, await asyncio.to_thread(_only_one, scanner, path))


def _only_one(scanner: DirectoryScanner, path: Path) -> Candidate:
    """Returns the only checkpoint in a directory. Raises `FormatError` if it is not whole, `UsageError` for several."""
    try:
        found = find_candidates(scanner.listing(), scanner.rules)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}: not a readable checkpoint") from None
    whole = [candidate for candidate in found.candidates if candidate.path == ""] or found.candidates
    if not whole:
        raise FormatError(f"{path}: no .safetensors file is in it: nothing to publish")
    if len(whole) > 1:
        listed = ", ".join(printable(candidate.path) for candidate in whole[:4])
        raise UsageError(f"{path} holds {len(whole)} checkpoints ({listed}): name one of them")
    if whole[0].fault is not None:
        raise FormatError(f"{path}: {whole[0].fault.reason}")
    return whole[0]


async def _publish(trainer: TrainerNode, scanner: DirectoryScanner, candidate: Candidate) -> Published | None:
    before, path = candidate.file_states, candidate.path
    try:
        checkpoint = await asyncio.to_thread(scanner.open, candidate)
    except OSError as error:
        raise CheckpointReadError(f"{error.filename or path}: {error.strerror or error}") from None
    with checkpoint:
        source = CheckpointSource(checkpoint, before, lambda: scanner.state_of(path))
        return await trainer.publish(source, source.settled, checkpoint=printable(str(scanner.root / path)))


async def _publish_file(trainer: TrainerNode, path: Path) -> Published | None:
    try:
        before = await asyncio.to_thread(files_signature, path)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}: not a readable checkpoint") from None
    with await asyncio.to_thread(Checkpoint.open, path) as checkpoint:
        source = CheckpointSource(checkpoint, before)
        return await trainer.publish(source, source.settled, checkpoint=printable(str(path)))


def _identities(store: Path, more: tuple[Path, ...]) -> frozenset[tuple[int, int]]:
    """Returns device and inode of files that must stay secret: the keys and tokens in a store, and `more`."""
    found = set()
    for path in [*store.glob("*.key"), *store.glob("*.token"), *more]:
        if path.exists():
            status = path.stat()
            found.add((status.st_dev, status.st_ino))
    return frozenset(found)
