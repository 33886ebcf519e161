"""Serves any rollout engine over HTTP, with the versions of `p2psync.actor.demand` on requests and answers.

    server = RolloutServer(subscriber.live, engine)    # an async function, or ProxyEngine("http://127.0.0.1:8000")
    port = await server.start("0.0.0.0", 8001)

Commits happen while answers are made; they wait only while a version is read. With `hold` a commit waits for the
answers under way, and no answer spans two versions: for engines whose weights must not change within an answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from aiohttp import web

from p2psync.actor.demand import (
    LiveState,
    UnmetDemand,
    VersionDemand,
    VersionSpan,
    changed_during,
    demand_of,
    end_headers,
    refusal_headers,
    start_headers,
    unmet_demand,
    version_span,
)
from p2psync.actor.live_version import LiveVersionReader
from p2psync.actor.stream_trailer import StreamTrailer
from p2psync.errors import EngineError, P2PSyncError
from p2psync.net.hub_wire import TooLargeError, encode_error, read_bounded, status_of

#: Maximum bytes of a request, and of an answer that is not streamed.
MAX_REQUEST = 16 << 20
MAX_ANSWER = 64 << 20


@dataclass(frozen=True, kw_only=True)
class RolloutRequest:
    """A request as an engine gets it. path: with its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, kw_only=True)
class RolloutAnswer:
    """An engine's answer. body: whole, or as a stream."""

    body: bytes | AsyncGenerator[bytes, None]
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class RolloutEngine(Protocol):
    """Answers requests. The call is cancelled when the client disconnects."""

    async def __call__(self, request: RolloutRequest) -> RolloutAnswer:
        """Returns the answer. Raises `P2PSyncError`."""


class RolloutServer:
    """Serves an engine on one event loop."""

    def __init__(
        self,
        live: LiveVersionReader,
        engine: RolloutEngine,
        *,
        hold: bool = False,
        max_requests: int = 1024,
        retry_after: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """hold: see the module. max_requests: answered at a time; more get 429. retry_after: returns the seconds until
        a demanded version may be live."""
        self._live = live
        self._engine = engine
        self._hold = hold
        self._max_requests = max_requests
        self._retry_after = retry_after
        self._requests = 0
        self._runner: web.AppRunner | None = None

    @property
    def requests(self) -> int:
        """The number of requests that are being answered."""
        return self._requests

    async def start(self, host: str, port: int) -> int:
        """Starts to serve, until `stop`; returns the port. Raises OSError."""
        app = web.Application(client_max_size=MAX_REQUEST)
        app.router.add_route("*", "/{path:.*}", self.serve)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=2.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stops serving. Does nothing if not started."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Handles a request; may be added to any aiohttp application."""
        if self._requests >= self._max_requests:
            return web.Response(status=429, headers={"Retry-After": "1"}, text="too many requests at a time\n")
        self._requests += 1
        try:
            return await self._serve(request)
        except P2PSyncError as error:
            status = 502 if isinstance(error, EngineError) else status_of(error)
            return web.Response(status=status, body=encode_error(error), content_type="application/json")
        finally:
            self._requests -= 1

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        demand = demand_of(request.headers)
        body = await read_bounded(request.content.iter_any(), MAX_REQUEST)
        if body is None:
            raise TooLargeError(f"a request of more than {MAX_REQUEST} bytes")
        async with self._start() as start:
            if (refusal := unmet_demand(demand, start.position)) is not None:
                return self._refuse(refusal)
            inner = RolloutRequest(method=request.method, path=request.path_qs, headers=request.headers, body=body)
            answer = await self._engine(inner)
            if isinstance(answer.body, bytes):
                return await self._answer_whole(demand, start, answer, answer.body)
            if StreamTrailer.can_carry(answer.content_type):
                return await self._stream(request, start, answer, answer.body)
            whole = await read_bounded(answer.body, MAX_ANSWER)
            if whole is None:
                raise EngineError(f"an answer of more than {MAX_ANSWER} bytes that cannot be streamed")
            return await self._answer_whole(demand, start, answer, whole)

    @asynccontextmanager
    async def _start(self) -> AsyncIterator[LiveState]:
        if self._hold:
            async with self._live.hold() as state:
                yield state
        else:
            yield await self._live.read()

    async def _span(self, start: LiveState) -> tuple[LiveState, VersionSpan]:
        # A holder of the read lock must not enter it again: a waiting commit keeps new readers out.
        end = start if self._hold else await self._live.read()
        return end, version_span(start, end)

    async def _answer_whole(
        self, demand: VersionDemand, start: LiveState, answer: RolloutAnswer, body: bytes
    ) -> web.Response:
        end, found = await self._span(start)
        if (refusal := changed_during(demand, start, end)) is not None:
            return self._refuse(refusal)
        return web.Response(
            body=body,
            status=answer.status,
            content_type=answer.content_type,
            headers={**answer.headers, **start_headers(start), **end_headers(found)},
        )

    async def _stream(
        self, request: web.Request, start: LiveState, answer: RolloutAnswer, parts: AsyncGenerator[bytes, None]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers={**answer.headers, **start_headers(start)})
        response.content_type = answer.content_type
        await response.prepare(request)
        trailer = StreamTrailer(answer.content_type)
        try:
            async with aclosing(parts):
                async for part in parts:
                    if ready := trailer.feed(part):
                        await response.write(ready)
        except P2PSyncError:
            # It is too late for another status: a stream that ends without its trailer has failed.
            if request.transport is not None:
                request.transport.abort()
            return response
        _, found = await self._span(start)
        await response.write(trailer.finish(found))
        await response.write_eof()
        return response

    def _refuse(self, refusal: UnmetDemand) -> web.Response:
        headers = refusal_headers(refusal, self._retry_after())
        return web.Response(
            status=409, body=msgspec.json.encode(refusal), content_type="application/json", headers=headers
        )
