"""Finds regions from round-trip times: nodes that are near each other, and clearly farther from all others.

Average linkage merges nodes bottom up, because a single odd pair or a node halfway cannot chain two regions together as
it does with single linkage. The tree is cut at its widest gap, measured as a ratio of heights, since distances between
continents and between cities differ by factors. All times below `SAME_PLACE_SECONDS` count as equal.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra
from scipy.spatial.distance import squareform

from p2psync.topology.network import Floats, Ints

#: Round trips below this (seconds) are not distinguished: they are jitter of hosts and of the last mile.
SAME_PLACE_SECONDS = 0.002
#: Nodes with a longer round trip than this (seconds) are never in one region, whatever the gaps.
REGION_MAX_SECONDS = 0.040
#: The least gap: the next merge must be this many times farther.
_GAP_FACTOR = 1.6
#: A gap at a longer distance is preferred if it is at least this share of the widest one before, so that regions are
#: large.
_FAR_GAP_PREFERENCE = 0.7
#: Least round trip (seconds): a sparse matrix drops zeros.
_MIN_RTT_SECONDS = 1e-9


def cluster(rtt: Floats, *, never_near: float = REGION_MAX_SECONDS) -> Ints:
    """Returns a region label for each node (int64), numbered by first appearance.

    rtt: nodes × nodes in seconds; nan where it was never measured. The lower of the two directions counts, because
    jitter only adds. A missing pair is estimated through the nodes between; nodes without any round trip form regions
    of their own. Pure and deterministic; the order of nodes changes only the labels' numbers.
    """
    n = len(rtt)
    if n < 2:
        return np.zeros(n, np.int64)
    near = _completed(np.fmin(rtt, rtt.T))
    height = linkage(squareform(near, checks=False), method="average")
    levels = np.maximum(height[:, 2], SAME_PLACE_SECONDS)
    labels = fcluster(height, _cut(levels, never_near), criterion="distance")
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def _cut(levels: Floats, never_near: float) -> float:
    """Returns the distance at which merging stops. levels: heights of the merges, rising."""
    steps = np.append(levels, max(levels[-1], never_near) * 1.0001)
    best, cut = 0.0, never_near
    for height_below, next_height in pairwise(steps.tolist()):
        if height_below > never_near:
            break
        gap = next_height / height_below
        if gap >= _GAP_FACTOR and gap >= best * _FAR_GAP_PREFERENCE:
            best, cut = max(best, gap), float(np.sqrt(height_below * next_height))
    return cut


def _completed(rtt: Floats) -> Floats:
    """Estimates missing pairs: at most the shortest path through other nodes, at least any difference of distances."""
    rtt = rtt.copy()
    np.fill_diagonal(rtt, 0)
    known = np.isfinite(rtt)
    missing = ~known
    if not missing.any():
        return rtt
    far = np.where(known, rtt, np.inf)
    apart = 10 * float(np.nanmax(np.where(known, rtt, np.nan), initial=REGION_MAX_SECONDS))
    # Through several nodes, because two near nodes of many may share no measured neighbour: 1,000 nodes that each timed
    # 48 others.
    graph = csr_matrix(np.where(known & ~np.eye(len(rtt), dtype=bool), np.maximum(rtt, _MIN_RTT_SECONDS), 0))
    found = rtt.copy()
    for i in np.flatnonzero(missing.any(axis=1)):
        others, between = np.flatnonzero(missing[i]), np.flatnonzero(known[i])
        path = dijkstra(graph, directed=False, indices=i)[others]
        theirs = far[np.ix_(others, between)]
        gap = np.where(np.isfinite(theirs), np.abs(far[i, between] - theirs), 0).max(axis=1)
        # Through near nodes both estimates agree; through far nodes alone the difference is the better one.
        found[i, others] = np.where(np.isfinite(path), (path + gap) / 2, apart)
    return np.asarray((found + found.T) / 2)
