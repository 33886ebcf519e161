"""Made-up listings for the watcher, with a clock of their own: no file system behind them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import msgspec

from p2psync.trainer.watch.candidates import Candidate
from p2psync.trainer.watch.listing import EntryKind, Listing, ListingEntry, TensorHeader
from p2psync.trainer.watch.locations import CheckpointRules
from p2psync.trainer.watch.memory import WatchMemory
from p2psync.trainer.watch.watcher import CheckpointWatcher

SECOND = 1_000_000_000


def shard_names(total: int) -> list[str]:
    """Names of the files of a model in `total` shards."""
    return [f"model-{i:05d}-of-{total:05d}.safetensors" for i in range(1, total + 1)]


class Disk:
    """A directory in memory: files with contents, times and faults. `now` is its clock (seconds)."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.entries: dict[str, ListingEntry] = {}
        self.bits: dict[str, str] = {}
        self._inodes = itertools.count(1)

    def write(self, path: str, bits: str = "", size: int = 8, **fields: object) -> None:
        """Write a file; `bits` stands for its contents."""
        for depth in range(1, len(path.split("/"))):
            self.folder("/".join(path.split("/")[:depth]))
        time = int(self.now * SECOND)
        entry = ListingEntry(path, size=size, mtime=time, ctime=time, identity=(1, next(self._inodes)))
        if path.endswith(".safetensors"):
            entry = replace(entry, tensors=TensorHeader(size))
        self.entries[path] = replace(entry, **fields)  # type: ignore[arg-type]
        self.bits[path] = bits

    def index(self, path: str, *shards: str) -> None:
        """Write an index of shards."""
        self.write(path, shards=frozenset(shards))

    def folder(self, path: str, **fields: object) -> None:
        """Make a directory."""
        made = ListingEntry(path, EntryKind.DIRECTORY, identity=(1, next(self._inodes)))
        self.entries.setdefault(path, made)
        self.entries[path] = replace(self.entries[path], **fields)  # type: ignore[arg-type]

    def link(self, path: str, target: str, kind: EntryKind = EntryKind.DIRECTORY) -> None:
        """Make a link that leads to `target`."""
        self.entries[path] = ListingEntry(path, kind, target=target)

    def model(self, path: str, bits: str, shards: int = 0) -> None:
        """Write a checkpoint: one file, or so many shards with their index, and a configuration."""
        prefix = f"{path}/" if path else ""
        if path:
            self.folder(path)
        self.write(f"{prefix}config.json")
        if not shards:
            self.write(f"{prefix}model.safetensors", bits)
            return
        names = shard_names(shards)
        for name in names:
            self.write(f"{prefix}{name}", bits)
        self.index(f"{prefix}model.safetensors.index.json", *names)

    def touch(self, path: str) -> None:
        """Give every file at or below a path the present time."""
        for name in self.below(path):
            time = int(self.now * SECOND)
            self.entries[name] = replace(self.entries[name], mtime=time, ctime=time)

    def new_inodes(self, path: str) -> None:
        """Give every file at or below a path another inode, as network file systems do."""
        for name in self.below(path):
            self.entries[name] = replace(self.entries[name], identity=(1, next(self._inodes)))

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all in it."""
        for name in self.below(path):
            del self.entries[name]
            self.bits.pop(name, None)

    def move(self, path: str, to: str) -> None:
        """Rename, keeping mtimes."""
        for name in self.below(path):
            entry = self.entries.pop(name)
            new = to + name[len(path) :]
            self.entries[new] = replace(entry, path=new, ctime=int(self.now * SECOND))
            if name in self.bits:
                self.bits[new] = self.bits.pop(name)

    def copy(self, path: str, to: str) -> None:
        """Copy; the copy has the present time."""
        for name in self.below(path):
            new = to + name[len(path) :]
            time = int(self.now * SECOND)
            self.entries[new] = replace(
                self.entries[name], path=new, mtime=time, ctime=time, identity=(1, next(self._inodes))
            )
            if name in self.bits:
                self.bits[new] = self.bits[name]

    def below(self, path: str) -> list[str]:
        """Returns a path and all below it."""
        return [name for name in self.entries if not path or name == path or name.startswith(path + "/")]

    def listing(self) -> Listing:
        """Returns the listing of a scan now."""
        return Listing.of(self.entries.values(), int(self.now * SECOND))

    def fingerprint_of(self, candidate: Candidate) -> str:
        """Returns the bits of a checkpoint's weights."""
        weights = [path for path in candidate.files if path.endswith(".safetensors")]
        prefix = f"{candidate.path}/" if candidate.path and not candidate.lone else ""
        return "+".join(f"{path.removeprefix(prefix)}={self.bits[path]}" for path in sorted(weights))


class Watched:
    """A watcher of such a disk that publishes every candidate. history: (path, bits) of all versions."""

    def __init__(self, disk: Disk, *, settle: float = 0.0, backlog: bool = False, **rules: object) -> None:
        self.disk = disk
        self.rules = CheckpointRules(**rules)  # type: ignore[arg-type]
        self.settle, self.backlog = settle, backlog
        self.watcher = CheckpointWatcher(self.rules, settle, backlog)
        self.history: list[tuple[str, str]] = []
        self.notices: list[str] = []

    @property
    def live(self) -> str | None:
        """The path of the live checkpoint."""
        return self.watcher.memory.live.path if self.watcher.memory.live else None

    @property
    def published(self) -> list[str]:
        """The paths published so far."""
        return [path for path, _ in self.history]

    def offered(self, now: float | None = None) -> Candidate | None:
        """Scan once, at `now` by the watcher's clock; returns the checkpoint to publish."""
        self.watcher.observe(self.disk.listing(), self.disk.now if now is None else now)
        for candidate in self.watcher.without_fingerprint():
            self.watcher.learn(candidate, self.disk.fingerprint_of(candidate))
        candidate = self.watcher.next()
        self.notices += [notice.text for notice in self.watcher.notices()]
        return candidate

    def look(self, seconds: float = 0.0) -> list[str]:
        """Advances the clock, scans until no checkpoint is offered, and returns the paths published meanwhile."""
        self.disk.now += seconds
        before = len(self.history)
        while (candidate := self.offered()) is not None:
            assert len(self.history) - before < 50, "the watcher goes round in circles"
            self.publish(candidate)
        return self.published[before:]

    def publish(self, candidate: Candidate, bits: str = "", *, crash: bool = False) -> None:
        """Publish a candidate; a trainer makes no version of the bits that are live.

        bits: those that were read; by default those on disk now. crash: the process ends as soon as the version is
        durable, and starts again.
        """
        bits = bits or self.disk.fingerprint_of(candidate)
        if self.history and self.history[-1][1] == bits:
            self.watcher.same(candidate, len(self.history) - 1)
            return
        self.watcher.begin(candidate, len(self.history) - 1 if self.history else None)
        self.history.append((candidate.path, bits))
        if crash:
            self.restart(msgspec.json.decode(msgspec.json.encode(self.watcher.memory), type=WatchMemory))
        else:
            self.watcher.published(candidate, len(self.history) - 1)

    def restart(self, memory: WatchMemory | None = None) -> None:
        """Replace the watcher by one with its memory."""
        self.watcher = CheckpointWatcher(self.rules, self.settle, self.backlog, memory or self.watcher.memory)
        self.watcher.resume(len(self.history) - 1 if self.history else None)
