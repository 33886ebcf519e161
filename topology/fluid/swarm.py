"""A whole swarm on a fluid network: its members, its payloads, and when every node has them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from p2psync.errors import P2PSyncError
from p2psync.protocol.messages import NO_VERSION, SHORT_ID_BYTES
from p2psync.protocol.plan import NodePlan
from p2psync.sim.clock import VirtualClock
from p2psync.swarm.exchange.actions import Send
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.exchange import Exchange
from p2psync.topology.bound import least_makespan
from p2psync.topology.fluid.hub import FluidHub
from p2psync.topology.fluid.node import FluidNode
from p2psync.topology.fluid.payload import SCALE, scaled, scaled_plan
from p2psync.topology.fluid.servers import FluidNetwork
from p2psync.topology.fluid.trace import Trace
from p2psync.topology.network import Network
from p2psync.topology.simulated_payload import SimulatedPayload, make_payload

#: Seconds after which peers notice that a node crashed, besides the delay; its lease at the hub ends at once.
PEER_DOWN_SECONDS = 0.1
#: One-way delays from a finished plan to its node (wake-up, request, reply), and for a dial.
PLAN_TRIPS, DIAL_TRIPS = 3, 3
#: Versions that nodes exchange at a time; older ones are dropped, complete or not.
MAX_EXCHANGED_VERSIONS = 2


@dataclass(frozen=True, kw_only=True)
class FluidOptions:
    """Bytes and seconds.

    versions: payloads published, one every `every` seconds. planned: whether there is a plan. others: peers that each
    node dials besides those of the plan. trainer_others: most such peers of the trainer. limit: seconds after the last
    publication at which a run ends in any case. buffer: see `FluidNetwork`.
    """

    payload_bytes: int = 64 << 20
    chunk_bytes: int = 64 << 10
    versions: int = 1
    every: float = 0.0
    planned: bool = True
    others: int = 4
    trainer_others: int = 128
    seed: int = 0
    limit: float = 300.0
    buffer: float = 0.2
    samples_every: float = 0.25
    # A kernel accepts a window of data at once and reports it as sent; here a chunk counts as unsent until it has left.
    config: ExchangeConfig = field(default_factory=lambda: ExchangeConfig(flush_limit=1 << 20))


class NotConvergedError(P2PSyncError):
    """A live node did not get the newest payload in time."""


class FluidSwarm:
    """Call `start`, then `run`.

    idle_hosts: hosts of the network on which no node runs at first. planned_network: the network that plans are made
    for, if it differs.
    """

    def __init__(
        self,
        network: Network,
        options: FluidOptions,
        idle_hosts: frozenset[str] = frozenset(),
        planned_network: Network | None = None,
    ) -> None:
        self.network, self.options, self.idle_hosts = network, options, idle_hosts
        self.clock = VirtualClock(options.seed)
        self.net = FluidNetwork(network, self.clock, options.buffer)
        self.trace = Trace(len(network.regions))
        self.hub = FluidHub(planned_network or network, self.clock, self._plan_made)
        self.trainer = network.names[network.trainer]
        self.index = {name: i for i, name in enumerate(network.names)}
        self.live: dict[str, FluidNode] = {}
        self.nodes: list[FluidNode] = []
        self.bans: list[tuple[str, str]] = []
        self.payloads: list[SimulatedPayload] = []
        #: For each payload: when it was published, and its receivers.
        self.published: list[tuple[float, frozenset[str]]] = []
        self.unfinished: set[str] = set()
        self._by_region: list[list[str]] = [[] for _ in network.regions]
        self._config = scaled(options.config)
        self._shape = make_payload(options.payload_bytes, options.chunk_bytes, scale=SCALE)
        self._trainer_others = options.trainer_others
        #: Whether churn goes on; a run does not end before it stops.
        self.churning = False
        # Number of live nodes without the newest payload.
        self._missing = 1

    # ---- before and after ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connects all nodes and gives them the plan; schedules the payloads."""
        names = [name for name in self.network.names if name not in self.idle_hosts]
        for name in names:
            self._enter(name)
        if self.options.planned:
            plan = self.hub.begin(names)
            for name, part in zip(plan.names, plan.node_plans(), strict=True):
                self._follow(self.live[name], part)
        for name in names:
            for other in self._others(name):
                self.connect(self.live[name], other)
        for name in names:
            self._announce_empty(self.live[name])
        for i in range(self.options.versions):
            self.clock.at(i * self.options.every, self._publish)
        self.clock.at(0.0, self._sample)

    def run(self) -> None:
        """Runs until every live node has the last payload, or the limit; `unfinished` then names those without it."""
        last = (self.options.versions - 1) * self.options.every
        self.clock.run(last + self.options.limit, self._is_over)
        self._note_sample()
        newest = self.payloads[-1].manifest.version
        self.unfinished = self.live.keys() - {self.trainer} - self.trace.finished.get(newest, {}).keys()

    def check(self) -> None:
        """Raise `NotConvergedError` if a node is unfinished."""
        if self.unfinished:
            some = ", ".join(sorted(self.unfinished)[:5])
            raise NotConvergedError(f"{len(self.unfinished)} nodes did not get the newest payload in time: {some}")

    def _is_over(self) -> bool:
        return self._missing <= 0 and len(self.payloads) == self.options.versions and not self.churning

    @property
    def bound(self) -> float:
        """The least seconds for a payload, without headers, if all hosts are members."""
        return least_makespan(self.network, self.options.payload_bytes)

    # ---- members ---------------------------------------------------------------------------------------------------

    def join(self, name: str) -> None:
        """A node starts on an idle host, without chunks."""
        node = self._enter(name)
        node.swarm.accept_next(NO_VERSION)
        self.clock.note("joins", name)
        delay = self.net.delay(self.index[self.trainer], node.index)
        self._missing += 1
        self.hub.joined(name)
        self.clock.after(2 * delay, self._welcome, node)

    def kill(self, name: str) -> None:
        """A node crashes; its peers notice a little later."""
        node = self.live.pop(name)
        node.alive = False
        self.clock.note("ends", name)
        self._by_region[node.region].remove(name)
        self.trace.left(node)
        if self.payloads and name not in self.trace.finished.get(self.payloads[-1].manifest.version, {}):
            self._missing -= 1
        for done in self.trace.finished.values():
            done.pop(name, None)
        self.hub.left(name)
        for pipe in node.pipes.values():
            peer = pipe.target
            assert isinstance(peer, FluidNode)
            back = peer.pipes.get(name)
            if back is not None:
                self.clock.after(PEER_DOWN_SECONDS + pipe.delay, peer.peer_down, back)

    def cut(self, a: str, b: str, left: float, noticed_after: float | None = None) -> None:
        """The links between two regions keep `left` of their rates, both ways; the hub learns of it `noticed_after`
        seconds later, or never (None)."""
        one, other = self.network.regions.index(a), self.network.regions.index(b)
        rate = self.network.rate.copy()
        for ends in ((one, other), (other, one)):
            rate[ends] *= left
            self.net.narrow(*ends, left)
        self.clock.note("is cut", f"{a}-{b}")
        if noticed_after is not None:
            self.clock.after(noticed_after, self.hub.network_changed, replace(self.network, rate=rate))

    def connect(self, a: FluidNode, b: FluidNode) -> None:
        """Connects two nodes if both are alive, can connect, and are not connected yet."""
        if a is b or not (a.alive and b.alive) or not self.network.connects(a.index, b.index):
            return
        for one, other in ((a, b), (b, a)):
            known = one.pipes.get(other.name)
            if known is not None and known.target is other:
                return
            if known is not None:
                one.peer_down(known)
        pipes = [self.net.pipe(one, one.index, other, other.index) for one, other in ((a, b), (b, a))]
        for one, pipe in zip((a, b), pipes, strict=True):
            one.peer_up(pipe, near=a.region == b.region, publishes=pipe.target.name == self.trainer)

    def _announce_empty(self, node: FluidNode) -> None:
        """Tells the node's parents that it holds no version, before anything is published."""
        if node.name == self.trainer:
            return
        node.swarm.accept_next(NO_VERSION)
        for action in node.swarm.actions():
            if isinstance(action, Send):
                self.live[action.peer].swarm.receive(node.name, action.message, self.clock.now)

    def _enter(self, name: str) -> FluidNode:
        index = self.index[name]
        rng = random.Random(self.clock.rng.getrandbits(63))
        swarm = Exchange(self._config, rng, name)
        node = FluidNode(name, index, int(self.network.region[index]), swarm, self.clock, self.net, self)
        self.live[name] = node
        self.nodes.append(node)
        self._by_region[node.region].append(name)
        if name != self.trainer:
            self.trace.joined(node)
        return node

    def _others(self, name: str) -> list[FluidNode]:
        """Returns peers besides those of the plan, chosen as nodes choose them: the trainer while it accepts any, then
        near nodes."""
        found = []
        if name != self.trainer and self._trainer_others > 0 and self.trainer not in self.live[name].pipes:
            self._trainer_others -= 1
            found.append(self.live[self.trainer])
        near = self._by_region[self.live[name].region]
        drawn = self.clock.rng.sample(near, min(self.options.others + 1, len(near)))
        found += [self.live[other] for other in drawn if other != name]
        if len(near) <= self.options.others:
            found += [self.live[other] for other in self.clock.rng.sample([*self.live], min(4, len(self.live)))]
        return found[: self.options.others]

    def _welcome(self, node: FluidNode) -> None:
        """The node has its lease and a view: it dials, and fetches the newest version."""
        if not node.alive:
            return
        for other in self._others(node.name):
            self.clock.after(DIAL_TRIPS * self.net.delay(node.index, other.index), self.connect, node, other)
        if self.payloads:
            self._begin(node, self.payloads[-1])

    # ---- plans -----------------------------------------------------------------------------------------------------

    def _plan_made(self, name: str, plan: NodePlan) -> None:
        node = self.live.get(name)
        if node is not None:
            delay = self.net.delay(self.index[self.trainer], node.index)
            self.clock.after(PLAN_TRIPS * delay, self._follow, node, plan, DIAL_TRIPS)

    def _follow(self, node: FluidNode, plan: NodePlan, trips: int = 0) -> None:
        if not node.alive:
            return
        for name in plan.peers:
            peer = self.live.get(name)
            if peer is None or (name in node.pipes and node.pipes[name].target is peer):
                continue
            if trips:
                self.clock.after(trips * self.net.delay(node.index, peer.index), self.connect, node, peer)
            else:
                self.connect(node, peer)
        node.follow(scaled_plan(plan))

    # ---- payloads --------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        payload = self._shape.as_version(len(self.payloads) + 1)
        self.payloads.append(payload)
        receivers = [node for name, node in self.live.items() if name != self.trainer]
        self.published.append((self.clock.now, frozenset(node.name for node in receivers)))
        self._missing = len(receivers)
        trainer = self.live[self.trainer]
        self._begin(trainer, payload, holds=True)
        for node in receivers:
            self.clock.after(self.net.delay(trainer.index, node.index), self._begin, node, payload)

    def _begin(self, node: FluidNode, payload: SimulatedPayload, holds: bool = False) -> None:
        if not node.alive:
            return
        index = payload.manifest.version - 1
        if index >= MAX_EXCHANGED_VERSIONS:
            node.end(self.payloads[index - MAX_EXCHANGED_VERSIONS])
        if payload.id[:SHORT_ID_BYTES] not in node.payloads:
            node.begin(payload, holds=holds)

    # ---- the nodes' events -------------------------------------------------------------------------------------------

    def saved(self, node: FluidNode, id: bytes, size: int) -> None:
        """See `NodeListener`."""
        payload = node.payloads.get(id[:SHORT_ID_BYTES])
        if payload is not None:
            self.trace.saved(node, payload, size, self.clock.now)

    def completed(self, node: FluidNode, id: bytes) -> None:
        """See `NodeListener`."""
        payload = node.payloads.get(id[:SHORT_ID_BYTES])
        if payload is None or node.name == self.trainer:
            return
        node.swarm.accept_next(payload.manifest.digest)
        first = self.trace.completed(node, payload, self.clock.now)
        self.clock.note("has", node.name, payload.manifest.version)
        if first and payload is self.payloads[-1]:
            self._missing -= 1

    def banned(self, node: FluidNode, peer: str) -> None:
        """See `NodeListener`."""
        self.bans.append((node.name, peer))
        pipe = node.pipes.pop(peer, None)
        if pipe is not None and isinstance(pipe.target, FluidNode):
            back = pipe.target.pipes.get(node.name)
            if back is not None:
                self.clock.after(pipe.delay, pipe.target.peer_down, back)

    def _sample(self) -> None:
        self._note_sample()
        self.clock.after(self.options.samples_every, self._sample)

    def _note_sample(self) -> None:
        if self.payloads:
            self.trace.sample(self.payloads[-1], self.net, self.clock.now)
