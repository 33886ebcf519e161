"""A hub's planner: builds a network from the members' statistics, and from the network a plan for each member.

It keeps the last plan, and departs from it only where that pays (see `planner.replan`); and it keeps the regions that
it found, until members or the known round trips change much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from p2psync.membership.planning import PlanTask
from p2psync.membership.records import Member, NodeStatistics
from p2psync.protocol.plan import NodePlan
from p2psync.topology.ack_overhead import without_ack_overhead
from p2psync.topology.co_publishers import (
    co_publisher_shares,
    merge_co_publishers,
    with_co_publishers,
    with_scaled_rates,
)
from p2psync.topology.degraded_links import DegradedLinks
from p2psync.topology.diagnostics import plan_diagnostics
from p2psync.topology.headroom import Headroom
from p2psync.topology.measured import NodeFigures, PathFigures, from_measurements, regions_of
from p2psync.topology.network import Network
from p2psync.topology.plan import Plan
from p2psync.topology.planner import DEFAULT_PAYLOAD_BYTES, make_plan, replan

#: The region of members that name none and have no known round trip.
UNKNOWN_REGION = "unknown"
#: Bound on regions: a plan's time grows fast with them, and any member may name one of its own.
MAX_REGIONS = 32
#: A smaller payload (bytes) is planned for as one of this size: the next one may be larger, and on most links its time
#: is mostly round trips already.
MIN_PAYLOAD_BYTES = 4 << 20
#: Regions are found again once the known round trips have grown by this factor.
_RECLUSTER_FACTOR = 1.1
#: Bound on the headroom in messages, since JSON has no infinity.
_MAX_HEADROOM = 1000.0


@dataclass(frozen=True)
class HubPlanResult:
    """A plan, and the part of each node in it. diagnostics: see `PlanResult`.

    co_publishers: the share of the publisher's chunks that each co-publisher sends.
    """

    plan: Plan
    diagnostics: Mapping[str, str] = field(default_factory=dict)
    co_publishers: Mapping[str, float] = field(default_factory=dict)
    headroom: Headroom | None = None

    @property
    def revision(self) -> int:
        """The revision of the plan."""
        return self.plan.revision

    def node_plan(self, node: str) -> NodePlan | None:
        """Returns this node's part; None if it is not in the plan: it joined later, or nothing can reach it."""
        trainer = self.plan.names[self.plan.trainer]
        if node in self.co_publishers:
            return with_scaled_rates(self._part(trainer), self.co_publishers[node])
        if node not in self.plan.index:
            return None
        plan = self._part(node)
        if not self.co_publishers:
            return plan
        if node == trainer:
            return with_scaled_rates(plan, 1 - sum(self.co_publishers.values()))
        return with_co_publishers(plan, trainer, sorted(self.co_publishers))

    def _part(self, node: str) -> NodePlan:
        plan = self.plan.node_plan(node)
        if self.headroom is None:
            return plan
        return structs.replace(plan, headroom=[min(s, _MAX_HEADROOM) for s in self.headroom.of(node, plan.peers)])


class HubPlanner:
    """A `Planner` based on the members' statistics. Use it in one thread at a time."""

    def __init__(self, first_revision: int = 1) -> None:
        """first_revision: of the first plan; above those of an earlier process, so that nodes do not confuse
        the two."""
        self._next = first_revision
        self._plan: Plan | None = None
        self._co_publishers: frozenset[str] = frozenset()
        self._regions = _RegionFinder()
        self._degraded_links = DegradedLinks()

    def warm(self) -> None:
        """Compiles the numeric code: seconds on a machine's first start, fractions of one later."""
        for regions in (1, 3):
            nodes = [NodeFigures(name=str(i), region=f"region {i % regions}", dialable=i > 0) for i in range(6)]
            make_plan(from_measurements("0", nodes, []))

    def close(self) -> None:
        """Does nothing."""

    def network(self, task: PlanTask) -> Network:
        """Returns the network to plan for. Raises `FormatError` if the trainer is not a member."""
        return network_of(task, self._regions, self._degraded_links)

    def plan(self, task: PlanTask) -> HubPlanResult:
        """See `Planner`."""
        reported = self.network(task)
        network = without_ack_overhead(reported)
        # If replanning from the last plan raises, the next call starts afresh.
        last, self._plan = self._plan, None
        if task.co_publishers != self._co_publishers:
            last, self._co_publishers = (
                None,
                task.co_publishers,
            )  # a change of co-publishers needs a new revision
        payload = max(MIN_PAYLOAD_BYTES, task.payload) if task.payload else DEFAULT_PAYLOAD_BYTES
        if last is None:
            plan = make_plan(network, revision=self._next, payload=payload)
        else:
            plan = replan(last, network, payload=payload, idle=task.idle)
        self._plan, self._next = plan, plan.revision + 1
        self._degraded_links.planned(plan)
        return HubPlanResult(
            plan, plan_diagnostics(task, reported, plan.unreachable), co_publisher_shares(task), Headroom(plan, network)
        )


