"""The hub's routes: each decodes a bounded request, calls the core, and encodes the reply."""

from __future__ import annotations

import asyncio
import hmac
import math
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from msgspec import structs

from p2psync.errors import FormatError, P2PSyncError
from p2psync.membership.records import HUB_HOST, Announce, Join, Leave, RunClaim
from p2psync.membership.renewal import parse_renewal
from p2psync.net import tcp
from p2psync.net.addresses import address_of, further_hosts
from p2psync.net.dial_back import DialBack, Dialer
from p2psync.net.hub_wire import (
    CLAIM_HEADER,
    MAX_ANNOUNCE,
    MAX_CLAIMANT_ANNOUNCE,
    MAX_LONG_POLL_SECONDS,
    MAX_REQUEST,
    PACKED,
    NotFoundError,
    TokenError,
    TooLargeError,
    decode,
    encode_error,
    one_line,
    status_of,
)
from p2psync.protocol.wire import encode_json

if TYPE_CHECKING:
    from p2psync.net.hub import HubService

#: Seconds in which a request's body must arrive, plus one second for this many bytes of its bound.
_BODY_SECONDS = 20.0
_BODY_BYTES_PER_SECOND = 1 << 20
#: Paths that need no join token: they tell only that the hub is alive.
_OPEN_PATHS = frozenset({"/healthz"})

T = TypeVar("T")


async def read_json(request: web.Request, kind: type[T], limit: int = MAX_REQUEST) -> T:
    """Decodes the request's body as `kind`. Raises `FormatError` if it is malformed, late, or over `limit` bytes."""
    if (request.content_length or 0) > limit:
        raise TooLargeError(f"a body of {request.content_length} bytes; at most {limit} are taken here")
    body, trouble = await _read_beginning(request, limit)
    if trouble is not None:
        raise trouble
    return decode(body, kind, "the request")


async def _read_beginning(request: web.Request, limit: int) -> tuple[bytes, FormatError | None]:
    """Returns the body, or its first bytes and why the rest is missing: it is late, or over `limit` bytes."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS + limit / _BODY_BYTES_PER_SECOND):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > limit:
                    return bytes(body[:limit]), TooLargeError(f"a body of more than {limit} bytes; send less at a time")
    except TimeoutError:
        return bytes(body), FormatError("the request's body did not arrive in time; send it again")
    return bytes(body), None


def reply_json(answer: object) -> web.Response:
    """Returns `answer`, a typed struct, as a JSON response."""
    return web.Response(body=encode_json(answer), content_type="application/json")


def add_routes(app: web.Application, hub: HubService) -> None:
    """Adds the hub's routes and middlewares to `app`; the middlewares also cover every route that is added later."""
    app.middlewares.extend([_answering(hub), _guarding(hub)])
    routes = _Routes(hub)
    app.add_routes(
        [
            web.post("/v1/join", routes.join),
            web.post("/v1/renew", routes.renew),
            web.post("/v1/leave", routes.leave),
            web.post("/v1/dial-back", routes.dial_back),
            web.get("/v1/challenge", routes.challenge),
            web.post("/v1/claim", routes.claim),
            web.post("/v1/announce", routes.announce),
            web.get("/v1/view", routes.view),
            web.get("/v1/plan", routes.plan),
            web.get("/v1/manifests/{id}", routes.manifest),
            web.get("/v1/status", routes.status),
            web.get("/metrics", routes.metrics),
            web.get("/healthz", routes.healthz),
        ]
    )


