"""The flattest trees: one node after the other gets its part from the trainer, and passes it on to all others.

As in Mutualcast. No chunk makes more than two hops; links between regions are passed as often as there are nodes beyond
them, so these are trees for small payloads, of which round trips take most of the time, and for near nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from p2psync.topology.network import Floats, Ints, Network


def two_hop_trees(network: Network, behind: Iterable[str], max_children: int) -> tuple[Ints, Floats] | None:
    """(parents: trees × nodes, -1 at the trainer; shares, summing to 1, by the uplinks of those who pass on).

    An uplink that was hardly used is known to be too low, rarely too high: none counts for more than the median.
    behind: nodes that pass nothing on. None where they are too many for one to feed, or nobody can pass anything on.
    """
    centres = (network.up > 0) & network.dialable & ~np.isin(network.names, list(behind))
    centres[network.trainer] = False
    passing = np.flatnonzero(centres)
    if not len(passing) or network.size - 2 > max_children:
        return None
    parents = np.repeat(passing[:, None], network.size, axis=1)
    parents[np.arange(len(passing)), passing] = network.trainer
    parents[:, network.trainer] = -1
    weights = np.minimum(network.up[passing], np.median(network.up[passing]))
    return parents, weights / weights.sum()
