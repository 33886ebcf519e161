"""One connected peer: the chunks that it holds, its download and its upload."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from p2psync.swarm.exchange.bitmap import Bits
from p2psync.swarm.exchange.download import Download
from p2psync.swarm.exchange.upload import Upload

#: Bytes of one peer's bitmaps of unknown manifests; beyond it, the node drops the oldest. Thousands of small manifests
#: fit, or a dozen of half a million chunks each.
MAX_PENDING_BYTES = 1 << 20
_PENDING_OVERHEAD = 64


class PendingBitfields:
    """A peer's bitmaps of manifests that this node does not know yet, by short id."""

    def __init__(self) -> None:
        self._bitmaps: OrderedDict[bytes, bytearray] = OrderedDict()
        self._nbytes = 0

    def put(self, short: bytes, bitmap: bytes | bytearray) -> None:
        """Replaces the bitmap of a manifest."""
        self.pop(short)
        self._bitmaps[short] = bytearray(bitmap)
        self._nbytes += len(bitmap) + _PENDING_OVERHEAD
        while self._nbytes > MAX_PENDING_BYTES:
            _, forgotten = self._bitmaps.popitem(last=False)
            self._nbytes -= len(forgotten) + _PENDING_OVERHEAD

    def add(self, short: bytes, chunks: list[int]) -> None:
        """Adds these chunks to the bitmap of a manifest."""
        if not chunks:
            return
        bitmap = self.pop(short) or bytearray()
        bitmap.extend(bytes(max(0, max(chunks) // 8 + 1 - len(bitmap))))
        for index in chunks:
            bitmap[index // 8] |= 1 << index % 8
        self.put(short, bitmap)

    def pop(self, short: bytes) -> bytearray | None:
        """Removes the bitmap of a manifest, and returns it; None if there is none."""
        bitmap = self._bitmaps.pop(short, None)
        if bitmap is not None:
            self._nbytes -= len(bitmap) + _PENDING_OVERHEAD
        return bitmap


@dataclass(slots=True)
class Peer:
    """One connected peer.

    same_region: it is in this node's region. publisher: it publishes. download: what it owes this node; upload: what
    this node sends to it. holds: flags of the chunks that it holds, by manifest; pending: the same of unknown
    manifests. surplus: useless bytes that it sent, less the useful ones.
    """

    name: str
    same_region: bool
    publisher: bool
    download: Download
    upload: Upload
    holds: dict[bytes, Bits] = field(default_factory=dict)
    pending: PendingBitfields = field(default_factory=PendingBitfields)
    surplus: int = 0

    def has(self, short: bytes, index: int) -> bool:
        """Returns whether the peer is known to hold a chunk."""
        theirs = self.holds.get(short)
        return theirs is not None and bool(theirs[index])
