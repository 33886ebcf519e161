"""The chunks that this node is to send to one peer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from p2psync.swarm.exchange.bitmap import Bits
from p2psync.swarm.exchange.download import ChunkKey

#: Manifests that a peer may be subscribed to at a time; beyond it, the oldest subscription is forgotten.
MAX_SUBSCRIPTIONS = 1024


class Upload:
    """One peer as a receiver. Bytes and seconds.

    requested: chunks that it requested, in order. pushes: chunks to push to it, in order, with the time at which each
    was queued. given: flags of the chunks that were pushed to it, or are about to be, by manifest. accepts: digest of
    the version that it runs; it takes some of the next one before it subscribes. flushing: bytes handed to its
    connections and not yet taken by the kernel.
    """

    __slots__ = ("_unasked", "_unasked_most", "accepts", "connections", "flushing", "given", "pushes", "requested",
                 "subscribed")  # fmt: skip

    def __init__(self, unasked_most: int) -> None:
        """unasked_most: bytes of a manifest that are pushed before the peer subscribes to it."""
        self.requested: OrderedDict[ChunkKey, None] = OrderedDict()
        self.pushes: OrderedDict[ChunkKey, float] = OrderedDict()
        self.given: dict[bytes, Bits] = {}
        self.subscribed: OrderedDict[bytes, None] = OrderedDict()
        self.accepts = b""
        self.connections = 1
        self.flushing = 0
        self._unasked: dict[bytes, int] = {}
        self._unasked_most = unasked_most

    def subscribe(self, short: bytes, wanted: bool) -> None:
        """The peer wants the chunks of a manifest pushed, or does no longer."""
        self.subscribed.pop(short, None)
        self._unasked.pop(short, None)
        if wanted:
            self.subscribed[short] = None
            if len(self.subscribed) > MAX_SUBSCRIPTIONS:
                self.subscribed.popitem(last=False)

    def may_subscribe(self, short: bytes) -> None:
        """The peer runs the manifest's base, or nothing before an anchor: some is pushed before it subscribes."""
        if short not in self.subscribed:
            self.subscribe(short, True)
            self._unasked[short] = 0

    def takes(self, short: bytes) -> bool:
        """Returns whether chunks of a manifest may be pushed to the peer."""
        return short in self.subscribed and (short not in self._unasked or self._unasked[short] < self._unasked_most)

    def was_given(self, short: bytes, index: int) -> bool:
        """Returns whether a chunk was pushed to the peer, or is about to be."""
        given = self.given.get(short)
        return given is not None and bool(given[index])

    def push(self, short: bytes, index: int, chunks: int, size: int, now: float) -> None:
        """Queues a chunk, one of `chunks`."""
        if short in self._unasked:
            self._unasked[short] += size
        given = self.given.get(short)
        if given is None:
            given = self.given[short] = np.zeros(chunks, np.bool_)
        given[index] = True
        self.pushes[(short, index)] = now

    def take_back(self, short: bytes, chunks: list[int]) -> None:
        """These chunks may be pushed to the peer again."""
        given = self.given.get(short)
        if given is not None:
            given[chunks] = False

    def cancel(self, short: bytes, chunks: Iterable[int]) -> None:
        """The peer does not need these chunks from here."""
        for index in chunks:
            self.requested.pop((short, index), None)
            self.pushes.pop((short, index), None)

    def forget(self, short: bytes) -> None:
        """The manifest is exchanged no longer."""
        for key in [key for key in self.requested if key[0] == short]:
            del self.requested[key]
        for key in [key for key in self.pushes if key[0] == short]:
            del self.pushes[key]
        self.given.pop(short, None)
        self.subscribe(short, False)
