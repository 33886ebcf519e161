"""A race of chunk exchanges in virtual time over a fluid network: one payload, a plan that knows the network, no churn.

Buffers are endless unless said, so that what is left is what the exchange and the plan make of a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.topology.fluid.servers import HEADER_FACTOR
from p2psync.topology.fluid.swarm import FluidOptions, FluidSwarm
from p2psync.topology.network import Network

_CONFIG = ExchangeConfig(flush_limit=256 << 10)


@dataclass
class Race:
    """One payload from the trainer to everyone. `run` returns the seconds until the last has it.

    buffer: see `FluidOptions`. believed: see `FluidSwarm`. silent: nodes that take everything and pass nothing on.
    at: what happens when (seconds).
    """

    network: Network
    payload: int = 64 << 20
    planned: bool = True
    buffer: float = 1e6
    silent: frozenset[str] = frozenset()
    planned_network: Network | None = None
    at: dict[float, Callable[[FluidSwarm], None]] = field(default_factory=dict)

    def run(self, limit: float = 300.0) -> float:
        """Raises `NotConvergedError` if somebody has not got it within `limit` seconds."""
        options = FluidOptions(
            payload_bytes=self.payload,
            planned=self.planned,
            others=self.network.size,
            limit=limit,
            buffer=self.buffer,
            config=_CONFIG,
        )
        self.swarm = swarm = FluidSwarm(self.network, options, planned_network=self.planned_network)
        swarm.start()
        for name in self.silent:
            swarm.live[name].silent = True
        for when, call in self.at.items():
            swarm.clock.at(when, call, swarm)
        swarm.run()
        swarm.check()
        assert not swarm.bans
        return max(swarm.trace.finished[1].values())

    @property
    def bound(self) -> float:
        """The least possible, headers not counted (seconds)."""
        return FluidSwarm(self.network, FluidOptions(payload_bytes=self.payload)).bound

    @property
    def copies(self) -> float:
        """Of the payload, that the trainer handed out."""
        return self.swarm.live[self.swarm.trainer].swarm.statistics.sent_bytes / self._whole

    @property
    def wasted(self) -> float:
        """Received chunks that were of no use, in copies for each receiver."""
        wasted = sum(node.swarm.statistics.wasted_bytes for node in self.swarm.nodes)
        return wasted / self._whole / (self.network.size - 1)

    def into(self) -> list[float]:
        """Copies that went into each region over all links together."""
        found = [0.0] * len(self.network.regions)
        for (_, b), server in self.swarm.net.links.items():
            found[b] += server.nbytes / HEADER_FACTOR / self._whole
        return found

    @property
    def _whole(self) -> int:
        return self.swarm.payloads[0].manifest.payload_bytes
