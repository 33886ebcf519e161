"""Plans treat several nodes that publish together as one node.

Each of them holds some of a version's chunks, and all send theirs down the same trees. The planner sees one publisher
with the uplinks of all; each child of the publisher has every one of them as a parent. They are assumed to be at one
location: a path that the best of them has, all have.
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
    """Returns paths and statistics in which the trainer stands for itself and its co-publishers.

    seen: Mbit/s that came from each node, by the observing node; changed in place: an observer's figures for several
    publishers are summed, and their figures for each other are dropped.
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
    # A node that reported no uplink is assumed to be like the others.
    up = sum(ups) / len(ups) * len(group) if ups else 0.0
    one = NodeStatistics(up=up, down=max((statistics.down for statistics in reported), default=0.0))
    renamed = [msgspec.structs.replace(path, source=name(path.source), target=name(path.target)) for path in paths]
    return renamed, {**task.statistics, task.trainer: one}


def co_publisher_shares(task: PlanTask) -> dict[str, float]:
    """Returns the share of all chunks that each co-publisher sends: equal for all, the trainer included."""
    return dict.fromkeys(task.co_publishers, 1 / (len(task.co_publishers) + 1))


def with_scaled_rates(plan: NodePlan, share: float) -> NodePlan:
    """Returns a publisher's part of the plan, with the rates of its share of the chunks."""
    positions = [msgspec.structs.replace(place, rate=place.rate * share) for place in plan.positions]
    return msgspec.structs.replace(plan, positions=positions)


def with_co_publishers(plan: NodePlan, trainer: str, co_publishers: Sequence[str]) -> NodePlan:
    """Returns a node's part of the plan, with the co-publishers as further parents wherever the trainer is one."""
    is_child = any(place.parent >= 0 and plan.peers[place.parent] == trainer for place in plan.positions)
    if not is_child:
        return plan
    peers = [*plan.peers, *co_publishers]
    return msgspec.structs.replace(plan, peers=peers, co_publishers=list(range(len(plan.peers), len(peers))))
