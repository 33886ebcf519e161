"""Versions on requests (`p2psync.actor.demand`) inside of an ASGI server that runs the engine itself, such as vLLM's.

What `p2psync.actor.rollout_server` does in front of a server, without a second one. Only paths of inference are looked
at.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

import msgspec

from p2psync.actor.demand import (
    LiveReading,
    UnmetDemand,
    VersionDemand,
    changed_during,
    demand_of,
    end_headers,
    refusal_headers,
    start_headers,
    unmet_demand,
    version_span,
)
from p2psync.actor.live_version import LiveVersion
from p2psync.actor.stream_trailer import StreamTrailer
from p2psync.errors import EngineError, P2PSyncError
from p2psync.net.hub_wire import encode_error, status_of

#: Paths that begin so are answered with versions.
INFERENCE_PATHS = ("/v1/", "/inference/")
#: Where the application's state holds the `LiveVersion`; nothing: this process does not conduct.
STATE_ATTRIBUTE = "p2psync_live"
_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]


class VersionMiddleware:
    """`app.add_middleware(VersionMiddleware)`."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: _Message, receive: Callable[[], Awaitable[_Message]], send: _Send) -> None:
        """One request. Without a version, and without a demand for one, the engine answers as it would alone."""
        if scope["type"] != "http" or not scope["path"].startswith(INFERENCE_PATHS):
            return await self._app(scope, receive, send)
        live: LiveVersion | None = getattr(scope["app"].state, STATE_ATTRIBUTE, None)
        try:
            demand = demand_of(_headers(scope["headers"]))
            start = await _read(live)
            if start is None and demand != VersionDemand():
                raise EngineError("this process does not know which version is live: serve with one API process")
        except P2PSyncError as error:
            status = 502 if isinstance(error, EngineError) else status_of(error)
            return await _answer(send, status, encode_error(error), {})
        if live is None or start is None or (start.position is None and demand == VersionDemand()):
            return await self._app(scope, receive, send)
        if (refusal := unmet_demand(demand, start.position)) is not None:
            return await _refuse(send, refusal)
        return await self._app(scope, receive, _Marked(live, demand, start, send).send)


class _Marked:
    """One answer. Streams go on as they come, and end with their mark; others are held until their end is known."""

    def __init__(self, live: LiveVersion, demand: VersionDemand, start: LiveReading, send: _Send) -> None:
        self._live, self._demand, self._start, self._send = live, demand, start, send
        self._begin: _Message = {}
        self._mark: StreamTrailer | None = None
        self._body = b""

    async def send(self, message: _Message) -> None:
        if message["type"] == "http.response.start":
            await self._begun(message)
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self._mark is not None:
            await self._part(self._mark, message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._whole()

    async def _begun(self, message: _Message) -> None:
        headers = _headers(message.get("headers", ()))
        kind = headers.get("content-type", "").split(";")[0].strip()
        self._begin = dict(message)
        if StreamTrailer.can_carry(kind):
            self._mark = StreamTrailer(kind)
            await self._send_begin(start_headers(self._start), without=b"content-length")

    async def _part(self, mark: StreamTrailer, message: _Message) -> None:
        body, more = mark.feed(message.get("body", b"")), bool(message.get("more_body", False))
        if not more:
            body += mark.finish(version_span(self._start, await self._live.read()))
        if body or not more:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _whole(self) -> None:
        end = await self._live.read()
        if (refusal := changed_during(self._demand, self._start, end)) is not None:
            await _refuse(self._send, refusal)
            return
        await self._send_begin({**start_headers(self._start), **end_headers(version_span(self._start, end))})
        await self._send({"type": "http.response.body", "body": self._body})

    async def _send_begin(self, added: Mapping[str, str], without: bytes = b"") -> None:
        kept = [(name, value) for name, value in self._begin.get("headers", ()) if name.lower() != without]
        await self._send({**self._begin, "headers": [*kept, *_encoded(added)]})


async def _read(live: LiveVersion | None) -> LiveReading | None:
    """What is live; None where nobody knows, because commits are conducted elsewhere, or no more."""
    with suppress(EngineError):
        return None if live is None else await live.read()
    return None


async def _refuse(send: _Send, refusal: UnmetDemand) -> None:
    await _answer(send, 409, msgspec.json.encode(refusal), refusal_headers(refusal, 1.0))


async def _answer(send: _Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    every = {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(every)})
    await send({"type": "http.response.body", "body": body})


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


class _Headers(dict[str, str]):
    """By name, in any case."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


def _headers(pairs: Any) -> Mapping[str, str]:
    return _Headers((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in pairs)
