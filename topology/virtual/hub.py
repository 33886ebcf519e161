"""The hub of nodes in virtual time: grants leases, collects statistics, and plans from them as the real hub does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from p2psync.membership.client import CallJoin, CallRenew, MembershipClient
from p2psync.membership.planning import PlanScheduler, PlanTask
from p2psync.membership.records import Lease, Member, NodeInfo, NodeStatistics
from p2psync.protocol.plan import NodePlan
from p2psync.sim.clock import VirtualClock, VirtualTimer
from p2psync.topology.fluid.hub import PLAN_SECONDS_PER_MEMBER
from p2psync.topology.hub_planner import HubPlanner
from p2psync.topology.network import Network
from p2psync.topology.plan import Plan

#: Seconds of a lease.
TTL_SECONDS = 10.0


class TrueNetworkPlanner(HubPlanner):
    """Plans from the network as it is, in place of what its members measured."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network

    def network(self, task: PlanTask) -> Network:
        """See `HubPlanner`."""
        return self._network.only(np.isin(self._network.names, [member.info.node for member in task.members]))


class VirtualHub:
    """Plans when the hub's scheduler says so. send_plan: sends a node its part. planner: None: there is no plan."""

    def __init__(
        self,
        trainer: str,
        clock: VirtualClock,
        send_plan: Callable[[str, NodePlan], None],
        planner: HubPlanner | None,
    ) -> None:
        self._trainer, self._clock, self._send_plan = trainer, clock, send_plan
        self._scheduler = PlanScheduler()
        self._planner = planner
        self._members: dict[str, Member] = {}
        self.statistics: dict[str, NodeStatistics] = {}
        self._timer = VirtualTimer(clock, self._begin)
        #: Whether every member runs the newest version.
        self.is_idle = True
        self.plan: Plan | None = None
        #: Plans made so far, and those of them that differ from the one before.
        self.plans = self.changed_plans = 0

    def join(self, info: NodeInfo) -> None:
        """A node becomes a member."""
        self._members[info.node] = Member(info=info)
        self._scheduler.members_changed(len(self._members), self._clock.now)
        self._wait()

    def renew(self, node: str, statistics: NodeStatistics | None) -> None:
        """A member renews its lease, with its statistics if they changed."""
        if statistics is not None:
            self.statistics[node] = statistics
            self._scheduler.measured(node, statistics, self._clock.now)
            self._wait()

    def announced(self, payload_bytes: int) -> None:
        """A version was published."""
        self.is_idle = False
        self._scheduler.announced(payload_bytes, self._clock.now)
        self._wait()

    def settled(self) -> None:
        """Every member runs the newest version."""
        self.is_idle = True
        self._scheduler.settled(self._clock.now)
        self._wait()

    def _wait(self) -> None:
        if self._planner is not None:
            self._timer.set(max(self._clock.now, self._scheduler.due))

    def _begin(self) -> None:
        members = sorted(self._members.values(), key=lambda member: member.info.node)
        task = self._scheduler.begin(self._trainer, members, self.statistics, self._clock.now, idle=self.is_idle)
        if task is not None and self._planner is not None:
            self._clock.after(PLAN_SECONDS_PER_MEMBER * len(members), self._make, self._planner, task)
        else:
            self._wait()

    def _make(self, planner: HubPlanner, task: PlanTask) -> None:
        made = planner.plan(task)
        self.plans += 1
        self.plan = made.plan
        if self._scheduler.made(made, self._clock.now):
            self.changed_plans += 1
            self._clock.note("plan", made.revision, round(made.plan.rate, 3))
            for name in self._members:
                part = made.node_plan(name)
                if part is not None:
                    self._send_plan(name, part)
        self._wait()


class HubLink:
    """One member's calls to the hub; each takes `delay` seconds there and as long back."""

    def __init__(self, hub: VirtualHub, client: MembershipClient, clock: VirtualClock, delay: float) -> None:
        self._hub, self._client, self._clock, self._delay = hub, client, clock, delay
        self._timer = VirtualTimer(clock, self.poll)

    def poll(self) -> None:
        """Makes the calls that are due, and schedules the next ones. Views are not followed."""
        for call in self._client.poll(self._clock.now):
            if isinstance(call, CallJoin | CallRenew):
                self._clock.after(self._delay, self._carry_out, call)
        self._timer.set(max(self._clock.now, self._client.next_wake()))

    def _carry_out(self, call: CallJoin | CallRenew) -> None:
        if isinstance(call, CallJoin):
            self._hub.join(call.request.info)
        else:
            self._hub.renew(self._client.info.node, call.request.statistics)
        self._clock.after(self._delay, self._answer, call)

    def _answer(self, call: CallJoin | CallRenew) -> None:
        lease = Lease(lease=self._client.info.node, ttl=TTL_SECONDS, revision=0)
        granted = self._client.joined if isinstance(call, CallJoin) else self._client.renewed
        granted(lease, self._clock.now)
        self.poll()
