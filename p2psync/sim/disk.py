"""A simulated node's disk: its packs survive a crash."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from p2psync.protocol.manifest import Manifest, SignedManifest
from p2psync.swarm.exchange.bitmap import Bits


@dataclass
class SimPack:
    """One manifest's chunks. Like the real store it verifies a chunk's hash when it is first read after a start."""

    manifest: Manifest
    signed: SignedManifest
    chunks: list[bytes | None]
    checked: set[int] = field(default_factory=set)

    def held(self) -> Bits:
        """One flag per chunk."""
        return np.array([chunk is not None for chunk in self.chunks], np.bool_)

    def write(self, index: int, data: bytes) -> None:
        """Stores a verified chunk."""
        self.chunks[index] = data
        self.checked.add(index)

    def read(self, index: int) -> bytes | None:
        """Returns a chunk, None if it is missing or was found damaged (and is then removed)."""
        data = self.chunks[index]
        if data is None or index in self.checked:
            return data
        if not self.manifest.verify_chunk(index, data):
            self.chunks[index] = None
            return None
        self.checked.add(index)
        return data


@dataclass
class SimStore:
    """Packs by manifest id. full_until: virtual time before which nothing can be written."""

    packs: dict[bytes, SimPack] = field(default_factory=dict)
    full_until: float = 0.0

    def add(self, manifest: Manifest, signed: SignedManifest) -> SimPack:
        """Returns the pack of a manifest, empty if it is new."""
        return self.packs.setdefault(signed.id, SimPack(manifest, signed, [None] * manifest.chunks))

    def reopen(self) -> None:
        """The process restarted: no chunk counts as verified."""
        for pack in self.packs.values():
            pack.checked.clear()
