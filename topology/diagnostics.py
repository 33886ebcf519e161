"""Lines for people about a plan's network: nodes that nothing reaches, that few can dial, or that overstate their
uplink."""

from __future__ import annotations

from collections.abc import Collection

from p2psync.membership.planning import PlanTask
from p2psync.membership.records import NodeInfo, NodeStatistics
from p2psync.topology.network import Network

#: A node overstates its uplink if it reports this many times the rate that all others together received from it.
OVERCLAIM_FACTOR = 2.0


def plan_diagnostics(task: PlanTask, network: Network, unreachable: Collection[str]) -> dict[str, str]:
    """Returns lines by subject (its kind and the node's name), so that the hub does not repeat one."""
    infos = {member.info.node: member.info for member in task.members}
    found = {}
    for name in sorted(unreachable):
        if name in infos:
            found[f"unreachable {name}"] = (
                f"{_label(infos[name])} can connect to no other node, and is in no tree of the plan; "
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
    """Returns a line if most nodes that tried could not open a connection to this node."""
    failures = [
        path.failed for node, reported in task.statistics.items() for path in reported.paths if path.peer == info.node
    ]
    failed = sum(failures)
    if not info.port or 2 * failed <= len(failures):
        return None
    return (
        f"{failed} of {len(failures)} nodes that know {_label(info)} cannot open a connection to it: they depend on "
        "connections that it opens, or on relays; check that its port is open and that --advertise names an address "
        "that they can reach"
    )


def _overclaim(info: NodeInfo, task: PlanTask, network: Network) -> str | None:
    """Returns a line if a node reports far more than others received from it."""
    claim = task.statistics.get(info.node, NodeStatistics()).up
    paths = [path for node, reported in task.statistics.items() if node != info.node for path in reported.paths]
    seen = sum(path.received for path in paths if path.peer == info.node)
    if not seen or claim <= OVERCLAIM_FACTOR * seen:
        return None
    believed = float(network.up[network.names.index(info.node)])
    return (
        f"{_label(info)} reports an uplink of {claim:.3g} Mbit/s, but all others together received {seen:.3g} at most: "
        f"the plan assumes {believed:.3g}"
    )


def _label(info: NodeInfo) -> str:
    return f"{info.node[:8]} ({info.location})"
