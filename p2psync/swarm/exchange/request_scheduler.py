"""The request scheduler: decides which chunks that no peer owes a node requests, and of which peer.

It fills a window for each peer, rarest chunks first (`pick`): at once if no parent pushes the manifest's chunks.
Otherwise a chunk waits until its push is overdue. Of a free parent (`Providers.is_free`), which has pushed its own
part, the scheduler requests chunks of other parents sooner.

A missing chunk is late in three ways:

- Its push is *overdue* if no peer owes the chunk, and a peer announced it a timeout ago (`PushTimeout.seconds`), or its
  parent in its tree is not connected. The scheduler requests it (`RequestScheduler._overdue`).
- The peer that owes it is *late* if it needs longer for all its chunks than the other peers for all others. The repair
  requests its last chunks of a second peer, too (`Repair._is_late`).
- It has *timed out* if the peer that owes it has sent nothing for `request_timeout`, or other chunks instead. The
repair
  cancels it and snubs the peer (`Download.has_timed_out`); the scheduler requests it again.
"""

from __future__ import annotations

from p2psync.protocol.messages import MAX_REQUEST_CHUNKS, SHORT_ID_BYTES, Chunk
from p2psync.swarm.exchange.bitmap import Bits
from p2psync.swarm.exchange.peer import Peer
from p2psync.swarm.exchange.picker import part_of, pick
from p2psync.swarm.exchange.providers import Providers
from p2psync.swarm.exchange.repair import Repair
from p2psync.swarm.exchange.state import SwarmState
from p2psync.swarm.exchange.timeout import PushTimeout
from p2psync.swarm.exchange.transfer import Transfer

_NEVER = float("inf")


