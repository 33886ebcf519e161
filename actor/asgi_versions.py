"""Versions on requests (`p2psync.actor.demand`), as middleware of an ASGI server that runs the engine, such as vLLM's.

It does inside of a server what `p2psync.actor.rollout_server` does in front of one. It handles paths of inference only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

import msgspec

from p2psync.actor.demand import (
    LiveState,
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

#: Prefixes of the paths whose answers carry versions.
INFERENCE_PATHS = ("/v1/", "/inference/")
#: Attribute of the application's state that holds the `LiveVersion`; absent if this process does not conduct.
STATE_ATTRIBUTE = "p2psync_live"
_Message = MutableMapping[str, Any]
_AsgiSend = Callable[[_Message], Awaitable[None]]


class VersionMiddleware:
    """ASGI middleware: `app.add_middleware(VersionMiddleware)`."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: _Message, receive: Callable[[], Awaitable[_Message]], send: _AsgiSend) -> None:
        """Handles one request. Without a live version and without a demand, it passes the request on unchanged."""
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
        return await self._app(scope, receive, _VersionedAnswer(live, demand, start, send).send)


class _VersionedAnswer:
    """One answer. Streams are passed on as they come and get a trailer; others are held until their end is known."""

    def __init__(self, live: LiveVersion, demand: VersionDemand, start: LiveState, send: _AsgiSend) -> None:
        self._live, self._demand, self._start, self._send = live, demand, start, send
        self._head: _Message = {}
        self._trailer: StreamTrailer | None = None
        self._body = b""

    async def send(self, message: _Message) -> None:
        if message["type"] == "http.response.start":
            await self._begin_answer(message)
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self._trailer is not None:
            await self._send_part(self._trailer, message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_whole()

    async def _begin_answer(self, message: _Message) -> None:
        headers = _headers(message.get("headers", ()))
        kind = headers.get("content-type", "").split(";")[0].strip()
        self._head = dict(message)
        if StreamTrailer.can_carry(kind):
            self._trailer = StreamTrailer(kind)
            await self._send_head(start_headers(self._start), without=b"content-length")

    async def _send_part(self, trailer: StreamTrailer, message: _Message) -> None:
        body, more = trailer.feed(message.get("body", b"")), bool(message.get("more_body", False))
        if not more:
            body += trailer.finish(version_span(self._start, await self._live.read()))
        if body or not more:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _send_whole(self) -> None:
        end = await self._live.read()
        if (refusal := changed_during(self._demand, self._start, end)) is not None:
            await _refuse(self._send, refusal)
            return
        await self._send_head({**start_headers(self._start), **end_headers(version_span(self._start, end))})
        await self._send({"type": "http.response.body", "body": self._body})

    async def _send_head(self, added: Mapping[str, str], without: bytes = b"") -> None:
        kept = [(name, value) for name, value in self._head.get("headers", ()) if name.lower() != without]
        await self._send({**self._head, "headers": [*kept, *_encoded(added)]})


async def _read(live: LiveVersion | None) -> LiveState | None:
    """Returns the live version; None if it is unknown, because commits are conducted elsewhere, or no longer."""
    with suppress(EngineError):
        return None if live is None else await live.read()
    return None


async def _refuse(send: _AsgiSend, refusal: UnmetDemand) -> None:
    await _answer(send, 409, msgspec.json.encode(refusal), refusal_headers(refusal, 1.0))


async def _answer(send: _AsgiSend, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    every = {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(every)})
    await send({"type": "http.response.body", "body": body})


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


class _Headers(dict[str, str]):
    """Headers by name, which ignores case."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


def _headers(pairs: Any) -> Mapping[str, str]:
    return _Headers((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in pairs)
