"""Orders the peers of a node for its probes: by region, uplink and rate. Pure apart from its random generator."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Set
from dataclasses import dataclass

from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.estimators import LOW_RTT
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.probe_budget import ConvergenceDetector
from p2psync.swarm.control.probe_schedule import ProbeTask

_NEVER = float("inf")


@dataclass(slots=True)
class ProbeTarget:
    """A connected peer. served_at: when this node last sent it padding. owed: bytes of padding that it may still send.

    was_asked: whether it was ever probed. uplink: bytes a second that it announced, 0: nothing.
    """

    region: str
    served_at: float = -_NEVER
    owed: int = 0
    was_asked: bool = False
    uplink: float = 0.0


class ProbeTargets:
    """The connected peers of one node. same_region: names of the other nodes of its region, connected or not."""

    def __init__(
        self, node: str, region: str, config: ProbeConfig, estimates: NodeEstimates, rng: random.Random
    ) -> None:
        self.region = region
        self.peers: dict[str, ProbeTarget] = {}
        self.same_region: list[str] = []
        self._node = node
        self._config = config
        self._estimates = estimates
        self._rng = rng

    # ---- regions ---------------------------------------------------------------------------------------------------

    def region_of(self, name: str) -> str:
        """Returns a peer's region; a peer beyond `LOW_RTT` that announced none is a region of its own."""
        region = self.peers[name].region
        if region:
            return region
        return self.region if self.rtt(name) <= LOW_RTT else f"?{name}"

    def other_regions(self) -> set[str]:
        """Returns the regions of all peers but this node's own."""
        return {self.region_of(name) for name in self.peers} - {self.region}

    def rank(self, region: str) -> int:
        """Returns this node's place among the nodes of its region that probe another region."""
        return _order([self._node, *self.same_region], self.region, region).index(self._node)

    def in_order(self, region: str) -> list[str]:
        """Returns the peers of a region, in the order in which they probe this node's region."""
        return _order([name for name in self.peers if self.region_of(name) == region], region, self.region)

    # ---- whom to probe ---------------------------------------------------------------------------------------------

    def next_in_region(self, region: str, task: ProbeTask) -> str:
        """Returns the peer through which to probe the path from a region, another one at each attempt.

        Peers with announced uplinks wider than what came so far come first, the widest of them first; then those that
        announced nothing; then the others, of which the widest is asked again. Each node of this region begins behind
        the peers that the node before it probes.
        """
        order = self.in_order(region)
        begin = self._config.peers_per_node * self.rank(region) % len(order)
        order = order[begin:] + order[:begin]
        known = self.best_received_from(order)
        candidates = [name for name in order if name not in task.shown and self._may_exceed(name, known)]
        if not candidates:
            task.shown.clear()
            candidates = order
        widest = max(self.peers[name].uplink for name in candidates)
        candidates = [n for n in candidates if self.peers[n].uplink >= widest / self._config.confirmed_factor]
        task.last_target = candidates[task.attempts % len(candidates)]
        return task.last_target

    def for_own_link(self, task: ProbeTask, count: int, *, downlink: bool = False) -> list[str]:
        """Returns up to `count` peers with which to probe one of this node's own links, one fewer after some attempts.

        Peers of this region come first, then one of each other region, those that did not decline lately, and those
        that sent or got most; for a downlink those with the widest uplinks.
        """

        def order(name: str) -> tuple[bool, float, float, float, float]:
            is_other, busy_at = self.region_of(name) != self.region, task.busy_at.get(name, -_NEVER)
            uplink = -self.peers[name].uplink if downlink else 0.0
            return is_other, busy_at, uplink, -self._rate_of(name), self._rng.random()

        ordered = sorted(self.peers, key=order)
        in_region = [name for name in ordered if self.region_of(name) == self.region]
        # Peers of one other region share the path to it.
        firsts = {self.region_of(name): name for name in reversed(ordered)}
        ordered.sort(key=lambda name: firsts[self.region_of(name)] != name)
        fewer = task.attempts // self._config.attempts_per_peer
        return (in_region if len(in_region) > 1 else ordered)[: max(1, count - fewer)]

    # ---- what uplinks tell -----------------------------------------------------------------------------------------

    def is_path_hidden(self, names: Iterable[str], shown: Set[str], known: float) -> bool:
        """Returns whether a path may carry more than `known` (bytes a second): only narrow uplinks were probed."""
        wider = {name for name in names if self.peers[name].uplink > self._config.confirmed_factor * known}
        return bool(wider) and wider.isdisjoint(shown)

    def is_downlink_hidden(self, probed: Set[str], known: float) -> bool:
        """Returns whether a downlink may carry more than `known`: other peers have wider uplinks than those probed."""
        widest = self.for_own_link(ProbeTask(0.0), self._config.downlink_peers, downlink=True)
        most = sum(self.peers[name].uplink for name in widest)
        return most > self._config.confirmed_factor * max(known, sum(self._uplinks(probed)))

    def total_uplink(self, names: Set[str]) -> float:
        """Returns the bytes a second that peers announced together; 0 if one announced nothing."""
        rates = self._uplinks(names)
        return sum(rates) if all(rates) else 0.0

    def _uplinks(self, names: Set[str]) -> list[float]:
        return [self.peers[name].uplink for name in names if name in self.peers]

    def _may_exceed(self, name: str, known: float) -> bool:
        uplink = self.peers[name].uplink
        return not uplink or uplink > self._config.confirmed_factor * known

    # ---- rates and times -------------------------------------------------------------------------------------------

    def best_received_from(self, names: Iterable[str]) -> float:
        """Returns the most bytes a second that came from one of these peers, 0: none did."""
        paths = self._estimates.paths
        return max((paths[name].received.value for name in names if name in paths), default=0.0)

    def rtt(self, name: str) -> float:
        """Returns the round trip to a peer (seconds), 0: not known."""
        path = self._estimates.paths.get(name)
        return path.rtt if path is not None else 0.0

    def max_seconds(self, names: Iterable[str]) -> float:
        """Returns how long a probe with these peers may take: a fixed time, and round trips for its startup."""
        return min(
            self._config.max_seconds, self._config.min_seconds + self._config.round_trips * self._farthest(names)
        )

    def convergence(self, names: Iterable[str]) -> ConvergenceDetector:
        """Returns a detector that notices when the rate of a probe with these peers is steady."""
        return ConvergenceDetector(self._farthest(names), self._config)

    def _farthest(self, names: Iterable[str]) -> float:
        return max((self.rtt(name) for name in names), default=0.0)

    def _rate_of(self, name: str) -> float:
        path = self._estimates.paths.get(name)
        return max(path.sent.value, path.received.value) if path is not None else 0.0


def _order(names: Iterable[str], home: str, other: str) -> list[str]:
    """Returns the nodes of region `home` in the order in which they probe region `other`, the same on every node."""
    return sorted(names, key=lambda name: (zlib.crc32(f"{home}\0{other}\0{name}".encode()), name))
