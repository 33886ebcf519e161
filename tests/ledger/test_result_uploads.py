"""Uploads of results: judged before they are sent, bounded in bytes, durable until taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zstandard
from ledger_parts import Clock, until

from p2psync.actor import work_client
from p2psync.actor.work_client import WorkClient
from p2psync.errors import FormatError, HubError, StoreError
from p2psync.membership.hub import HubConfig
from p2psync.membership.records import NodeInfo
from p2psync.membership.work import MAX_RESULT_BYTES, RESULT_HEADER, ResultHead, encode_head
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient
from p2psync.trainer.ledger import uploads
from p2psync.trainer.ledger.core import LedgerConfig
from p2psync.trainer.ledger.journal import Journal
from p2psync.trainer.ledger.service import LedgerService, mount

DIGEST = "ab" * 16
LIMIT = 10.0


class HubWithLedger:
    """A hub with a ledger, which may be stopped and started again at the same address, and an actor."""

    def __init__(self, path: Path, clock: Clock, **config: object) -> None:
        self.path, self.clock, self.config = path, clock, config
        self.port = 0
        self.max_uploading = 64 << 20

    async def start(self) -> LedgerService:
        self.hub = HubService(HubConfig(trusted=frozenset(), ttl=10.0), clock=self.clock)
        self.journal = Journal(self.path)
        config = LedgerConfig(**({"claim_ttl": 30, "max_hold": 100, "allot": False} | self.config))
        self.service = mount(
            self.hub.build_app(), self.hub, config, journal=self.journal, max_uploading=self.max_uploading
        )
        self.port = await self.hub.start("127.0.0.1", self.port)
        return self.service

    async def stop(self) -> None:
        await self.hub.stop()

    async def leased(self, client: HubClient, *items: str) -> str:
        """Puts these items in and leases them to the actor; returns the work lease."""
        self.service.admit(0, DIGEST)
        await self.service.put(0, [(item, b"") for item in items])
        lease = (await client.join(NodeInfo(node="1" * 32, role="actor"))).lease
        return (await WorkClient(client).lease(lease, len(items))).work


@pytest.fixture
async def served(tmp_path: Path, clock: Clock) -> AsyncIterator[HubWithLedger]:
    made = HubWithLedger(tmp_path / "ledger.db", clock)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def actor(served: HubWithLedger) -> AsyncIterator[HubClient]:
    async with HubClient(f"http://127.0.0.1:{served.port}") as opened:
        yield opened


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients retry at once."""
    monkeypatch.setattr(uploads, "RETRY_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(work_client, "RETRY_MIN_SECONDS", 0.001)
    monkeypatch.setattr(work_client, "RETRY_MAX_SECONDS", 0.01)


async def request(
    served: HubWithLedger, head: ResultHead, length: int, *lines: str
) -> tuple[asyncio.StreamReader, object]:
    """Send the head of a request, without its body; returns the connection's reader and writer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    text = "\r\n".join(
        [
            "POST /v1/work/result HTTP/1.1",
            "Host: x",
            f"{RESULT_HEADER}: {encode_head(head)}",
            f"Content-Length: {length}",
            *lines,
        ]
    )
    writer.write(text.encode() + b"\r\n\r\n")
    return reader, writer


async def status(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(LIMIT):
        return int((await reader.readline()).split()[1])


async def test_a_result_that_would_be_refused_is_not_sent(served: HubWithLedger, actor: HubClient) -> None:
    work = await served.leased(actor, "a")
    for head, first in (
        (ResultHead(work=work, item="a", version=0, digest=DIGEST), 100),
        (ResultHead(work="00" * 16, item="a", version=0, digest=DIGEST), 200),
    ):
        reader, writer = await request(served, head, 1 << 20, "Expect: 100-continue")
        assert await status(reader) == first
        writer.close()  # type: ignore[attr-defined]
    assert served.service.ledger.counts.refused == {"late": 1}


async def test_large_results_are_sent_only_after_100_continue(served: HubWithLedger, actor: HubClient) -> None:
    work = await served.leased(actor, "a")
    whole = bytes(range(256)) * (MAX_RESULT_BYTES // 256)
    client = WorkClient(actor, pack=False)
    assert await client.complete("00" * 16, "a", whole, version=0, digest=DIGEST) == "late"
    assert await client.complete(work, "a", whole, version=0, digest=DIGEST) == "accepted"
    assert (await served.service.take(1))[0].result == whole


async def test_packed_results_arrive_as_they_were(served: HubWithLedger, actor: HubClient) -> None:
    work = await served.leased(actor, "a", "b")
    result = b"tokens and probabilities " * 10_000
    assert await WorkClient(actor).complete(work, "a", result, version=0, digest=DIGEST) == "accepted"
    assert (await served.service.take(1))[0].result == result
    for body in (b"\x28\xb5\x2f\xfd garbage", zstandard.compress(bytes(MAX_RESULT_BYTES + 1))):
        head = ResultHead(work=work, item="b", version=0, digest=DIGEST, packed=True)
        answer = await actor.exchange("POST", "/v1/work/result", body, headers={RESULT_HEADER: encode_head(head)})
        assert answer.status == 400
    assert served.service.ledger.claimed == 1 and served.service.uploads.size == 0


async def test_concurrent_uploads_stay_within_their_bound(tmp_path: Path, clock: Clock) -> None:
    served = HubWithLedger(tmp_path / "other.db", clock)
    served.max_uploading = 3 << 20
    service = await served.start()
    async with HubClient(f"http://127.0.0.1:{served.port}") as actor:
        work = await served.leased(actor, *"abcd")
        slow = [
            await request(served, ResultHead(work=work, item=item, version=0, digest=DIGEST), 1 << 20) for item in "abc"
        ]
        await until(lambda: service.uploads.size == 3 << 20)
        head = ResultHead(work=work, item="d", version=0, digest=DIGEST)
        answer = await actor.exchange("POST", "/v1/work/result", b"x", headers={RESULT_HEADER: encode_head(head)})
        assert (answer.status, answer.retry_after) == (429, "0")
        later = asyncio.create_task(WorkClient(actor).deliver(work, "d", b"D", version=0, digest=DIGEST))
        reader, writer = slow[0]
        writer.write(bytes(1 << 20))  # type: ignore[attr-defined]
        assert await status(reader) == 200
        async with asyncio.timeout(LIMIT):
            assert (await later).verdict == "accepted"
        for _, writer in slow:
            writer.close()  # type: ignore[attr-defined]
        await until(lambda: service.uploads.size == 0)  # a closed connection frees its bytes
        assert service.ledger.done == 2
    await served.stop()


async def test_a_full_ledger_makes_uploads_wait(tmp_path: Path, clock: Clock) -> None:
    served = HubWithLedger(tmp_path / "other.db", clock, max_done_bytes=10)
    service = await served.start()
    async with HubClient(f"http://127.0.0.1:{served.port}") as actor:
        work = await served.leased(actor, "a", "b")
        client = WorkClient(actor)
        assert await client.complete(work, "a", bytes(10), version=0, digest=DIGEST) == "accepted"
        assert await client.complete(work, "b", bytes(10), version=0, digest=DIGEST) == "full"
        with pytest.raises(HubError, match="is full now"):
            await client.deliver(work, "b", bytes(10), version=0, digest=DIGEST, timeout_seconds=0.0)
        later = asyncio.create_task(client.deliver(work, "b", bytes(10), version=0, digest=DIGEST))
        await until(lambda: service.ledger.counts.refused["full"] > 3)
        assert [done.item.item for done in await service.take(5)] == ["a"]
        async with asyncio.timeout(LIMIT):
            assert (await later).verdict == "accepted"
    await served.stop()


async def test_a_result_outlives_a_restart_of_the_trainer(served: HubWithLedger, actor: HubClient) -> None:
    work = await served.leased(actor, "a", "b")
    client = WorkClient(actor)
    assert await client.complete(work, "a", b"A", version=0, digest=DIGEST) == "accepted"
    await served.stop()
    later = asyncio.create_task(client.deliver(work, "b", b"B", version=0, digest=DIGEST))
    with pytest.raises(HubError):
        await client.complete(work, "b", b"B", version=0, digest=DIGEST)
    service = await served.start()
    async with asyncio.timeout(LIMIT):
        assert (await later).verdict == "accepted"
        assert [done.result for done in await service.take(5)] == [b"A", b"B"]
    assert await client.complete(work, "a", b"A", version=0, digest=DIGEST) == "duplicate"


async def test_a_result_that_the_disk_refused_is_not_acknowledged(
    served: HubWithLedger, actor: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = await served.leased(actor, "a")

    def refuse(changes: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(served.journal, "write", refuse)
    client = WorkClient(actor)
    for _ in range(2):  # the second time it would be a duplicate, which says that it counted
        with pytest.raises(HubError, match="disk is full"):
            await client.complete(work, "a", b"A", version=0, digest=DIGEST)
    with pytest.raises(StoreError):
        await served.service.take(1)
    assert served.service.ledger.done == 1, "what was not handed out waits again"
    monkeypatch.undo()
    assert await client.complete(work, "a", b"A", version=0, digest=DIGEST) == "duplicate"
    async with asyncio.timeout(LIMIT):
        assert [done.result for done in await served.service.take(1)] == [b"A"]


async def test_a_cancelled_take_loses_no_result(served: HubWithLedger, actor: HubClient) -> None:
    work = await served.leased(actor, "a")
    waiting = asyncio.create_task(served.service.take(1))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await served.service.take(1, wait=0.01) == []
    await WorkClient(actor).complete(work, "a", b"A", version=0, digest=DIGEST)
    assert await served.service.take(1, version=7, wait=0.01) == []
    taking = asyncio.create_task(served.service.take(1))
    await asyncio.sleep(0)  # handed out, and not durable yet
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert [done.result for done in await served.service.take(1)] == [b"A"]


async def test_the_loser_of_a_race_gets_the_void_items(tmp_path: Path, clock: Clock) -> None:
    served = HubWithLedger(tmp_path / "other.db", clock, allot=True, first_items=2, hedge_margin=1)
    service = await served.start()
    async with HubClient(f"http://127.0.0.1:{served.port}") as hub:
        client = WorkClient(hub)
        slow = (await hub.join(NodeInfo(node="1" * 32, role="actor"))).lease
        fast = (await hub.join(NodeInfo(node="2" * 32, role="actor"))).lease
        service.admit(0, DIGEST)
        await service.put(0, [("a", b""), ("b", b"")])
        held = await client.lease(slow, 2, version=0)
        clock.now += 9
        await hub.renew(slow)
        await hub.renew(fast)
        hedge = await client.lease(fast, 2, version=0)
        assert [item.item for item in held.items] == ["a", "b"] and [item.item for item in hedge.items] == ["b"]
        clock.now += 1
        assert (await client.deliver(hedge.work, "b", b"", version=0, digest=DIGEST)).void == []
        receipt = await client.deliver(held.work, "a", b"", version=0, digest=DIGEST)
        assert (receipt.verdict, receipt.void) == ("accepted", ["b"])
    await served.stop()


@pytest.mark.parametrize("header", ["", "x" * 5000, "not base64!", "gqFh", "éé"])
async def test_a_result_without_a_head_is_refused(served: HubWithLedger, actor: HubClient, header: str) -> None:
    answer = await actor.exchange("POST", "/v1/work/result", b"", headers={RESULT_HEADER: header})
    assert answer.status == 400


async def test_bodies_that_do_not_match_their_heads_are_refused(served: HubWithLedger, actor: HubClient) -> None:
    work = await served.leased(actor, "a")
    head = ResultHead(work=work, item="a", version=0, digest=DIGEST)
    for length, code in ((MAX_RESULT_BYTES + 1, 413), (1 << 60, 413)):
        reader, writer = await request(served, head, length)
        assert await status(reader) == code
        writer.close()  # type: ignore[attr-defined]
    reader, writer = await request(served, head, 0, "Transfer-Encoding: chunked")
    assert await status(reader) == 400
    writer.close()  # type: ignore[attr-defined]
    with pytest.raises(FormatError, match="at most"):
        await WorkClient(actor).deliver(work, "a", bytes(MAX_RESULT_BYTES + 1), version=0, digest=DIGEST)
    assert served.service.ledger.claimed == 1
