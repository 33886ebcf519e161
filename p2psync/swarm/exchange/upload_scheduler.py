"""The upload scheduler: which chunk leaves next, and to which peer.

Requested and pushed chunks wait here, not in socket buffers. The next chunk for a peer leaves when its connections have
room and, where the uplink binds, when the token bucket allows. Of one peer's chunks, requested ones go first; of them,
those that left the fewest times, so that a publisher sends each chunk once before any twice. Between peers, pushed
chunks go in the order in which they were queued; requests take turns, with each other and with pushes.
"""

from __future__ import annotations

from p2psync.protocol.messages import Reject, Request
from p2psync.swarm.exchange.actions import SendChunk
from p2psync.swarm.exchange.peer import Peer
from p2psync.swarm.exchange.state import SwarmState
from p2psync.swarm.exchange.token_bucket import TokenBucket
from p2psync.swarm.exchange.transfer import Transfer

_NEVER = float("inf")


class UploadScheduler:
    """The chunks that one node is to send. `poll` is due at `next_wake`. sent_bytes: of all chunks that left."""

    def __init__(self, state: SwarmState) -> None:
        self._state = state
        self.bucket = TokenBucket(state.config.burst, state.config.burst_seconds)
        self.sent_bytes = 0
        self.next_wake = _NEVER
        # Peers with connections that have room, which wait for the bucket.
        self._waiting: dict[str, None] = {}
        self._request_was_last = False

    def requested(self, peer: Peer, request: Request, now: float) -> None:
        """A peer requests chunks; those that are not held, or too many, are rejected."""
        transfer, upload = self._state.transfers.get(request.manifest), peer.upload
        rejected = []
        for index in request.chunks:
            key = (request.manifest, index)
            upload.pushes.pop(key, None)
            held = transfer is not None and index < transfer.chunks and bool(transfer.held[index])
            if held and len(upload.requested) < self._state.config.queued_most:
                upload.requested[key] = None
            else:
                rejected.append(index)
        if rejected:
            self._state.send(peer.name, Reject(request.manifest, rejected))
        self.serve(peer, now)

    def push(self, name: str, transfer: Transfer, short: bytes, index: int, now: float) -> bool:
        """Queues a held chunk for a peer; returns False if the peer does not take it, has it, or was given it."""
        peer = self._state.peers.get(name)
        if peer is None or not peer.upload.accepts_pushes(short) or peer.has(short, index):
            return False
        if peer.upload.was_pushed(short, index):
            return False
        peer.upload.push(short, index, transfer.chunks, transfer.manifest.sizes[index], now)
        self.serve(peer, now)
        return True

    def has_room(self, peer: Peer, transfer: Transfer) -> bool:
        """Returns whether little waits for this peer, so that a chunk pushed now leaves soon."""
        return len(peer.upload.pushes) * transfer.mean_chunk_bytes < self._state.config.push_room

    def backlog(self) -> float:
        """Returns the seconds for which the uplink is busy with what waits here; 0 where it does not bind."""
        rate = self.bucket.rate
        if not rate:
            return 0.0
        transfers = self._state.transfers
        return (
            sum(
                transfers[key[0]].mean_chunk_bytes
                for peer in self._state.peers.values()
                for queue in (peer.upload.requested, peer.upload.pushes)
                for key in queue
            )
            / rate
        )

    def serve(self, peer: Peer, now: float) -> None:
        """Hands out the chunks for a peer that its connections, and the bucket, have room for."""
        if peer.name in self._waiting:
            return
        while self._can_send(peer):
            if self._waiting or not self.bucket.allows(now):
                self._waiting[peer.name] = None
                self.next_wake = min(self.next_wake, self.bucket.wakes_at(now))
                return
            self._send_next(peer, now)

    def poll(self, now: float) -> None:
        """Hands out chunks one after the other, as long as the bucket allows."""
        if now < self.next_wake:
            return
        while self._waiting and self.bucket.allows(now):
            name = self._next_peer()
            del self._waiting[name]
            peer = self._state.peers.get(name)
            if peer is not None and self._can_send(peer):
                self._send_next(peer, now)
                if self._can_send(peer):
                    self._waiting[name] = None
        self.next_wake = self.bucket.wakes_at(now) if self._waiting else _NEVER

    def _next_peer(self) -> str:
        """Returns the peer whose chunk leaves next: of requests and pushes by turns, of requests the peer that waited
        longest, of pushes the oldest."""
        requesting = pushing = None
        since = _NEVER
        for name in self._waiting:
            peer = self._state.peers.get(name)
            if peer is None:
                continue
            if peer.upload.requested:
                requesting = requesting or name
            elif peer.upload.pushes and (queued := next(iter(peer.upload.pushes.values()))) < since:
                pushing, since = name, queued
        self._request_was_last = requesting is not None and not (self._request_was_last and pushing)
        return (requesting if self._request_was_last else pushing) or next(iter(self._waiting))

    def _can_send(self, peer: Peer) -> bool:
        """Returns whether something waits for this peer, and its connections have room."""
        queue = peer.upload.requested or peer.upload.pushes
        if not queue:
            return False
        transfer = self._state.transfers.get(next(iter(queue))[0])
        return transfer is None or peer.upload.flushing < self._flush_limit(peer, transfer)

    def _flush_limit(self, peer: Peer, transfer: Transfer) -> int:
        """Returns the bytes that may be on their way to the kernel: two chunks, so that one follows the other, or one
        for each connection, where each carries little; or some more."""
        config = self._state.config
        for_each = min(config.flush_most, peer.upload.connections * transfer.mean_chunk_bytes)
        return max(config.flush_limit, 2 * transfer.mean_chunk_bytes, for_each)

    def _send_next(self, peer: Peer, now: float) -> None:
        upload, transfers = peer.upload, self._state.transfers
        if upload.requested:
            # Most often there is one that never left.
            unsent = next((key for key in upload.requested if key[1] not in transfers[key[0]].sent), None)
            short, index = unsent or min(upload.requested, key=lambda key: transfers[key[0]].sent[key[1]])
            del upload.requested[(short, index)]
            if not self._send_chunk(peer, short, index, now):
                self._state.send(peer.name, Reject(short, [index]))
        else:
            (short, index), _ = upload.pushes.popitem(last=False)
            if not peer.has(short, index):
                self._send_chunk(peer, short, index, now)

    def _send_chunk(self, peer: Peer, short: bytes, index: int, now: float) -> bool:
        transfer = self._state.transfers.get(short)
        if transfer is None or not transfer.held[index]:
            return False
        size = transfer.manifest.sizes[index]
        peer.upload.flushing += size
        self.bucket.take(size, now)
        transfer.sent[index] = transfer.sent.get(index, 0) + 1
        self.sent_bytes += size
        self._state.actions.append(SendChunk(peer.name, transfer.id, index, size, transfer.tags.get(index, 0)))
        return True
