"""The chunk exchange of a node together with its network monitor, which needs the same events. Sans-I/O."""

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
    """Passes peers, messages, plans and transfers to the exchange and, after `measure`, to the monitor.

    The monitor learns of a transfer before the exchange sends any message of it.
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
        """Creates the monitor, and returns it. For the arguments see `NetworkMonitor`."""
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
        """Replaces the members of the swarm."""
        if self.monitor is not None:
            self.monitor.members(infos)

    def follow(self, plan: NodePlan, now: float) -> None:
        """Replaces the plan."""
        self.exchange.follow(plan, now)
        if self.monitor is not None:
            self.monitor.planned(plan)

    def peer_up(self, name: str, region: str, now: float, *, publishes: bool) -> bool:
        """Adds a connected peer; returns False if the shell must disconnect it. See `Exchange.peer_up`."""
        same_region = bool(region) and region == self._info.region
        if not self.exchange.peer_up(name, same_region, now, publishes=publishes):
            return False
        if self.monitor is not None:
            self.monitor.peer_up(name, region)
        return True

    def peer_down(self, name: str, now: float) -> None:
        """Removes a disconnected peer."""
        self.exchange.peer_down(name, now)
        if self.monitor is not None:
            self.monitor.peer_down(name)

    def dial_failed(self, name: str) -> None:
        """Handles a failed dial."""
        if self.monitor is not None:
            self.monitor.dial_failed(name)

    def receive(self, name: str, message: Message, now: float) -> bool:
        """Handles a peer's message; returns whether it was for the exchange."""
        if self.monitor is not None and not isinstance(message, Chunk) and self.monitor.message(name, message):
            return False
        self.exchange.receive(name, message, now)
        return True

    def transfer_begins(self, manifest: Manifest) -> None:
        """Tells the monitor that the exchange is about to transfer a manifest's chunks."""
        if self.monitor is not None:
            self.monitor.transfer_begins(manifest.payload_bytes)
