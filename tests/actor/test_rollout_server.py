"""Versions on requests, over HTTP, with commits by another thread while answers are made."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import aiohttp
import pytest
from aiohttp import web

from p2psync.actor.commit_lock import CommitLock
from p2psync.actor.live_version import LiveVersion
from p2psync.actor.rollout_proxy import ProxyEngine
from p2psync.actor.rollout_server import RolloutAnswer, RolloutRequest, RolloutServer
from p2psync.actor.stream_trailer import EVENT_STREAM, JSON_LINES, read_trailer
from p2psync.errors import EngineError, UsageError
from p2psync.protocol.versions import Position

LIMIT = 10.0


class Weights:
    """An engine whose version changes only under the write lock."""

    def __init__(self) -> None:
        self.commit_lock = CommitLock()
        self.position: Position | None = None

    def commit(self, version: int, during_commit: Callable[[], object] = lambda: None) -> None:
        """Changes the version in a thread of its own, as a commit does."""
        with self.commit_lock.write_lock():
            self.position = None  # nobody may see this
            during_commit()
            self.position = Position(
                run="r",
                epoch=1,
                version=version,
                digest=version.to_bytes(1, "little") * 16 if version < 256 else version.to_bytes(16, "little"),
            )

    async def committed(self, version: int) -> None:
        thread = threading.Thread(target=self.commit, args=(version,))
        thread.start()
        await asyncio.to_thread(thread.join, LIMIT)
        assert not thread.is_alive()


class Turns:
    """Events: an answer has started, and an answer may continue."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def pause(self) -> None:
        self.begun.set()
        async with asyncio.timeout(LIMIT):
            await self.go_on.wait()


@pytest.fixture
def weights() -> Weights:
    made = Weights()
    made.commit(3)
    return made


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


class Served:
    def __init__(self, server: RolloutServer, port: int, session: aiohttp.ClientSession) -> None:
        self.server, self.session = server, session
        self.url = f"http://127.0.0.1:{port}"

    async def ask(self, path: str = "/v1/completions", body: bytes = b"{}", **headers: object) -> Got:
        named = {name.replace("_", "-"): str(value) for name, value in headers.items()}
        async with asyncio.timeout(LIMIT), self.session.post(self.url + path, data=body, headers=named) as answer:
            return Got(answer.status, await answer.read(), answer.headers)


class Got:
    def __init__(self, status: int, body: bytes, headers: object) -> None:
        self.status, self.body, self.headers = status, body, headers

    @property
    def span(self) -> tuple[int, int, int]:
        h = self.headers
        return int(h["P2PSync-Start-Version"]), int(h["P2PSync-End-Version"]), int(h["P2PSync-Commits"])


Serve = Callable[..., object]


@pytest.fixture
async def serve(weights: Weights, session: aiohttp.ClientSession) -> AsyncIterator[Serve]:
    servers: list[RolloutServer] = []

    async def start(engine: object, **options: object) -> Served:
        live = LiveVersion(weights.commit_lock, lambda: weights.position)
        server = RolloutServer(live, engine, **options)  # type: ignore[arg-type]
        servers.append(server)
        return Served(server, await server.start("127.0.0.1", 0), session)

    yield start
    for server in servers:
        await server.stop()


async def at_once(asked: RolloutRequest) -> RolloutAnswer:
    return RolloutAnswer(body=b"answer to " + asked.body)


def paused(turns: Turns) -> object:
    async def engine(asked: RolloutRequest) -> RolloutAnswer:
        await turns.pause()
        return RolloutAnswer(body=b"done")

    return engine


async def test_an_answer_carries_its_versions(serve: Serve) -> None:
    served = await serve(at_once)
    got = await served.ask(body=b"x")
    assert (got.status, got.body, got.span) == (200, b"answer to x", (3, 3, 0))
    assert got.headers["P2PSync-Start-Digest"] == got.headers["P2PSync-End-Digest"] == "03" * 16


async def test_an_answer_counts_the_commits_during_it(serve: Serve, weights: Weights) -> None:
    turns = Turns()
    served = await serve(paused(turns))
    asked = asyncio.create_task(served.ask(P2PSync_Min_Version=3))
    await turns.begun.wait()
    await weights.committed(4)  # it does not wait for the answer
    turns.go_on.set()
    got = await asked
    assert (got.status, got.span) == (200, (3, 4, 1))
    assert (got.headers["P2PSync-Start-Digest"], got.headers["P2PSync-End-Digest"]) == ("03" * 16, "04" * 16)


