"""The upload scheduler: decides which chunk a node sends next, and to which peer.

Requested and pushed chunks wait in its queues, not in socket buffers. It sends the next chunk to a peer when the peer's
connections have room and, on a limited uplink, the token bucket allows. Of one peer's chunks, requested ones go first;
of them, those that this node sent the fewest times, so that a publisher sends each chunk once before any twice. Between
peers, pushed chunks go in the order of queueing; requests take turns, with each other and with pushes.
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
    """Schedules the uploads of one node. `poll` is due at `next_wake`. sent_bytes: of all sent chunks."""

    def __init__(self, state: SwarmState) -> None:
        self._state = state
        self.bucket = TokenBucket(state.config.burst, state.config.burst_seconds)
        self.sent_bytes = 0
        self.next_wake = _NEVER
        # Peers that wait for the bucket although their connections have room.
        self._waiting: dict[str, None] = {}
        self._request_was_last = False

    def requested(self, peer: Peer, request: Request, now: float) -> None:
        """Queues the chunks of a Request; rejects those that this node does not hold, or that are too many."""
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
        """Queues a held chunk to be pushed; returns False if the peer does not accept it, has it, or was sent it."""
        peer = self._state.peers.get(name)
        if peer is None or not peer.upload.accepts_pushes(short) or peer.has(short, index):
            return False
        if peer.upload.was_pushed(short, index):
            return False
        peer.upload.push(short, index, transfer.chunks, transfer.manifest.sizes[index], now)
        self.serve(peer, now)
        return True

    def has_room(self, peer: Peer, transfer: Transfer) -> bool:
        """Returns whether a peer's push queue is short, so that a chunk pushed now leaves soon."""
        return len(peer.upload.pushes) * transfer.mean_chunk_bytes < self._state.config.push_room

    def backlog(self) -> float:
        """Returns the seconds that the uplink needs for all queued chunks; 0 without a limit."""
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
        """Sends queued chunks to a peer while its connections have room and the bucket allows."""
        if peer.name in self._waiting:
            return
        while self._can_send(peer):
            if self._waiting or not self.bucket.allows(now):
                self._waiting[peer.name] = None
                self.next_wake = min(self.next_wake, self.bucket.wakes_at(now))
                return
            self._send_next(peer, now)

    def poll(self, now: float) -> None:
        """Sends chunks to the waiting peers while the bucket allows, if due."""
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
        """Returns the peer to send to next: requests and pushes take turns; of requests, the peer that has waited
        longest, of pushes, the oldest.
        """
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
        """Returns whether a peer has queued chunks, and its connections have room."""
        queue = peer.upload.requested or peer.upload.pushes
        if not queue:
            return False
        transfer = self._state.transfers.get(next(iter(queue))[0])
        return transfer is None or peer.upload.flushing < self._flush_limit(peer, transfer)

    def _flush_limit(self, peer: Peer, transfer: Transfer) -> int:
        """Returns the bytes that may wait in a peer's connections: two chunks, so that one follows the other, or one
        for each connection, or `flush_limit` if that is more.
        """
        config = self._state.config
        for_each = min(config.flush_most, peer.upload.connections * transfer.mean_chunk_bytes)
        return max(config.flush_limit, 2 * transfer.mean_chunk_bytes, for_each)

    def _send_next(self, peer: Peer, now: float) -> None:
        """Sends a peer's next chunk: of the requested ones the first that this node sent the fewest times, else the
        oldest push.
        """
        upload, transfers = peer.upload, self._state.transfers
        if upload.requested:
            # Most often one of them was never sent.
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