class _RegionFinder:
    """The region of each member: the one that it names, or one found from round trips."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._key: tuple[tuple[str, str], ...] = ()
        self._known = 0

    def of(self, members: Sequence[Member], paths: Sequence[PathFigures]) -> dict[str, str]:
        """The region of each member by name."""
        given = {m.info.node: m.info.region for m in members}
        if all(given.values()):
            return _bounded(given)
        timed = [path for path in paths if path.rtt is not None]
        key = tuple(sorted(given.items()))
        if key != self._key or len(timed) > _RECLUSTER_FACTOR * self._known:
            self._of, self._key, self._known = _found(given, timed), key, len(timed)
        return self._of


def _found(given: dict[str, str], timed: Sequence[PathFigures]) -> dict[str, str]:
    seen = {name for path in timed for name in (path.source, path.target)}
    figures = [NodeFigures(name=n, region=r) for n, r in given.items() if r or n in seen]
    return _bounded({name: region or UNKNOWN_REGION for name, region in given.items()} | regions_of(figures, timed))


def _bounded(regions: dict[str, str]) -> dict[str, str]:
    """Keeps the largest regions; members of all others form one region."""
    sizes = Counter(regions.values())
    if len(sizes) <= MAX_REGIONS:
        return regions
    kept = sorted(sizes, key=lambda region: (-sizes[region], region))[: MAX_REGIONS - 1]
    return {name: region if region in kept else UNKNOWN_REGION for name, region in regions.items()}


def network_of(
    task: PlanTask, regions: _RegionFinder | None = None, degraded_links: DegradedLinks | None = None
) -> Network:
    """Returns the network of the members' statistics, with the trainer and its co-publishers as one node.

    Raises `FormatError` if the trainer is not a member.
    """
    paths = _paths(task)
    region = (regions or _RegionFinder()).of(task.members, paths)
    if degraded_links is not None:
        degraded_to = {
            (node, p.peer): p.degraded_to
            for node, reported in task.statistics.items()
            for p in reported.paths
            if p.degraded_to > 0
        }
        paths = degraded_links.apply(paths, degraded_to, region)
    seen: dict[str, dict[str, float]] = {}
    for node, reported in task.statistics.items():
        for path in reported.paths:
            if path.received > 0:
                seen.setdefault(path.peer, {})[node] = path.received
    nodes = []
    paths, statistics = merge_co_publishers(task, paths, seen)
    for member in task.members:
        name = member.info.node
        if name in task.co_publishers:
            continue
        reported = statistics.get(name, NodeStatistics())
        nodes.append(
            NodeFigures(
                name=name,
                region=region[name],
                claimed_up=reported.up or None,
                claimed_down=reported.down or None,
                seen_up=seen.get(name, {}),
                dialable=member.info.port != 0,
            )
        )
    return from_measurements(task.trainer, nodes, paths)


def _paths(task: PlanTask) -> list[PathFigures]:
    """Returns the figures of each path in each direction, from the reports of both ends."""
    seen = {
        (p.peer, node): p.received for node, reported in task.statistics.items() for p in reported.paths if p.received
    }
    reported = [
        PathFigures(
            source=node,
            target=path.peer,
            rate=path.sent or None,
            seen=seen.pop((node, path.peer), None),
            rtt=path.rtt or None,
            loss=path.loss if path.sent else None,
            failed=path.failed,
        )
        for node, statistics in task.statistics.items()
        for path in statistics.paths
    ]
    return reported + [PathFigures(source=source, target=target, seen=rate) for (source, target), rate in seen.items()]
