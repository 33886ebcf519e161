"""The highest rate at which the publisher's data can reach every node: no plan and no protocol can exceed it.

No node can receive more than the maximum flow from the trainer, and where nodes relay, a packing of spanning trees
reaches the least of these flows (Edmonds 1972). Links that many copies share turn this into a linear program (see
`p2psync.topology.packing`), whose dual prices name the bottleneck. For up to `EXACT_MAX_NODES` nodes the program is
solved over nodes, and the bound is reachable. For more it is solved over regions, each with the sum of its uplinks: an
upper bound, never above that of Mutualcast (Li, Chou, Zhang 2005), min(up of the trainer, sum of ups / receivers).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import shortest_path

from p2psync.topology.capacities import by_node, by_region, max_rate
from p2psync.topology.model import Topology
from p2psync.topology.network import Floats, Network, from_topology
from p2psync.topology.packing import Capacities, Packing, pack

#: Up to this many nodes the linear program is solved over nodes, exactly; its time grows steeply with them.
EXACT_MAX_NODES = 48
#: Bits of a Mbit.
BITS_PER_MBIT = 1e6


@dataclass(frozen=True)
class BroadcastBound:
    """rate: Mbit/s that every node can receive at the same time. because: the bottleneck, for people.

    exact: whether this rate can be reached; otherwise it is an upper bound.
    """

    rate: float
    because: str
    exact: bool = False

    def seconds(self, payload_bytes: int) -> float:
        """Returns the least seconds for a payload at this rate, without latency."""
        return payload_bytes * 8 / (self.rate * BITS_PER_MBIT) if self.rate else float("inf")


def broadcast_bound(network: Topology | Network) -> BroadcastBound:
    """Returns the bound for a broadcast from the trainer to every other node; rate 0 if one cannot be reached."""
    if isinstance(network, Topology):
        network = from_topology(network)
    if network.size < 2:
        return BroadcastBound(0.0, "there is no receiver", True)
    reachable = network.reachable()
    if not reachable.all():
        lost = [network.names[i] for i in np.flatnonzero(~reachable)]
        return BroadcastBound(0.0, f"{_first_names(lost)} cannot be reached", True)
    most, limiting = max_rate(network)
    link = "up" if limiting == network.trainer else "down"
    bounds = [BroadcastBound(most, f"the {link}link of {network.names[limiting]}")]
    capacities, kept = by_region(network, most)
    found = pack(capacities)
    names = [f"{network.regions[a]}" for a in kept]
    bounds.append(BroadcastBound(found.bound, _because(capacities, found, names, network, regions=True)))
    bounds += _dialling(network)
    best = min(bounds, key=lambda bound: bound.rate * (1 + 1e-9 * bounds.index(bound)))
    if network.size > EXACT_MAX_NODES:
        return best
    capacities = by_node(network, most)
    found = pack(capacities)
    if found.rate >= best.rate * (1 - 1e-3):
        return BroadcastBound(best.rate, best.because, True)
    because = _because(capacities, found, list(network.names), network, regions=False)
    return BroadcastBound(found.bound, because, found.rate >= found.bound * (1 - 1e-2))


def least_makespan(network: Topology | Network, payload_bytes: int, chunk_bytes: int = 0) -> float:
    """Returns the seconds before which not every node can have a payload: a lower bound for any plan, latency included.

    It is the larger of two times: the whole payload at the bound; and for each node alone, the delay of the shortest
    path for the first chunk (chunk_bytes > 0: each relay forwards a chunk once it has all of it) plus the rest at the
    rate of the node's own links.
    """
    if isinstance(network, Topology):
        network = from_topology(network)
    if network.size < 2:
        return 0.0
    bound = broadcast_bound(network)
    if not bound.rate:
        return float("inf")
    first = _first_arrival(network, min(chunk_bytes, payload_bytes))
    receivers = np.arange(network.size) != network.trainer
    rest = (payload_bytes - min(chunk_bytes, payload_bytes)) * 8 / (_own_flow(network) * BITS_PER_MBIT)
    return max(bound.seconds(payload_bytes), float((first + rest)[receivers].max()))


def _first_arrival(network: Network, chunk_bytes: int) -> Floats:
    """Returns the seconds until a first chunk can be at each node, with each region's fastest node as relay."""
    up = np.array([network.up[network.region == a].max(initial=0.0) for a in range(len(network.regions))])
    home = int(network.region[network.trainer])
    up[home] = max(up[home], network.up[network.trainer])
    rate = np.minimum(network.rate, up[:, None])
    hop = np.where(rate > 0, network.delay + chunk_bytes * 8 / (np.maximum(rate, 1e-9) * BITS_PER_MBIT), np.inf)
    arrival = shortest_path(np.where(np.isfinite(hop), np.maximum(hop, 1e-7), 0), indices=home)
    arrival[home] = hop[home, home]
    return np.asarray(arrival[network.region])


def _own_flow(network: Network) -> Floats:
    """Returns the Mbit/s that can reach each node at most: by its downlink, the trainer's uplink, the links into its
    region and the uplinks of the other nodes there."""
    home = int(network.region[network.trainer])
    others = network.rate.copy()
    np.fill_diagonal(others, 0)
    into: Floats = others.sum(axis=0) + np.bincount(network.region, network.up, len(network.regions))
    into[home] = np.inf
    own: Floats = np.minimum(network.down, network.up[network.trainer])
    return np.minimum(own, into[network.region] - network.up)


def _dialling(network: Network) -> list[BroadcastBound]:
    """Returns the bound for nodes that only dial out: they receive everything over the uplinks of dialable nodes."""
    hidden = ~network.dialable
    hidden[network.trainer] = False
    if not hidden.any():
        return []
    senders = network.dialable.copy()
    senders[network.trainer] = network.dialable[network.trainer]
    rate = float(network.up[senders].sum()) / int(hidden.sum())
    return [BroadcastBound(rate, "the uplinks of the nodes that can be dialled, from which all others must receive")]


def _because(capacities: Capacities, found: Packing, names: list[str], network: Network, *, regions: bool) -> str:
    """Names the rows with a price at the optimum, the most expensive first."""
    limits = capacities.all_limits
    finite = np.isfinite(limits) & (found.prices > 0)
    worth = np.where(finite, np.where(finite, limits, 0) * found.prices, 0)
    if worth.sum() <= 0:
        return "nothing but the nodes' own links"
    groups = len(capacities.up)
    dear = np.flatnonzero(worth > 0.01 * worth.sum())
    ups = [names[k] for k in dear if k < groups]
    ends = {int(capacities.rows[i, j, k]): (i, j) for i, j, k in np.argwhere(capacities.rows >= 0)}
    arrows = [
        f"{names[i]}→{names[j]}" if regions else _between(network, i, j)
        for i, j in (ends[int(row) - groups] for row in dear if row >= groups)
    ]
    parts = []
    if len(ups) == len([k for k in range(groups) if capacities.up[k] > 0]) and len(ups) > 1:
        parts.append("the sum of all uplinks, which every copy must cross")
    elif ups:
        parts.append(f"the uplinks {'in' if regions else 'of'} {_first_names(ups)}")
    if arrows:
        parts.append(f"the link{'s' if len(arrows) > 1 else ''} {_first_names(arrows)}")
    return " and ".join(parts)


def _between(network: Network, i: int, j: int) -> str:
    a, b = network.regions[network.region[i]], network.regions[network.region[j]]
    return f"{network.names[i]}→{network.names[j]}" if (i, j) in network.pair_rate else f"{a}→{b}"


def _first_names(names: list[str]) -> str:
    """Returns the first few names, and the number of the others."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
