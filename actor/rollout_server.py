"""A rollout engine's HTTP face: any engine, with the versions of `p2psync.actor.demand` on requests and answers.

    face = RolloutFace(subscriber.live, engine)      # an async function, or ProxyEngine("http://127.0.0.1:8000")
    port = await face.start("0.0.0.0", 8001)

Commits go on while answers are made: they wait for nothing but the moment in which a version is read. With `hold` they
wait for the answers at hand, and an answer never spans two versions: for engines that cannot stand a change in between.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from aiohttp import web

from p2psync.actor.demand import (
    LiveReading,
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

#: Bounds of a request, and of an answer that is not streamed (bytes).
MAX_REQUEST = 16 << 20
MAX_ANSWER = 64 << 20


@dataclass(frozen=True, kw_only=True)
class RolloutRequest:
    """A request as an engine sees it. path: with its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, kw_only=True)
class RolloutAnswer:
    """An engine's answer. body: whole, or as it comes."""

    body: bytes | AsyncGenerator[bytes, None]
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class RolloutEngine(Protocol):
    """Answers requests; cancelled when the asker hangs up."""

    async def __call__(self, asked: RolloutRequest) -> RolloutAnswer:
        """Raises `P2PSyncError`."""


class RolloutServer:
    """Serves an engine. To be used on one loop."""

    def __init__(
        self,
        live: LiveVersionReader,
        engine: RolloutEngine,
        *,
        hold: bool = False,
        max_requests: int = 1024,
        retry_after: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """hold: see above. max_requests: answered at a time; more are told 429. retry_after: seconds until a version
        that is not there yet may be."""
        self._live = live
        self._engine = engine
        self._hold = hold
        self._max_requests = max_requests
        self._retry_after = retry_after
        self._requests = 0
        self._runner: web.AppRunner | None = None

    @property
    def requests(self) -> int:
        """That are being answered."""
        return self._requests

    async def start(self, host: str, port: int) -> int:
        """Serve until `stop`; returns the port. Raises OSError."""
        app = web.Application(client_max_size=MAX_REQUEST)
        app.router.add_route("*", "/{path:.*}", self.serve)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=2.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop serving. Does nothing if not started."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """The handler; may be put on any application."""
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
        async with self._begun() as start:
            if (refusal := unmet_demand(demand, start.position)) is not None:
                return self._refuse(refusal)
            asked = RolloutRequest(method=request.method, path=request.path_qs, headers=request.headers, body=body)
            answered = await self._engine(asked)
            if isinstance(answered.body, bytes):
                return await self._whole(demand, start, answered, answered.body)
            if StreamTrailer.can_carry(answered.content_type):
                return await self._stream(request, start, answered, answered.body)
            whole = await read_bounded(answered.body, MAX_ANSWER)
            if whole is None:
                raise EngineError(f"an answer of more than {MAX_ANSWER} bytes that cannot be streamed")
            return await self._whole(demand, start, answered, whole)

    @asynccontextmanager
    async def _begun(self) -> AsyncIterator[LiveReading]:
        if self._hold:
            async with self._live.hold() as reading:
                yield reading
        else:
            yield await self._live.read()

    async def _span(self, start: LiveReading) -> tuple[LiveReading, VersionSpan]:
        # Who holds the gate need not enter it again, and must not: a commit that waits keeps new readers out.
        end = start if self._hold else await self._live.read()
        return end, version_span(start, end)

    async def _whole(
        self, demand: VersionDemand, start: LiveReading, answered: RolloutAnswer, body: bytes
    ) -> web.Response:
        end, found = await self._span(start)
        if (refusal := changed_during(demand, start, end)) is not None:
            return self._refuse(refusal)
        return web.Response(
            body=body,
            status=answered.status,
            content_type=answered.content_type,
            headers={**answered.headers, **start_headers(start), **end_headers(found)},
        )

    async def _stream(
        self, request: web.Request, start: LiveReading, answered: RolloutAnswer, parts: AsyncGenerator[bytes, None]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answered.status, headers={**answered.headers, **start_headers(start)})
        response.content_type = answered.content_type
        await response.prepare(request)
        mark = StreamTrailer(answered.content_type)
        try:
            async with aclosing(parts):
                async for part in parts:
                    if ready := mark.feed(part):
                        await response.write(ready)
        except P2PSyncError:
            # It is too late for another status: a stream that breaks off without its mark says so.
            if request.transport is not None:
                request.transport.abort()
            return response
        _, found = await self._span(start)
        await response.write(mark.finish(found))
        await response.write_eof()
        return response

    def _refuse(self, refusal: UnmetDemand) -> web.Response:
        headers = refusal_headers(refusal, self._retry_after())
        return web.Response(
            status=409, body=msgspec.json.encode(refusal), content_type="application/json", headers=headers
        )
