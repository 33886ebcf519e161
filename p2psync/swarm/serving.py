"""Serving: what goes to whom next. A part of the swarm's core.

Requests and pushes wait here, not in socket buffers. The next chunk for a peer is handed out when its connections have
room, and where it is the uplink that holds this node up, when that has (`outflow`). Requests come first, since whoever
asks has waited already; of them, chunks that this node has sent the fewest times, so that a seed sends each chunk once
before any twice. Pushes go in the order in which the chunks came, to whomever: if peers took turns, all that an uplink
is short of would wait for the peer to whom most goes, whose connections alone do not bring it in the end as fast as all
together would have.
"""

from __future__ import annotations

from p2psync.protocol.messages import Bitfield, Reject, Request
from p2psync.swarm.actions import SendChunk
from p2psync.swarm.ground import Ground
from p2psync.swarm.outflow import Outflow
from p2psync.swarm.peer import MAX_QUEUED, Peer
from p2psync.swarm.transfer import Transfer, pack_bitmap

_NEVER = float("inf")


class Serving:
    """What one node owes its peers. `poll` is due at `next_wake`."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        #: What may leave in all.
        self.outflow = Outflow()
        # Peers for whom something waits until more may leave.
        self._turns: dict[str, None] = {}
        self._asked_last = False
        self.next_wake = _NEVER

    def requested(self, peer: Peer, request: Request, now: float) -> None:
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
        self.serve(peer, now)

    def push(self, name: str, transfer: Transfer, short: bytes, index: int, now: float, *, tag: int = 0) -> bool:
        """Push a held chunk to a peer that wants the manifest's chunks; False if it does not, or was given it.

        tag: of another tree than the one it came down.
        """
        peer = self._ground.peers.get(name)
        if peer is None or not peer.lacks(short, index):
            return False
        peer.give(short, index, len(transfer.held), transfer.manifest.sizes[index])
        peer.pushes[(short, index)] = (tag, now)
        self.serve(peer, now)
        return True

    def has_room(self, peer: Peer, transfer: Transfer, *, whole: bool) -> bool:
        """Whether little waits for this peer, so that a chunk that is pushed now leaves soon. whole: all is held."""
        if not whole:
            # Other roots have the rest, and feed the same first hops: what each lets wait would add up there.
            return not peer.pushes and peer.flushing < self._limit(peer, transfer)
        waiting = len(peer.pushes) * transfer.typical + peer.flushing
        return waiting < max(self._ground.config.push_room, self._limit(peer, transfer))

    def is_idle(self, now: float) -> bool:
        """Whether more may leave, and nothing waits for that; what waits for a connection to have room does not."""
        return not self._turns and self.outflow.may(now)

    def serve(self, peer: Peer, now: float) -> None:
        """Hand out what there is room for."""
        if peer.name in self._turns:
            return
        while self._has_work(peer):
            if self._is_paced(peer) and (self._turns or not self.outflow.may(now)):
                self._turns[peer.name] = None
                self.next_wake = min(self.next_wake, self.outflow.wake(now))
                return
            self._serve_one(peer, now)

    def poll(self, now: float) -> None:
        """Do what time has made due: chunks leave one after the other, as long as more may leave."""
        if now < self.next_wake:
            return
        while self._turns and self.outflow.may(now):
            name = self._next()
            del self._turns[name]
            peer = self._ground.peers.get(name)
            if peer is not None and self._has_work(peer):
                self._serve_one(peer, now)
                if self._has_work(peer):
                    self._turns[name] = None
        self.next_wake = self.outflow.wake(now) if self._turns else _NEVER

    def _next(self) -> str:
        """Whose chunk leaves next of those who wait: by turns of one who asked, each in its turn, and of the push that
        has waited longest. So who asks without end keeps others waiting for no more than as long again."""
        asked = pushed = None
        since = _NEVER
        for name in self._turns:
            peer = self._ground.peers.get(name)
            if peer is None:
                continue
            if peer.queue:
                asked = asked or name
            elif peer.pushes and peer.pushing_since < since:
                pushed, since = name, peer.pushing_since
        self._asked_last = asked is not None and not (self._asked_last and pushed)
        return (asked if self._asked_last else pushed) or next(iter(self._turns))

    def _has_work(self, peer: Peer) -> bool:
        """Whether something waits for this peer, and its connections have room."""
        waiting = peer.queue or peer.pushes
        if not waiting:
            return False
        transfer = self._ground.transfers.get(next(iter(waiting))[0])
        return transfer is None or self.may_hand_out(peer, transfer)

    def may_hand_out(self, peer: Peer, transfer: Transfer) -> bool:
        """Whether its connections have room for a chunk."""
        return peer.flushing < self._limit(peer, transfer)

    def _is_paced(self, peer: Peer) -> bool:
        """A small manifest is out before its pace would matter."""
        if not self.outflow.rate:
            return False
        transfer = self._ground.transfers.get(next(iter(peer.queue or peer.pushes))[0])
        return transfer is not None and transfer.size > self._ground.config.flight_least

    def _serve_one(self, peer: Peer, now: float) -> None:
        if peer.queue:
            transfers = self._ground.transfers
            # Most often there is one that was never sent, which is the least.
            unsent = next((key for key in peer.queue if key[1] not in transfers[key[0]].sent), None)
            short, index = unsent or min(peer.queue, key=lambda key: transfers[key[0]].sent[key[1]])
            del peer.queue[(short, index)]
            self._hand_out(peer, short, index, now, asked=True)
        else:
            (short, index), (tag, _) = peer.pushes.popitem(last=False)
            theirs = peer.holds.get(short)
            if theirs is None or not theirs[index]:
                self._hand_out(peer, short, index, now, asked=False, tag=tag)

    def tell_all(self, short: bytes, transfer: Transfer, name: str) -> None:
        """Tell a peer all that is held of a manifest."""
        if not transfer.silent and transfer.held.any():
            self._ground.send(name, Bitfield(short, pack_bitmap(transfer.held)))

    def _limit(self, peer: Peer, transfer: Transfer) -> int:
        """Bytes that may be on their way to the kernel: two chunks, so that one follows the other, or one for each
        connection, where each carries little; or some more."""
        config = self._ground.config
        for_each = min(config.flush_most, peer.connections * transfer.typical)
        return max(config.flush_limit, 2 * transfer.typical, for_each)

    def _hand_out(self, peer: Peer, short: bytes, index: int, now: float, *, asked: bool, tag: int = 0) -> None:
        transfer = self._ground.transfers.get(short)
        if transfer is None or not transfer.held[index]:
            if asked:
                self._ground.send(peer.name, Reject(short, [index]))
            return
        size = transfer.manifest.sizes[index]
        peer.flushing += size
        self.outflow.took(size, now)
        transfer.sent[index] = transfer.sent.get(index, 0) + 1
        self._ground.sent_bytes += size
        self._ground.actions.append(SendChunk(peer.name, transfer.id, index, size, tag or transfer.tags.get(index, 0)))
