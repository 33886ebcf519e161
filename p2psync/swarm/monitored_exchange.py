"""The chunk exchange of a node and the monitor of its network, which must learn of the same events. Sans-I/O."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from p2psync.membership.records import NodeInfo, NodeStatistics
from p2psync.protocol.manifest import Manifest
from p2psync.protocol.messages import Chunk, Message
from p2psync.protocol.plan import NodePlan
from p2psync.swarm.control.config import MeasureConfig
from p2psync.swarm.control.connections import Connections, Scheduler
from p2psync.swarm.control.monitor import NetworkMonitor
from p2psync.swarm.exchange.exchange import Exchange


class MonitoredExchange:
    """Passes peers, messages, plans and transfers on to the exchange and, once `measure` made one, to the monitor.

    The monitor learns of a transfer before anything of it is sent, its manifest too.
    """

    def __init__(self, info: NodeInfo, exchange: Exchange) -> None:
        self._info = info
        self.exchange = exchange
        self.monitor: NetworkMonitor | None = None

    def measure(
        self,
        connections: Connections,
        rng: random.Random,
        config: MeasureConfig,
        scheduler: Scheduler,
        *,
        streams: int,
        congestion: str,
        on_measures: Callable[[NodeStatistics], None],
    ) -> NetworkMonitor:
        """Makes the monitor, and returns it. For the arguments see `NetworkMonitor`."""
        exchange = self.exchange
        self.monitor = NetworkMonitor(
            self._info,
            connections,
            rng,
            config,
            scheduler,
            streams=streams,
            congestion=congestion,
            on_measures=on_measures,
            on_connections=exchange.set_connections,
            on_pace=exchange.set_upload_rate,
            others_fetch=lambda: exchange.statistics.others_fetch,
        )
        return self.monitor

    def members(self, infos: Iterable[NodeInfo]) -> None:
        """The members of the swarm are these."""
        if self.monitor is not None:
            self.monitor.members(infos)

    def follow(self, plan: NodePlan, now: float) -> None:
        """Makes this the plan."""
        self.exchange.follow(plan, now)
        if self.monitor is not None:
            self.monitor.planned(plan)

    def peer_up(self, name: str, region: str, now: float, *, publishes: bool) -> bool:
        """A connection to a peer is greeted; returns False if it must be closed. See `Exchange.peer_up`."""
        near = bool(region) and region == self._info.region
        if not self.exchange.peer_up(name, near, now, publishes=publishes):
            return False
        if self.monitor is not None:
            self.monitor.peer_up(name, region)
        return True

    def peer_down(self, name: str, now: float) -> None:
        """The last connection to a peer is gone."""
        self.exchange.peer_down(name, now)
        if self.monitor is not None:
            self.monitor.peer_down(name)

    def dial_failed(self, name: str) -> None:
        """A dialled member did not answer."""
        if self.monitor is not None:
            self.monitor.dial_failed(name)

    def receive(self, name: str, message: Message, now: float) -> bool:
        """A message came from a peer; returns whether it was for the exchange."""
        if self.monitor is not None and not isinstance(message, Chunk) and self.monitor.message(name, message):
            return False
        self.exchange.receive(name, message, now)
        return True

    def transfer_begins(self, manifest: Manifest) -> None:
        """Chunks of a manifest are about to travel."""
        if self.monitor is not None:
            self.monitor.transfer_begins(manifest.payload_bytes)
