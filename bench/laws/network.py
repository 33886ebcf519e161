"""A drawn network in virtual time: links, connections of one directed pair, small messages."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from p2psync.sim.clock import VirtualClock
from p2psync.topology.network import Network
from p2psync.topology.tcp.congestion import Bbr, CongestionControl, Cubic
from p2psync.topology.tcp.connection import TcpConnection
from p2psync.topology.tcp.links import LinkDirection

BYTES_PER_MBIT = 1e6 / 8
#: Queues as the emulator has them (`p2psync.topology.emulator.layout`): seconds of a host's rate, the least seconds of
#: a link's, and the least bytes.
HOST_QUEUE, LINK_QUEUE, LEAST_QUEUE = 0.05, 0.02, 12_000
CONTROLS: dict[str, Callable[[], CongestionControl]] = {"bbr": Bbr, "cubic": Cubic}


class VirtualNetwork:
    """The links of a network, and the connections over them. Nodes are numbered as in `network`."""

    def __init__(self, network: Network, seed: int, streams: int, congestion: str) -> None:
        """streams: connections of a directed pair."""
        self.network, self.streams = network, streams
        self.clock, self._rng = VirtualClock(seed), random.Random(seed)
        self._control = CONTROLS[congestion]
        self.up = [_link(rate, HOST_QUEUE) for rate in network.up.tolist()]
        self.down = [_link(rate, HOST_QUEUE) for rate in network.down.tolist()]
        self.region: list[int] = network.region.tolist()
        self._links = {
            (a, b): _link(
                float(network.rate[a, b]),
                max(2 * float(network.delay[a, b]), LINK_QUEUE),
                float(network.loss[a, b]),
            )
            for a in range(len(network.regions))
            for b in range(len(network.regions))
            if a != b and network.rate[a, b] > 0
        }

    def delay(self, i: int, j: int) -> float:
        """Returns the seconds that the links from i to j take, one way."""
        return float(self.network.delay[self.region[i], self.region[j]])

    def path_rate(self, i: int, j: int) -> float:
        """Returns the bytes/s of the narrowest link from i to j."""
        return min(link.rate for link, _ in self._path(i, j))

    def connect(
        self, i: int, j: int, on_message: Callable[[object], None], on_drained: Callable[[], None]
    ) -> list[TcpConnection]:
        """Returns new connections from i to j."""
        return [
            TcpConnection(
                self.clock,
                self._rng,
                self._path(i, j),
                self.delay(j, i),
                self._control(),
                on_message=on_message,
                on_drained=on_drained,
            )
            for _ in range(self.streams)
        ]

    def tell(self, i: int, j: int, call: Callable[..., None], *arguments: object) -> None:
        """Sends a small message: it waits in the queues of its path, takes no room there, and is never lost."""
        at = self.clock.now
        for link, delay in self._path(i, j):
            at = max(at, link.free_at) + delay
        self.clock.at(at, call, *arguments)

    def _path(self, i: int, j: int) -> list[tuple[LinkDirection, float]]:
        a, b = self.region[i], self.region[j]
        if a == b:
            return [(self.up[i], self.delay(i, j)), (self.down[j], 0.0)]
        return [(self.up[i], 0.0), (self._links[a, b], self.delay(i, j)), (self.down[j], 0.0)]


def _link(mbit: float, queue_seconds: float, loss: float = 0.0) -> LinkDirection:
    rate = mbit * BYTES_PER_MBIT if math.isfinite(mbit) else 1e12
    return LinkDirection(rate, max(LEAST_QUEUE, queue_seconds * rate), loss)
