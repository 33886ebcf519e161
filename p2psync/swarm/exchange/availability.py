"""Availability: which peers hold which chunks, from their Bitfields, Haves and Rejects."""

from __future__ import annotations

import numpy as np

from p2psync.protocol.messages import Bitfield, Have, Reject
from p2psync.swarm.exchange.bitmap import Bits, unpack_bitmap
from p2psync.swarm.exchange.peer import Peer
from p2psync.swarm.exchange.publisher_sender import PublisherSender
from p2psync.swarm.exchange.request_scheduler import RequestScheduler
from p2psync.swarm.exchange.state import SwarmState


class Availability:
    """Keeps which chunks each peer of one node holds."""

    def __init__(self, state: SwarmState, requests: RequestScheduler, publisher: PublisherSender) -> None:
        self._requests, self._publisher = requests, publisher
        self._transfers = state.transfers

    def bitfield(self, peer: Peer, message: Bitfield, now: float) -> None:
        """Handles a Bitfield: replaces the chunks of a manifest that a peer holds."""
        transfer = self._transfers.get(message.manifest)
        if transfer is None:
            peer.pending.put(message.manifest, message.bitmap)
            return
        self.set_holds(peer, message.manifest, unpack_bitmap(message.bitmap, transfer.chunks), now)
        self._requests.announced(peer, transfer, [], [], now)

    def set_holds(self, peer: Peer, short: bytes, flags: Bits, now: float) -> None:
        """Sets the chunks (flags) of a known manifest (short id) that a peer holds."""
        transfer, before = self._transfers[short], peer.holds.get(short)
        if before is not None:
            transfer.rarity -= before
        peer.holds[short] = flags
        transfer.rarity += flags
        transfer.available_since[flags] = np.minimum(transfer.available_since[flags], now)
        self._publisher.confirm_flags(short, flags if before is None else flags & ~before, now)

    def have(self, peer: Peer, have: Have, now: float) -> None:
        """Handles a Have: adds chunks that a peer holds."""
        peer.download.set_backlog(have.backlog, now)
        transfer = self._transfers.get(have.manifest)
        if transfer is None:
            peer.pending.add(have.manifest, have.chunks)
            return
        theirs = peer.holds.get(have.manifest)
        if theirs is None:
            theirs = peer.holds[have.manifest] = np.zeros(transfer.chunks, np.bool_)
        new = transfer.add_holder(theirs, have.chunks, now)
        self._publisher.confirm(have.manifest, new, now)
        self._requests.announced(peer, transfer, have.chunks, have.tags, now)

    def dont_have(self, peer: Peer, short: bytes, now: float) -> None:
        """Handles a DontHave: a peer no longer holds any chunk of a manifest."""
        peer.pending.pop(short)
        peer.upload.subscribe(short, False)
        theirs = peer.holds.pop(short, None)
        transfer = self._transfers.get(short)
        if theirs is None or transfer is None:
            return
        transfer.rarity -= theirs
        for index in [index for key, index in peer.download.owed if key == short]:
            self._requests.release(peer, transfer, index)
        self._requests.fill_all(now)

    def reject(self, peer: Peer, reject: Reject, now: float) -> None:
        """Handles a Reject: a peer does not hold requested chunks, and will not send them."""
        transfer = self._transfers.get(reject.manifest)
        theirs = peer.holds.get(reject.manifest)
        if transfer is None or theirs is None:
            return
        for index in reject.chunks:
            if index < transfer.chunks:
                self._requests.release(peer, transfer, index)
                if theirs[index]:
                    theirs[index] = False
                    transfer.rarity[index] -= 1
        self._requests.fill_all(now)
