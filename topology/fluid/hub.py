"""The hub of a fluid swarm: tracks members, and makes and distributes plans."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from p2psync.membership.planning import PlanScheduler
from p2psync.membership.records import Member, NodeInfo
from p2psync.protocol.plan import NodePlan
from p2psync.sim.clock import VirtualClock, VirtualTimer
from p2psync.topology.hub_planner import HubPlanResult
from p2psync.topology.network import Network
from p2psync.topology.plan import Plan
from p2psync.topology.planner import make_plan, replan

#: Virtual seconds that a plan takes per member. The real time is left out, so that equal seeds give equal runs.
PLAN_SECONDS_PER_MEMBER = 0.0005


class FluidHub:
    """Plans for the members' assumed network when the hub's scheduler says so. tell: sends a node its plan."""

    def __init__(self, network: Network, clock: VirtualClock, send_plan: Callable[[str, NodePlan], None]) -> None:
        self._network, self._clock, self._send_plan = network, clock, send_plan
        self._trainer = network.names[network.trainer]
        self._index = {name: i for i, name in enumerate(network.names)}
        self._scheduler = PlanScheduler()
        self._members: dict[str, Member] = {}
        self._timer = VirtualTimer(clock, self._begin)
        self.plan: Plan | None = None
        #: CPU seconds that each plan took on this machine.
        self.planning: list[float] = []

    def begin(self, names: list[str]) -> Plan:
        """Registers the initial members; returns the plan for them."""
        for name in names:
            self._members[name] = _member(name, name == self._trainer)
        self._scheduler.members_changed(0, -10.0)
        self._scheduler.begin(self._trainer, self._members.values(), {}, self._clock.now)
        plan = self._make()
        self._scheduler.made(HubPlanResult(plan), self._clock.now)
        return plan

    def joined(self, name: str) -> None:
        """Adds a member."""
        self._members[name] = _member(name, name == self._trainer)
        self._changed()

    def left(self, name: str) -> None:
        """A member's lease ended."""
        if self._members.pop(name, None) is not None:
            self._changed()

    def network_changed(self, network: Network) -> None:
        """The hub learned that the network changed into this one, of the same nodes."""
        self._network = network
        self._changed()

    def _changed(self) -> None:
        self._scheduler.members_changed(len(self._members), self._clock.now)
        self._wait()

    def _wait(self) -> None:
        if self.plan is not None:
            self._timer.set(max(self._clock.now, self._scheduler.due))

    def _begin(self) -> None:
        if self._scheduler.begin(self._trainer, self._members.values(), {}, self._clock.now) is not None:
            plan = self._make()
            self._clock.after(PLAN_SECONDS_PER_MEMBER * len(self._members), self._made, plan)

    def _make(self) -> Plan:
        alive = np.zeros(self._network.size, bool)
        alive[[self._index[name] for name in self._members]] = True
        network = self._network.only(alive)
        began = time.process_time()
        plan = make_plan(network, revision=1) if self.plan is None else replan(self.plan, network)
        self.planning.append(time.process_time() - began)
        self.plan = plan
        return plan

    def _made(self, plan: Plan) -> None:
        if self._scheduler.made(HubPlanResult(plan), self._clock.now):
            for name, part in zip(plan.names, plan.node_plans(), strict=True):
                if name in self._members:
                    self._send_plan(name, part)
        self._wait()


def _member(name: str, is_trainer: bool) -> Member:
    return Member(info=NodeInfo(node=name, role="trainer" if is_trainer else "actor"))
