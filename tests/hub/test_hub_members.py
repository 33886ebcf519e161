"""Membership over HTTP: joins, renewals, leaves, expiries, and their listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from hub_parts import TRUSTED, Clock, node, until

from p2psync.errors import FormatError, HubError, LeaseError
from p2psync.membership.changes import merge_views
from p2psync.membership.checks import MAX_PATHS
from p2psync.membership.hub import HubConfig
from p2psync.membership.leases import EndedLease
from p2psync.membership.records import HUB_HOST, Join, Member, NodeStatistics, PathStatistics
from p2psync.membership.suspicion import SUSPICION_SECONDS
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient


async def test_a_member_joins_renews_and_leaves(hub: HubService, client: HubClient) -> None:
    lease = await client.join(node(1, region="eu"))
    assert (lease.ttl, lease.revision) == (10.0, 1)
    again = await client.renew(lease.lease, 3, "ab" * 16)
    assert (again.lease, again.revision) == (lease.lease, 1)
    assert hub.core.view().members == [Member(info=node(1, region="eu"), version=3, digest="ab" * 16)]
    await client.leave(lease.lease)
    assert (await client.view()).members == []
    with pytest.raises(LeaseError, match="join again"):
        await client.renew(lease.lease)
    with pytest.raises(LeaseError, match="join again"):
        await client.leave(lease.lease)


async def test_a_node_that_joins_over_the_loopback_is_reached_where_the_hub_is(client: HubClient) -> None:
    await client.join(node(1, host=""))
    assert (await client.view()).members[0].info.host == HUB_HOST


async def test_a_lease_that_is_not_renewed_ends(hub: HubService, client: HubClient, clock: Clock) -> None:
    stays, goes = await client.join(node(1)), await client.join(node(2))
    clock.now += 9
    await client.renew(stays.lease)
    clock.now += 1
    with pytest.raises(LeaseError):
        await client.renew(goes.lease)
    assert [m.info for m in (await client.view()).members] == [node(1)]
    clock.now += 9
    hub.tick()
    assert (await client.view()).members == []


async def test_the_end_of_a_lease_wakes_long_polls_without_any_request(clock: Clock) -> None:
    service = HubService(HubConfig(trusted=TRUSTED, ttl=0.05))  # on the real clock, since the timer is tested
    port = await service.start("127.0.0.1", 0)
    async with HubClient(f"http://127.0.0.1:{port}") as client:
        lease = await client.join(node(1))
        async with asyncio.timeout(10):
            view = await client.view(service.core.instance, lease.revision, wait=30)
        assert view.members == [] and view.revision == 2
    await service.stop()


async def test_listeners_receive_renewals_and_every_end(hub: HubService, client: HubClient, clock: Clock) -> None:
    ended: list[EndedLease] = []
    renewed: list[Member] = []
    hub.on_ended(ended.append)
    hub.on_renewed(renewed.append)
    first, left = await client.join(node(1)), await client.join(node(2))
    second = await client.join(node(1))
    await client.leave(left.lease)
    await client.renew(second.lease, 5)
    clock.now += 10
    hub.tick()
    reported = [(e.lease, e.reason) for e in ended]
    assert reported == [(first.lease, "replaced"), (left.lease, "left"), (second.lease, "expired")]
    assert renewed == [Member(info=node(1), version=5)]


async def test_simultaneous_joins_wake_long_polls_few_times(hub: HubService, client: HubClient) -> None:
    revision, answers = 0, 0
    async with asyncio.TaskGroup() as group:
        for number in range(60):
            group.create_task(client.join(node(number)))
        async with asyncio.timeout(10):
            while len((view := await client.view(hub.core.instance, revision, wait=30)).members) < 60:
                revision, answers = view.revision, answers + 1
    assert view.revision == 60
    assert answers < 60


async def test_a_closed_long_poll_is_not_waited_for(hub: HubService, client: HubClient) -> None:
    poll = asyncio.create_task(client.view(hub.core.instance, 0, wait=30))
    await until(lambda: hub.waiting == 1)
    poll.cancel()
    await until(lambda: hub.waiting == 0)


async def test_a_closed_long_poll_raises_suspicion_until_the_next_poll(hub: HubService, client: HubClient) -> None:
    lease = (await client.join(node(1))).lease
    begun = hub.now()
    assert hub.core.next_expiry() == begun + 10
    for ending in (begun + SUSPICION_SECONDS, begun + 10):
        poll = asyncio.create_task(client.view(hub.core.instance, 1, wait=30, lease=lease))
        await until(lambda: hub.waiting == 1)
        assert hub.core.next_expiry() == begun + 10
        poll.cancel()
        await until(lambda: hub.waiting == 0)
        assert hub.core.next_expiry() == begun + SUSPICION_SECONDS
        if ending > begun + SUSPICION_SECONDS:
            await client.view(lease=lease)
            assert hub.core.next_expiry() == ending


async def test_an_answered_poll_raises_no_suspicion(hub: HubService, client: HubClient) -> None:
    lease = (await client.join(node(1))).lease
    await client.view(hub.core.instance, 1, wait=0.01, lease=lease)
    poll = asyncio.create_task(client.view(hub.core.instance, 1, wait=30, lease=lease))
    await until(lambda: hub.waiting == 1)
    await client.join(node(2))
    assert len((await poll).members) == 2
    assert hub.core.next_expiry() == hub.now() + 10


async def test_a_long_poll_is_answered_after_its_wait(hub: HubService, client: HubClient) -> None:
    view = await client.view(hub.core.instance, 0, wait=0.01)
    assert (view.instance, view.revision) == (hub.core.instance, 0)


async def test_a_change_of_versions_shows_after_a_while(hub: HubService, client: HubClient, clock: Clock) -> None:
    lease = (await client.join(node(1))).lease
    assert (await client.view()).members[0].version is None
    await client.renew(lease, 4)
    clock.now += 1
    assert (await client.view()).members[0].version == 4


async def test_a_nodes_description_is_bounded(client: HubClient) -> None:
    with pytest.raises(FormatError, match="region"):
        await client.join(node(1, region="r" * 65))


async def test_a_full_hub_refuses_with_the_reason() -> None:
    service = HubService(HubConfig(trusted=TRUSTED, max_members=1))
    port = await service.start("127.0.0.1", 0)
    async with HubClient(f"http://127.0.0.1:{port}") as client:
        await client.join(node(1))
        with pytest.raises(HubError, match="full"):
            await client.join(node(2))
    await service.stop()


async def test_a_renewal_carries_the_rate_at_which_a_member_fetches(hub: HubService, client: HubClient) -> None:
    lease = await client.join(node(1))
    await client.renew(lease.lease, 3, "ab" * 16, fetch_rate=2_500_000)
    assert [member.fetch_rate for member in (await client.status()).view.members] == [2_500_000]


@pytest.mark.parametrize("reported", [3, 256, 257, 1000, 5000])
async def test_a_renewal_of_any_size_keeps_its_lease(
    hub: HubService, client: HubClient, clock: Clock, reported: int
) -> None:
    lease = (await client.join(node(1))).lease
    paths = [
        PathStatistics(f"{number:032x}", 0.123, 123456.0, 123456.0, 0.0123, False, 0.123) for number in range(reported)
    ]
    for _ in range(4):
        clock.now += 9
        granted = await client.renew(lease, 3, "ab" * 16, statistics=NodeStatistics(paths=paths))
        hub.tick()
        assert len(hub.core) == 1
        assert bool(granted.refused) is (reported > MAX_PATHS) and "\n" not in granted.refused


@pytest.mark.parametrize("rest", [b",", b' ,"statistics":' + b"[" * 60_000, b',"version":"' + b"x" * (1 << 20)])
async def test_a_renewal_that_is_too_large_or_damaged_keeps_its_lease(
    hub: HubService, url: str, client: HubClient, clock: Clock, rest: bytes
) -> None:
    lease = (await client.join(node(1), 3, "ab" * 16)).lease
    clock.now += 9
    body = b'{"lease":"%s"' % lease.encode() + rest

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 50_000):
            yield body[start : start + 50_000]

    async with aiohttp.ClientSession() as session:
        for data in (body, pieces()):  # of known length, and of unknown
            async with session.post(f"{url}/v1/renew", data=data) as answer:
                assert (answer.status, bool((await answer.json())["refused"])) == (200, True)
    clock.now += 9
    hub.tick()
    (member,) = hub.core.view().members
    assert (member.version, member.digest) == (3, "ab" * 16), "its version is the one reported before"


@pytest.mark.parametrize("members", [2, 257, 1000])
async def test_a_returning_reader_gets_changes_whatever_the_number_of_members(
    hub: HubService, client: HubClient, members: int
) -> None:
    for number in range(members):
        hub.core.join(Join(info=node(number)), lease=str(number), now=hub.now())
    known = await client.view()
    assert len(known.members) == members
    waiting = asyncio.create_task(client.view(known.instance, known.revision, wait=10.0, changes=True))
    await until(lambda: hub.waiting)
    await client.join(node(members))
    changes = await waiting
    assert (changes.since, [member.info for member in changes.members]) == (known.revision, [node(members)])
    assert merge_views(known, changes) == await client.view()
    idle = await client.view(changes.instance, changes.revision, changes=True)
    assert (idle.members, idle.lineage, idle.since) == ([], [], changes.revision)
    assert len((await client.view(changes.instance, known.revision)).members) == members + 1, "the whole view"
    assert len((await client.view("another hub", 3, changes=True)).members) == members + 1
