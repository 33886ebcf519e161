"""One manifest's chunks at this node: which it holds, which peer owes each, how rare each is among the peers."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from p2psync.protocol.manifest import Manifest
from p2psync.swarm.exchange.bitmap import Bits

#: Below so many chunks a loop is faster than numpy.
_FEW = 24


@dataclass(slots=True)
class Transfer:
    """The chunks of one manifest. All arrays have one entry per chunk.

    held: chunks in the store. needed: wanted and not held. open: needed, and owed by no peer. missing: how many are
    needed. rarity: how many peers hold each. spread: random in [0, 1), fixed per node, so that nodes order equally rare
    chunks differently. available_since: when a peer first announced each (seconds); infinite: no peer did.
    mean_chunk_bytes: bytes of one chunk on average.

    provider: the peer that owes each chunk; second_provider: another one that owes it, too. tags: of chunks that this
    node received or sent down a tree of the plan; trees: the same of chunks that peers announced. sent: how often this
    node sent each. losses: how often the store lost each; backoff_until: when a lost one may be requested (seconds).
    pushed: parents push the chunks to this node. unannounced: this node publishes the chunks, and does not announce
    them yet.
    """

    id: bytes
    manifest: Manifest
    held: Bits
    needed: Bits
    open: Bits
    rarity: NDArray[np.int32]
    spread: NDArray[np.float64]
    available_since: NDArray[np.float64]
    missing: int
    mean_chunk_bytes: int
    provider: dict[int, str] = field(default_factory=dict)
    second_provider: dict[int, str] = field(default_factory=dict)
    tags: dict[int, int] = field(default_factory=dict)
    trees: dict[int, int] = field(default_factory=dict)
    losses: dict[int, int] = field(default_factory=dict)
    backoff_until: dict[int, float] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    pushed: bool = False
    unannounced: bool = False

    @classmethod
    def begin(cls, id: bytes, manifest: Manifest, held: Bits, wanted: Bits, rng: random.Random) -> Transfer:
        """Returns a new transfer that needs the wanted chunks that are not held. held, wanted: flags per chunk."""
        n, needed = manifest.chunks, wanted & ~held
        return cls(
            id=id,
            manifest=manifest,
            held=held.copy(),
            needed=needed,
            open=needed.copy(),
            rarity=np.zeros(n, np.int32),
            spread=default_rng(rng.getrandbits(63)).random(n),
            available_since=np.full(n, np.inf),
            missing=int(needed.sum()),
            mean_chunk_bytes=max(1, manifest.payload_bytes // max(1, n)),
        )

    def widen(self, held: Bits, wanted: Bits) -> None:
        """Adds held and wanted chunks (flags)."""
        self.held |= held
        more = wanted & ~self.held & ~self.needed
        self.needed = (self.needed | more) & ~self.held
        self.open = (self.open | more) & ~self.held
        self.missing = int(self.needed.sum())

    def stop_fetch(self) -> None:
        """Marks all chunks as not needed."""
        self.needed[:] = False
        self.open[:] = False
        self.missing = 0
        self.backoff_until.clear()

    @property
    def complete(self) -> bool:
        """Whether no chunk is needed."""
        return not self.missing

    @property
    def chunks(self) -> int:
        """How many chunks the manifest has."""
        return len(self.held)

    def needs(self, index: int) -> bool:
        """Returns whether a chunk is wanted and not held; False for one that the manifest does not have."""
        return 0 <= index < self.chunks and bool(self.needed[index])

    def add_holder(self, theirs: Bits, chunks: list[int], now: float) -> list[int]:
        """Adds chunks to a peer's flags (`theirs`, changed in place) and to the rarity. Returns the new ones."""
        if len(chunks) < _FEW:
            new = []
            for index in chunks:
                if index < len(theirs) and not theirs[index]:
                    theirs[index] = True
                    self.rarity[index] += 1
                    if self.available_since[index] > now:
                        self.available_since[index] = now
                    new.append(index)
            return new
        new = [index for index in dict.fromkeys(chunks) if index < len(theirs) and not theirs[index]]
        theirs[new] = True
        self.rarity[new] += 1
        self.available_since[new] = np.minimum(self.available_since[new], now)
        return new

    def assign(self, index: int, peer: str) -> None:
        """Makes a peer the provider of a needed chunk, or its second one."""
        (self.second_provider if index in self.provider else self.provider)[index] = peer
        self.open[index] = False

    def unassign(self, index: int, peer: str) -> None:
        """Removes a peer as a provider of a chunk, if it is one."""
        if self.second_provider.get(index) == peer:
            del self.second_provider[index]
        elif self.provider.get(index) == peer:
            second_provider = self.second_provider.pop(index, None)
            if second_provider is not None:
                self.provider[index] = second_provider
                return
            del self.provider[index]
            self.open[index] = self.needed[index] and index not in self.backoff_until

    def providers(self, index: int) -> list[str]:
        """Returns the peers that owe this chunk."""
        return [owed[index] for owed in (self.provider, self.second_provider) if index in owed]

    def mark_held(self, index: int) -> list[str]:
        """Marks a chunk as held. Returns the peers that owed it."""
        owing = self.providers(index)
        self.provider.pop(index, None)
        self.second_provider.pop(index, None)
        self.held[index] = True
        self.missing -= bool(self.needed[index])
        self.needed[index] = False
        self.open[index] = False
        self.backoff_until.pop(index, None)
        return owing

    def mark_lost(self, index: int, until: float) -> None:
        """Marks a chunk that the store lost as needed; it may be requested after `until` (seconds)."""
        self.held[index] = False
        self.missing += not self.needed[index]
        self.needed[index] = True
        self.open[index] = False
        self.losses[index] = self.losses.get(index, 0) + 1
        self.backoff_until[index] = until

    def reopen(self, now: float) -> None:
        """Opens lost chunks whose pause is over to requests."""
        for index in [index for index, until in self.backoff_until.items() if until <= now]:
            del self.backoff_until[index]
            self.open[index] = self.needed[index] and index not in self.provider
