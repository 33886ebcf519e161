"""Allots the work that is left by earliest finish time.

With items of equal expected cost, giving each item in turn to the node that would finish it first is the same as this:
find the earliest time by which all nodes together can finish all items, and give each node the items that it can finish
by then. A node that is slow, late, or full gets few items or none, and the rest goes to the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2psync.trainer.ledger.throughput import NodeForecast

#: Halvings of the interval in which the finish time is searched: to one part in ten million.
_HALVINGS = 24
#: Far above the rounding of any clock, far below the time that an item takes.
_SLACK_SECONDS = 1e-4


def earliest_finish(forecasts: Sequence[NodeForecast], items: int) -> float:
    """Returns when all nodes together can have finished what they hold and `items` items more (seconds from now).

    The time is `_SLACK_SECONDS` later, so that rounding takes no item from the node that it is allotted to. Infinity
    without nodes.
    """
    if not forecasts:
        return float("inf")
    low, high = 0.0, min(p.finish(items) for p in forecasts)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum(p.capacity(middle) for p in forecasts) >= items:
            high = middle
        else:
            low = middle
    return high + _SLACK_SECONDS
