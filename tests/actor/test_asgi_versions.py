"""Versions on requests in ASGI middleware, with commits while answers are made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from p2psync.actor.asgi_versions import STATE_ATTRIBUTE, VersionMiddleware
from p2psync.actor.commit_lock import CommitLock
from p2psync.actor.live_version import LiveVersion
from p2psync.actor.stream_trailer import read_trailer
from p2psync.errors import EngineError
from p2psync.protocol.versions import Position


class Server:
    """An application with one answer, and the client's view of it."""

    def __init__(self, parts: list[bytes], kind: str = "application/json", version: int | None = 3) -> None:
        self.parts, self.kind = parts, kind
        self.commit_lock = CommitLock()
        self.version = version
        self.between: Callable[[], Awaitable[None]] = self.nothing
        self.asked = 0
        self.state = SimpleNamespace(**{STATE_ATTRIBUTE: LiveVersion(self.commit_lock, self.position)})

    def position(self) -> Position | None:
        if self.version is None:
            return None
        return Position(run="r", epoch=1, version=self.version, digest=bytes([self.version]) * 16)

    async def nothing(self) -> None:
        """Commits nothing."""

    async def commit(self) -> None:
        async with self.commit_lock.write_lock_async():
            self.version = (self.version or 0) + 1

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        length = str(sum(map(len, self.parts))).encode()
        headers = [(b"content-type", self.kind.encode() + b"; charset=utf-8"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, part in enumerate(self.parts):
            if number == 1:
                await self.between()
            await send({"type": "http.response.body", "body": part, "more_body": number + 1 < len(self.parts)})

    async def ask(self, path: str = "/v1/completions", **headers: str) -> tuple[int, dict[str, str], bytes]:
        sent: list[Any] = []
        pairs = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "path": path, "headers": pairs, "app": self}

        async def send(message: Any) -> None:
            sent.append(message)

        await VersionMiddleware(self.app)(scope, None, send)  # type: ignore[arg-type]
        first, *rest = sent
        told = {name.decode(): value.decode() for name, value in first["headers"]}
        assert [part.get("more_body", False) for part in rest][-1] is False
        return first["status"], told, b"".join(part["body"] for part in rest)


@pytest.mark.parametrize("path", ["/v1/completions", "/inference/v1/generate"])
async def test_an_answer_carries_its_versions(path: str) -> None:
    server = Server([b'{"a":', b"1}"])
    status, headers, body = await server.ask(path, P2PSync_Min_Version="3")
    assert (status, body) == (200, b'{"a":1}')
    assert (headers["p2psync-start-version"], headers["p2psync-end-version"]) == ("3", "3")
    assert (headers["p2psync-commits"], headers["p2psync-end-digest"]) == ("0", "03" * 16)
    server.between = server.commit
    _, headers, _ = await server.ask()
    assert (headers["p2psync-start-version"], headers["p2psync-end-version"]) == ("3", "4")
    assert headers["p2psync-commits"] == "1"


async def test_a_stream_ends_with_its_versions() -> None:
    server = Server([b"data: 1\n\n", b"data: 2\n\nda", b"ta: [DONE]\n\n", b""], "text/event-stream")
    server.between = server.commit
    status, headers, body = await server.ask()
    assert (status, headers["p2psync-start-version"]) == (200, "3")
    assert "content-length" not in headers
    found = read_trailer(body)
    assert found is not None
    assert (found.start_version, found.end_version, found.commits) == (3, 4, 1)
    assert body.startswith(b"data: 1\n\ndata: 2\n\n: p2psync ")
    assert body.endswith(b"data: [DONE]\n\n")


async def test_an_unmet_demand_is_409_and_does_not_reach_the_engine() -> None:
    server = Server([b"{}"])
    status, headers, body = await server.ask(P2PSync_Min_Version="4")
    assert (status, headers["retry-after"], headers["p2psync-live-version"]) == (409, "1", "3")
    assert json.loads(body)["reason"] == "not_yet"
    status, headers, body = await server.ask(P2PSync_Exact_Version="2")
    assert (status, json.loads(body)["reason"], "retry-after" in headers) == (409, "passed", False)
    status, _, _ = await server.ask(P2PSync_Exact_Version="x")
    assert status == 400
    assert server.asked == 0


async def test_a_commit_during_an_answer_fails_an_exact_demand() -> None:
    server = Server([b"{", b"}"])
    server.between = server.commit
    status, _, body = await server.ask(P2PSync_Exact_Version="3")
    assert (status, json.loads(body)["reason"]) == (409, "passed")


async def test_without_a_version_only_demands_are_refused() -> None:
    server = Server([b"{}"], version=None)
    assert await server.ask() == (
        200,
        {"content-type": "application/json; charset=utf-8", "content-length": "2"},
        b"{}",
    )
    assert (await server.ask(P2PSync_Min_Version="0"))[0] == 409
    server.commit_lock.end(EngineError("commits are no longer conducted"))
    assert (await server.ask())[0] == 200
    assert (await server.ask(P2PSync_Min_Version="0"))[0] == 502
    delattr(server.state, STATE_ATTRIBUTE)
    assert (await server.ask())[0] == 200
    assert (await server.ask(P2PSync_Min_Version="0"))[0] == 502


async def test_no_version_is_read_in_the_middle_of_a_commit() -> None:
    server = Server([b"{}"])
    async with server.commit_lock.write_lock_async():
        asked = asyncio.create_task(server.ask())
        for _ in range(5):
            await asyncio.sleep(0)
        assert server.asked == 0
        server.version = 4
    _, headers, _ = await asked
    assert headers["p2psync-start-version"] == "4"
    assert (await server.ask("/health"))[1].keys() == {"content-type", "content-length"}
