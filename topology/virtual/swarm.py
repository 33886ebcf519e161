"""A whole swarm over virtual TCP: its nodes measure, a hub plans from what they report, and versions are published."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from p2psync.membership.records import NodeInfo
from p2psync.protocol.messages import NO_VERSION, SHORT_ID_BYTES
from p2psync.protocol.plan import NodePlan
from p2psync.sim.clock import VirtualClock
from p2psync.swarm.control.config import INITIAL_STREAMS
from p2psync.topology.fluid.swarm import DIAL_TRIPS, MAX_EXCHANGED_VERSIONS, PLAN_TRIPS
from p2psync.topology.hub_planner import HubPlanner
from p2psync.topology.network import Network
from p2psync.topology.simulated_payload import SimulatedPayload, make_payload
from p2psync.topology.virtual.hub import HubLink, TrueNetworkPlanner, VirtualHub
from p2psync.topology.virtual.links import VirtualLinks
from p2psync.topology.virtual.node import NodeSettings, VirtualNode
from p2psync.topology.virtual.stream import open_pair

#: Seconds by which the trainer says that a version comes before it publishes it; and between the end of one version and
#: the publication of the next.
MAKING_SECONDS, BETWEEN_SECONDS = 0.5, 5.0
_PORT = 7071
#: From what the hub plans: what nodes measured, the network as it is, or not at all.
PlanSource: TypeAlias = Literal["measured", "true", "none"]


@dataclass(frozen=True, kw_only=True)
class VirtualOptions:
    """Bytes and seconds.

    settle: of measuring before the first version. limit: after each publication, for all nodes to have the version.
    """

    payload_bytes: int = 64 << 20
    chunk_bytes: int = 256 << 10
    versions: int = 2
    settle: float = 60.0
    limit: float = 300.0
    seed: int = 0
    plan: PlanSource = "measured"
    node: NodeSettings = field(default_factory=NodeSettings)


@dataclass
class VersionRun:
    """One published version. id: of its manifest. plan_rate: Mbit/s of the trees in use then; None: there was none.

    Seconds after its publication: first: at which each node had its first chunk; finished: its last one. delivered: of
    every chunk that a node got, with the bytes that all nodes together had then.
    """

    id: bytes
    published: float
    plan_rate: float | None
    first: dict[str, float] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)
    delivered: list[tuple[float, int]] = field(default_factory=list)


class VirtualSwarm:
    """Call `run`."""

    def __init__(self, network: Network, options: VirtualOptions) -> None:
        self.network, self.options = network, options
        self.clock = VirtualClock(options.seed)
        self.links = VirtualLinks(network)
        self.trainer = network.names[network.trainer]
        self.hub = VirtualHub(self.trainer, self.clock, self._plan_made, self._planner())
        self.nodes: dict[str, VirtualNode] = {}
        self.bans: list[tuple[str, str, str]] = []
        self.versions: list[VersionRun] = []
        self.payloads: dict[bytes, SimulatedPayload] = {}
        self._newest: list[SimulatedPayload] = []
        self._shape = make_payload(options.payload_bytes, options.chunk_bytes)
        self.cpu = 0.0

    # ---- life ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Connects the nodes, lets them measure, and publishes the versions one after the other."""
        began = time.process_time()
        self._start()
        self.clock.run(self.options.settle - MAKING_SECONDS, lambda: False)
        for _ in range(self.options.versions):
            self.nodes[self.trainer].monitor.version_comes()
            self.clock.run(self.clock.now + MAKING_SECONDS, lambda: False)
            self._publish()
            version = self.versions[-1]
            self.clock.run(self.clock.now + self.options.limit, lambda v=version: self._all_have(v))  # type: ignore[misc]
            self.hub.settled()
            self.clock.run(self.clock.now + BETWEEN_SECONDS, lambda: False)
        self.cpu = time.process_time() - began

    def _planner(self) -> HubPlanner | None:
        if self.options.plan == "none":
            return None
        return TrueNetworkPlanner(self.network) if self.options.plan == "true" else HubPlanner()

    def _start(self) -> None:
        network = self.network
        for i, name in enumerate(network.names):
            info = NodeInfo(
                node=name,
                role="trainer" if name == self.trainer else "actor",
                region=network.regions[int(network.region[i])],
                host=name,
                port=_PORT if network.dialable[i] else 0,
            )
            seed = self.clock.rng.getrandbits(63)
            self.nodes[name] = node = VirtualNode(info, i, self.clock, self, seed, self.options.node)
            link = HubLink(self.hub, node.membership, self.clock, self._hub_delay(node))
            node.on_statistics = link.poll
            self.clock.at(0.0, link.poll)
        infos = [node.info for node in self.nodes.values()]
        for node in self.nodes.values():
            node.monitor.members(infos)
            if node.name != self.trainer:
                node.swarm.accept_next(NO_VERSION)
            node.start()
        for i, name in enumerate(network.names):
            for j, other in enumerate(network.names):
                if i < j and network.connects(i, j):
                    # The smaller name dials where both can.
                    dials = bool(network.dialable[j]) and (i, j) not in network.blocked
                    dialler, target = (name, other) if dials else (other, name)
                    self.open_streams(self.nodes[dialler], target, self.options.node.streams or INITIAL_STREAMS)

    def _hub_delay(self, node: VirtualNode) -> float:
        return self.links.delay(node.index, self.network.trainer)

    # ---- connections -----------------------------------------------------------------------------------------------

    def open_streams(self, node: VirtualNode, peer: str, count: int) -> None:
        """See `NodeListener`."""
        delay = self.links.delay(node.index, self.nodes[peer].index)
        for _ in range(count):
            self.clock.after(DIAL_TRIPS * delay, self._connected, node, self.nodes[peer])

    def _connected(self, node: VirtualNode, peer: VirtualNode) -> None:
        if (node.name, peer.name) in {(a, b) for a, b, _ in self.bans}:
            return
        one, other = open_pair(self.clock, self.links, ((node.name, node.index, node), (peer.name, peer.index, peer)))
        node.peer_up(one, peer.info.region, dialled=True, publishes=peer.name == self.trainer)
        peer.peer_up(other, node.info.region, dialled=False, publishes=node.name == self.trainer)

    def banned(self, node: VirtualNode, peer: str, reason: str) -> None:
        """See `NodeListener`."""
        self.bans.append((node.name, peer, reason))
        self.clock.note("bans", node.name, peer)
        node.peer_down(peer)
        self.nodes[peer].peer_down(node.name)

    # ---- plans and versions ----------------------------------------------------------------------------------------

    def _plan_made(self, name: str, part: NodePlan) -> None:
        node = self.nodes[name]
        self.clock.after(PLAN_TRIPS * self._hub_delay(node), node.follow, part)

    def _publish(self) -> None:
        payload = self._shape.as_version(len(self.versions) + 1)
        self.payloads[payload.id] = payload
        self._newest.append(payload)
        plan = self.hub.plan
        self.versions.append(VersionRun(payload.id, self.clock.now, plan.rate if plan is not None else None))
        self.clock.note("publish", payload.manifest.version)
        if len(self._newest) > MAX_EXCHANGED_VERSIONS:
            old = self._newest.pop(0)
            for node in self.nodes.values():
                node.end(old)
        self.nodes[self.trainer].publish(payload)
        self.hub.announced(payload.nbytes)
        for node in self.nodes.values():
            if node.name != self.trainer:
                self.clock.after(2 * self._hub_delay(node), node.fetch, payload)

    def manifest(self, id: bytes) -> SimulatedPayload:
        """See `NodeListener`."""
        return self.payloads[id]

    def saved(self, node: VirtualNode, id: bytes, size: int) -> None:
        """See `NodeListener`."""
        version = self._version_of(id)
        seconds = self.clock.now - version.published
        version.first.setdefault(node.name, seconds)
        before = version.delivered[-1][1] if version.delivered else 0
        version.delivered.append((seconds, before + size))

    def completed(self, node: VirtualNode, id: bytes) -> None:
        """See `NodeListener`."""
        payload = self.payloads[id]
        if node.name == self.trainer:
            return
        version = self._version_of(id)
        if node.name not in version.finished:
            version.finished[node.name] = self.clock.now - version.published
            self.clock.note("has", node.name, payload.manifest.version)
            node.swarm.accept_next(payload.manifest.digest)

    def _version_of(self, id: bytes) -> VersionRun:
        return self.versions[self.payloads[id].manifest.version - 1]

    def _all_have(self, version: VersionRun) -> bool:
        return len(version.finished) == len(self.nodes) - 1

    @property
    def payload_bytes(self) -> int:
        """Bytes of one version."""
        return self._shape.nbytes

    def sent_bytes(self, version: VersionRun) -> int:
        """Returns the bytes of a version's chunks that the trainer sent."""
        return self.nodes[self.trainer].sent_bytes[version.id[:SHORT_ID_BYTES]]

    @property
    def probed_bytes(self) -> int:
        """Bytes of probe padding that all nodes sent."""
        return sum(node.monitor.padding_sent for node in self.nodes.values())
