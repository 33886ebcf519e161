"""The plan over HTTP: each node's part, the times of planning, and the size of the view."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
import zstandard
from hub_parts import KEY, RUN, TRAINER, TRUSTED, manifest, node, until

from p2psync.errors import HubError, LeaseError
from p2psync.membership.hub import HubConfig
from p2psync.membership.planning import PlanTask
from p2psync.membership.records import NodeStatistics, PathStatistics, View
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient
from p2psync.net.hub_wire import pack, unpack
from p2psync.protocol.plan import NodePlan, TreePosition, unplanned


class StarPlanner:
    """Plans a star around the trainer, and records its tasks. before: called in its thread before each plan."""

    def __init__(self, before: Callable[[], None] = lambda: None, warm: Callable[[], None] = lambda: None) -> None:
        self.tasks: list[PlanTask] = []
        self.threads: set[int] = set()
        self.warm = warm
        self.odd = False
        self._before = before

    def close(self) -> None:
        pass

    def plan(self, task: PlanTask) -> StarBook:
        self.tasks.append(task)
        self.threads.add(threading.get_ident())
        self._before()
        plan_result = StarBook(len(self.tasks), task)
        plan_result.diagnostics = {
            f"odd {m.info.node}": f"{m.info.node} is odd, as of plan {plan_result.revision}" for m in task.members[1:]
        }
        return plan_result if self.odd else StarBook(len(self.tasks), task)


class StarBook:
    """Each node's part of the star."""

    def __init__(self, revision: int, task: PlanTask) -> None:
        self.revision = revision
        self.diagnostics: dict[str, str] = {}
        self._trainer = task.trainer
        self._actors = [m.info.node for m in task.members if m.info.node != task.trainer]

    def node_plan(self, name: str) -> NodePlan | None:
        if name == self._trainer:
            return NodePlan(
                self.revision, self._actors, [1], [TreePosition(-1, list(range(len(self._actors))), 0, 5.0)]
            )
        return (
            NodePlan(self.revision, [self._trainer], [1], [TreePosition(0, [], 1, 5.0)])
            if name in self._actors
            else None
        )


@asynccontextmanager
async def planning(planner: StarPlanner, troubles: list[str] | None = None) -> AsyncIterator[HubClient]:
    """A client of a planning hub with a claimed run, on the real clock."""
    reported = [] if troubles is None else troubles
    service = HubService(HubConfig(trusted=TRUSTED), planner=planner, on_trouble=reported.append)
    async with HubClient(f"http://127.0.0.1:{await service.start('127.0.0.1', 0)}") as client, asyncio.timeout(10):
        await client.claim(KEY, node=TRAINER, run=RUN, epoch=1)
        try:
            yield client
        finally:
            await service.stop()


async def shown(client: HubClient, plan: int) -> View:
    """Waits until the view shows this plan."""
    view = await client.view()
    while view.plan < plan:
        view = await client.view(view.instance, view.revision, wait=30)
    return view


async def test_a_node_gets_its_part_and_waiting_nodes_are_woken() -> None:
    async with planning(planner := StarPlanner()) as client:
        trainer = await client.join(node(0, node=TRAINER, role="trainer"))
        actor = await client.join(node(1))
        await shown(client, 1)
        assert await client.plan(trainer.lease) == NodePlan(1, [node(1).node], [1], [TreePosition(-1, [0], 0, 5.0)])
        assert await client.plan(actor.lease) == NodePlan(1, [TRAINER], [1], [TreePosition(0, [], 1, 5.0)])
        await client.leave(actor.lease)
        other = await client.join(node(2))
        await shown(client, 2)
        assert (await client.plan(other.lease)).revision == 2
        with pytest.raises(LeaseError):
            await client.plan(actor.lease)
        assert planner.threads.isdisjoint({threading.get_ident()})


async def test_only_lease_holders_get_a_plan() -> None:
    async with planning(StarPlanner()) as client:
        await client.join(node(0, node=TRAINER))
        await client.join(node(1))
        await shown(client, 1)
        for lease in ("", "none", "ü\n"):
            with pytest.raises(LeaseError, match="join again"):
                await client.plan(lease)


async def test_a_hub_without_a_planner_reports_no_plan(client: HubClient) -> None:
    lease = (await client.join(node(1))).lease
    with pytest.raises(HubError, match="no plan"):
        await client.plan(lease)


async def test_statistics_reach_the_planner_and_hostile_ones_do_not() -> None:
    async with planning(planner := StarPlanner()) as client:
        await client.join(node(0, node=TRAINER))
        lease = (await client.join(node(1))).lease
        reported = NodeStatistics(up=30.0, down=40.0, paths=[PathStatistics(TRAINER, 0.05, 20.0, 30.0, 0.01, True)])
        await client.renew(lease, statistics=reported)
        assert "out of bounds" in (await client.renew(lease, statistics=NodeStatistics(up=-5.0))).refused
        await shown(client, 1)
        while planner.tasks[-1].statistics != {node(1).node: reported}:
            await shown(client, len(planner.tasks) + 1)


async def test_planning_blocks_no_request_and_no_second_plan_is_begun() -> None:
    go = threading.Event()
    async with planning(planner := StarPlanner(before=lambda: assert_set(go))) as client:
        await client.join(node(0, node=TRAINER))
        await client.join(node(1))
        await until(lambda: planner.tasks)
        late = await client.join(node(2))
        assert (await client.view()).plan == 0
        assert len(planner.tasks) == 1
        go.set()
        await shown(client, 2)
        assert (await client.plan(late.lease)).revision == 2


