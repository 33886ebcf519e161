"""A whole node in virtual time: the exchange, the control of its connections, and its lease at the hub."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from p2psync.membership.client import MembershipClient
from p2psync.membership.records import NodeInfo, NodeStatistics
from p2psync.protocol.messages import SHORT_ID_BYTES, Chunk, Control, Message, Ping
from p2psync.protocol.plan import NodePlan
from p2psync.sim.clock import VirtualClock, VirtualTimer
from p2psync.swarm.control.config import MeasureConfig
from p2psync.swarm.control.stream_count import StreamCount
from p2psync.swarm.exchange.actions import Ban, Complete, Save, Send, SendChunk, VerifyManifest
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.exchange import Exchange
from p2psync.swarm.monitored_exchange import MonitoredExchange
from p2psync.swarm.stream_choice import soonest, stream_for
from p2psync.topology.simulated_payload import SimulatedPayload
from p2psync.topology.virtual.stream import VirtualStream

#: Seconds between pings of a stream: as `net.peers` has them.
PING_SECONDS = 5.0
_NEVER = float("inf")


class ClockHandle:
    """A call that was scheduled on a virtual clock."""

    def __init__(self, when: float, callback: Callable[[], Any]) -> None:
        self._when, self._callback = when, callback
        self._is_cancelled = False

    def cancel(self) -> None:
        """See `TimerHandle`."""
        self._is_cancelled = True

    def when(self) -> float:
        """See `TimerHandle`."""
        return self._when

    def fire(self) -> None:
        """Makes the call unless it was cancelled."""
        if not self._is_cancelled:
            self._callback()


class ClockScheduler:
    """A `Scheduler` on a virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def time(self) -> float:
        """See `Scheduler`."""
        return self._clock.now

    def call_later(self, delay: float, callback: Callable[[], Any]) -> ClockHandle:
        """See `Scheduler`."""
        handle = ClockHandle(self._clock.now + delay, callback)
        self._clock.at(handle.when(), handle.fire)
        return handle


class NodeListener(Protocol):
    """The calls that a node makes to the swarm around it."""

    def open_streams(self, node: VirtualNode, peer: str, count: int) -> None:
        """A node dials so many further connections."""

    def saved(self, node: VirtualNode, id: bytes, size: int) -> None:
        """A node saved another chunk, of `size` bytes."""

    def completed(self, node: VirtualNode, id: bytes) -> None:
        """A node holds all chunks of a manifest."""

    def banned(self, node: VirtualNode, peer: str, reason: str) -> None:
        """A node closes all connections to a peer."""

    def manifest(self, id: bytes) -> SimulatedPayload:
        """Returns the payload of a manifest."""


class _Links:
    """The streams to one peer. under_way: those that this node dials now."""

    __slots__ = ("count", "dialled", "streams", "under_way")

    def __init__(self, dialled: bool) -> None:
        self.dialled = dialled
        self.streams: list[VirtualStream] = []
        self.under_way = 0
        self.count = StreamCount()


