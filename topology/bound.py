"""How fast the trainer's bits can reach everyone at best: what no plan and no protocol can beat.

Two bounds, of which the lesser counts. *Flow*: to each host no more can come than the maximum flow from the trainer
(max-flow/min-cut; Edmonds: where hosts relay, packing spanning trees reaches the least of them). *Sending*: every bit
that a host of a set receives must be sent over somebody's uplink, so the hosts' rates together cannot pass the sum of
all uplinks; for hosts behind one switch this is the tight bound of Mutualcast (Li, Chou, Zhang 2005), min(up of the
trainer, sum of ups / receivers).

The bound is exact where links between regions are not shared by competing copies; where they are, it may be above what
is reachable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from topology.model import Topology

#: scipy's flows are integers of 32 bits: rates are counted in kbit/s, and nothing binds above this.
_KBIT = 1000
_UNLIMITED = 2**30


@dataclass(frozen=True)
class Bound:
    """rate: Mbit/s that every host can receive at once at best. because: what binds, for people."""

    rate: float
    because: str

    def seconds(self, payload_bytes: int) -> float:
        """The least time for a payload at this rate; latency comes on top."""
        return payload_bytes * 8 / (self.rate * 1e6) if self.rate else float("inf")


def broadcast_bound(topology: Topology) -> Bound:
    """The bound for a broadcast from the trainer to every other host; 0 where one cannot be reached."""
    receivers = [host for host, _ in topology.hosts if host != topology.trainer]
    if not receivers:
        return Bound(float("inf"), "there is nobody to send to")
    ups = sum(topology.region[region].up for _, region in topology.hosts)
    sending = Bound(ups / len(receivers), "the sum of all uplinks, which every copy must cross")
    flows = [_flow(topology, host) for host in _one_per_kind(topology)]
    return min([sending, *flows], key=lambda bound: bound.rate)


def _one_per_kind(topology: Topology) -> list[str]:
    """Hosts of a region are alike, but for the trainer: one of each region stands for all."""
    found: dict[str, str] = {}
    for host, region in topology.hosts:
        if host != topology.trainer:
            found.setdefault(region, host)
    return list(found.values())


def _flow(topology: Topology, target: str) -> Bound:
    """Maximum flow from the trainer to `target`. Hosts relay; the points where regions' links end do not."""
    names: dict[tuple[str, str], int] = {}
    edges: list[tuple[int, int, float]] = []

    def at(kind: str, name: str) -> int:
        return names.setdefault((kind, name), len(names))

    for host, region in topology.hosts:
        own = topology.region[region]
        edges.append((at("host", host), at("out", region), own.up))
        edges.append((at("in", region), at("host", host), own.downlink))
    edges += [(at("out", region), at("in", region), float("inf")) for region in topology.region]
    for link in topology.link:
        for a, b in (link.between, link.between[::-1]):
            edges.append((at("out", a), at("in", b), link.rate))
    rows, columns, rates = zip(*edges, strict=True)
    capacity = np.array([min(_UNLIMITED, rate * _KBIT) for rate in rates]).astype(np.int32)
    graph = csr_array((capacity, (rows, columns)), shape=(len(names), len(names)))
    value = maximum_flow(graph, at("host", topology.trainer), at("host", target)).flow_value / _KBIT
    return Bound(value, f"the paths from {topology.trainer} to {target}")