class _Routes:
    def __init__(self, hub: HubService) -> None:
        self._hub = hub
        self._dialer = Dialer()

    async def join(self, request: web.Request) -> web.Response:
        asked = await read_json(request, Join)
        seen = _seen_host(request)
        hub = self._hub
        if not asked.info.host:
            further = further_hosts(seen, asked.info.further)
            asked = structs.replace(asked, info=structs.replace(asked.info, further=further))
        hub.core.join(asked, lease=(lease := hub.secret()), now=hub.now(), seen_host=seen)
        hub.log.joined(hub.holder(lease).member.info)
        return self._lease_reply(lease)

    async def renew(self, request: web.Request) -> web.Response:
        renewal = parse_renewal(*await _read_beginning(request, MAX_REQUEST))
        granted = self._hub.core.renew(renewal, now=self._hub.now())
        self._hub.renewed(renewal.lease)
        return self._lease_reply(renewal.lease, granted.refused)

    async def leave(self, request: web.Request) -> web.Response:
        asked = await read_json(request, Leave)
        self._hub.core.leave(asked, now=self._hub.now())
        self._hub.tick()
        return reply_json({})

    async def dial_back(self, request: web.Request) -> web.Response:
        asked = await read_json(request, DialBack)
        return reply_json(await self._dialer.dial(_host_of(request), asked))

    async def challenge(self, _request: web.Request) -> web.Response:
        return reply_json(self._hub.core.challenge(nonce=self._hub.secret(), now=self._hub.now()))

    async def claim(self, request: web.Request) -> web.Response:
        asked = await read_json(request, RunClaim)
        hub, seen = self._hub, (request.remote or "").removeprefix("::ffff:")
        before = hub.core.claimant
        claimed = hub.core.claim(asked, token=hub.secret(), now=hub.now(), seen_host=seen)
        hub.claimed(before)
        self._hub.tick()
        return reply_json(claimed)

    async def announce(self, request: web.Request) -> web.Response:
        known = self._hub.core.holds_claim(request.headers.get(CLAIM_HEADER, ""))
        asked = await read_json(request, Announce, MAX_CLAIMANT_ANNOUNCE if known else MAX_ANNOUNCE)
        announced = self._hub.core.announce(asked, now=self._hub.now())
        self._hub.tick()
        return reply_json(announced)

    async def view(self, request: web.Request) -> web.Response:
        query = request.query
        revision = _number(query.get("revision", "-1"), "revision")
        wait = min(MAX_LONG_POLL_SECONDS, _number(query.get("wait", "0"), "wait"))
        packed = PACKED in request.headers.get("Accept-Encoding", "")
        if wait and request.transport is not None:
            tcp.disable_idle_restart(request.transport.get_extra_info("socket"))
        asked = query.get("instance", ""), int(revision), wait
        changes = query.get("changes") == "1"
        body = await self._hub.wait_view(*asked, packed=packed, lease=query.get("lease", ""), changes=changes)
        headers = {"Content-Encoding": PACKED} if packed else {}
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def plan(self, request: web.Request) -> web.Response:
        return reply_json(self._hub.core.node_plan(request.query.get("lease", ""), self._hub.now()))

    async def manifest(self, request: web.Request) -> web.Response:
        data = self._hub.core.manifest(request.match_info["id"])
        if data is None:
            raise NotFoundError("no such manifest is in the lineage, it may be retired; look at the view again")
        return web.Response(body=data, content_type="application/octet-stream")

    async def status(self, _request: web.Request) -> web.Response:
        return reply_json(self._hub.status())

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._hub.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    def _lease_reply(self, lease: str, refused: str = "") -> web.Response:
        self._hub.tick()
        return reply_json(self._hub.core.lease(lease, one_line(refused)))


def _seen_host(request: web.Request) -> str:
    """Returns the host that a request came from: mapped IPv4 as IPv4, a link-local address with this machine's
    interface.

    A request over the loopback comes from the hub's own machine, and the node is reached where the hub is.
    """
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    if not isinstance(peer, tuple):
        return ""
    host = str(peer[0])
    if len(peer) == 4 and peer[3] and "%" not in host:
        with suppress(OSError):  # the interface is gone
            host = f"{host}%{socket.if_indextoname(peer[3])}"
    found = address_of(host)
    if found is not None and found.is_loopback:
        return HUB_HOST
    return str(found or host)


def _host_of(request: web.Request) -> str:
    return (request.remote or "?").removeprefix("::ffff:")


def _number(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise FormatError(f"{name}={one_line(text)[:20]} is not a number")
    return number


def _answering(hub: HubService) -> Middleware:
    """Turns errors into replies, and counts all replies."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            response = await handler(request)
        except P2PSyncError as error:
            response = _refusal(error)
            hub.log.refused(_host_of(request), f"{request.method} {request.path}", error)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            response = _refusal(NotFoundError(f"{request.method} is not served at this path"), error.status)
        resource = request.match_info.route.resource
        hub.metrics.count("unknown" if resource is None else resource.canonical, response.status)
        return response

    return answer


def _guarding(hub: HubService) -> Middleware:
    """Admits only requests with the join token, if there is one."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if hub.token is not None and request.path not in _OPEN_PATHS:
            presented = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(presented, f"Bearer {hub.token}".encode()):
                raise TokenError("the join token is missing or wrong; ask the one who runs the hub for it")
        return await handler(request)

    return guard


def _refusal(error: P2PSyncError, status: int | None = None) -> web.Response:
    response = web.Response(
        body=encode_error(error), status=status or status_of(error), content_type="application/json"
    )
    if isinstance(error, TokenError):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