class VirtualConnections:
    """The `Connections` of one node."""

    def __init__(self, node: VirtualNode, clock: VirtualClock, listener: NodeListener) -> None:
        self._node, self._clock, self._listener = node, clock, listener
        self.links: dict[str, _Links] = {}
        self.chunk_at = -_NEVER

    def streams(self, name: str) -> Sequence[VirtualStream]:
        """See `Connections`."""
        links = self.links.get(name)
        return links.streams if links is not None else ()

    def all_streams(self) -> Iterator[VirtualStream]:
        """See `Connections`."""
        return itertools.chain.from_iterable(links.streams for links in self.links.values())

    def dialled(self, name: str) -> bool:
        """See `Connections`."""
        links = self.links.get(name)
        return links is not None and links.dialled

    def set_streams(self, name: str, count: int) -> None:
        """See `Connections`."""
        links = self.links.get(name)
        if links is None or not links.dialled:
            return
        missing = links.count.to_dial(count, len(links.streams), links.under_way, self._clock.now)
        if missing:
            links.under_way += missing
            self._listener.open_streams(self._node, name, missing)
        for stream in links.count.to_close(count, links.streams):
            links.streams.remove(stream)
            stream.other.retire()

    def send(self, name: str, message: Control) -> None:
        """See `Connections`."""
        links = self.links.get(name)
        if links is not None and links.streams:
            stream_for(links.streams, message).send(message)

    def send_chunk(self, name: str, chunk: Chunk) -> bool:
        """Sends a chunk on the stream that will have sent it first; returns False if the peer is gone."""
        links = self.links.get(name)
        if links is None or not links.streams:
            return False
        self.chunk_at = self._clock.now
        soonest(links.streams, len(chunk.data)).send_chunk(chunk)
        return True

    def hang_up(self, name: str, reason: str) -> None:
        """See `Connections`."""
        self._listener.banned(self._node, name, reason)

    def retired(self, stream: VirtualStream) -> None:
        """The other end sends no more on this stream."""
        links = self.links.get(stream.peer)
        if links is not None and len(links.streams) > 1 and stream in links.streams:
            links.streams.remove(stream)

    def add(self, stream: VirtualStream, *, dialled: bool) -> None:
        """A connection stands."""
        links = self.links.setdefault(stream.peer, _Links(dialled))
        links.streams.append(stream)
        links.under_way -= links.under_way > 0


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """The settings of every node. swarm: those of the chunk exchange. streams: connections to each peer; 0: as
    measurements say."""

    swarm: ExchangeConfig = field(default_factory=ExchangeConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    streams: int = 0


class VirtualNode:
    """One node. index: in the network."""

    def __init__(
        self,
        info: NodeInfo,
        index: int,
        clock: VirtualClock,
        listener: NodeListener,
        seed: int,
        settings: NodeSettings,
    ) -> None:
        rng = random.Random(seed)
        self.info, self.name, self.index = info, info.node, index
        self._clock, self._listener = clock, listener
        self.swarm = Exchange(settings.swarm, rng, info.node)
        self.membership = MembershipClient(info, rng)
        self.connections = VirtualConnections(self, clock, listener)
        self.traffic = MonitoredExchange(info, self.swarm)
        self.monitor = self.traffic.measure(
            self.connections,
            rng,
            settings.measure,
            ClockScheduler(clock),
            streams=settings.streams,
            congestion="bbr",
            on_measures=self._measured,
        )
        self.payloads: dict[bytes, SimulatedPayload] = {}
        #: Bytes of chunks that were sent, by the short id of their manifest.
        self.sent_bytes: Counter[bytes] = Counter()
        self._timer = VirtualTimer(clock, self._poll)
        self._token = 0
        #: Told of each change of this node's statistics.
        self.on_statistics: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begins to measure and to ping."""
        self.monitor.start()
        self._clock.after(PING_SECONDS, self._ping)

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def peer_up(self, stream: VirtualStream, region: str, *, dialled: bool, publishes: bool) -> None:
        """A connection to a peer stands."""
        self.connections.add(stream, dialled=dialled)
        self.traffic.peer_up(stream.peer, region, self._clock.now, publishes=publishes)
        self.drain()

    def peer_down(self, name: str) -> None:
        """All connections to a peer are gone."""
        if self.connections.links.pop(name, None) is not None:
            self.traffic.peer_down(name, self._clock.now)
            self.drain()

    def received(self, stream: VirtualStream, message: Message) -> None:
        """See `StreamListener`."""
        if isinstance(message, Chunk):
            self.connections.chunk_at = self._clock.now
        if self.traffic.receive(stream.peer, message, self._clock.now):
            self.drain()

    def flushed(self, peer: str, size: int) -> None:
        """See `StreamListener`."""
        self.swarm.flushed(peer, size, self._clock.now)
        self.drain()

    def retired(self, stream: VirtualStream) -> None:
        """See `StreamListener`."""
        self.connections.retired(stream)

    def follow(self, plan: NodePlan) -> None:
        """Takes this node's part of a plan."""
        self.traffic.follow(plan, self._clock.now)
        self.drain()

    def publish(self, payload: SimulatedPayload) -> None:
        """Serves a version of this node's own."""
        self.traffic.transfer_begins(payload.manifest)
        self.payloads[payload.id[:SHORT_ID_BYTES]] = payload
        self.swarm.gossip.publish(payload.id, payload.signed)
        self.swarm.begin(payload.id, payload.manifest, payload.all_chunks, payload.no_chunks, self._clock.now)
        self.drain()

    def fetch(self, payload: SimulatedPayload) -> None:
        """Begins to fetch a version, once."""
        if payload.id[:SHORT_ID_BYTES] in self.payloads:
            return
        self.payloads[payload.id[:SHORT_ID_BYTES]] = payload
        self.traffic.transfer_begins(payload.manifest)
        self.swarm.begin(payload.id, payload.manifest, payload.no_chunks, payload.all_chunks, self._clock.now)
        self.drain()

    def end(self, payload: SimulatedPayload) -> None:
        """Stops exchanging a version."""
        if self.payloads.pop(payload.id[:SHORT_ID_BYTES], None) is not None:
            self.swarm.end(payload.id)
            self.drain()

    # ---- outputs ---------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Carries out the exchange's actions, and schedules its next wake-up."""
        swarm = self.swarm
        while actions := swarm.actions():
            for action in actions:
                match action:
                    case Send():
                        self.connections.send(action.peer, action.message)
                    case SendChunk():
                        self._send_chunk(action)
                    case Save():
                        self._listener.saved(self, action.id, len(action.data))
                    case Complete():
                        self._listener.completed(self, action.id)
                    case Ban():
                        self._listener.banned(self, action.peer, action.reason)
                    case VerifyManifest():
                        swarm.gossip.verified(action, taken=True)
                        self.fetch(self._listener.manifest(action.id))
                    case _:
                        pass
        self._timer.set(swarm.next_wake())

    def _poll(self) -> None:
        self.swarm.poll(self._clock.now)
        self.drain()

    def _send_chunk(self, action: SendChunk) -> None:
        short = action.id[:SHORT_ID_BYTES]
        payload = self.payloads.get(short)
        if payload is None or not self.connections.send_chunk(
            action.peer, Chunk(short, action.index, payload.chunks[action.index], action.tag)
        ):
            self.swarm.flushed(action.peer, action.size, self._clock.now)
        else:
            self.sent_bytes[short] += action.size

    def _measured(self, statistics: NodeStatistics) -> None:
        self.membership.statistics = statistics
        self.on_statistics()

    def _ping(self) -> None:
        for stream in list(self.connections.all_streams()):
            self._token += 1
            stream.send(Ping(self._token))
        self._clock.after(PING_SECONDS, self._ping)
