"""Regions found from round-trip times: nodes that are near each other, and clearly farther from all others.

Round-trip times are merged bottom up by average linkage, which one odd pair or one node halfway cannot chain together
as it does single linkage; the tree is cut at its widest gap, as a ratio of heights, since distances of continents and
of cities differ by factors. Times below `SAME_PLACE_SECONDS` all mean "here".
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra
from scipy.spatial.distance import squareform

from p2psync.topology.network import Floats, Ints

#: Seconds of round trip below which nothing is told apart: jitter of hosts and of the last mile.
SAME_PLACE_SECONDS = 0.002
#: Seconds of round trip above which nodes are never one region, whatever the gaps.
REGION_MAX_SECONDS = 0.040
#: A gap counts if the next merge is this many times farther.
_GAP_FACTOR = 1.6
#: How much a gap at a longer distance must be wider to be preferred: regions are as large as they may be.
_FAR_GAP_PREFERENCE = 0.7
#: Seconds that no round trip is below: what is 0 in a sparse matrix is not there.
_MIN_RTT_SECONDS = 1e-9


def cluster(rtt: Floats, *, never_near: float = REGION_MAX_SECONDS) -> Ints:
    """A label for each node, numbered by first appearance.

    rtt: nodes × nodes in seconds; nan where it was never measured. The lesser of the two directions counts (jitter only
    adds). A missing pair is estimated over the nodes between; nodes without any round trip are by themselves.
    Pure and deterministic, and independent of the order of nodes but for the labels' numbers.
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
    """The distance at which merging should stop. levels: heights of the merges, rising."""
    steps = np.append(levels, max(levels[-1], never_near) * 1.0001)
    best, cut = 0.0, never_near
    for here, above in pairwise(steps.tolist()):
        if here > never_near:
            break
        gap = above / here
        if gap >= _GAP_FACTOR and gap >= best * _FAR_GAP_PREFERENCE:
            best, cut = max(best, gap), float(np.sqrt(here * above))
    return cut


def _completed(rtt: Floats) -> Floats:
    """Missing pairs from the nodes between: no farther than the way over some, no nearer than any difference."""
    rtt = rtt.copy()
    np.fill_diagonal(rtt, 0)
    known = np.isfinite(rtt)
    missing = ~known
    if not missing.any():
        return rtt
    far = np.where(known, rtt, np.inf)
    apart = 10 * float(np.nanmax(np.where(known, rtt, np.nan), initial=REGION_MAX_SECONDS))
    # Over many, since of many nodes two near ones may share none: 1,000 that each timed 48 others.
    graph = csr_matrix(np.where(known & ~np.eye(len(rtt), dtype=bool), np.maximum(rtt, _MIN_RTT_SECONDS), 0))
    found = rtt.copy()
    for i in np.flatnonzero(missing.any(axis=1)):
        others, between = np.flatnonzero(missing[i]), np.flatnonzero(known[i])
        way = dijkstra(graph, directed=False, indices=i)[others]
        theirs = far[np.ix_(others, between)]
        gap = np.where(np.isfinite(theirs), np.abs(far[i, between] - theirs), 0).max(axis=1)
        # Over nodes nearby both agree; over far nodes alone, the difference tells near from far better.
        found[i, others] = np.where(np.isfinite(way), (way + gap) / 2, apart)
    return np.asarray((found + found.T) / 2)
