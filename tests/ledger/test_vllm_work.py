"""A vLLM engine takes work under its own membership, and begins it under an admissible version, with any conductor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from p2psync.actor.vllm.work import EngineVersion, EngineWork, server_status
from p2psync.errors import EngineError, LeaseError, UnvouchedError, UsageError
from p2psync.membership.records import NodeInfo
from p2psync.membership.work import WorkGrant, WorkItem
from p2psync.net.hub_client import HubClient
from p2psync.trainer.ledger.service import LedgerService

DIGEST = "ab" * 16


class Engine:
    """Answers of an engine's two ranks."""

    def __init__(self, version: int | None = 0, lease: str | None = None) -> None:
        self.version, self.joined_under = version, lease
        self.refused, self.commits = "", 0
        self.on_asked: Callable[[], None] = lambda: None

    async def status(self) -> list[dict[str, Any]]:
        self.on_asked()
        said = {"run": "r", "epoch": 1, "digest": DIGEST, "refused": self.refused, "commits": self.commits}
        return [{**said, "rank": 1, "version": None}, {**said, "rank": 0, "version": self.version}]

    async def member(self) -> list[dict[str, Any]]:
        return [{"rank": 1, "lease": None}, {"rank": 0, "lease": self.joined_under}]


@pytest.fixture
async def lease(client: HubClient) -> str:
    return (await client.join(NodeInfo(node="1" * 32, role="actor"))).lease


async def test_an_engine_takes_work_and_its_result_counts_under_the_version_it_was_begun_with(
    service: LedgerService, client: HubClient, lease: str
) -> None:
    service.admit(3, DIGEST)
    await service.put(3, [("a", b"prompt")])
    async with EngineWork(Engine(3, lease), str(client.url)) as work:
        grant = await work.lease(4, wait=0)
        begun = await work.begin(grant, grant.items[0])
        receipt = await work.deliver(grant.work, "a", b"answer", begun.position, 7)
        assert receipt.verdict == "accepted"
    (done,) = await service.take(1)
    assert (done.result, done.version, done.tokens, done.node) == (b"answer", 3, 7, "1" * 32)


@pytest.mark.parametrize("engine", [Engine(version=3), Engine(version=None, lease="1" * 32)])
async def test_an_engine_without_membership_or_version_takes_no_work(
    service: LedgerService, client: HubClient, engine: Engine
) -> None:
    async with EngineWork(engine, str(client.url)) as work:
        with pytest.raises(LeaseError, match="not a member of the hub now, or has no version"):
            await work.lease()
        with pytest.raises(UsageError, match="made under a version"):
            await work.deliver("1" * 32, "a", b"", None)


def grant(head: int, put_for: int, bound: int = 1) -> tuple[WorkGrant, WorkItem]:
    item = WorkItem(item="a", version=put_for, payload=b"")
    return WorkGrant(work="1" * 32, ttl=30, head=head, max_staleness=bound, items=[item]), item


async def test_work_put_in_ahead_is_begun_under_an_admissible_version(client: HubClient) -> None:
    engine, asked = Engine(version=1), list[int | None]()

    def come() -> None:  # the third time it is asked, the engine has the newest version
        asked.append(engine.version)
        if len(asked) == 3:
            engine.version = 2

    engine.on_asked = come
    async with EngineWork(engine, str(client.url)) as work, asyncio.timeout(10):
        begun = await work.begin(*grant(head=2, put_for=3))
    assert begun.position is not None and begun.position.version == 2
    assert asked == [1, 1, 1], "it was asked until it had it"


@pytest.mark.parametrize(("head", "put_for", "bound"), [(2, 2, 1), (1, 9, 1), (1, 2, 3), (0, 1, 0)])
async def test_work_waits_only_for_versions_that_exist_and_are_needed(
    client: HubClient, head: int, put_for: int, bound: int
) -> None:
    async with EngineWork(Engine(version=1), str(client.url)) as work, asyncio.timeout(10):
        begun = await work.begin(*grant(head, put_for, bound))
    assert begun.position is not None and begun.position.version == 1


async def test_an_engines_version_follows_its_commits_until_it_stops_serving() -> None:
    engine = Engine(version=5)
    engine.commits = 4
    live = EngineVersion(engine.status)
    state = await live.read()
    assert state.position is not None
    assert (state.position.version, state.position.digest.hex(), state.commits) == (5, DIGEST, 4)
    with pytest.raises(UsageError, match="P2PSync-Exact-Version"):
        async with live.hold():
            pass
    engine.version = None
    assert (await live.read()).position is None
    engine.refused = "lost bits"
    with pytest.raises(UnvouchedError, match="lost bits"):
        await live.read()


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """A server with the plugin's route, as far as it is asked here."""

    async def status(request: web.Request) -> web.Response:
        return web.json_response(await Engine(version=6).status())

    app = web.Application()
    app.router.add_get("/p2psync/status", status)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_self_conducting_server_is_asked_over_http(server: str) -> None:
    position = (await EngineVersion(server_status(server + "/")).read()).position
    assert position is not None and position.version == 6
    with pytest.raises(EngineError, match="404; is VLLM_PLUGINS=p2psync set there"):
        await server_status(server + "/elsewhere")()
    with pytest.raises(EngineError, match="Cannot connect"):
        await server_status("http://127.0.0.1:9")()
