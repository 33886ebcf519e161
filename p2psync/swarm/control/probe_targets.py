"""Whom a node may probe, and in which order it turns to them: the peers of a `Prober` by region."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Set
from dataclasses import dataclass

from p2psync.swarm.control.probe_budget import ConvergenceDetector
from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.estimators import NEAR
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.probe_schedule import MORE, Job

#: Peers of another region that a node asks soon after it joined; the next node in line goes on behind them.
LOOKS = 2
_NEVER = float("inf")


@dataclass(slots=True)
class ProbePeer:
    """served_at: when it last got junk. owed: bytes it was asked for and has not sent. asked: whether it ever was.
    uplink: bytes a second that it says it can send, 0: it said nothing."""

    region: str
    served_at: float = -_NEVER
    owed: int = 0
    asked: bool = False
    uplink: float = 0.0


class ProbePeers:
    """The connected peers of one node. mates: the names of the other nodes of its region, connected or not."""

    def __init__(
        self, node: str, region: str, config: ProbeConfig, estimates: NodeEstimates, rng: random.Random
    ) -> None:
        self.region = region
        self.peers: dict[str, ProbePeer] = {}
        self.mates: list[str] = []
        self._node = node
        self._config = config
        self._estimates = estimates
        self._rng = rng

    def rank(self, region: str) -> int:
        """This node's place among those of its region who probe another."""
        return _line([self._node, *self.mates], self.region, region).index(self._node)

    def in_line(self, region: str) -> list[str]:
        """The peers of a region, in the order in which that region's nodes probe this one's."""
        return _line([name for name in self.peers if self.region_of(name) == region], region, self.region)

    def region_of(self, name: str) -> str:
        """A peer's region. Where nobody gave one, a peer that is far away is a region of its own."""
        region = self.peers[name].region
        if region:
            return region
        return self.region if self.rtt(name) <= NEAR else f"?{name}"

    def fan(self, job: Job, count: int, *, down: bool = False) -> list[str]:
        """Peers to measure this node's own links with: near ones first, then those who did not lack time of late, then
        those that give most, or, for a downlink, say to send most; else at random."""

        def order(name: str) -> tuple[bool, float, float, float, float]:
            far, busy = self.region_of(name) != self.region, job.busy.get(name, -_NEVER)
            return far, busy, -self.peers[name].uplink if down else 0.0, -self._rate_to(name), self._rng.random()

        ordered = sorted(self.peers, key=order)
        near = [name for name in ordered if self.region_of(name) == self.region]
        # Those of one region far away share the way to it.
        firsts = {self.region_of(name): name for name in reversed(ordered)}
        ordered.sort(key=lambda name: firsts[self.region_of(name)] != name)
        # All of them must have time; where they never have, it is tried with fewer, down to the best one.
        return (near if len(near) > 1 else ordered)[: max(1, count - job.tries // self._config.tries)]

    def rtt(self, name: str) -> float:
        """The round trip to a peer (seconds), 0: not known."""
        path = self._estimates.paths.get(name)
        return path.rtt if path is not None else 0.0

    def seconds(self, peers: Iterable[str]) -> float:
        """How long a probe with these takes at most."""
        farthest = max((self.rtt(name) for name in peers), default=0.0)
        return min(self._config.longest, self._config.shortest + self._config.trips * farthest)

    def steady(self, peers: Iterable[str]) -> ConvergenceDetector:
        """What sees whether the rate with these is steady."""
        return ConvergenceDetector(max((self.rtt(name) for name in peers), default=0.0))

    def next_in_line(self, region: str, job: Job) -> str:
        """Another peer of a region each time; whoever has no time is passed over until the next time.

        First those whose uplinks are known to be wider than what came so far, the widest of them first; then those who
        said nothing; then the others, of whom the widest is asked again rather than one that cannot show more.
        """
        line = self.in_line(region)
        begin = LOOKS * self.rank(region) % len(line)
        came = self.came_from(line)
        more = [name for name in line[begin:] + line[:begin] if name not in job.shown and self._may_show(name, came)]
        if not more:
            job.shown.clear()
            more = line[begin:] + line[:begin]
        widest = max(self.peers[name].uplink for name in more)
        more = [name for name in more if self.peers[name].uplink >= widest / MORE]
        job.asked = more[job.tries % len(more)]
        return job.asked

    def _may_show(self, name: str, came: float) -> bool:
        """Whether more may come from a peer than this (bytes a second), for all that it says of its uplink."""
        uplink = self.peers[name].uplink
        return not uplink or uplink > MORE * came

    def hidden(self, mates: Iterable[str], shown: Set[str], came: float) -> bool:
        """Whether it was uplinks that hid how much more than this may come from a region, and one there is wider."""
        wider = {name for name in mates if self.peers[name].uplink > MORE * came}
        return bool(wider) and wider.isdisjoint(shown)

    def narrow(self, asked: Set[str], came: float) -> bool:
        """Whether the uplinks of those who were asked may have hidden how much more than this a downlink takes, and
        others have wider ones."""
        widest = self.fan(Job(0.0), self._config.down_fan, down=True)
        most = sum(self.peers[name].uplink for name in widest)
        return most > MORE * max(came, sum(self.peers[name].uplink for name in asked if name in self.peers))

    def wide(self, names: Set[str]) -> float:
        """Bytes a second that these say that they can send together; 0 if one of them has not said."""
        rates = [self.peers[name].uplink for name in names if name in self.peers]
        return sum(rates) if all(rates) else 0.0

    def came_from(self, names: Iterable[str]) -> float:
        """Bytes a second that came from one of these peers at best, 0: nothing did."""
        paths = self._estimates.paths
        return max((paths[name].received.value for name in names if name in paths), default=0.0)

    def _rate_to(self, name: str) -> float:
        """Bytes a second that moved to or from a peer at best, 0: nothing did."""
        path = self._estimates.paths.get(name)
        return max(path.sent.value, path.received.value) if path is not None else 0.0


def _line(names: Iterable[str], home: str, other: str) -> list[str]:
    """The nodes of region `home` in the order in which they probe region `other`: the same wherever it is computed."""
    return sorted(names, key=lambda name: (zlib.crc32(f"{home}\0{other}\0{name}".encode()), name))
