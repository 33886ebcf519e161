"""Pending chunks: pushed to this node before it knows their manifest; bounded, and not verified yet."""

from __future__ import annotations

from collections import OrderedDict

from p2psync.protocol.messages import Chunk

#: Bytes of all pending chunks; beyond it, the node drops the chunks of the oldest manifest, and requests them later.
MAX_PENDING_CHUNK_BYTES = 8 << 20


class PendingChunks:
    """The pending chunks and their senders, by the manifest's short id, in order of arrival. nbytes: of all."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[bytes, list[tuple[str, Chunk]]] = OrderedDict()
        self.nbytes = 0

    def put(self, peer: str, chunk: Chunk) -> None:
        """Adds a chunk from a peer (name)."""
        self._chunks.setdefault(chunk.manifest, []).append((peer, chunk))
        self.nbytes += len(chunk.data)
        while self.nbytes > MAX_PENDING_CHUNK_BYTES:
            self.pop(next(iter(self._chunks)))

    def pop(self, short: bytes) -> list[tuple[str, Chunk]]:
        """Removes the chunks of a manifest, and returns them with their senders."""
        found = self._chunks.pop(short, [])
        self.nbytes -= sum(len(chunk.data) for _, chunk in found)
        return found
