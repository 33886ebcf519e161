"""Probers and estimates of several nodes in virtual time, over links shared fairly, by flows that start slowly."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from p2psync.protocol.messages import ProbeEnd, ProbeInvite, ProbePadding, ProbeRequest, SuppressProbes, UplinkRate
from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.probe_actions import Disconnect, SendMessage, StartPadding, StopPadding
from p2psync.swarm.control.prober import Prober
from p2psync.swarm.control.tcp_sample import TcpSample

STEP = 0.05
MBIT = 125_000.0
CONFIG = ProbeConfig()
_FRAME = 32 << 10
T = TypeVar("T")
_JUNK = ProbePadding(memoryview(bytes(_FRAME)))


@dataclass
class Flow:
    """Junk from one node to another. rate: bytes a second that its window allows; it doubles with each round trip.

    most: bytes a second that were asked for, 0: any.
    """

    left: float
    until: float
    rate: float
    most: float = 0.0
    sent: float = 0.0
    told: float = 0.0


@dataclass
class Host:
    """One node. Mbit/s."""

    name: str
    region: str
    up: float
    down: float
    estimates: NodeEstimates = field(default_factory=NodeEstimates)
    flows: dict[str, Flow] = field(default_factory=dict)
    padding_sent: float = 0.0
    padding_received: float = 0.0
    expelled: list[str] = field(default_factory=list)
    flowing: bool = False

    def __post_init__(self) -> None:
        self.prober: Prober


class World:
    """The network. links: Mbit/s and round trip (seconds) between regions, both ways; inside: plenty, and 1 ms."""

    def __init__(
        self,
        hosts: list[Host],
        links: dict[tuple[str, str], tuple[float, float]],
        config: ProbeConfig | None = None,
        seed: int = 0,
        *,
        named: bool = True,
    ) -> None:
        """named: whether nodes know each other's regions."""
        self.hosts = {host.name: host for host in hosts}
        self.links = {way: link for (a, b), link in links.items() for way in ((a, b), (b, a))}
        self.now = 0.0
        self._mail: list[tuple[float, str, str, object]] = []
        self._told: list[tuple[str, str, object]] = []
        self._ticks = 0
        self._moved: dict[tuple[str, str], float] = {}
        config = config or ProbeConfig()
        for host in hosts:
            rng = random.Random(f"{seed} {host.name}")
            host.prober = Prober(host.name, host.region if named else "", config, host.estimates, rng)
            host.prober.members(other.name for other in hosts if not named or other.region == host.region)
            for other in hosts:
                if other is not host:
                    host.estimates.round_trip(other.name, self.rtt(host, other))
                    host.prober.peer_up(other.name, other.region if named else "", 0.0)

    def rtt(self, a: Host, b: Host) -> float:
        """Seconds."""
        return self.links[a.region, b.region][1] if a.region != b.region else 0.001

    def run(self, seconds: float, each: Callable[[], None] = lambda: None) -> None:
        """Let time pass; `each` is called in every step."""
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            self._deliver()
            self._flow()
            self._ticks += 1
            if self._ticks % 2 == 0:
                self._tick()
            each()

    def moved(self, source: str, target: str) -> float:
        """Bytes so far."""
        return self._moved.get((source, target), 0.0)

    def told(self, source: str, kind: type[T]) -> list[tuple[str, T]]:
        """The messages of a kind that a node has sent, with whom to."""
        return [
            (target, message)
            for sender, target, message in self._told
            if sender == source and isinstance(message, kind)
        ]

    def send(self, source: str, target: str, message: object) -> None:
        """A message takes half a round trip."""
        delay = self.rtt(self.hosts[source], self.hosts[target]) / 2
        self._told.append((source, target, message))
        self._mail.append((self.now + delay, source, target, message))

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        due = sorted((mail for mail in self._mail if mail[0] <= self.now), key=lambda mail: mail[:3])
        self._mail = [mail for mail in self._mail if mail[0] > self.now]
        for _, source, target, message in due:
            assert isinstance(message, ProbeRequest | ProbeEnd | ProbeInvite | UplinkRate | SuppressProbes)
            self.hosts[target].prober.receive(source, message, self.now)
            self._act(self.hosts[target])

    def _act(self, host: Host) -> None:
        for action in host.prober.actions():
            match action:
                case SendMessage():
                    self.send(host.name, action.peer, action.message)
                case StartPadding():
                    rtt = self.rtt(host, self.hosts[action.peer])
                    host.flows[action.peer] = Flow(action.size, action.until, 15_000 / max(rtt, 0.01), action.rate)
                case StopPadding():
                    self._end(host, action.peer)
                case Disconnect():
                    host.expelled.append(action.peer)

    def _end(self, host: Host, peer: str) -> None:
        flow = host.flows.pop(peer, None)
        if flow is not None:
            host.prober.padding_ended(peer, int(flow.sent), self.now)
            self._act(host)

    def _flow(self) -> None:
        """Share all links fairly among the flows, and move what a step moves."""
        flows = [(host, self.hosts[peer], flow) for host in self.hosts.values() for peer, flow in host.flows.items()]
        rates = self._fair(flows)
        for (host, peer, flow), rate in zip(flows, rates, strict=True):
            moved = min(rate * STEP, flow.left)
            flow.left -= moved
            flow.sent += moved
            host.padding_sent += moved
            key = (host.name, peer.name)
            self._moved[key] = self._moved.get(key, 0.0) + moved
            peer.padding_received += moved
            rtt = max(self.rtt(host, peer), 0.01)
            flow.rate *= 2 ** (STEP / rtt)
            while flow.sent - flow.told >= _FRAME:
                flow.told += _FRAME
                peer.prober.receive(host.name, _JUNK, self.now)
            if flow.left <= 0 or self.now >= flow.until:
                self._end(host, peer.name)

    def _fair(self, flows: list[tuple[Host, Host, Flow]]) -> list[float]:
        caps: dict[Hashable, float] = {}
        uses: list[list[Hashable]] = []
        for i, (host, peer, flow) in enumerate(flows):
            ways: list[Hashable] = [("up", host.name), ("down", peer.name), ("flow", i)]
            caps[ways[0]], caps[ways[1]] = host.up * MBIT, peer.down * MBIT
            caps[ways[2]] = min(flow.rate, flow.most or flow.rate)
            if host.region != peer.region:
                way = (host.region, peer.region)
                ways.append(way)
                caps[way] = self.links[way][0] * MBIT
            uses.append(ways)
        rates = [0.0] * len(flows)
        open_flows = set(range(len(flows)))
        while open_flows:
            share = {way: cap / n for way, cap in caps.items() if (n := sum(way in uses[i] for i in open_flows))}
            tight = min(share, key=lambda way: share[way])
            for i in [i for i in open_flows if tight in uses[i]]:
                rates[i] = share[tight]
                open_flows.discard(i)
                for way in uses[i]:
                    caps[way] = max(0.0, caps[way] - share[tight])
        return rates

    def _tick(self) -> None:
        for host in self.hosts.values():
            samples: dict[Hashable, TcpSample] = {}
            for other in self.hosts.values():
                sent, came = self._moved.get((host.name, other.name), 0), self._moved.get((other.name, host.name), 0)
                if other is not host and (sent or came):
                    samples[other.name] = TcpSample(
                        other.name,
                        delivered=int(sent),
                        received=int(came),
                        sent=int(sent),
                        backlog=int(other.name in host.flows),
                        rtt=self.rtt(host, other),
                    )
            host.estimates.read(samples, self.now)
            host.prober.poll(host.flowing, self.now)
            self._act(host)


def prober(config: ProbeConfig = CONFIG, peers: int = 3, region: str = "a") -> Prober:
    """A node with peers p0, p1, … of its region."""
    made = Prober("me", "a", config, NodeEstimates(), random.Random(0))
    for i in range(peers):
        made.peer_up(f"p{i}", region, 0.0)
    return made


def told(node: Prober, kind: Callable[..., object]) -> list[SendMessage]:
    return [action for action in node.actions() if isinstance(action, SendMessage) and isinstance(action.message, kind)]  # type: ignore[arg-type]


def asking() -> Prober:
    """A node that probes its downlink with two near peers, and leaves the path to a far one to another node."""
    estimates = NodeEstimates()
    node = Prober(
        "second in line",
        "a",
        ProbeConfig(settle_seconds=0.0, jitter_seconds=0.0, rank_seconds=1e6),
        estimates,
        random.Random(0),
    )
    node.members(["me"])
    for name, region in (("p0", "a"), ("p1", "a"), ("far", "b")):
        node.peer_up(name, region, 0.0)
    node.poll(False, 0.1)
    return node
