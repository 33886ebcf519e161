"""The service's edge cases: tokens, malformed bodies, addresses in use, metrics and health."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from aiohttp import web
from hub_parts import KEY, RUN, TRAINER, TRUSTED, Clock, manifest, node, until

from p2psync.errors import HubError, P2PSyncError, TrustError
from p2psync.membership.hub import HubConfig
from p2psync.net import tcp
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient


async def test_a_join_token_is_asked_of_everyone(clock: Clock) -> None:
    service = HubService(HubConfig(trusted=TRUSTED), token="open sesame", clock=clock)
    url = f"http://127.0.0.1:{await service.start('127.0.0.1', 0)}"
    async with HubClient(url, "open sesame") as member:
        await member.join(node(1))
    for token in (None, "", "open", "open sesame!", "other"):
        async with HubClient(url, token) as untrusted:
            with pytest.raises(TrustError, match="join token"):
                await untrusted.view()
            with pytest.raises(TrustError, match="join token"):
                await untrusted.join(node(2))
    async with aiohttp.ClientSession() as session:
        for path, status in {"/healthz": 200, "/metrics": 401, "/v1/status": 401, "/nowhere": 401}.items():
            async with session.get(url + path) as answer:
                assert answer.status == status
    assert len(service.core) == 1
    await service.stop()


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/v1/join", b"", 400, "FormatError"),
        ("/v1/join", b"{", 400, "FormatError"),
        ("/v1/join", b"\xff\xfe", 400, "FormatError"),
        ("/v1/join", b"[" * 50_000, 400, "FormatError"),
        ("/v1/join", b'{"info":{"node":"1","role":"king"}}', 400, "FormatError"),
        ("/v1/join", b" " * 70_000, 413, "FormatError"),
        ("/v1/renew", b'{"lease":"none"}', 404, "LeaseError"),
        ("/v1/renew", b'{"lease":"\\ud800"}', 400, "FormatError"),
        ("/v1/announce", b'{"token":"none"}', 404, "LeaseError"),
        ("/v1/announce", b'{"token":"none","manifests":["!"]}', 400, "FormatError"),
        ("/v1/nowhere", b"{}", 404, "HubError"),
        ("/v1/view", b"{}", 405, "HubError"),
    ],
)
async def test_every_refusal_is_one_line_of_json(url: str, path: str, body: bytes, status: int, kind: str) -> None:
    async with aiohttp.ClientSession() as session, session.post(url + path, data=body) as answer:
        assert answer.status == status
        refusal = await answer.json()
    assert refusal["error"] == kind
    assert refusal["message"] and "\n" not in refusal["message"]


async def test_a_body_of_unknown_length_is_bounded_too(url: str) -> None:
    async def endless():
        for _ in range(20):
            yield b" " * 10_000

    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/join", data=endless()) as answer:
        assert answer.status == 413


@pytest.mark.parametrize("query", ["revision=x", "revision=nan", "wait=soon", "wait=inf", "revision=1e999"])
async def test_a_query_that_is_no_number_is_refused(url: str, query: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/view?{query}") as answer:
        assert answer.status == 400


async def test_an_unknown_manifest_is_not_found(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/manifests/{'ab' * 32}") as answer:
        assert (answer.status, (await answer.json())["error"]) == (404, "HubError")


async def test_a_port_in_use_is_named(hub: HubService) -> None:
    other = HubService(HubConfig(trusted=TRUSTED))
    with pytest.raises(P2PSyncError, match=f"port {hub.port} .* in use"):
        await other.start("127.0.0.1", hub.port)
    await other.stop()


async def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(P2PSyncError, match="cannot listen on 192\\.0\\.2\\.1"):
        await HubService(HubConfig(trusted=TRUSTED)).start("192.0.2.1", 0)


async def test_status_shows_the_view_and_ages(hub: HubService, client: HubClient, clock: Clock) -> None:
    lease = (await client.join(node(1))).lease
    clock.now += 4
    await client.renew(lease)
    clock.now += 1
    status = await client.status()
    assert (status.uptime, status.ages[0].joined, status.ages[0].heard) == (5, 5, 1)
    assert status.view.members[0].info == node(1)


async def test_metrics_count_members_announcements_and_requests(url: str, client: HubClient) -> None:
    await client.join(node(1))
    token = (await client.claim(KEY, node=TRAINER, run=RUN, epoch=3)).token
    await client.announce(token, [manifest(6, epoch=3)])
    async with aiohttp.ClientSession() as session:
        await (await session.get(f"{url}/v1/manifests/none")).release()
        text = await (await session.get(f"{url}/metrics")).text()
    for line in [
        "p2psync_hub_members 1.0",
        "p2psync_hub_announcements 1.0",
        "p2psync_hub_epoch 3.0",
        "p2psync_hub_head_version 6.0",
        'p2psync_hub_requests_total{route="/v1/join",status="200"} 1.0',
        'p2psync_hub_requests_total{route="/v1/manifests/{id}",status="404"} 1.0',
    ]:
        assert line in text


async def test_an_embedder_adds_routes_that_answer_errors_alike(clock: Clock) -> None:
    async def broken(_request: web.Request) -> web.Response:
        raise HubError("of its own")

    service = HubService(HubConfig(trusted=TRUSTED), token="secret")
    service.build_app().router.add_get("/v1/mine", broken)
    url = f"http://127.0.0.1:{await service.start('127.0.0.1', 0)}"
    async with HubClient(url, "secret") as client:
        with pytest.raises(HubError, match="of its own"):
            await client.get("/v1/mine", 100)
    async with HubClient(url) as untrusted:
        with pytest.raises(TrustError, match="join token"):
            await untrusted.get("/v1/mine", 100)
    await service.stop()


async def test_too_many_long_polls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2psync.net.hub._EXTRA_LONG_POLLS", 0)
    service = HubService(HubConfig(trusted=TRUSTED, max_members=1))
    async with HubClient(f"http://127.0.0.1:{await service.start('127.0.0.1', 0)}") as client:
        poll = asyncio.create_task(client.view(service.core.instance, 0, wait=30))
        await until(lambda: service.waiting == 1)
        with pytest.raises(HubError, match="too many"):
            await client.view(service.core.instance, 0, wait=30)
        await service.stop()
        await poll


async def test_stopping_twice_or_unstarted_does_nothing(hub: HubService) -> None:
    await hub.stop()
    await hub.stop()
    await HubService(HubConfig(trusted=TRUSTED)).stop()


@pytest.mark.skipif(not tcp.offers("bbr"), reason="BBR is not offered here")
async def test_a_long_polls_congestion_window_survives_idleness(
    client: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    disable_idle_restart = tcp.disable_idle_restart

    def seen(sock: object) -> None:
        disable_idle_restart(sock)
        names.append(tcp.congestion_of(sock))

    monkeypatch.setattr(tcp, "disable_idle_restart", seen)
    usual = tcp.congestion_of(socket.socket())
    view = await client.view()
    assert names == []
    await client.view(view.instance, view.revision - 1, 5.0)
    assert names == [usual], "a near connection keeps its congestion control"
    monkeypatch.setattr(tcp, "NEAR_RTT_SECONDS", 0.0)
    await client.view(view.instance, view.revision - 1, 5.0)
    assert names == [usual, "bbr"]