def assert_set(event: threading.Event) -> None:
    """Waits for an event in a thread, with a time limit."""
    assert event.wait(10)


async def test_until_the_planner_is_warm_there_is_no_plan_and_stopping_does_not_wait_for_it() -> None:
    go = threading.Event()
    planner = StarPlanner(warm=lambda: assert_set(go))
    async with planning(planner) as client:
        await client.join(node(0, node=TRAINER))
        await client.join(node(1))
        assert (await client.view()).plan == 0
    assert planner.tasks == [], "stopped before it was warm"
    go.set()


async def test_a_failed_plan_is_reported_once_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2psync.membership.planning.RETRY_MIN_SECONDS", 0.01)

    def fail() -> None:
        if len(planner.tasks) < 3:
            raise ArithmeticError("cannot plan this")

    troubles: list[str] = []
    async with planning(planner := StarPlanner(before=fail, warm=lambda: 1 / 0), troubles) as client:
        await client.join(node(0, node=TRAINER))
        await client.join(node(1))
        await shown(client, 3)
    (told,) = troubles
    assert told.startswith(
        "no new plan, the last one stays in use: ArithmeticError: cannot plan this; `p2psync doctor`"
    )


async def test_a_diagnostic_is_reported_once_over_several_plans() -> None:
    troubles: list[str] = []
    planner = StarPlanner()
    planner.odd = True
    async with planning(planner, troubles) as client:
        await client.join(node(0, node=TRAINER))
        await client.join(node(1))
        await shown(client, 1)
        await client.join(node(2))
        await shown(client, 2)
    assert len(troubles) == 2
    assert len({line.split()[0] for line in troubles}) == 2


async def test_a_member_outside_the_plan_gets_an_empty_part() -> None:
    go = threading.Event()
    go.set()
    async with planning(StarPlanner(before=lambda: assert_set(go))) as client:
        await client.join(node(0, node=TRAINER))
        await client.join(node(1))
        await shown(client, 1)
        go.clear()
        late = await client.join(node(2))
        assert await client.plan(late.lease) == unplanned(1)
        go.set()


# the size of the view


async def test_the_view_stays_small_however_much_is_announced(hub: HubService, client: HubClient) -> None:
    for number in range(12):
        await client.join(node(number, region="europe-west"))
    token = (await client.claim(KEY, node=TRAINER, run=RUN, epoch=1)).token
    for version in range(64):
        await client.announce(token, [manifest(version, version - 1 if version else None, tensors=100)])
    newest = manifest(64, 63, tensors=100)
    revision = hub.core.revision
    waiting = asyncio.create_task(client.view(hub.core.instance, revision, wait=30))
    await until(lambda: hub.waiting == 1)
    async with HubClient(str(client.url)) as trainer:
        await trainer.announce(token, [newest])
    view = await waiting
    assert [a.version for a in view.lineage if a.inline is not None] == [64]
    assert view.lineage[-1].inline == newest
    assert len(view.lineage) == 65 and len(view.members) == 12
    answer = await hub.wait_view(hub.core.instance, revision, 0.0, packed=True)
    # Ten segments: the initial congestion window of an idle connection.
    assert len(newest) > 3000 and len(answer) < 14_000


async def test_readers_of_one_revision_share_one_encoding(hub: HubService, client: HubClient) -> None:
    token = (await client.claim(KEY, node=TRAINER, run=RUN, epoch=1)).token
    revisions = [await client.announce(token, [manifest(v, v - 1 if v else None)]) for v in range(12)]
    instance = hub.core.instance

    async def get(revision: int, instance: str = instance) -> tuple[bytes, list[int]]:
        body = await hub.wait_view(instance, revision, 0.0)
        lineage = msgspec.json.decode(body, type=View).lineage
        return body, [a.version for a in lineage if a.inline is not None]

    behind, versions = await get(revisions[-3])
    assert versions == [10, 11]
    assert (await get(revisions[-3]))[0] is behind
    assert (await get(revisions[-1]))[1] == []
    assert (await get(revisions[0]))[1] == (await get(0))[1] == list(range(4, 12)), "eight at most"
    assert (await get(99, "another"))[1] == list(range(4, 12)), "it read from an earlier hub process"
    assert (await get(-1, ""))[1] == list(range(12)), "a new reader needs all"
    assert (await get(revisions[-3]))[0] is behind
    await client.join(node(1))
    assert (await get(revisions[-3]))[0] is not behind


async def test_a_client_without_zstd_gets_json(hub: HubService, url: str) -> None:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        async with session.get(f"{url}/v1/view", headers={"Accept-Encoding": "identity"}) as answer:
            assert "Content-Encoding" not in answer.headers
            assert msgspec.json.decode(await answer.read(), type=View).instance == hub.core.instance
        async with session.get(f"{url}/v1/view", headers={"Accept-Encoding": "zstd"}) as answer:
            assert answer.headers["Content-Encoding"] == "zstd"
            assert unpack(await answer.read(), 10_000).startswith(b"{")


def test_a_packed_reply_is_bounded_before_it_is_unpacked() -> None:
    assert unpack(pack(b"x" * 1000), 1000) == b"x" * 1000
    assert unpack(b"{}", 1) == b"{}"
    bomb = pack(bytes(50_000_000))
    assert len(bomb) < 10_000
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"x")
    for hostile in (bomb, unsized, pack(b"x" * 1000)[:-5], zstandard.FRAME_HEADER, zstandard.FRAME_HEADER + bytes(50)):
        with pytest.raises(HubError, match="damaged"):
            unpack(hostile, 1_000_000)
