"""Which chunks to request of a peer. Pure.

Rarest first; each node orders equally rare chunks differently. Each node of a region fetches its own part of the chunks
from other regions, and the rest from nodes of its region. The parts follow from the chunks' numbers alone (Knuth's
multiplicative hash).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from p2psync.swarm.exchange.bitmap import Bits

#: 2^32 over the golden ratio.
_MULTIPLIER = 2654435769


def pick(candidates: Bits, rarity: NDArray[np.int32], spread: NDArray[np.float64], count: int) -> list[int]:
    """Returns up to `count` of these chunks (flags), rarest first. rarity, spread: of each chunk; see `Transfer`."""
    found = np.flatnonzero(candidates)
    order = rarity[found] + spread[found]
    if len(found) > count:
        few = np.argpartition(order, count)[:count]
        found, order = found[few], order[few]
    return [int(index) for index in found[np.argsort(order)]]


@lru_cache(maxsize=16)
def part_of(chunks: int, rank: int, nodes: int) -> Bits:
    """Returns flags of the chunks that the node of this rank, of `nodes` in a region, fetches from other regions."""
    parts = np.arange(chunks) * _MULTIPLIER % (1 << 32) * nodes >> 32
    flags: Bits = parts == rank
    flags.flags.writeable = False
    return flags
