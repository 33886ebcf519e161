"""The request scheduler: which peer owes which chunk, and which chunks are taken out of long queues.

Every chunk that this node needs is owed by at most one peer. A parent owes each chunk that it announces with the tag of
a tree in which it is the parent, and pushes it without a request; any other peer owes the chunks that were requested of
it. Chunks that no peer owes are requested over windows, the rarest first: at once where no parent pushes the manifest's
chunks here, and otherwise once some peer has held them for longer than pushes take (`PushTimeout`).

One rule repairs whatever goes wrong with a peer that owes chunks, be it slow, overloaded or gone silent. Its queue
takes (bytes owed) / (rate), and no less than it has been silent. If that is longer than all other chunks take, its last
chunk is requested of another holder with an idle uplink that would bring it in half the time.
"""

from __future__ import annotations

from collections import deque

from p2psync.protocol.messages import MAX_REQUEST_CHUNKS, SHORT_ID_BYTES, Chunk, Request
from p2psync.swarm.exchange.download import ChunkKey, OwedChunk
from p2psync.swarm.exchange.peer import Peer
from p2psync.swarm.exchange.picker import part_of, pick
from p2psync.swarm.exchange.state import SwarmState
from p2psync.swarm.exchange.timeout import PushTimeout
from p2psync.swarm.exchange.transfer import Transfer
from p2psync.swarm.transfer import Bits

_NEVER = float("inf")
BYTES_PER_MBIT = 125_000
#: Chunks that a peer hands to its connections ahead of the kernel.
HANDED_OUT = 2


