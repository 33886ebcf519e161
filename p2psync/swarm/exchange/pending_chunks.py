"""Chunks that were pushed here before their manifest came: kept for a moment, within bounds, and not yet verified."""

from __future__ import annotations

from collections import OrderedDict

from p2psync.protocol.messages import Chunk

#: Bytes that are kept in all; beyond it, the oldest manifest's chunks are forgotten, and will be pulled.
MAX_PENDING_CHUNK_BYTES = 8 << 20


class PendingChunks:
    """By the manifest's short id, in order of coming, with who sent each."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[bytes, list[tuple[str, Chunk]]] = OrderedDict()
        self.nbytes = 0

    def put(self, peer: str, chunk: Chunk) -> None:
        """Keep a chunk."""
        self._chunks.setdefault(chunk.manifest, []).append((peer, chunk))
        self.nbytes += len(chunk.data)
        while self.nbytes > MAX_PENDING_CHUNK_BYTES:
            self.pop(next(iter(self._chunks)))

    def pop(self, short: bytes) -> list[tuple[str, Chunk]]:
        """Forget what came of a manifest, and return it."""
        found = self._chunks.pop(short, [])
        self.nbytes -= sum(len(chunk.data) for _, chunk in found)
        return found
