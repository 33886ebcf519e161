"""What a watcher remembers from one life to the next: what is live, and what has been published or overtaken."""

from __future__ import annotations

import msgspec

from p2psync.trainer.watch.candidates import WeightStamps

#: Paths and prints that are remembered, the latest ones. A path of 30 shards takes 2 KB, a print 100 bytes, and the
#: memory is written at each publish: it stays below 3 MB.
MAX_PATHS, MAX_PRINTS = 1024, 8192


class LiveCheckpoint(msgspec.Struct, frozen=True):
    """The checkpoint that is live, as version `version`.

    family, numbers: its place in the order. print: of its weights, "" if not known. time: when its family was last
    written to (Unix ns).
    """

    path: str
    family: str
    numbers: tuple[int, ...]
    weights: WeightStamps
    print: str
    time: int
    version: int


class SeenCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was published or overtaken. print: "" if it was not whole then."""

    print: str
    weights: WeightStamps


class PendingPublish(msgspec.Struct, frozen=True):
    """What is being published. before: the version that was live (None: none). overtaken: what it will overtake."""

    live: LiveCheckpoint
    before: int | None
    overtaken: dict[str, SeenCheckpoint]


class WatchMemory(msgspec.Struct):
    """paths: checkpoints that were dealt with. prints: their weights, now and before, with the path they were seen at.

    pending: what was being published when this was saved.
    """

    live: LiveCheckpoint | None = None
    paths: dict[str, SeenCheckpoint] = {}
    prints: dict[str, str] = {}
    pending: PendingPublish | None = None

    def remember(self, path: str, seen: SeenCheckpoint) -> None:
        """A checkpoint has been published or overtaken with these weights."""
        self.paths.pop(path, None)
        self.paths[path] = seen
        if seen.print:
            self.prints.pop(seen.print, None)
            self.prints[seen.print] = path
        for known, most in ((self.paths, MAX_PATHS), (self.prints, MAX_PRINTS)):
            while len(known) > most:
                del known[next(iter(known))]
