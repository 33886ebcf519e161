"""The links of a network in virtual time, and the path of each pair of nodes over them."""

from __future__ import annotations

from p2psync.topology.emulator.layout import HOST_BUFFER_MS, MIN_BUFFER_BYTES, MIN_BUFFER_MS
from p2psync.topology.network import Network
from p2psync.topology.tcp.links import LinkDirection

#: Bytes a second of a Mbit/s.
MBIT = 1e6 / 8
#: One-way delay of the hosts themselves (seconds).
HOST_DELAY_SECONDS = 0.0001


class VirtualLinks:
    """Each node's uplink and downlink, and the links between regions. Buffers are those of the emulator.

    i, j: node indices.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._region: list[int] = network.region.tolist()
        self.up = [_link(float(rate), HOST_BUFFER_MS) for rate in network.up]
        self.down = [_link(float(rate), HOST_BUFFER_MS) for rate in network.down]
        self._between: dict[tuple[int, int], LinkDirection] = {}

    def delay(self, i: int, j: int) -> float:
        """Returns the seconds from node i to node j over empty queues."""
        return float(self._network.delay[self._region[i], self._region[j]]) + HOST_DELAY_SECONDS

    def path(self, i: int, j: int) -> list[tuple[LinkDirection, float]]:
        """Returns the links from node i to node j, each with the delay behind it (seconds)."""
        a, b = self._region[i], self._region[j]
        if a == b:
            return [(self.up[i], self.delay(i, j)), (self.down[j], 0.0)]
        return [(self.up[i], 0.0), (self._link(a, b), self.delay(i, j)), (self.down[j], 0.0)]

    def _link(self, a: int, b: int) -> LinkDirection:
        link = self._between.get((a, b))
        if link is None:
            network = self._network
            buffer_ms = max(2000 * float(network.delay[a, b]), MIN_BUFFER_MS)
            link = self._between[a, b] = _link(float(network.rate[a, b]), buffer_ms, float(network.loss[a, b]))
        return link


def _link(mbit: float, buffer_ms: float, loss: float = 0.0) -> LinkDirection:
    rate = mbit * MBIT
    return LinkDirection(rate, max(MIN_BUFFER_BYTES, rate * buffer_ms / 1000), loss)
