"""Compares virtual TCP with real TCP: the time until connections fill a long path.

    python -m p2psync.bench.virtual_tcp

The real figures were measured over the emulator: a path of 59 Mbit/s, 652 ms round trip and 0.6 % loss each way, idle
before. Each column is three seconds.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

from p2psync.sim.clock import VirtualClock
from p2psync.topology.tcp.congestion import Bbr, CongestionControl, Cubic
from p2psync.topology.tcp.connection import TcpConnection
from p2psync.topology.tcp.links import LinkDirection

#: Mbit/s in each three seconds, by congestion control and number of connections (experiments/tcp-paths.md).
MEASURED: dict[tuple[str, int], list[float]] = {
    ("bbr", 1): [0.1, 1, 4, 12, 37, 41, 55],
    ("bbr", 2): [1, 7, 26, 56],
    ("bbr", 4): [4, 19, 25, 43, 80],
    ("cubic", 1): [1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5],
}
CONTROLS: dict[str, Callable[[], CongestionControl]] = {"bbr": Bbr, "cubic": Cubic}
SECONDS, SEEDS, MESSAGE = 3.0, 9, 64 << 10
_MBIT = 1e6 / 8


def delivered(
    control: Callable[[], CongestionControl],
    connections: int,
    *,
    rate: float = 59.0,
    rtt: float = 0.652,
    loss: float = 0.006,
    periods: int = 7,
    seed: int = 0,
) -> list[float]:
    """Returns Mbit/s in each period of three seconds, over one path that is shared by all connections."""
    clock, rng = VirtualClock(seed), random.Random(seed)
    link = LinkDirection(rate * _MBIT, rtt * rate * _MBIT, loss)
    uplink = LinkDirection(1000 * _MBIT, 0.05 * 1000 * _MBIT)
    counts = [0.0] * (periods + 1)

    def arrived(message: object) -> None:
        counts[min(periods, int(clock.now / SECONDS))] += MESSAGE

    for _ in range(connections):
        path = [(uplink, 0.0), (link, rtt / 2)]
        connection = TcpConnection(clock, rng, path, rtt / 2, control(), on_message=arrived)
        for _ in range(int(rate * _MBIT * SECONDS * periods / MESSAGE) + 1):
            connection.send(MESSAGE, MESSAGE)
    clock.run(SECONDS * periods, lambda: False)
    return [count / _MBIT / SECONDS for count in counts[:periods]]


def main() -> None:
    """Print both."""
    for (name, connections), measured in MEASURED.items():
        runs = [delivered(CONTROLS[name], connections, seed=seed) for seed in range(SEEDS)]
        medians = [statistics.median(period) for period in zip(*runs, strict=True)]
        title = f"{name}, {connections} connection{'s' if connections > 1 else ''}"
        print(f"{title:20} measured {'  '.join(f'{figure:5.1f}' for figure in measured)}")
        print(f"{'':20} virtual  {'  '.join(f'{figure:5.1f}' for figure in medians)}")


if __name__ == "__main__":
    main()
