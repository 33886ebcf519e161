"""Serving: what goes to whom next. A part of the swarm's core.

Requests and pushes wait here, not in socket buffers. The next chunk for a peer is handed out when its connections have
room. Requests come first, since whoever asks has waited already; of them, chunks that this node has sent the fewest
times, so that a seed sends each chunk once before any twice. Pushes go in the order in which the chunks came.
"""

from __future__ import annotations

from p2psync.protocol.messages import Have, Reject, Request
from p2psync.swarm.actions import SendChunk
from p2psync.swarm.ground import Ground
from p2psync.swarm.peer import MAX_QUEUED, Peer
from p2psync.swarm.transfer import Transfer, pack_bitmap


class Serving:
    """What one node owes its peers."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def requested(self, peer: Peer, request: Request) -> None:
        """A peer asks for chunks: what is not here, or too much, is refused at once."""
        transfer = self._ground.transfers.get(request.manifest)
        refused = []
        for index in request.chunks:
            key = (request.manifest, index)
            peer.pushes.pop(key, None)
            held = transfer is not None and index < len(transfer.held) and bool(transfer.held[index])
            if held and len(peer.queue) < MAX_QUEUED:
                peer.queue[key] = None
            else:
                refused.append(index)
        if refused:
            self._ground.send(peer.name, Reject(request.manifest, refused))
        self.serve(peer)

    def push(self, name: str, transfer: Transfer, short: bytes, index: int) -> bool:
        """Push a held chunk to a peer that wants the manifest's chunks; False if it does not, or was given it."""
        peer = self._ground.peers.get(name)
        if peer is None or not peer.lacks(short, index):
            return False
        peer.give(short, index, len(transfer.held), transfer.manifest.sizes[index])
        peer.pushes[(short, index)] = None
        self.serve(peer)
        return True

    def has_room(self, peer: Peer, transfer: Transfer) -> bool:
        """Whether little waits for this peer, so that a chunk that is pushed now leaves soon."""
        if not transfer.held.all():
            # Other roots have the rest, and feed the same first hops: what each lets wait would add up there.
            return not peer.pushes and peer.flushing < self._limit(peer, transfer)
        waiting = len(peer.pushes) * transfer.typical + peer.flushing
        return waiting < max(self._ground.config.push_room, self._limit(peer, transfer))

    def serve(self, peer: Peer) -> None:
        """Hand out what there is room for."""
        while waiting := peer.queue or peer.pushes:
            transfer = self._ground.transfers.get(next(iter(waiting))[0])
            if transfer is not None and peer.flushing >= self._limit(peer, transfer):
                return
            if peer.queue:
                transfers = self._ground.transfers
                # Most often there is one that was never sent, which is the least.
                unsent = next((key for key in peer.queue if key[1] not in transfers[key[0]].sent), None)
                short, index = unsent or min(peer.queue, key=lambda key: transfers[key[0]].sent[key[1]])
                del peer.queue[(short, index)]
                self._hand_out(peer, short, index, asked=True)
            else:
                (short, index), _ = peer.pushes.popitem(last=False)
                theirs = peer.holds.get(short)
                if theirs is None or not theirs[index]:
                    self._hand_out(peer, short, index, asked=False)

    def tell_all(self, short: bytes, transfer: Transfer, name: str) -> None:
        """Tell a peer all that is held of a manifest."""
        if not transfer.silent and transfer.held.any():
            self._ground.send(name, Have(short, pack_bitmap(transfer.held)))

    def _limit(self, peer: Peer, transfer: Transfer) -> int:
        """Bytes that may be on their way to the kernel: two chunks, so that one follows the other, or one for each
        connection, where each carries little; or some more."""
        config = self._ground.config
        for_each = min(config.flush_most, peer.connections * transfer.typical)
        return max(config.flush_limit, 2 * transfer.typical, for_each)

    def _hand_out(self, peer: Peer, short: bytes, index: int, *, asked: bool) -> None:
        transfer = self._ground.transfers.get(short)
        if transfer is None or not transfer.held[index]:
            if asked:
                self._ground.send(peer.name, Reject(short, [index]))
            return
        size = transfer.manifest.sizes[index]
        peer.flushing += size
        transfer.sent[index] = transfer.sent.get(index, 0) + 1
        self._ground.sent_bytes += size
        self._ground.actions.append(SendChunk(peer.name, transfer.id, index, size, transfer.tags.get(index, 0)))
