"""The parts of a law of exchange, each of which an ablation can turn off."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Law:
    """One law.

    planned: whether chunks are pushed along a plan's trees; otherwise all are requested. by_completion: whether the
    publisher gives a chunk to the tree that will complete it first, not by the plan's shares. rebalances: whether a
    receiver takes chunks out of long queues. cross: how many times longer than the new one the old wait must be for a
    chunk to cross into a region again; 0: never. parity: share of additional chunks, any of which replaces any other.
    pace: limit of a path's rate, as a multiple of what the plan sends over it and of the headroom there; 0: none.
    uplink: share of a node's uplink that it hands out; 0: as much as connections take. streams: connections of a pair.
    error: standard deviation of the logarithm of all figures that the plan is made from; a quarter of that for the
    publisher's own uplink.
    """

    planned: bool = True
    by_completion: bool = True
    rebalances: bool = True
    cross: float = 4.0
    parity: float = 0.0
    pace: float = 1.2
    uplink: float = 0.0
    streams: int = 2
    error: float = 0.0
    congestion: str = "bbr"


_FULL = Law()
#: Laws by name.
LAWS: dict[str, Law] = {
    "requests": replace(_FULL, planned=False, pace=0.0),
    "trees": replace(_FULL, by_completion=False, rebalances=False, pace=0.0),
    "trees-paced": replace(_FULL, by_completion=False, rebalances=False),
    "trees-rebalanced": replace(_FULL, by_completion=False),
    "trees-uplink": replace(_FULL, by_completion=False, pace=0.0, uplink=0.98),
    "full": _FULL,
    "full-1-stream": replace(_FULL, streams=1),
    "full-4-streams": replace(_FULL, streams=4),
    "full-unpaced": replace(_FULL, pace=0.0),
    "full-uplink": replace(_FULL, pace=0.0, uplink=0.98),
    "full-parity": replace(_FULL, parity=0.05),
    "full-never-cross": replace(_FULL, cross=0.0),
}
