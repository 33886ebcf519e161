"""The client against hubs that are absent, slow or endless, and against other servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from hub_parts import node

from p2psync.errors import FencedError, HubError, UsageError
from p2psync.net.hub_client import HubClient, check_url

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(answer: Answer, reply_timeout: float = 10.0) -> AsyncIterator[HubClient]:
    """A client of a server that answers every request by `answer`."""
    server = web.Server(answer)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with HubClient(f"http://127.0.0.1:{runner.addresses[0][1]}", timeout=reply_timeout) as client:
        yield client
    await runner.cleanup()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:80",
        "http://",
        "http://host",
        "ftp://host:1",
        "http://host:1/path",
        "http://host:1?q=1",
        "http://me@host:1",
        "http://host:99999",
        "http://host:port",
        "two\nlines",
    ],
)
def test_a_url_that_is_no_hub_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="http://host:port") as caught:
        check_url(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://host:1", "https://10.0.0.1:443/", "http://[::1]:8000"])
def test_a_url_of_a_hub_is_taken(url: str) -> None:
    assert str(check_url(url)) + "/" * url.endswith("/") == url.replace(":443", "")


def test_a_token_that_is_no_header_is_refused() -> None:
    with pytest.raises(UsageError, match="ASCII"):
        HubClient("http://host:1", "two\nlines")


async def test_a_hub_that_is_not_there_is_one_line() -> None:
    listener = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    async with HubClient(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(HubError, match=f"http://127.0.0.1:{port} cannot be reached") as caught:
            await client.join(node(1))
    assert "\n" not in str(caught.value)


async def test_a_hub_that_does_not_answer_times_out() -> None:
    async def silent(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with answering(silent, reply_timeout=0.05) as client:
        with pytest.raises(HubError, match="did not answer in time"):
            await client.renew("lease")


async def test_an_endless_answer_is_cut_off() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    async with answering(endless) as client:
        with pytest.raises(HubError, match="bound of 65536 bytes"):
            await client.renew("lease")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>welcome</html>"),
        (200, b'{"lease":5}'),
        (200, b"\xff"),
        (302, b""),
        (404, b"<html>nothing here</html>"),
        (409, b'{"error":"SystemExit","message":"x"}'),
        (409, b'{"error":"P2PSyncError","message":"x"}'),
        (500, b"\xff\xff"),
    ],
)
async def test_a_reply_of_another_server_is_named(status: int, body: bytes) -> None:
    async def strange(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={"Location": "http://elsewhere:1"})

    async with answering(strange) as client:
        with pytest.raises(HubError) as caught:
            await client.renew("lease")
        assert type(caught.value) is HubError and "\n" not in str(caught.value)


async def test_a_refusal_is_the_same_exception_here_in_one_line() -> None:
    async def fenced(_request: web.Request) -> web.Response:
        return web.json_response({"error": "FencedError", "message": "one\n\x1b[31mtwo" + "!" * 2000}, status=409)

    async with answering(fenced) as client:
        with pytest.raises(FencedError) as caught:
            await client.announce("token")
    assert str(caught.value).startswith("one [31mtwo") and len(str(caught.value)) <= 500


async def test_a_connection_that_breaks_is_the_hub_s_failure() -> None:
    async def breaks(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with answering(breaks) as client:
        with pytest.raises(HubError, match="cannot be reached"):
            await client.view(wait=1)
