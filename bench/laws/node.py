"""One node: queues of chunks for its peers, and a receiver that knows what its peers owe it."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2psync.topology.tcp.connection import HEADER_FACTOR, TcpConnection

if TYPE_CHECKING:
    from p2psync.bench.laws.race import Race

#: A connection with fewer unsent bytes takes another chunk.
UNSENT_MOST = 16 * 1024
#: A receiver looks at its queues this often (seconds), and leaves those alone that are shorter than `SHORT_WAIT`.
LOOK_EVERY, SHORT_WAIT = 0.05, 0.3
#: The old wait must be so many times as long as the new one.
MARGIN = 2.0
#: A provider that has queued less than this (seconds) may be asked for more.
IDLE_BACKLOG = 0.1
#: Without a plan: seconds of a peer's rate that are requested ahead, besides its round trip; and seconds after which a
#: node requests what another one of its region was to bring.
HORIZON, OTHERS_AFTER = 0.5, 1.5


@dataclass(slots=True)
class Peer:
    """One peer as a node sees it.

    queue: chunks to send to it, with the time at which they were queued. holds: flag per chunk. owed: chunks that it
    will send here, in order. prior: bytes/s that it is expected to send before anything came. backlog: seconds of its
    uplink that it has queued, as it says.
    """

    number: int
    round_trip: float
    prior: float
    streams: list[TcpConnection]
    holds: bytearray
    queue: OrderedDict[int, float] = field(default_factory=OrderedDict)
    owed: OrderedDict[int, None] = field(default_factory=OrderedDict)
    arrivals: deque[float] = field(default_factory=deque)
    busy_since: float = math.inf
    backlog: float = 0.0
    known_rate: float = 0.0

    def rate(self, now: float, chunk_bytes: int) -> float:
        """Returns the bytes/s that came while it owed something, over a second or four round trips."""
        window = max(1.0, 4 * self.round_trip)
        while self.arrivals and self.arrivals[0] < now - window:
            self.arrivals.popleft()
        start = max(now - window, self.busy_since + self.round_trip)
        if now - start > window / 4:
            came = sum(at >= start for at in self.arrivals)
            self.known_rate = max(came, 0.25) * chunk_bytes / (now - start)
        return self.known_rate or self.prior

    def stream_with_room(self) -> TcpConnection | None:
        """Returns the connection with the fewest unsent bytes, if it takes another chunk."""
        stream = min(self.streams, key=lambda stream: stream.waiting)
        return stream if stream.waiting < UNSENT_MOST else None


class Node:
    """A node's part in one version."""

    def __init__(self, race: Race, number: int) -> None:
        self._race, self.number = race, number
        self.peers: dict[int, Peer] = {}
        self.held = bytearray(race.chunks)
        self.count = self.duplicates = 0
        self.done_at = math.inf
        self._provider: dict[int, int] = {}
        self._heard_at: dict[int, float] = {}
        self._uplink = race.net.up[number].rate
        self._uplink_free_at = 0.0
        self._is_waking = False

    # ---- sending ---------------------------------------------------------------------------------------------------

    def push(self, j: int, chunk: int) -> None:
        """Queues a chunk for a peer."""
        if not self.peers[j].holds[chunk]:
            self.peers[j].queue.setdefault(chunk, self._race.net.clock.now)
            self.hand_out()

    def drop(self, j: int, chunk: int) -> None:
        """Takes a chunk out of a peer's queue."""
        self.peers[j].queue.pop(chunk, None)

    def hand_out(self) -> None:
        """Gives queued chunks, oldest first, to connections with room, as far as the uplink's bucket allows."""
        share, clock = self._race.law.uplink, self._race.net.clock
        while True:
            if share and self._uplink_free_at > clock.now + 1e-9:
                if not self._is_waking:
                    self._is_waking = True
                    clock.at(self._uplink_free_at, self._wake)
                return
            ready = [
                (next(iter(peer.queue.values())), peer.number, stream)
                for peer in self.peers.values()
                if peer.queue and (stream := peer.stream_with_room())
            ]
            if not ready:
                return
            _, j, stream = min(ready, key=lambda entry: entry[:2])
            chunk, _ = self.peers[j].queue.popitem(last=False)
            size = self._race.chunk_bytes
            if share:
                self._uplink_free_at = (
                    max(self._uplink_free_at, clock.now) + size * HEADER_FACTOR / self._uplink / share
                )
            stream.send(size, (self._race.version, self.number, chunk))

    def _wake(self) -> None:
        self._is_waking = False
        self.hand_out()
        self._race.drained(self.number)

    def backlog(self) -> float:
        """Returns the seconds of the uplink that are queued."""
        queued = sum(
            len(peer.queue) * self._race.chunk_bytes + sum(stream.waiting for stream in peer.streams)
            for peer in self.peers.values()
        )
        return queued / self._uplink

    # ---- receiving -------------------------------------------------------------------------------------------------

    def receive(self, j: int, chunk: int) -> None:
        """A chunk came from a peer."""
        peer, now = self.peers[j], self._race.net.clock.now
        peer.arrivals.append(now)
        peer.owed.pop(chunk, None)
        if not peer.owed:
            peer.busy_since = math.inf
        if self.held[chunk]:
            self.duplicates += 1
            return
        provider = self._provider.pop(chunk, j)
        if provider != j:
            self._forget(provider, chunk)
        self.hold(chunk)

    def hold(self, chunk: int) -> None:
        """Keeps a chunk, forwards it down its tree, and tells all peers."""
        race = self._race
        self.held[chunk] = True
        self.count += 1
        if self.count == race.needed:
            self.done_at = race.net.clock.now
            race.finished(self.number)
        for child in race.children_of(chunk, self.number):
            self.push(child, chunk)
        backlog = self.backlog()
        for j in self.peers:
            race.net.tell(self.number, j, race.nodes[j].hear, self.number, chunk, backlog)

    def hear(self, j: int, chunk: int, backlog: float) -> None:
        """A peer holds a chunk; if it is the chunk's parent here, it owes the chunk from now on."""
        race, peer = self._race, self.peers[j]
        peer.holds[chunk] = True
        self._heard_at.setdefault(chunk, race.net.clock.now)
        peer.backlog = backlog
        peer.queue.pop(chunk, None)
        if self.number == race.trainer:
            race.heard(chunk)
        elif not self.held[chunk] and chunk not in self._provider and race.parent_of(chunk, self.number) == j:
            self._owe(peer, chunk)

    def look(self) -> None:
        """Takes chunks out of long queues, or requests them where there is no plan."""
        if self.done_at < math.inf:
            return
        if not self._race.law.planned:
            self._request_missing()
        if self._race.law.rebalances:
            self._rebalance()

    def _owe(self, peer: Peer, chunk: int) -> None:
        if not peer.owed:
            peer.busy_since = self._race.net.clock.now
        peer.owed[chunk] = None
        self._provider[chunk] = peer.number

    def _forget(self, j: int, chunk: int) -> None:
        self.peers[j].owed.pop(chunk, None)
        self._race.net.tell(self.number, j, self._race.nodes[j].drop, self.number, chunk)

    def _ask(self, peer: Peer, chunk: int) -> None:
        self._owe(peer, chunk)
        self._race.net.tell(self.number, peer.number, self._race.nodes[peer.number].push, self.number, chunk)

    def _rebalance(self) -> None:
        now, size = self._race.net.clock.now, self._race.chunk_bytes
        rates = {j: peer.rate(now, size) for j, peer in self.peers.items()}
        idle = [peer for peer in self.peers.values() if peer.backlog < IDLE_BACKLOG]
        slow = [peer for peer in self.peers.values() if len(peer.owed) > 1]
        for peer in sorted(slow, key=lambda peer: -len(peer.owed) / rates[peer.number]):
            for chunk in reversed(list(peer.owed)):
                wait = len(peer.owed) * size / rates[peer.number]
                if wait < max(SHORT_WAIT, MARGIN * peer.round_trip):
                    break
                found = min(
                    ((self._wait(other, rates, peer, size), other.number) for other in idle if other.holds[chunk]),
                    default=(math.inf, -1),
                )
                if found[0] * MARGIN > wait:
                    break
                self._forget(peer.number, chunk)
                self._ask(self.peers[found[1]], chunk)

    def _wait(self, other: Peer, rates: dict[int, float], peer: Peer, size: int) -> float:
        """Returns the seconds until a chunk is here that `other` is asked for in place of `peer`."""
        if other is peer:
            return math.inf
        rate, region = rates[other.number], self._race.net.region
        wait = max(other.backlog, len(other.owed) * size / rate) + size / rate + other.round_trip
        mine = region[self.number]
        crosses_again = region[other.number] != mine and region[peer.number] == mine
        if not crosses_again:
            return wait
        return wait * self._race.law.cross if self._race.law.cross else math.inf

    def _request_missing(self) -> None:
        """Requests the rarest chunks; each node of a region its own part of what only others hold."""
        race, now, size = self._race, self._race.net.clock.now, self._race.chunk_bytes
        region = race.net.region
        mates = sorted(j for j in [*self.peers, self.number] if region[j] == region[self.number] and j != race.trainer)
        rank = mates.index(self.number)
        missing = [c for c in race.order[self.number] if not self.held[c] and c not in self._provider]
        rarity = {c: sum(peer.holds[c] for peer in self.peers.values()) for c in missing}
        missing.sort(key=rarity.__getitem__)
        for peer in sorted(self.peers.values(), key=lambda peer: region[peer.number] != region[self.number]):
            window = max(2.0, peer.rate(now, size) * (peer.round_trip + HORIZON) / size)
            is_near = region[peer.number] == region[self.number]
            for chunk in missing:
                if len(peer.owed) >= window:
                    break
                if not peer.holds[chunk] or chunk in self._provider:
                    continue
                is_mine = race.owner(chunk, len(mates)) == rank or now - self._heard_at[chunk] > OTHERS_AFTER
                if is_near or is_mine:
                    self._ask(peer, chunk)
