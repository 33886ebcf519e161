"""The progress of fetching a version, for the log, the status, and callers that wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from p2psync.observe.events import FetchProgress
from p2psync.protocol.versions import PathStep
from p2psync.store.packs import Store

#: How often the progress of a fetch is told (seconds): a fetch that is shorter tells none.
TELL_EVERY_SECONDS = 10.0


@dataclass(slots=True)
class RunningFetch:
    """A path to a version whose chunks are being fetched.

    wanted: the chunks of each step that the path needs. began: by the clock of `progress`. first_bytes: bytes of these
    chunks that the store held then.
    """

    path: Sequence[PathStep]
    wanted: Sequence[Sequence[int]]
    began: float
    total_bytes: int
    first_bytes: int

    def progress(self, store: Store, now: float) -> FetchProgress:
        """Returns the progress of this fetch. now: seconds."""
        held = held_bytes(store, self.path, self.wanted)
        elapsed = now - self.began
        rate = (held - self.first_bytes) / elapsed if elapsed > 0 else 0.0
        left = (self.total_bytes - held) / rate if rate > 0 else math.inf
        return FetchProgress(
            version=self.path[-1].manifest.version,
            held_bytes=held,
            total_bytes=self.total_bytes,
            bytes_per_second=rate,
            seconds_left=left if math.isfinite(left) else None,
        )


def held_bytes(store: Store, path: Sequence[PathStep], wanted: Sequence[Sequence[int]]) -> int:
    """Bytes of the wanted chunks that the store holds."""
    held = 0
    for step, chunks in zip(path, wanted, strict=True):
        pack = store.get(step.id)
        if pack is not None:
            have, sizes = pack.have, step.manifest.sizes
            held += sum(sizes[i] for i in chunks if have[i])
    return held
