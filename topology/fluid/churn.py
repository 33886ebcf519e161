"""Churn: nodes that leave and nodes that join, at random times of a given rate."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from p2psync.topology.fluid.swarm import FluidSwarm

#: Seconds before a node may start on a host where another one ended.
RESTART_MIN_SECONDS = 5.0


def spare_hosts(names: Sequence[str], trainer: str, count: int, seed: int) -> frozenset[str]:
    """Returns `count` hosts on which no node runs at first, drawn by seed; never the trainer's."""
    return frozenset(random.Random(seed).sample([name for name in names if name != trainer], count))


class Churn:
    """Churn: each minute `share` of the nodes crash, and as many join, on idle hosts first, until `until` (seconds).

    left, joins: how many did. joined: by name, when the newest node of each host joined (seconds).
    """

    def __init__(self, swarm: FluidSwarm, share: float, until: float) -> None:
        self._swarm, self._until = swarm, until
        self._rng = swarm.clock.rng
        self._pool: deque[tuple[float, str]] = deque((0.0, name) for name in sorted(swarm.idle_hosts))
        self._per_second = share * (len(swarm.network.names) - len(swarm.idle_hosts)) / 60
        self.left = 0
        self.joined: dict[str, float] = {}
        self.joins = 0

    def start(self) -> None:
        """Starts the churn."""
        if self._per_second <= 0:
            return
        self._swarm.churning = True
        self._swarm.clock.at(self._until, self._stop)
        for call in (self._leave, self._join):
            self._swarm.clock.after(self._rng.expovariate(self._per_second), call)

    def _stop(self) -> None:
        self._swarm.churning = False

    def _leave(self) -> None:
        swarm = self._swarm
        if not swarm.churning:
            return
        name = self._rng.choice(swarm.network.names)
        while name not in swarm.live or name == swarm.trainer:
            name = self._rng.choice(swarm.network.names)
        swarm.kill(name)
        self.left += 1
        self.joined.pop(name, None)
        self._pool.append((swarm.clock.now + RESTART_MIN_SECONDS, name))
        # The trainer and one other node always stay.
        if len(swarm.live) > 2:
            swarm.clock.after(self._rng.expovariate(self._per_second), self._leave)

    def _join(self) -> None:
        swarm = self._swarm
        if not swarm.churning:
            return
        if self._pool and self._pool[0][0] <= swarm.clock.now:
            _, name = self._pool.popleft()
            swarm.join(name)
            self.joins += 1
            self.joined[name] = swarm.clock.now
        swarm.clock.after(self._rng.expovariate(self._per_second), self._join)
