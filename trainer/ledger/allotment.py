"""Who gets which part of the work that is left: earliest finish time first.

With items that cost the same in expectation, giving each in turn to the node that would be through with it first is
the same as this: find the earliest time by which all nodes together can be through with all of it, and give each what
it can finish by then. A node that is slow, late, or full gets little or nothing, and what remains goes to the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2psync.trainer.ledger.throughput import NodeForecast

#: Halvings of the interval in which the end of a step is looked for: to one part in a million.
_HALVINGS = 24
#: Far above the rounding of any clock, far below what an item takes (seconds).
_SLACK_SECONDS = 1e-4


def earliest_finish(forecasts: Sequence[NodeForecast], items: int) -> float:
    """The earliest time (seconds from now) by which all together can finish so many items more, and what they hold.

    It is a little later than that, so that no rounding of times takes an item from whom it falls to.
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
