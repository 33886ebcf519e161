"""Two-hop trees: each relay receives its share from the publisher, and forwards it to all other nodes.

As in Mutualcast (Li, Chou, Zhang 2005). No chunk makes more than two hops, but a link between regions carries as many
copies as there are nodes beyond it. These trees suit small payloads, whose time is mostly round trips, and nodes that
are near each other.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from p2psync.topology.network import Floats, Ints, Network


def two_hop_trees(network: Network, behind: Iterable[str], max_children: int) -> tuple[Ints, Floats] | None:
    """Returns (parents: trees × nodes, -1 at the trainer; shares, summing to 1, proportional to the relays' uplinks).

    An uplink that was hardly used is often underestimated and rarely overestimated, so none counts for more than the
    median. behind: nodes that relay nothing. None if one node cannot feed that many, or no node can relay.
    """
    is_relay = (network.up > 0) & network.dialable & ~np.isin(network.names, list(behind))
    is_relay[network.trainer] = False
    relays = np.flatnonzero(is_relay)
    if not len(relays) or network.size - 2 > max_children:
        return None
    parents = np.repeat(relays[:, None], network.size, axis=1)
    parents[np.arange(len(relays)), relays] = network.trainer
    parents[:, network.trainer] = -1
    weights = np.minimum(network.up[relays], np.median(network.up[relays]))
    return parents, weights / weights.sum()