class RequestScheduler:
    """Schedules the requests of one node. `poll` is due at `next_wake`."""

    def __init__(self, state: SwarmState) -> None:
        self._state = state
        self._providers = Providers(state)
        self._repair = Repair(state, self._providers)
        self._timeout = PushTimeout(state.config)
        self.next_wake = _NEVER

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def announced(self, peer: Peer, transfer: Transfer, chunks: list[int], tags: list[int], now: float) -> None:
        """Handles an announcement of a peer. tags: the tree that each chunk came down at the peer; empty: none."""
        if transfer.complete:
            return
        for index, tag in zip(chunks, tags, strict=False):
            if tag and index < transfer.chunks and transfer.open[index]:
                transfer.trees[index] = tag
                if transfer.pushed and self._state.trees.parent_of(tag) == peer.name:
                    self._providers.announced(peer, transfer, index, now)
        self._poll_soon(now)
        if not transfer.pushed:
            self.fill(peer, now)

    def arrived(self, peer: Peer, transfer: Transfer, chunk: Chunk, now: float) -> bool:
        """Handles a needed chunk from a peer; returns whether the peer pushed it."""
        available_since = float(transfer.available_since[chunk.index])
        owed = self._providers.arrived(peer, transfer, chunk, now)
        peer.download.credit = max(0, peer.download.credit - len(chunk.data))
        if not transfer.pushed or (owed is not None and owed.requested):
            return False
        self._timeout.sample(max(0.0, now - available_since))
        return True

    def refill(self, peer: Peer, transfer: Transfer, now: float) -> None:
        """Requests more chunks after one that a peer delivered."""
        if transfer.complete:
            self.fill_all(now)
        elif not transfer.pushed:
            self.fill(peer, now)

    def peer_down(self, peer: Peer, now: float) -> None:
        """Requests the chunks that a disconnected peer owed of others."""
        for short, index in peer.download.owed:
            self._state.transfers[short].unassign(index, peer.name)
        self.fill_all(now)

    def release(self, peer: Peer, transfer: Transfer, index: int) -> None:
        """Removes a peer as the provider of a chunk, if it is one."""
        self._providers.release(peer, transfer, index)

    def stop(self, transfer: Transfer) -> None:
        """Cancels all requests and pushes of a manifest."""
        self._providers.stop(transfer)

    def wake_at(self, when: float) -> None:
        """Makes `poll` due at this time at the latest."""
        self.next_wake = min(self.next_wake, when)

    def poll(self, now: float) -> None:
        """Repairs late downloads, and requests all chunks that may be requested by now, if due."""
        if now < self.next_wake:
            return
        self.next_wake = _NEVER
        transfers = self._state.transfers.values()
        for transfer in transfers:
            if transfer.backoff_until:
                transfer.reopen(now)
        self._repair.poll(now)
        self.fill_all(now)
        for transfer in transfers:
            if not transfer.complete:
                self.wake_at(min(transfer.backoff_until.values(), default=_NEVER))
                awaits_push = transfer.pushed and bool((transfer.open & (transfer.available_since <= now)).any())
                if transfer.provider or awaits_push:
                    self._poll_soon(now)

    # ---- requests --------------------------------------------------------------------------------------------------

    def fill_all(self, now: float) -> None:
        """Requests all chunks that may be requested now, of peers of this region first, and of publishers last.

        A chunk should not cross a link between regions, or the publisher's uplink, if a peer of this region has it.
        Snubbed peers come after all others; among equals the peer with the shortest wait comes first.
        """
        if not any(self._may_request(transfer, now) for transfer in self._state.transfers.values()):
            return

        def order(peer: Peer) -> tuple[bool, bool, bool, float, str]:
            return peer.download.snubbed, peer.publisher, not peer.same_region, peer.download.wait(now), peer.name

        for peer in sorted(self._state.peers.values(), key=order):
            self.fill(peer, now)

    def fill(self, peer: Peer, now: float) -> None:
        """Fills a peer's window with requests."""
        for short, theirs in peer.holds.items():
            transfer = self._state.transfers[short]
            if transfer.complete:
                continue
            room = peer.download.window(transfer.mean_chunk_bytes, now) - peer.download.nbytes
            count = min(MAX_REQUEST_CHUNKS, -(-room // transfer.mean_chunk_bytes))
            if transfer.pushed and self._providers.is_free(peer, short):
                count = min(count, self._providers.free_room(peer, transfer))
            if count <= 0:
                continue
            candidates = self._candidates(peer, transfer, short, now)
            if candidates is None or not (candidates := candidates & theirs).any():
                continue
            self._providers.request(peer, transfer, pick(candidates, transfer.rarity, transfer.spread, count), now)
            self._poll_soon(now)

    def _candidates(self, peer: Peer, transfer: Transfer, short: bytes, now: float) -> Bits | None:
        """Returns flags of the chunks that this node may request of a peer; None: none.

        Without pushes: all that no peer owes. With them, of a peer whose uplink is idle: a free parent's chunks after
        `held_for`; of a peer of another region nothing while some parent is free; else overdue chunks. Of a peer of
        another region: this node's own part first.
        """
        candidates: Bits = transfer.open
        if transfer.pushed:
            if peer.download.backlog(now) > self._state.config.idle_backlog:
                # The peer will push the chunks later; requests would delay the pushes before them.
                return None
            if self._providers.is_free(peer, short):
                return candidates & (transfer.available_since <= now - self._held_for)
            if not peer.same_region and self._providers.free_parents(short):
                # Paths between regions share links, and the plan gave a part of them to the free parents.
                return None
            candidates = self._overdue(transfer, now)
        return candidates if peer.same_region or not candidates.any() else self._own_part(candidates, transfer, now)

    @property
    def _held_for(self) -> float:
        """Seconds after its first announcement at which a free parent may be asked for a chunk."""
        return min(self._state.config.held_for, self._timeout.seconds)

    def _may_request(self, transfer: Transfer, now: float) -> bool:
        """Returns whether a chunk of a manifest may be requested of some peer."""
        if transfer.complete:
            return False
        lacks_parents = not self._state.trees.parents <= self._state.peers.keys()
        since = now if lacks_parents or not transfer.pushed else now - self._held_for
        return bool((transfer.open & (transfer.available_since <= since)).any())

    def _overdue(self, transfer: Transfer, now: float) -> Bits:
        """Returns flags of the overdue pushes: chunks that no peer owes, and that a peer announced a timeout ago, or
        whose parent in their tree is not connected.
        """
        overdue: Bits = transfer.open & (transfer.available_since <= now - self._timeout.seconds)
        if not self._state.trees.parents <= self._state.peers.keys():
            orphans = [index for index, tag in transfer.trees.items() if self._is_orphaned(tag)]
            overdue[orphans] = transfer.open[orphans]
        return overdue

    def _is_orphaned(self, tag: int) -> bool:
        parent = self._state.trees.parent_of(tag)
        return bool(parent) and parent not in self._state.peers

    def _own_part(self, candidates: Bits, transfer: Transfer, now: float) -> Bits:
        """Returns flags of the candidates that this node fetches from other regions: its own part first, and then the
        chunks that another node of the region should have fetched by now.
        """
        others = [
            peer.name for peer in self._state.peers.values() if peer.same_region and self._is_fetching(peer, transfer)
        ]
        rank = sum(name < self._state.node for name in others)
        after = self._state.config.others_after + (self._timeout.seconds if transfer.pushed else 0.0)
        if others:
            self.wake_at(now + after)
        own: Bits = candidates & part_of(transfer.chunks, rank, 1 + len(others))
        return own if own.any() else candidates & (transfer.available_since <= now - after)

    def _is_fetching(self, peer: Peer, transfer: Transfer) -> bool:
        theirs = peer.holds.get(transfer.id[:SHORT_ID_BYTES])
        return theirs is not None and not theirs.all()

    def _poll_soon(self, now: float) -> None:
        self.wake_at(now + self._state.config.poll_interval)
