"""The ledger over HTTP: actors wait for work, lose it with their membership, and get verdicts on their results."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from ledger_parts import Clock, until

from p2psync.actor.work_client import WorkClient
from p2psync.errors import FormatError, HubError, LeaseError
from p2psync.membership.records import NodeInfo
from p2psync.membership.work import MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES, WorkGrant
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient
from p2psync.trainer.ledger.service import LedgerService

DIGEST = "ab" * 16


@pytest.fixture
async def lease(client: HubClient) -> str:
    return (await client.join(NodeInfo(node="1" * 32, role="actor"))).lease


@pytest.fixture
async def other(client: HubClient) -> str:
    return (await client.join(NodeInfo(node="2" * 32, role="actor"))).lease


async def test_work_is_leased_and_its_results_are_taken_over_http(
    service: LedgerService, client: HubClient, lease: str
) -> None:
    service.admit(4, DIGEST)
    await service.put(4, [("a", b"\x00prompt"), ("b", b"")])
    actor = WorkClient(client)
    grant = await actor.lease(lease, 10)
    assert [(w.item, w.version, w.payload) for w in grant.items] == [("a", 4, b"\x00prompt"), ("b", 4, b"")]
    assert (grant.head, grant.max_staleness, grant.ttl) == (4, 1, 30)
    result = bytes(MAX_RESULT_BYTES)
    assert await actor.complete(grant.work, "a", result, version=4, digest=DIGEST) == "accepted"
    assert await actor.complete(grant.work, "a", result, version=4, digest=DIGEST) == "duplicate"
    assert await actor.complete(grant.work, "b", b"", version=4, digest="00" * 16) == "wrong_digest"
    async with asyncio.timeout(10):
        assert [(d.item.item, d.node, d.result) for d in await service.take(5)] == [("a", "1" * 32, result)]


async def test_actors_wait_for_work_and_the_trainer_for_results(
    service: LedgerService, client: HubClient, lease: str
) -> None:
    actor = WorkClient(client)
    asked = asyncio.create_task(actor.lease(lease, wait=20))
    taken = asyncio.create_task(service.take(1))
    await until(lambda: service.waiting == 1)
    service.admit(0, DIGEST)
    await service.put(0, [("a", b"")])
    async with asyncio.timeout(10):
        grant = await asked
        await actor.complete(grant.work, "a", b"done", version=0, digest=DIGEST)
        assert (await taken)[0].result == b"done"


async def test_a_lease_request_without_work_returns_an_empty_grant(
    service: LedgerService, client: HubClient, lease: str
) -> None:
    assert (await WorkClient(client).lease(lease, wait=0.01)).items == []
    assert (await WorkClient(client).lease(lease, wait=0)).items == []


async def test_the_work_of_a_killed_actor_wakes_another_as_soon_as_its_membership_ends(
    hub: HubService, service: LedgerService, client: HubClient, clock: Clock, lease: str, other: str
) -> None:
    await service.put(0, [("a", b"")])
    await WorkClient(client).lease(lease)
    waiting = asyncio.create_task(WorkClient(client).lease(other, wait=20))
    await until(lambda: service.waiting == 1)
    clock.now += 9
    await client.renew(other)
    assert service.ledger.claimed == 1
    clock.now += 1
    hub.tick()
    async with asyncio.timeout(10):
        assert [w.item for w in (await waiting).items] == ["a"]
    assert service.ledger.counts.re_leased == 1


@pytest.mark.parametrize("how", ["leave", "join again"])
async def test_work_returns_when_a_node_leaves_or_restarts(
    service: LedgerService, client: HubClient, lease: str, how: str
) -> None:
    await service.put(0, [("a", b"")])
    await WorkClient(client).lease(lease)
    if how == "leave":
        await client.leave(lease)
    else:
        await client.join(NodeInfo(node="1" * 32, role="actor"))
    assert (service.ledger.pooled, service.ledger.claimed) == (1, 0)


async def test_claims_last_while_membership_is_renewed(
    hub: HubService, service: LedgerService, client: HubClient, clock: Clock, lease: str
) -> None:
    await service.put(0, [("a", b"")])
    await WorkClient(client).lease(lease)
    for _ in range(10):
        clock.now += 9
        await client.renew(lease)
    assert service.ledger.claimed == 1
    clock.now += 9
    await client.renew(lease)
    clock.now += 1
    service.tick()
    assert service.ledger.claimed == 0  # held for 100 s, the limit


async def test_only_members_are_given_work(service: LedgerService, client: HubClient, clock: Clock, lease: str) -> None:
    await service.put(0, [("a", b"")])
    with pytest.raises(LeaseError, match="join again"):
        await WorkClient(client).lease("made up")
    clock.now += 10
    with pytest.raises(LeaseError, match="join again"):
        await WorkClient(client).lease(lease)
    assert service.ledger.pooled == 1


async def test_a_grant_whose_answer_was_lost_comes_with_the_next_call(
    service: LedgerService, client: HubClient, lease: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.put(0, [("a", b""), ("b", b"")])
    actor = WorkClient(client)
    post = client.post

    async def loses(*args: object, **options: object) -> WorkGrant:
        await post(*args, **options)
        raise HubError("cut off")

    monkeypatch.setattr(client, "post", loses)
    with pytest.raises(HubError):
        await actor.lease(lease, 1)
    monkeypatch.undo()
    grants = [await actor.lease(lease, 1) for _ in range(2)]
    assert [w.item for grant in grants for w in grant.items] == ["a", "b"]
    assert service.ledger.counts.leased == 2


async def test_a_large_grant_arrives(service: LedgerService, client: HubClient, lease: str) -> None:
    await service.put(0, [(str(i), bytes(MAX_PAYLOAD_BYTES)) for i in range(8)])
    assert len((await WorkClient(client).lease(lease, 256)).items) == 8


@pytest.mark.parametrize(
    "body",
    ['{"max_items":0}', '{"wait":-1}', '{"work":"short"}', '{"wait":1e999}', "garbage"],
)
async def test_invalid_requests_are_refused(client: HubClient, lease: str, body: str) -> None:
    whole = body.replace("{", f'{{"lease":"{lease}",', 1)
    if "work" not in whole:
        whole = whole.replace("{", '{"work":"' + "ab" * 16 + '",', 1)
    async with aiohttp.ClientSession() as session, session.post(f"{client.url}/v1/work/lease", data=whole) as answer:
        assert (answer.status, (await answer.json())["error"]) == (400, "FormatError")


async def test_a_result_over_its_bound_is_refused(service: LedgerService, client: HubClient) -> None:
    with pytest.raises(FormatError, match="bytes"):
        await WorkClient(client).complete("w", "a", bytes(2 * MAX_RESULT_BYTES), version=0, digest=DIGEST)


async def test_the_ledger_is_among_the_metrics(service: LedgerService, client: HubClient, lease: str) -> None:
    await service.put(0, [("a", b"")])
    await WorkClient(client).lease(lease)
    await WorkClient(client).complete("w", "a", b"", version=0, digest=DIGEST)
    text = (await client.get("/metrics", 1 << 20)).decode()
    assert 'p2psync_work_items{state="claimed"} 1.0' in text
    assert 'p2psync_work_refused_total{reason="late"} 1.0' in text


async def test_stopping_answers_waiting_requests(
    hub: HubService, service: LedgerService, client: HubClient, lease: str
) -> None:
    asked = asyncio.create_task(WorkClient(client).lease(lease, wait=20))
    taken = asyncio.create_task(service.take(1))
    await until(lambda: service.waiting == 1)
    async with asyncio.timeout(10):
        await hub.stop()
        assert (await asked).items == [] and await taken == []
