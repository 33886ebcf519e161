"""A real hub with the real planner and real nodes: each gets its part of the plan, and connects accordingly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from hub_parts import KEY, RUN, TRUSTED

from p2psync.membership.hub import HubConfig
from p2psync.membership.records import NodeInfo, NodeStatistics, PathStatistics
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient
from p2psync.net.runner import NodeRunner
from p2psync.observe.events import Event, Trouble
from p2psync.protocol.plan import NodePlan
from p2psync.store.packs import Store
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.node import NodeCore
from p2psync.topology.hub_planner import HubPlanner
from tests.plan_fractions import fractions_from, fractions_to


def name(number: int) -> str:
    return f"{number:032x}"


class Swarm:
    """Nodes at one hub; node 0 is the trainer."""

    def __init__(self, hub: HubService, place: Path) -> None:
        self.hub = hub
        self.nodes: dict[int, NodeRunner] = {}
        self.events: list[Event] = []
        self._clients: dict[int, HubClient] = {}
        self._place = place

    async def add(self, number: int, *, listen: bool = True) -> NodeRunner:
        client = self._clients[number] = HubClient(f"http://127.0.0.1:{self.hub.port}")
        role = "actor" if number else "trainer"
        if not number:
            await client.claim(KEY, node=name(0), run=RUN, epoch=1)
        info = NodeInfo(node=name(number), role=role, host="127.0.0.1")
        runner = NodeRunner(
            NodeCore(info, NodeConfig(max_dialled_peers=0), random.Random(number)),  # so that only the plan connects
            client,
            Store(self._place / str(number)),
            trusted=TRUSTED,
            instance=f"life {number}",
            on_event=self.events.append,
        )
        await runner.listen("127.0.0.1", 0 if listen else None)
        runner.start()
        self.nodes[number] = runner
        return runner

    async def remove(self, number: int) -> None:
        await self.nodes.pop(number).stop()
        await self._clients.pop(number).close()

    def plans(self) -> dict[int, NodePlan]:
        return {number: node.core.plan for number, node in self.nodes.items() if node.core.plan is not None}

    def settled(self) -> bool:
        """Returns whether all nodes follow the hub's plan, it covers exactly these nodes, and they are connected."""
        plans = self.plans()
        if len(plans) < len(self.nodes) or {p.revision for p in plans.values()} != {self.hub.core.view().plan}:
            return False
        fed = [number for number, plan in plans.items() if fractions_from(plan)]
        meant = all(int(peer, 16) in self.nodes for plan in plans.values() for peer in plan.peers)
        linked = all(
            set(plan.peers) <= {peer.name for peer in self.nodes[number].core.swarm.peers}
            for number, plan in plans.items()
        )
        return len(fed) == len(self.nodes) - 1 and meant and linked


@asynccontextmanager
async def swarm(place: Path) -> AsyncIterator[Swarm]:
    hub = HubService(HubConfig(trusted=TRUSTED), planner=HubPlanner())
    await hub.start("127.0.0.1", 0)
    made = Swarm(hub, place)
    try:
        yield made
    finally:
        for number in list(made.nodes):
            await made.remove(number)
        await hub.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (the condition changes in nodes, without an event to wait for)
            await asyncio.sleep(0.01)


async def test_nodes_get_their_part_after_joins_and_a_new_one_after_a_leave(tmp_path: Path) -> None:
    async with swarm(tmp_path) as made:
        for number in range(5):
            await made.add(number, listen=number != 3)
        await until(made.settled)
        first = made.plans()
        edges = {(number, peer) for number, plan in first.items() for peer in fractions_to(plan)}
        back = {(int(peer, 16), name(number)) for number, plan in first.items() for peer in fractions_from(plan)}
        assert edges == back, "the parts agree"
        await made.remove(2)
        await until(made.settled)
        assert made.plans()[0].revision > first[0].revision
        await made.add(7)
        await until(made.settled)
        assert not [event for event in made.events if isinstance(event, Trouble)]


async def test_a_nodes_statistics_change_the_plan(tmp_path: Path) -> None:
    async with swarm(tmp_path) as made:
        for number in range(5):
            await made.add(number)
        await until(made.settled)
        for number, node in made.nodes.items():
            ups = {other: 2.0 if other == 3 else 100.0 for other in made.nodes}
            paths = [PathStatistics(name(o), 0.001, ups[number], ups[o]) for o in made.nodes if o != number]
            node.core.membership.statistics = NodeStatistics(ups[number], 500.0, paths)
            node._core_loop.wake()
        revision = made.plans()[3].revision
        await until(lambda: made.settled() and sum(fractions_to(made.plans()[3]).values()) < 0.2)
        assert made.plans()[3].revision > revision