async def test_a_request_during_a_commit_waits_for_it(serve: Serve, weights: Weights) -> None:
    served = await serve(at_once)
    inside, go_on = threading.Event(), threading.Event()

    def during_commit() -> None:
        inside.set()
        go_on.wait(LIMIT)

    thread = threading.Thread(target=weights.commit, args=(4, during_commit))
    thread.start()
    await asyncio.to_thread(inside.wait, LIMIT)
    asked = [asyncio.create_task(served.ask(P2PSync_Exact_Version=version)) for version in (3, 4)]
    async with asyncio.timeout(LIMIT):
        while served.server.requests < 2 and not any(task.done() for task in asked):  # noqa: ASYNC110
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    early = [task for task in asked if task.done()]
    go_on.set()
    assert [(await task).status for task in asked] == [409, 200]
    thread.join(LIMIT)
    assert not early


async def test_demands_that_are_not_met_yet_can_be_asked_again(serve: Serve, weights: Weights) -> None:
    served = await serve(at_once, retry_after=lambda: 7.0)
    for name in ("P2PSync-Min-Version", "P2PSync-Exact-Version"):
        got = await served.ask(**{name: 4})
        assert (got.status, got.headers["Retry-After"], got.headers["P2PSync-Live-Version"]) == (409, "7", "3")
        assert json.loads(got.body)["reason"] == "not_yet"
    await weights.committed(4)
    assert (await served.ask(P2PSync_Exact_Version=4)).span == (4, 4, 0)
    passed = await served.ask(P2PSync_Exact_Version=3)
    assert (passed.status, json.loads(passed.body)["reason"], json.loads(passed.body)["retry"]) == (
        409,
        "passed",
        False,
    )
    assert "Retry-After" not in passed.headers


async def test_nothing_is_answered_before_the_first_version(session: aiohttp.ClientSession) -> None:
    empty = Weights()
    server = RolloutServer(LiveVersion(empty.commit_lock, lambda: empty.position), at_once)
    served = Served(server, await server.start("127.0.0.1", 0), session)
    assert (await served.ask()).status == 409
    await server.stop()


async def test_an_exact_demand_fails_when_a_commit_replaces_the_version(serve: Serve, weights: Weights) -> None:
    turns = Turns()
    served = await serve(paused(turns))
    asked = asyncio.create_task(served.ask(P2PSync_Exact_Version=3))
    await turns.begun.wait()
    await weights.committed(4)
    turns.go_on.set()
    got = await asked
    assert (got.status, json.loads(got.body)["reason"]) == (409, "passed")


async def test_with_hold_a_commit_waits_for_the_answer(serve: Serve, weights: Weights) -> None:
    turns = Turns()
    served = await serve(paused(turns), hold=True)
    asked = asyncio.create_task(served.ask())
    await turns.begun.wait()
    committing = asyncio.create_task(weights.committed(4))
    async with asyncio.timeout(LIMIT):
        while not weights.commit_lock.write_requested:  # noqa: ASYNC110 (the lock has no event for it)
            await asyncio.sleep(0)
    assert weights.position is not None and weights.position.version == 3
    late = asyncio.create_task(served.ask())  # comes after the commit, which it must not keep out
    turns.go_on.set()
    assert (await asked).span == (3, 3, 0)
    await committing
    assert (await late).span == (4, 4, 0)


def streaming(turns: Turns, *parts: bytes, content_type: str = EVENT_STREAM) -> object:
    async def body() -> AsyncGenerator[bytes, None]:
        yield parts[0]
        await turns.pause()
        for part in parts[1:]:
            yield part

    async def engine(asked: RolloutRequest) -> RolloutAnswer:
        return RolloutAnswer(body=body(), content_type=content_type)

    return engine


@pytest.mark.parametrize("content_type", [EVENT_STREAM, JSON_LINES])
async def test_a_stream_ends_with_its_last_version(serve: Serve, weights: Weights, content_type: str) -> None:
    turns = Turns()
    parts = (
        (b"data: a\n\n", b"data: b\n\n", b"data: [DONE]\n\n") if content_type == EVENT_STREAM else (b"{}\n", b"{}\n")
    )
    served = await serve(streaming(turns, *parts, content_type=content_type))
    async with served.session.post(served.url) as answer:
        assert answer.headers["P2PSync-Start-Version"] == "3"
        assert await answer.content.readany() == parts[0]  # as it comes
        await weights.committed(4)
        turns.go_on.set()
        rest = await answer.content.read()
    found = read_trailer(rest)
    assert found is not None
    assert (found.start_version, found.end_version, found.commits) == (3, 4, 1)
    assert rest.endswith(parts[-1]) == (content_type == EVENT_STREAM)


