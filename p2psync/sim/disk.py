"""What survives a crash of a simulated node: its packs, and the weights that its engine committed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from p2psync.protocol.manifest import Manifest, SignedManifest
from p2psync.swarm.transfer import Bits


@dataclass
class SimPack:
    """One manifest's chunks. Like the real store it hashes a chunk when it is first read after a start."""

    manifest: Manifest
    signed: SignedManifest
    chunks: list[bytes | None]
    checked: set[int] = field(default_factory=set)

    def held(self) -> Bits:
        """One flag per chunk."""
        return np.array([chunk is not None for chunk in self.chunks], np.bool_)

    def write(self, index: int, data: bytes) -> None:
        """Keep a verified chunk."""
        self.chunks[index] = data
        self.checked.add(index)

    def read(self, index: int) -> bytes | None:
        """A chunk, None if it is not held or was found damaged (then it is no longer held)."""
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
        """The pack of a manifest, empty if it is new."""
        return self.packs.setdefault(signed.id, SimPack(manifest, signed, [None] * manifest.chunks))

    def reopen(self) -> None:
        """The process was started anew: nothing read so far counts as checked."""
        for pack in self.packs.values():
            pack.checked.clear()
