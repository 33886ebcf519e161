"""The chunks queued for one peer, and those already pushed to it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from p2psync.swarm.exchange.bitmap import Bits
from p2psync.swarm.exchange.download import ChunkKey

#: Subscriptions of one peer; beyond it, the node drops the oldest.
MAX_SUBSCRIPTIONS = 1024


class Upload:
    """One peer as a receiver. Bytes and seconds.

    requested: chunks that it requested, in order. pushes: chunks queued to be pushed to it, in order, with the time at
    which each was queued. pushed: flags of the chunks that were pushed to it or are queued, by manifest. accepts_next:
    digest of the version that it runs; it accepts some chunks of the next one before it subscribes. flushing: bytes
    handed to its connections that the kernel has not taken yet.
    """

    __slots__ = ("_unsolicited", "_unsolicited_most", "accepts_next", "connections", "flushing", "pushed", "pushes",
                 "requested", "subscribed")  # fmt: skip

    def __init__(self, unsolicited_most: int) -> None:
        """unsolicited_most: bytes of a manifest that may be pushed before the peer subscribes to it."""
        self.requested: OrderedDict[ChunkKey, None] = OrderedDict()
        self.pushes: OrderedDict[ChunkKey, float] = OrderedDict()
        self.pushed: dict[bytes, Bits] = {}
        self.subscribed: OrderedDict[bytes, None] = OrderedDict()
        self.accepts_next = b""
        self.connections = 1
        self.flushing = 0
        self._unsolicited: dict[bytes, int] = {}
        self._unsolicited_most = unsolicited_most

    def subscribe(self, short: bytes, wanted: bool) -> None:
        """Adds or removes the peer's subscription to a manifest."""
        self.subscribed.pop(short, None)
        self._unsolicited.pop(short, None)
        if wanted:
            self.subscribed[short] = None
            if len(self.subscribed) > MAX_SUBSCRIPTIONS:
                self.subscribed.popitem(last=False)

    def presume_subscribed(self, short: bytes) -> None:
        """Allows some pushes of a manifest before the peer subscribes, since it can apply the manifest at once."""
        if short not in self.subscribed:
            self.subscribe(short, True)
            self._unsolicited[short] = 0

    def accepts_pushes(self, short: bytes) -> bool:
        """Returns whether chunks of a manifest may be pushed to the peer."""
        return short in self.subscribed and self._unsolicited.get(short, -1) < self._unsolicited_most

    def was_pushed(self, short: bytes, index: int) -> bool:
        """Returns whether a chunk was pushed to the peer, or is queued to be."""
        pushed = self.pushed.get(short)
        return pushed is not None and bool(pushed[index])

    def push(self, short: bytes, index: int, chunks: int, size: int, now: float) -> None:
        """Queues a chunk to be pushed. chunks: of the whole manifest. size: bytes of this one."""
        if short in self._unsolicited:
            self._unsolicited[short] += size
        pushed = self.pushed.get(short)
        if pushed is None:
            pushed = self.pushed[short] = np.zeros(chunks, np.bool_)
        pushed[index] = True
        self.pushes[(short, index)] = now

    def allow_repush(self, short: bytes, chunks: list[int]) -> None:
        """Allows pushing these chunks to the peer again."""
        pushed = self.pushed.get(short)
        if pushed is not None:
            pushed[chunks] = False

    def cancel(self, short: bytes, chunks: Iterable[int]) -> None:
        """Removes these chunks from the queues."""
        for index in chunks:
            self.requested.pop((short, index), None)
            self.pushes.pop((short, index), None)

    def forget(self, short: bytes) -> None:
        """Removes a manifest: its queued chunks, its flags, its subscription."""
        for key in [key for key in self.requested if key[0] == short]:
            del self.requested[key]
        for key in [key for key in self.pushes if key[0] == short]:
            del self.pushes[key]
        self.pushed.pop(short, None)
        self.subscribe(short, False)