async def test_a_stream_that_breaks_off_has_no_trailer(serve: Serve) -> None:
    async def body() -> AsyncGenerator[bytes, None]:
        yield b"data: a\n\n"
        raise EngineError("gone")

    async def engine(asked: RolloutRequest) -> RolloutAnswer:
        return RolloutAnswer(body=body(), content_type=EVENT_STREAM)

    served = await serve(engine)
    with pytest.raises(aiohttp.ClientError):
        await served.ask()


async def test_versions_are_right_under_random_commits(serve: Serve, weights: Weights) -> None:
    """Each token names the version under which the engine made it; the answer's versions must agree."""
    newest, committing = 3, asyncio.Lock()
    rng = random.Random(1)

    async def engine(asked: RolloutRequest) -> RolloutAnswer:
        nonlocal newest
        seen = []
        for _ in range(5):
            async with weights.commit_lock.read_lock_async():
                assert weights.position is not None
                seen.append(weights.position.version)
            if rng.random() < 0.1:
                async with committing:
                    newest += 1
                    await weights.committed(newest)
            await asyncio.sleep(0)
        return RolloutAnswer(body=json.dumps(seen).encode())

    served = await serve(engine)
    answers = []
    for _ in range(20):
        answers += await asyncio.gather(*(served.ask() for _ in range(5)))
    for got in answers:
        start, end, commits = got.span
        assert start <= min(json.loads(got.body)) and max(json.loads(got.body)) <= end
        assert commits == end - start
    assert any(got.span[2] for got in answers)


async def test_requests_over_the_limit_get_429(serve: Serve) -> None:
    turns = Turns()
    served = await serve(paused(turns), max_requests=1)
    first = asyncio.create_task(served.ask())
    await turns.begun.wait()
    refused = await served.ask()
    assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
    turns.go_on.set()
    assert (await first).status == 200 and served.server.requests == 0


async def test_malformed_requests_are_refused(serve: Serve) -> None:
    served = await serve(at_once)
    assert (await served.ask(P2PSync_Min_Version="new")).status == 400
    assert (await served.ask(body=bytes((16 << 20) + 1))).status == 413


# ---- in front of another server --------------------------------------------------------------------------------------


@pytest.fixture
async def upstream() -> AsyncIterator[str]:
    async def complete(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if not asked.get("stream"):
            return web.json_response({"asked": asked, "seen": sorted(name.lower() for name in request.headers)})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Own": "1"})
        await response.prepare(request)
        for _ in range(3):
            await response.write(b'data: {"choices":[]}\n\n')
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    app.router.add_post("/pause", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_proxied_server_answers_whole_and_streamed(serve: Serve, upstream: str) -> None:
    async with ProxyEngine(upstream) as engine:
        served = await serve(engine)
        got = await served.ask(body=b'{"prompt":"a"}', Content_Type="application/json", P2PSync_Exact_Version=3)
        assert (got.status, got.span) == (200, (3, 3, 0))
        told = json.loads(got.body)
        assert told["asked"] == {"prompt": "a"} and "p2psync-exact-version" not in told["seen"]
        streamed = await served.ask(body=b'{"stream":true}', Content_Type="application/json")
        assert streamed.headers["X-Own"] == "1"
        assert streamed.body.count(b"data: {") == 3 and streamed.body.endswith(b"data: [DONE]\n\n")
        found = read_trailer(streamed.body)
        assert found is not None and (found.start_version, found.end_version) == (3, 3)


async def test_only_inference_is_forwarded(serve: Serve, upstream: str) -> None:
    async with ProxyEngine(upstream) as engine:
        served = await serve(engine)
        for path in ("/pause", "/v1/../pause", "/", "/v1/%2e%2e/pause"):
            assert (await served.ask(path)).status == 404
        assert (await served.ask("/v1/unknown")).status == 404


async def test_an_unreachable_server_is_a_bad_gateway(serve: Serve) -> None:
    async with ProxyEngine("http://127.0.0.1:1") as engine:
        assert (await (await serve(engine)).ask()).status == 502
    with pytest.raises(UsageError):
        ProxyEngine("here")
