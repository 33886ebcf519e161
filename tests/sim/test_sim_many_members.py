"""A thousand members, most of which cannot be dialled: the real hub core and real nodes, in virtual time."""

from __future__ import annotations

import math
import random

import msgspec

from p2psync.membership.client import CallJoin, CallRenew, CallView, HubCall, MembershipClient
from p2psync.membership.records import DEFAULT_TTL_SECONDS, Join, Lease, NodeInfo, NodeStatistics, View
from p2psync.sim.build import SWARM, SimConfig, Simulation
from p2psync.sim.network import SimHost
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.control.config import ALL_PATHS
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.report import Reporter, most_paths

MEMBERS, REACHABLE = 1000, 40
#: Versions, seconds between two of them, and seconds in all.
VERSIONS, EVERY, SECONDS = 3, 8.0, 3 * DEFAULT_TTL_SECONDS
#: Bytes of one member in the view, and of one path in a renewal, both in JSON.
MEMBER_BYTES, PATH_BYTES = 320, 110
#: Bytes that every reader gets per version, with its manifest.
ANNOUNCEMENT_BYTES = 6000
#: Few connections, so that nodes are not dialling all the time.
NODE = NodeConfig(swarm=SWARM, max_dialled_peers=4)


def all_failed(others: list[str]) -> NodeStatistics:
    """Returns the statistics of a node that could dial none of these."""
    reporter = Reporter(NodeEstimates(), most_paths(MEMBERS))
    for name in others:
        reporter.failed(name)
    return reporter.report()


class Volunteer:
    """A member behind a firewall: it keeps its lease and reports statistics, but accepts no connection."""

    def __init__(self, sim: Simulation, info: NodeInfo, statistics: NodeStatistics) -> None:
        self.host = SimHost(info.node, 1e6, 1e6, 0.03)  # not on the network: every dial to it fails
        self.client = MembershipClient(info, random.Random(info.node))
        self.client.statistics = statistics
        self.joins = self.largest = 0
        self._sim = sim
        self._wake = math.inf

    def turn(self) -> None:
        """Does the work of a node's shell for its membership."""
        now = self._sim.clock.now
        for call in self.client.poll(now):
            self._carry_out(call)
        wake = self.client.next_wake()
        if wake < math.inf and not now < self._wake <= wake:
            self._wake = max(wake, now + 0.01)
            self._sim.clock.at(self._wake, self.turn)

    def _carry_out(self, call: HubCall) -> None:
        hub, clock = self._sim.hub, self._sim.clock

        def answer(result: object) -> None:
            if isinstance(call, CallView):
                assert result is None or isinstance(result, View)
                self.client.viewed(result, clock.now)
            else:
                assert isinstance(result, Lease) and not result.refused, result
                (self.client.joined if isinstance(call, CallJoin) else self.client.renewed)(result, clock.now)
            self.turn()

        if isinstance(call, CallView):
            hub.view(self.host, call.instance, call.revision, answer, call.lease, whole=call.whole)
        elif isinstance(call, CallJoin):
            self.joins += 1
            hub.request(self.host, lambda core: core.join(call.request, lease=hub.secret(), now=clock.now), answer)
        elif isinstance(call, CallRenew):
            self.largest = max(self.largest, len(msgspec.json.encode(call.request)))
            hub.request(self.host, lambda core: core.renew(call.request, now=clock.now), answer)


def test_leases_last_and_versions_arrive_though_most_members_cannot_be_dialled() -> None:
    sim = Simulation(7, SimConfig(actors=REACHABLE - 1, faults=(), liars=(), planned=False, node=NODE))
    shut = [f"{number:032x}" for number in range(MEMBERS - REACHABLE)]
    names = [node.info.node for node in sim.nodes] + shut
    infos = [NodeInfo(node=name, role="actor", region="far", host="simulated", port=1) for name in shut]
    volunteers = [Volunteer(sim, info, all_failed([other for other in names if other != info.node])) for info in infos]
    for volunteer in volunteers:
        sim.clock.at(0.0, volunteer.turn)
    joined = []
    for node in sim.nodes:
        sim.clock.at(1.0, node.start)
    sim.hub.core.join(Join(info=NodeInfo(node="f" * 32, role="relay")), lease="never renewed", now=0.0)

    def measure() -> None:
        for node in sim.nodes:
            node.core.membership.statistics = all_failed(shut)
            node.drain()

    def look() -> None:
        joined.append(len(sim.hub.core))

    sim.clock.at(5.0, measure)
    for version in range(VERSIONS):
        sim.clock.at(3.0 + version * EVERY, sim.trainer.publish)
    for second in range(2, int(SECONDS)):
        sim.clock.at(float(second), look)
    sim.clock.run(SECONDS, lambda: False)

    assert set(joined[int(DEFAULT_TTL_SECONDS) :]) == {MEMBERS}, "only the lease that was not renewed ended"
    assert {volunteer.joins for volunteer in volunteers} == {1}
    head = sim.trainer.head
    assert head is not None and head.version == VERSIONS - 1
    running = [node.engine.position for node in sim.actors if node.engine is not None]
    assert running == [head] * (REACHABLE - 1)

    core = sim.hub.core
    assert sum(len(reported.paths) for reported in core.statistics().values()) <= ALL_PATHS
    assert max(volunteer.largest for volunteer in volunteers) <= most_paths(MEMBERS) * PATH_BYTES + 300
    assert len(msgspec.json.encode(core.view(core.urgent_revision))) <= MEMBERS * MEMBER_BYTES
    last = core.changes(core.urgent_revision - 1)
    assert last is not None and len(msgspec.json.encode(last)) <= ANNOUNCEMENT_BYTES, "present members know the rest"