class RequestScheduler:
    """The requests of one node. `poll` is due at `next_wake`."""

    def __init__(self, state: SwarmState) -> None:
        self._state = state
        self._timeout = PushTimeout(state.config)
        self._arrivals: deque[tuple[float, int]] = deque()
        self.next_wake = _NEVER

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def announced(self, peer: Peer, transfer: Transfer, chunks: list[int], tags: list[int], now: float) -> None:
        """A peer says to hold more chunks. tags: of each, the tree that it came down there; empty: none."""
        if transfer.complete:
            return
        if transfer.pushed and tags and peer.name in self._state.trees.parents:
            short = transfer.id[:SHORT_ID_BYTES]
            for index, tag in zip(chunks, tags, strict=False):
                if index < transfer.chunks and transfer.open[index] and self._state.trees.parent_of(tag) == peer.name:
                    self._owe(peer, transfer, short, index, now, requested=False)
        if transfer.pushed:
            self._wake_at(now + self._state.config.look_every)
        else:
            self.fill(peer, now)

    def arrived(self, peer: Peer, transfer: Transfer, chunk: Chunk, now: float) -> bool:
        """A needed chunk came from a peer. Returns whether the peer pushed it."""
        key, size = (chunk.manifest, chunk.index), len(chunk.data)
        provider, heard = transfer.gain(chunk.index), float(transfer.heard[chunk.index])
        owed = None
        if provider is not None:
            owed = self._state.peers[provider].download.drop(key)
            if provider != peer.name:
                self._state.cancel(provider, chunk.manifest, [chunk.index])
        mine = owed if provider == peer.name else None
        peer.download.arrived(size, mine, now)
        self._arrivals.append((now, size))
        peer.download.credit = max(0, peer.download.credit - size)
        if not transfer.pushed or (mine is not None and mine.requested):
            return False
        self._timeout.sample(max(0.0, now - heard))
        return True

    def filled(self, peer: Peer, transfer: Transfer, now: float) -> None:
        """A chunk that came has made room in a peer's window."""
        if transfer.complete:
            self.fill_all(now)
        elif not transfer.pushed:
            self.fill(peer, now)

    def peer_down(self, peer: Peer, now: float) -> None:
        """A peer is gone: no peer owes its chunks."""
        for short, index in peer.download.owed:
            self._state.transfers[short].unassign(index)
        self.fill_all(now)

    def release(self, peer: Peer, transfer: Transfer, index: int) -> None:
        """A peer does not owe this chunk any more, if it did."""
        if transfer.provider.get(index) == peer.name:
            peer.download.drop((transfer.id[:SHORT_ID_BYTES], index))
            transfer.unassign(index)

    def stop(self, transfer: Transfer) -> None:
        """No chunk of this manifest is wanted any more."""
        short = transfer.id[:SHORT_ID_BYTES]
        by_peer: dict[str, list[int]] = {}
        for index, name in transfer.provider.items():
            by_peer.setdefault(name, []).append(index)
        for name, chunks in by_peer.items():
            for index in chunks:
                self._state.peers[name].download.drop((short, index))
            self._state.cancel(name, short, chunks)
        transfer.provider.clear()

    def rest(self, until: float) -> None:
        """A lost chunk may be requested from then on."""
        self._wake_at(until)

    # ---- requests --------------------------------------------------------------------------------------------------

    def fill_all(self, now: float) -> None:
        """Requests what may be requested now, of near peers first, and of publishers last: a chunk should not cross a
        long link, or the publisher's uplink, where it can be had beside."""
        if not any(self._may_request(transfer, now) for transfer in self._state.transfers.values()):
            return

        def order(peer: Peer) -> tuple[bool, bool, bool, float, str]:
            return peer.download.snubbed, peer.publisher, not peer.near, peer.download.wait(now), peer.name

        for peer in sorted(self._state.peers.values(), key=order):
            self.fill(peer, now)

    def fill(self, peer: Peer, now: float) -> None:
        """Requests as many chunks of a peer as its window has room for."""
        for short, theirs in peer.holds.items():
            transfer = self._state.transfers[short]
            if transfer.complete:
                continue
            room = peer.download.window(transfer.typical, now) - peer.download.nbytes
            count = min(MAX_REQUEST_CHUNKS, -(-room // transfer.typical))
            if count <= 0:
                continue
            if transfer.pushed and peer.download.backlog(now) > self._state.config.idle_backlog:
                # The chunks come down the trees, later; requests would hold up those before them.
                continue
            candidates = self._overdue(transfer, now) & theirs if transfer.pushed else transfer.open & theirs
            if not candidates.any():
                continue
            if not peer.near:
                candidates &= self._own_part(transfer, now)
            chosen = pick(candidates, transfer.rarity, transfer.spread, count)
            if chosen:
                self._request(peer, transfer, short, chosen, now)

    def _may_request(self, transfer: Transfer, now: float) -> bool:
        if transfer.complete:
            return False
        return bool((self._overdue(transfer, now) if transfer.pushed else transfer.open).any())

    def _overdue(self, transfer: Transfer, now: float) -> Bits:
        """Returns flags of the pushed chunks that no peer owes, and that some peer has held for a timeout, and for
        longer than the other chunks will take."""
        age = max(self._timeout.seconds, self._seconds_left(now))
        overdue: Bits = transfer.open & (transfer.heard <= now - age)
        return overdue

    def _rate(self, now: float) -> float:
        """Returns the bytes/s of useful chunks from all peers."""
        window, arrivals = self._state.config.rate_window, self._arrivals
        while arrivals and arrivals[0][0] < now - window:
            arrivals.popleft()
        return sum(size for _, size in arrivals) / window

    def _seconds_left(self, now: float, without: Peer | None = None) -> float:
        """Returns how long the missing chunks take at the present rate; without: all but those that a peer owes. 0 if
        nothing comes."""
        missing = sum(transfer.missing * transfer.typical for transfer in self._state.transfers.values())
        rate = self._rate(now)
        if without is not None:
            missing -= without.download.nbytes
            rate -= min(rate, without.download.rate(now))
        return missing / rate if rate > 0 else 0.0

    def _own_part(self, transfer: Transfer, now: float) -> Bits:
        """Returns flags of the chunks that this node may fetch from other regions: its part, and what another node of
        the region should have fetched by now."""
        others = [peer.name for peer in self._state.peers.values() if peer.near and self._fetches(peer, transfer)]
        rank = sum(name < self._state.node for name in others)
        after = self._state.config.others_after + (self._timeout.seconds if transfer.pushed else 0.0)
        if others:
            self._wake_at(now + after)
        part: Bits = part_of(transfer.chunks, rank, 1 + len(others)) | (transfer.heard <= now - after)
        return part

    def _fetches(self, peer: Peer, transfer: Transfer) -> bool:
        theirs = peer.holds.get(transfer.id[:SHORT_ID_BYTES])
        return theirs is not None and not theirs.all()

    def _request(self, peer: Peer, transfer: Transfer, short: bytes, chunks: list[int], now: float) -> None:
        for index in chunks:
            self._owe(peer, transfer, short, index, now, requested=True)
        self._state.send(peer.name, Request(short, chunks))

    def _owe(self, peer: Peer, transfer: Transfer, short: bytes, index: int, now: float, *, requested: bool) -> None:
        peer.download.owe((short, index), transfer.manifest.sizes[index], now, requested=requested)
        transfer.assign(index, peer.name)
        self._wake_at(now + self._state.config.look_every)

    # ---- repair ----------------------------------------------------------------------------------------------------

    def poll(self, now: float) -> None:
        """Looks at the queues of all peers, and requests what may be requested by now."""
        if now < self.next_wake:
            return
        self.next_wake = _NEVER
        transfers = self._state.transfers.values()
        for transfer in transfers:
            if transfer.backoff_until:
                transfer.reopen(now)
        self._give_up(now)
        self._rebalance(now)
        self.fill_all(now)
        for transfer in transfers:
            if not transfer.complete:
                self._wake_at(min(transfer.backoff_until.values(), default=_NEVER))
                if transfer.provider or (transfer.pushed and bool((transfer.open & (transfer.heard <= now)).any())):
                    self._wake_at(now + self._state.config.look_every)

    def _give_up(self, now: float) -> None:
        """Gives up chunks that were owed for far too long, whoever else holds them."""
        for peer in self._state.peers.values():
            download = peer.download
            late = [key for key, chunk in download.owed.items() if download.has_timed_out(chunk, now)]
            if not late:
                continue
            by_manifest: dict[bytes, list[int]] = {}
            for short, index in late:
                self.release(peer, self._state.transfers[short], index)
                by_manifest.setdefault(short, []).append(index)
            for short, chunks in by_manifest.items():
                self._state.cancel(peer.name, short, chunks)
            download.timed_out()

    def _rebalance(self, now: float) -> None:
        """Takes chunks out of the longest queues, from their ends."""
        waits = {
            peer.name: peer.download.wait(now)
            for peer in self._state.peers.values()
            if peer.download.owed and self._is_late(peer, now)
        }
        for name in sorted(waits, key=waits.__getitem__, reverse=True):
            self._shorten(self._state.peers[name], now)

    def _shorten(self, peer: Peer, now: float) -> None:
        config, download = self._state.config, peer.download
        taken: dict[tuple[str, bytes], list[int]] = {}
        # The first chunks of the queue were handed to a connection, and come anyway, unless the peer is silent.
        first = 0 if self._is_silent(peer, now) else HANDED_OUT
        for key, chunk in reversed(list(download.owed.items())[first:]):
            if not self._is_late(peer, now):
                break
            other = self._better(peer, key, chunk, now, download.wait(now) / config.margin)
            if other is None:
                break
            short, index = key
            transfer = self._state.transfers[short]
            self.release(peer, transfer, index)
            self._owe(other, transfer, short, index, now, requested=True)
            taken.setdefault((other.name, short), []).append(index)
        for (name, short), chunks in taken.items():
            for start in range(0, len(chunks), MAX_REQUEST_CHUNKS):
                self._state.send(name, Request(short, chunks[start : start + MAX_REQUEST_CHUNKS]))
            self._state.cancel(peer.name, short, chunks)

    def _is_silent(self, peer: Peer, now: float) -> bool:
        """Returns whether a peer that owes chunks has sent none for longer than its plan and its path explain."""
        config, download = self._state.config, peer.download
        first = next(iter(download.owed.values()))
        usual = first.size / (self._planned_rate(peer) or config.prior_rate)
        return download.silence(now) > max(config.short_wait, config.margin * (download.round_trip + usual))

    def _planned_rate(self, peer: Peer) -> float:
        """Returns the bytes/s that the plan has a peer send here; 0: none."""
        return BYTES_PER_MBIT * self._state.trees.planned_from.get(peer.name, 0.0)

    def _is_late(self, peer: Peer, now: float) -> bool:
        """Returns whether what a peer owes will be here after everything else."""
        config, wait = self._state.config, peer.download.wait(now)
        if wait <= max(config.short_wait, config.margin * peer.download.round_trip):
            return False
        return wait > self._seconds_left(now, without=peer)

    def _better(self, peer: Peer, key: ChunkKey, chunk: OwedChunk, now: float, most: float) -> Peer | None:
        """Returns the idle holder that would bring a chunk soonest, within `most` seconds."""
        config = self._state.config
        planned = self._state.trees.planned_from
        # Paths between regions share links: another one gains nothing while this one sends about what was planned.
        keeps_plan = peer.download.rate(now) > config.keeps_plan * self._planned_rate(peer) > 0
        best, least = None, most
        for other in self._state.peers.values():
            if (
                other is peer
                or other.download.snubbed
                or not other.has(*key)
                or (keeps_plan and not other.near and other.name not in planned)
            ):
                continue
            if other.download.backlog(now) > config.idle_backlog:
                continue
            wait = other.download.wait_for_another(chunk.size, now)
            if peer.near and not other.near:
                wait *= config.cross
            if wait < least:
                best, least = other, wait
        return best

    def _wake_at(self, when: float) -> None:
        self.next_wake = min(self.next_wake, when)
