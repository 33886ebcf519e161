"""Claims and announcements over HTTP: long polls wake, large manifests travel, and impostors are refused."""

from __future__ import annotations

import asyncio
import io

import aiohttp
import msgspec
import pytest
from hub_parts import KEY, RUN, TRAINER, TRUSTED, UNTRUSTED_KEY, Clock, manifest, node, until

from p2psync.errors import BaseMismatchError, FencedError, FormatError, HubError, LeaseError, TrustError
from p2psync.membership.hub import HubConfig
from p2psync.membership.records import Claimed, RunClaim, View, claim_bytes
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient
from p2psync.net.hub_wire import MAX_ANNOUNCE
from p2psync.protocol.manifest import open_signed


async def claim(client: HubClient, epoch: int = 1, claimant: str = TRAINER) -> str:
    return (await client.claim(KEY, node=claimant, run=RUN, epoch=epoch)).token


async def signed(client: HubClient, epoch: int = 1) -> RunClaim:
    nonce = (await client.challenge()).nonce
    made = RunClaim(node=TRAINER, run=RUN, epoch=epoch, nonce=nonce, key=KEY.public_key().public_bytes_raw().hex())
    return msgspec.structs.replace(made, signature=KEY.sign(claim_bytes(made)).hex())


async def test_an_announcement_wakes_every_long_poll_with_one_encoding(
    hub: HubService, client: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await claim(client)
    revision = hub.core.revision
    made: list[View] = []
    view = hub.core.view
    monkeypatch.setattr(hub.core, "view", lambda known: made.append(view(known)) or made[-1])
    polls = [asyncio.create_task(client.view(hub.core.instance, revision, wait=30)) for _ in range(50)]
    await until(lambda: hub.waiting == 50)
    async with HubClient(str(client.url)) as trainer:
        await trainer.announce(token, [manifest(0)])
    async with asyncio.timeout(10):
        views = await asyncio.gather(*polls)
    assert {(v.head, v.revision) for v in views} == {(0, revision + 1)}
    assert len(made) == 1


async def test_a_poll_that_is_behind_is_answered_at_once(hub: HubService, client: HubClient) -> None:
    token = await claim(client)
    await client.announce(token, [manifest(0)])
    async with asyncio.timeout(10):
        assert (await client.view(hub.core.instance, 0, wait=30)).head == 0
        assert (await client.view("another", 99, wait=30)).head == 0


async def test_small_manifests_are_inlined_and_large_ones_are_fetched(client: HubClient) -> None:
    small, large = manifest(0), manifest(1, 0, tensors=2500)
    assert len(large) > 64 << 10
    await client.announce(await claim(client), [small, large])
    first, second = (await client.view()).lineage
    assert (first.inline, second.inline, second.manifest_bytes) == (small, None, len(large))
    data = await client.manifest(second.id, second.manifest_bytes)
    assert open_signed(data, None)[1].id.hex() == second.id
    with pytest.raises(HubError, match="bound of 1000 bytes"):
        await client.manifest(second.id, 1000)


async def test_a_manifest_that_was_retired_is_gone(client: HubClient) -> None:
    token = await claim(client)
    await client.announce(token, [manifest(0), manifest(1, 0)])
    gone = (await client.view()).lineage[0].id
    await client.announce(token, retire=[gone])
    with pytest.raises(HubError, match="retired"):
        await client.manifest(gone)
    assert [a.version for a in (await client.view()).lineage] == [1]


async def test_only_a_claimant_may_send_more_than_a_stranger(client: HubClient, url: str) -> None:
    token = await claim(client)
    many = [manifest(version, tensors=3000) for version in range(12)]
    assert sum(map(len, many)) > MAX_ANNOUNCE
    await client.announce(token, many)
    assert len((await client.view()).lineage) == 12
    body = b'{"token":"guess","manifests":["' + b"A" * MAX_ANNOUNCE + b'"]}'
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/announce", data=io.BytesIO(body)) as answer:
        assert answer.status == 413


async def test_a_later_epoch_fences_the_earlier(client: HubClient) -> None:
    earlier = await claim(client)
    later = await claim(client, epoch=2, claimant="e" * 32)
    with pytest.raises(FencedError, match="stop publishing"):
        await client.announce(earlier, [manifest(0)])
    with pytest.raises(FencedError, match="claim epoch 3"):
        await claim(client, epoch=1)
    await client.announce(later, [manifest(0, epoch=2)])


async def test_a_hub_reports_a_change_of_runs() -> None:
    reported: list[str] = []
    service = HubService(HubConfig(trusted=TRUSTED), on_trouble=reported.append)
    await service.start("127.0.0.1", 0)
    try:
        async with HubClient(f"http://127.0.0.1:{service.port}") as client:
            await claim(client)
            await claim(client, epoch=2)
            assert reported == []
            later = "0" * 11 + "2" + "b" * 20
            await client.claim(KEY, node="e" * 32, run=later, epoch=1, take_over=True)
    finally:
        await service.stop()
    (line,) = reported
    assert line.startswith("this hub changed hands: trainer eeeeeeee at 127.0.0.1 claimed run 000000000002")
    assert line.endswith("with --take-over, from run 000000000001 (created 1970-01-01 00:00:00 UTC)")


async def test_a_key_that_is_not_trusted_may_not_claim(client: HubClient) -> None:
    with pytest.raises(TrustError, match="not trust"):
        await client.claim(UNTRUSTED_KEY, node=TRAINER, run=RUN, epoch=1)


async def test_a_forged_signature_is_refused(client: HubClient) -> None:
    forged = msgspec.structs.replace(await signed(client), epoch=9)
    with pytest.raises(TrustError, match="signature is wrong"):
        await client.post("/v1/claim", forged, Claimed)


async def test_an_overheard_claim_is_refused(client: HubClient, clock: Clock) -> None:
    overheard = await signed(client)
    await client.post("/v1/claim", overheard, Claimed)
    with pytest.raises(TrustError, match="nonce"):
        await client.post("/v1/claim", overheard, Claimed)
    late = await signed(client)
    clock.now += 61
    with pytest.raises(TrustError, match="nonce"):
        await client.post("/v1/claim", late, Claimed)


async def test_manifests_that_do_not_fit_are_refused(client: HubClient) -> None:
    token = await claim(client)
    await client.announce(token, [manifest(1, 0)])
    with pytest.raises(BaseMismatchError, match="new version"):
        await client.announce(token, [manifest(1, 0, tensors=1)])
    with pytest.raises(FormatError):
        await client.announce(token, [b"garbage"])


async def test_a_hub_that_was_restarted_is_seen_by_its_instance(hub: HubService, client: HubClient) -> None:
    token = await claim(client)
    lease = await client.join(node(1))
    before = await client.view()
    poll = asyncio.create_task(client.view(before.instance, before.revision, wait=30))
    await until(lambda: hub.waiting == 1)
    port = hub.port
    async with asyncio.timeout(10):
        await hub.stop()
        assert (await poll).revision == before.revision  # the parting answer
    with pytest.raises(HubError, match="cannot be reached"):
        await client.view()
    restarted = HubService(hub.core.config)
    await restarted.start("127.0.0.1", port)
    async with asyncio.timeout(10):
        after = await client.view(before.instance, before.revision, wait=30)
    assert after.instance != before.instance and (after.run, after.revision) == ("", 0)
    with pytest.raises(LeaseError, match="join again"):
        await client.renew(lease.lease)
    with pytest.raises(LeaseError, match="claim the run again"):
        await client.announce(token, [manifest(0)])
    await client.announce(await claim(client), [manifest(0)])
    await restarted.stop()
