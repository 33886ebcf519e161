"""What people should know of a plan's network, a line each: who is reached by nobody, or by few, or claims too much."""

from __future__ import annotations

from collections.abc import Collection

from p2psync.membership.planning import PlanTask
from p2psync.membership.records import NodeInfo, NodeStatistics
from p2psync.topology.network import Network

#: A node claims too much if it says so many times what all others together ever saw come from it.
OVERCLAIM_FACTOR = 2.0


def plan_diagnostics(task: PlanTask, network: Network, unreachable: Collection[str]) -> dict[str, str]:
    """Lines by what they are about (its kind and the node's name), so that the same is not said twice."""
    infos = {member.info.node: member.info for member in task.members}
    found = {}
    for name in sorted(unreachable):
        if name in infos:
            found[f"unreachable {name}"] = (
                f"{_label(infos[name])} reaches nobody and is reached by nobody: it is in no tree of the plan; "
                "open its port to one of the others, or let it dial one whose port is open"
            )
    for name, info in sorted(infos.items()):
        if (line := _undialled(info, task)) is not None:
            found[f"undialled {name}"] = line
        if (
            name != task.trainer
            and name not in task.co_publishers
            and (line := _overclaim(info, task, network)) is not None
        ):
            found[f"overclaim {name}"] = line
    return found


def _undialled(info: NodeInfo, task: PlanTask) -> str | None:
    """Where most of those who tried could not open a connection."""
    reports = [
        path.failed for node, reported in task.statistics.items() for path in reported.paths if path.peer == info.node
    ]
    failed = sum(reports)
    if not info.port or 2 * failed <= len(reports):
        return None
    return (
        f"{failed} of {len(reports)} who know of {_label(info)} cannot open a connection to it: they have only those "
        "that it opens, or go through others; see that its port is open and that --advertise names an address they know"
    )


def _overclaim(info: NodeInfo, task: PlanTask, network: Network) -> str | None:
    """Where a node says that it sends far more than others saw."""
    claim = task.statistics.get(info.node, NodeStatistics()).up
    paths = [path for node, reported in task.statistics.items() if node != info.node for path in reported.paths]
    seen = sum(path.received for path in paths if path.peer == info.node)
    if not seen or claim <= OVERCLAIM_FACTOR * seen:
        return None
    believed = float(network.up[network.names.index(info.node)])
    return (
        f"{_label(info)} says that it sends {claim:.3g} Mbit/s, of which all others together saw {seen:.3g} at most: "
        f"the plan reckons with {believed:.3g}"
    )


def _label(info: NodeInfo) -> str:
    return f"{info.node[:8]} ({info.place})"
