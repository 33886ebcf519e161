"""One payload after another over one network, under one law."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np

from p2psync.bench.laws.law import Law
from p2psync.bench.laws.network import BYTES_PER_MBIT, VirtualNetwork
from p2psync.bench.laws.node import LOOK_EVERY, Node, Peer
from p2psync.bench.laws.publisher import TreeChoice
from p2psync.topology.headroom import Headroom
from p2psync.topology.network import Floats, Network
from p2psync.topology.plan import arrival
from p2psync.topology.planner import make_plan
from p2psync.topology.tcp.connection import HEADER_FACTOR, TcpConnection

#: No path is held to fewer bytes/s: a chunk would take longer than all others together.
LEAST_PACE = 2.0 * BYTES_PER_MBIT
#: Headroom counts up to this.
MOST_HEADROOM = 3.0
#: Seconds between two payloads, and after which one is given up.
PAUSE, LIMIT = 5.0, 300.0


@dataclass(frozen=True)
class Outcome:
    """seconds: until everybody had the payload. copies: duplicates, in payloads that each receiver got."""

    seconds: float
    copies: float


class Race:
    """Call `run` for each payload: connections keep what they learned."""

    def __init__(self, network: Network, law: Law, *, payload_bytes: int, chunk_bytes: int, seed: int = 0) -> None:
        self.law, self.chunk_bytes = law, chunk_bytes
        self.net = VirtualNetwork(network, seed, law.streams, law.congestion)
        self.trainer = network.trainer
        self.needed = -(-payload_bytes // chunk_bytes)
        self.chunks = math.ceil(self.needed * (1 + law.parity))
        rng = random.Random(seed)
        #: The order in which each node requests equally rare chunks.
        self.order = [rng.sample(range(self.chunks), self.chunks) for _ in range(network.size)]
        self._network = network
        self.plan = make_plan(_with_errors(network, law.error, seed))
        self._children = self._children_by_tree()
        self._connections: dict[tuple[int, int], list[TcpConnection]] = {}
        self.version = -1
        self.nodes: list[Node] = []
        self._left: set[int] = set()
        self._waiting: list[int] = []
        self._lacking: dict[int, int] = {}
        self._choice: TreeChoice | None = None

    # ---- a payload -------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Publishes one payload; returns once everybody has it, and a pause has passed."""
        clock = self.net.clock
        self._begin()
        began = clock.now
        clock.run(began + LIMIT, lambda: not self._left)
        seconds = clock.now - began if not self._left else math.inf
        copies = sum(node.duplicates for node in self.nodes) / (self.needed * (len(self.nodes) - 1))
        clock.run(clock.now + PAUSE, lambda: False)
        return Outcome(seconds, copies)

    def _begin(self) -> None:
        self.version += 1
        size = self._network.size
        self.nodes = [Node(self, i) for i in range(size)]
        for node in self.nodes:
            node.peers = {j: self._peer(node.number, j) for j in range(size) if self._connects(node.number, j)}
        self._left = {*range(size)} - {self.trainer}
        self._waiting = list(range(self.chunks))
        self._lacking = dict.fromkeys(self._waiting, size - 1)
        publisher = self.nodes[self.trainer]
        publisher.held = bytearray(b"\1" * self.chunks)
        publisher.count = self.chunks
        if self.law.planned:
            self._choice = self._begin_choice()
            if self.law.pace:
                self._set_pace()
            self._send()
        else:
            for chunk in self._waiting:
                for j in publisher.peers:
                    self.net.tell(self.trainer, j, self.nodes[j].hear, self.trainer, chunk, 0.0)
            self._waiting = []
        self.net.clock.after(LOOK_EVERY, self._look, self.version)

    def _look(self, version: int) -> None:
        if self._left and version == self.version:
            self._send()
            for node in self.nodes:
                if node.number != self.trainer:
                    node.look()
            self.net.clock.after(LOOK_EVERY, self._look, version)

    def _connects(self, i: int, j: int) -> bool:
        return i != j and self._network.connects(i, j)

    def _peer(self, i: int, j: int) -> Peer:
        if (i, j) not in self._connections:
            self._connections[i, j] = self.net.connect(
                i, j, lambda message: self._arrived(j, message), lambda: self._drained(i)
            )
        round_trip = self.net.delay(i, j) + self.net.delay(j, i)
        prior = self.net.path_rate(j, i) / 4
        return Peer(j, round_trip, prior, self._connections[i, j], bytearray(self.chunks))

    def _arrived(self, j: int, message: object) -> None:
        assert isinstance(message, tuple)
        version, sender, chunk = message
        if version == self.version:
            self.nodes[j].receive(sender, chunk)

    def _drained(self, i: int) -> None:
        self.nodes[i].hand_out()
        self.drained(i)

    def drained(self, i: int) -> None:
        """A node's connections, or its uplink, have room again."""
        if i == self.trainer:
            self._send()

    def finished(self, i: int) -> None:
        """A node has what it needs."""
        self._left.discard(i)

    # ---- trees -----------------------------------------------------------------------------------------------------

    def children_of(self, chunk: int, i: int) -> list[int]:
        """Returns the peers to which node i forwards a chunk."""
        tree = self._choice.tree_of.get(chunk) if self._choice else None
        return self._children[tree][i] if tree is not None else []

    def parent_of(self, chunk: int, i: int) -> int:
        """Returns who forwards a chunk to node i; -1: nobody."""
        tree = self._choice.tree_of.get(chunk) if self._choice else None
        return int(self.plan.parents[tree, i]) if tree is not None else -1

    def owner(self, chunk: int, nodes: int) -> int:
        """Returns which of a region's nodes brings a chunk into it, by Knuth's multiplicative hash."""
        return (chunk * 2654435769 % 2**32) * nodes >> 32

    def heard(self, chunk: int) -> None:
        """The publisher hears that one more node holds a chunk."""
        self._lacking[chunk] -= 1
        if not self._lacking[chunk] and self._choice:
            self._choice.completed(chunk, self.net.clock.now)

    def _send(self) -> None:
        publisher, choice = self.nodes[self.trainer], self._choice
        while self._waiting and choice is not None:
            rooms = [tree for tree in range(len(self._children)) if self._has_room(tree)]
            tree = choice.choose(rooms, len(self._waiting), self.net.clock.now) if rooms else None
            if tree is None:
                return
            chunk = self._waiting.pop(0)
            choice.sent(chunk, tree)
            for j in self._children[tree][self.trainer]:
                self.net.tell(self.trainer, j, self.nodes[j].hear, self.trainer, chunk, 0.0)
                publisher.push(j, chunk)

    def _has_room(self, tree: int) -> bool:
        peers = self.nodes[self.trainer].peers
        queued = sum(len(peer.queue) for peer in peers.values()) if self.law.uplink else 0
        hops = [peers[j] for j in self._children[tree][self.trainer]]
        return queued < 2 and all(not hop.queue and hop.stream_with_room() for hop in hops)

    def _begin_choice(self) -> TreeChoice:
        shares = self.plan.shares.tolist()
        chunks_per_second = self.plan.lowest_rate * BYTES_PER_MBIT / self.chunk_bytes
        latencies = arrival(self.plan, self._network, self.chunk_bytes).max(axis=1).tolist()
        rates = [share * chunks_per_second for share in shares]
        return TreeChoice(shares, rates, latencies, self.net.clock.now, by_completion=self.law.by_completion)

    def _children_by_tree(self) -> list[list[list[int]]]:
        found: list[list[list[int]]] = [[[] for _ in range(self._network.size)] for _ in self.plan.parents]
        for tree, row in enumerate(self.plan.parents.tolist()):
            for j, parent in enumerate(row):
                if parent >= 0:
                    found[tree][parent].append(j)
        return found

    def _set_pace(self) -> None:
        headroom, names = Headroom(self.plan, self._network), self._network.names
        for (i, j), streams in self._connections.items():
            planned = float(self.plan.shares[self.plan.parents[:, j] == i].sum()) * self.plan.lowest_rate
            if planned:
                room = min(MOST_HEADROOM, headroom.of(names[i], [names[j]])[0])
                rate = max(LEAST_PACE, planned * BYTES_PER_MBIT * room * self.law.pace * HEADER_FACTOR)
                for stream in streams:
                    stream.limit = rate / len(streams)


def _with_errors(network: Network, error: float, seed: int) -> Network:
    """Returns the network as somebody sees it who measured each figure wrongly."""
    if not error:
        return network
    rng = np.random.default_rng(seed)

    def wrong(figures: Floats, deviation: float = error) -> Floats:
        return np.asarray(figures * np.exp(rng.normal(0.0, deviation, figures.shape)))

    up = wrong(network.up)
    trainer = network.trainer
    up[trainer] = wrong(network.up[trainer : trainer + 1], error / 4)[0]
    finite = np.isfinite(network.rate)
    rate = np.where(finite, wrong(np.where(finite, network.rate, 0.0)), network.rate)
    return replace(network, up=up, down=wrong(network.down), rate=rate)
