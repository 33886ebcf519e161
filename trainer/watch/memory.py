"""A watcher's memory over restarts: the live checkpoint, and those that were published or overtaken.

The memory is kept on disk as JSON: the names of these fields there must stay, which is why some differ from ours.
"""

from __future__ import annotations

import msgspec

from p2psync.trainer.watch.candidates import WeightStamps

#: The latest paths and fingerprints are remembered, so many at most. A path of 30 shards takes 2 KB, a fingerprint 100
#: bytes, and the memory is written at each publish: with these bounds it stays below 3 MB.
MAX_PATHS, MAX_FINGERPRINTS = 1024, 8192


class LiveCheckpoint(msgspec.Struct, frozen=True):
    """The checkpoint that is live.

    path: relative to the watched directory. family, numbers: its place in the order of checkpoints. weights: stamps of
    its weights files. fingerprint: of its weights, "" if it is not known. time: when its family was last written to
    (Unix ns). version: that it was published as; -1 while it is being published.
    """

    path: str
    family: str
    numbers: tuple[int, ...]
    weights: WeightStamps
    fingerprint: str = msgspec.field(name="print")
    time: int
    version: int


class SeenCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was published or overtaken. fingerprint: of its weights, "" if it was not whole then."""

    fingerprint: str = msgspec.field(name="print")
    weights: WeightStamps


class PendingPublish(msgspec.Struct, frozen=True):
    """A checkpoint that is being published.

    live: the checkpoint. before: the version that was live (None: none). overtaken: older checkpoints, by path, that it
    overtakes once it is a version.
    """

    live: LiveCheckpoint
    before: int | None
    overtaken: dict[str, SeenCheckpoint]


class WatchMemory(msgspec.Struct):
    """live: the live checkpoint. paths: checkpoints that were published or overtaken, by path.

    fingerprints: all fingerprints that these had, now or before, with the path at which each was seen. pending: the
    publish that was under way when this was saved.
    """

    live: LiveCheckpoint | None = None
    paths: dict[str, SeenCheckpoint] = {}
    fingerprints: dict[str, str] = msgspec.field(name="prints", default_factory=dict)
    pending: PendingPublish | None = None

    def remember(self, path: str, seen: SeenCheckpoint) -> None:
        """Remember that a checkpoint was published or overtaken with these weights."""
        self.paths.pop(path, None)
        self.paths[path] = seen
        if seen.fingerprint:
            self.fingerprints.pop(seen.fingerprint, None)
            self.fingerprints[seen.fingerprint] = path
        for known, most in ((self.paths, MAX_PATHS), (self.fingerprints, MAX_FINGERPRINTS)):
            while len(known) > most:
                del known[next(iter(known))]
