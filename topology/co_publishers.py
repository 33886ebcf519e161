"""Several nodes that publish together, as one in plans.

Each holds some of a version's chunks, and all put theirs into the same trees. So to a planner they are one root, with
the uplinks of all; to the nodes below, every one of them is the parent that the root is. They are taken to be at one
place: what the best of them reaches, all do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from p2psync.membership.planning import PlanTask
from p2psync.membership.records import NodeStatistics
from p2psync.protocol.plan import NodePlan
from p2psync.topology.measured import PathFigures


def merge_co_publishers(
    task: PlanTask, paths: Sequence[PathFigures], seen: dict[str, dict[str, float]]
) -> tuple[list[PathFigures], Mapping[str, NodeStatistics]]:
    """Paths and measures with the trainer in place of those beside it.

    seen: what each node was seen to send, by whom it was seen (Mbit/s); changed in place: what a node saw of several is
    their sum, and what they saw of one another, nobody's.
    """
    group = task.co_publishers | {task.trainer}
    if len(group) == 1:
        return list(paths), task.statistics

    def name(node: str) -> str:
        return task.trainer if node in group else node

    sums: dict[str, float] = {}
    for node in group:
        for observer, rate in seen.pop(node, {}).items():
            if observer not in group:
                sums[observer] = sums.get(observer, 0.0) + rate
    if sums:
        seen[task.trainer] = sums
    for observers in seen.values():
        mine = [observers.pop(node) for node in group & observers.keys()]
        if mine:
            observers[task.trainer] = max(mine)
    reported = [task.statistics[node] for node in group if node in task.statistics]
    ups = [statistics.up for statistics in reported if statistics.up]
    # Who has not told what it sends is taken to be like the others.
    up = sum(ups) / len(ups) * len(group) if ups else 0.0
    one = NodeStatistics(up=up, down=max((statistics.down for statistics in reported), default=0.0))
    renamed = [msgspec.structs.replace(path, source=name(path.source), target=name(path.target)) for path in paths]
    return renamed, {**task.statistics, task.trainer: one}


def co_publisher_shares(task: PlanTask) -> dict[str, float]:
    """What part of all chunks each node beside the trainer sends, about: as much as any other."""
    return dict.fromkeys(task.co_publishers, 1 / (len(task.co_publishers) + 1))


def with_scaled_rates(plan: NodePlan, share: float) -> NodePlan:
    """A root's part of the plan where it sends so much of what goes down the trees."""
    positions = [msgspec.structs.replace(place, rate=place.rate * share) for place in plan.positions]
    return msgspec.structs.replace(plan, positions=positions)


def with_co_publishers(plan: NodePlan, trainer: str, co_publishers: Sequence[str]) -> NodePlan:
    """A node's part of the plan where others are parents wherever the trainer is one."""
    below = any(place.parent >= 0 and plan.peers[place.parent] == trainer for place in plan.positions)
    if not below:
        return plan
    peers = [*plan.peers, *co_publishers]
    return msgspec.structs.replace(plan, peers=peers, co_publishers=list(range(len(plan.peers), len(peers))))
