"""A network as the bound and the planner see it: nodes with rates of their own, and shared links between regions.

Rates are in Mbit/s, delays in seconds one way, losses probabilities. i and j are node indices, a and b region indices;
`rate[a, b]` is the total rate from nodes of a to nodes of b. 0 means no path, inf one that never binds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from p2psync.topology.model import Topology

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Network:
    """The nodes and the rates between them.

    names: nodes, sorted. trainer: index of the publisher. up, down: Mbit/s of each node (float64, nodes). region: index
    into `regions` of each node. rate, delay, loss: regions × regions, from row to column; the diagonal is within a
    region. measured: whether a path's figures were measured, or are assumed. dialable: whether others can open
    connections to a node. blocked: pairs (i, j) where i cannot dial j. pair_rate: Mbit/s from i to j where it is below
    the rate of their regions' link.
    """

    names: tuple[str, ...]
    trainer: int
    up: Floats
    down: Floats
    region: Ints
    regions: tuple[str, ...]
    rate: Floats
    delay: Floats
    loss: Floats
    measured: Flags
    dialable: Flags
    blocked: frozenset[tuple[int, int]] = frozenset()
    pair_rate: dict[tuple[int, int], float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Nodes in all, the trainer among them."""
        return len(self.names)

    @property
    def everyone_dials(self) -> bool:
        """Whether all pairs of nodes in linked regions can connect."""
        return bool(self.dialable.all()) and not self.blocked

    def connects(self, i: int, j: int) -> bool:
        """Returns whether i and j can exchange data: their regions have a path, and one of them can dial the other."""
        if self.rate[self.region[i], self.region[j]] <= 0 or self.pair_rate.get((i, j), 1.0) <= 0:
            return False
        return self._dials(i, j) or self._dials(j, i)

    def _dials(self, i: int, j: int) -> bool:
        return bool(self.dialable[j]) and (i, j) not in self.blocked

    def connections(self) -> Flags:
        """Returns a bool matrix, nodes × nodes: whether i may send to j. Quadratic, for small networks."""
        dials = np.broadcast_to(self.dialable, (self.size, self.size)).copy()
        for i, j in self.blocked:
            dials[i, j] = False
        may = (dials | dials.T) & (self.rate[np.ix_(self.region, self.region)] > 0)
        for (i, j), rate in self.pair_rate.items():
            may[i, j] &= rate > 0
        np.fill_diagonal(may, False)
        return may

    def members(self) -> list[Ints]:
        """The nodes of each region."""
        order = np.argsort(self.region, kind="stable")
        cuts = np.searchsorted(self.region[order], np.arange(1, len(self.regions)))
        return [part.astype(np.int64) for part in np.split(order, cuts)]

    def reachable(self) -> Flags:
        """Returns the nodes that the publisher's data can reach, through any number of relays (bool, nodes)."""
        found = np.zeros(self.size, bool)
        found[self.trainer] = True
        if self.everyone_dials and not self.pair_rate:
            return self._reachable_by_region(found)
        waiting = [self.trainer]
        missing = {*range(self.size)} - {self.trainer}
        while waiting:
            i = waiting.pop()
            if self.up[i] <= 0:
                continue
            new = [j for j in missing if self.connects(i, j) and self.down[j] > 0]
            found[new] = True
            missing.difference_update(new)
            waiting += new
        return found

    def _reachable_by_region(self, found: Flags) -> Flags:
        receives = self.down > 0
        senders = {*np.unique(self.region[receives & (self.up > 0)]).tolist()}
        home = int(self.region[self.trainer])
        waiting = [home] if self.up[self.trainer] > 0 else []
        reached = np.zeros(len(self.regions), bool)
        while waiting:
            a = waiting.pop()
            if not reached[a]:
                reached[a] = True
                if a == home or a in senders:
                    waiting += np.flatnonzero((self.rate[a] > 0) & ~reached).tolist()
        return found | (reached[self.region] & receives)

    def only(self, keep: Flags) -> Network:
        """Returns the same network with the nodes of `keep` alone; the trainer must be among them."""
        if keep.all():
            return self
        kept = np.flatnonzero(keep)
        index = {int(old): new for new, old in enumerate(kept)}
        return replace(
            self,
            names=tuple(self.names[i] for i in kept),
            trainer=index[self.trainer],
            up=self.up[kept],
            down=self.down[kept],
            region=self.region[kept],
            dialable=self.dialable[kept],
            blocked=frozenset((index[i], index[j]) for i, j in self.blocked if i in index and j in index),
            pair_rate={(index[i], index[j]): r for (i, j), r in self.pair_rate.items() if i in index and j in index},
        )


def from_topology(topology: Topology) -> Network:
    """Returns the network that a topology file describes; all its figures count as measured."""
    hosts = sorted(topology.hosts)
    regions = tuple(topology.region)
    number = {name: a for a, name in enumerate(regions)}
    rate, delay, loss = (np.zeros((len(regions), len(regions))) for _ in range(3))
    np.fill_diagonal(rate, np.inf)
    np.fill_diagonal(delay, [region.delay_ms / 1000 for region in topology.region.values()])
    np.fill_diagonal(loss, [region.loss for region in topology.region.values()])
    for link in topology.link:
        a, b = (number[name] for name in link.between)
        rate[a, b], rate[b, a] = link.rate, link.back
        delay[a, b] = delay[b, a] = link.delay_ms / 1000
        loss[a, b] = loss[b, a] = link.loss
    names = tuple(host for host, _ in hosts)
    return Network(
        names=names,
        trainer=names.index(topology.trainer),
        up=np.array([topology.up(*host) for host in hosts], float),
        down=np.array([topology.down(*host) for host in hosts], float),
        region=np.array([number[region] for _, region in hosts], np.int64),
        regions=regions,
        rate=rate,
        delay=delay,
        loss=loss,
        measured=rate > 0,
        dialable=np.array([topology.dialable(*host) for host in hosts], bool),
        blocked=_pairs(hosts, topology.blocked),
    )


def _pairs(hosts: Sequence[tuple[str, str]], blocked: Sequence[tuple[str, str]]) -> frozenset[tuple[int, int]]:
    """Returns the pairs of nodes for pairs of names, where a region's name stands for all its nodes."""
    if not blocked:
        return frozenset()
    stands: dict[str, list[int]] = {}
    for i, (host, region) in enumerate(hosts):
        stands.setdefault(region, []).append(i)
        stands[host] = [i]
    return frozenset((i, j) for one, other in blocked for i in stands[one] for j in stands[other] if i != j)
