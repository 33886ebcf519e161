"""Named settings of a whole swarm in virtual time, to be compared side by side: what does one mechanism give?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.topology.virtual.swarm import VirtualOptions


@dataclass(frozen=True)
class Policy:
    """A change of the options of a swarm. meaning: in one line, for people."""

    meaning: str
    change: Callable[[VirtualOptions], VirtualOptions]


def _without_probing(options: VirtualOptions) -> VirtualOptions:
    measure = replace(options.node.measure, probe=False)
    return replace(options, node=replace(options.node, measure=measure))


def _with_exchange(options: VirtualOptions, swarm: ExchangeConfig) -> VirtualOptions:
    return replace(options, node=replace(options.node, swarm=swarm))


POLICIES: dict[str, Policy] = {
    "default": Policy("every node as it is installed", lambda options: options),
    "no-repair": Policy(
        "what a slow peer owes is requested of no second one",
        lambda options: _with_exchange(options, replace(options.node.swarm, short_wait=math.inf)),
    ),
    "no-free-parents": Policy(
        "parents that have pushed their part are not asked for more",
        lambda options: _with_exchange(options, replace(options.node.swarm, held_for=math.inf)),
    ),
    "no-probing": Policy("nodes measure what flows, and send no probes", _without_probing),
    "one-stream": Policy(
        "one connection to each peer", lambda options: replace(options, node=replace(options.node, streams=1))
    ),
    "true-plan": Policy("the hub plans from the network as it is", lambda options: replace(options, plan="true")),
    "no-plan": Policy("there is no plan: every chunk is requested", lambda options: replace(options, plan="none")),
}
