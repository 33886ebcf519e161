"""Tree forwarding: a node pushes each chunk that came down a tree to its children there, as soon as it is verified.

A parent announces to each child the chunks that it has queued for it, so that the child knows what the parent owes.
"""

from __future__ import annotations

from p2psync.protocol.messages import MAX_REQUEST_CHUNKS, Bitfield
from p2psync.swarm.exchange.bitmap import pack_bitmap
from p2psync.swarm.exchange.have_batch import HaveBatch
from p2psync.swarm.exchange.state import SwarmState
from p2psync.swarm.exchange.transfer import Transfer
from p2psync.swarm.exchange.upload_scheduler import UploadScheduler


class Forwarding:
    """Forwards chunks from one node to its children."""

    def __init__(self, state: SwarmState, uploads: UploadScheduler, haves: HaveBatch) -> None:
        self._state, self._uploads, self._haves = state, uploads, haves

    def forward(self, transfer: Transfer, short: bytes, index: int, tag: int, now: float) -> None:
        """Pushes a chunk to the children in the tree of this tag; 0: none."""
        if tag:
            transfer.tags[index] = tag
            for name in self._state.trees.children_of(tag):
                self._uploads.push(name, transfer, short, index, now)

    def subscribed(self, name: str, transfer: Transfer, short: bytes, now: float) -> None:
        """Pushes to a new subscriber the held chunks of the trees in which it is a child."""
        for index, tag in sorted(transfer.tags.items()):
            if transfer.held[index] and name in self._state.trees.children_of(tag):
                self._uploads.push(name, transfer, short, index, now)
        self._announce_queue(name, transfer, short)

    def announce_all(self, name: str, transfer: Transfer, short: bytes) -> None:
        """Announces to a peer all held chunks of a manifest, and those that are queued for it."""
        if not transfer.unannounced and transfer.held.any():
            self._state.send(name, Bitfield(short, pack_bitmap(transfer.held)))
            self._announce_queue(name, transfer, short)

    def _announce_queue(self, name: str, transfer: Transfer, short: bytes) -> None:
        queued = [index for key, index in self._state.peers[name].upload.pushes if key == short]
        for start in range(0, len(queued), MAX_REQUEST_CHUNKS):
            chunks = queued[start : start + MAX_REQUEST_CHUNKS]
            self._state.send(name, self._haves.message(short, transfer, chunks))
