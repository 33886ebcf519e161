"""The trainer's side of the ledger over HTTP, for a training framework in another process.

A client with the work token puts work in, takes results and commits steps. Bodies and answers are MessagePack.
"""

from __future__ import annotations

import hmac
import math
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web

from p2psync.errors import FormatError
from p2psync.membership.work import (
    MAX_WORK_WAIT_SECONDS,
    CommitReply,
    CommitStep,
    PutReply,
    PutWork,
    Taken,
    TakeReply,
    TakeWork,
)
from p2psync.net.hub_wire import TokenError, TooLargeError, read_bounded
from p2psync.protocol.wire import decode_msgpack, encode_msgpack
from p2psync.store.disk import disk_errors, write_durably
from p2psync.trainer.ledger.core import LedgerResult
from p2psync.trainer.ledger.service import LedgerService

#: The header that carries the work token.
TOKEN_HEADER = "P2PSync-Work-Token"
MEDIA_TYPE = "application/msgpack"
#: Bytes of one `put` request, and of the results in one answer to `take`, at most.
MAX_PUT_BODY = 64 << 20
MAX_TAKE_BYTES = 64 << 20

T = TypeVar("T")


class LedgerRoutes:
    """The routes of one ledger. Add them to the hub's application with `add`, before it is started."""

    def __init__(self, service: LedgerService, token: str) -> None:
        self._service = service
        self._token = token

    def add(self, app: web.Application) -> None:
        """Serve POST /v1/work/put, /v1/work/take and /v1/work/commit."""
        app.add_routes(
            [
                web.post("/v1/work/put", self.put),
                web.post("/v1/work/take", self.take),
                web.post("/v1/work/commit", self.commit),
            ]
        )

    async def put(self, request: web.Request) -> web.Response:
        """`PutWork` → `PutReply`. Known ids are skipped, so that a client may repeat the request."""
        asked = await self._read(request, PutWork, MAX_PUT_BODY)
        new = await self._service.put(asked.version, asked.items, skip_known=True)
        return _reply(PutReply(new=new))

    async def take(self, request: web.Request) -> web.Response:
        """`TakeWork` → `TakeReply`, as soon as there is a result, else empty after `wait` seconds."""
        asked = await self._read(request, TakeWork, 4096)
        if asked.max_items < 1 or not 0 <= asked.wait < math.inf:
            raise FormatError("max_items must be above 0, and wait a number of seconds")
        service = self._service
        if asked.again:
            service.hand_back()
        results = await service.take(asked.max_items, asked.version, wait=min(asked.wait, MAX_WORK_WAIT_SECONDS))
        fitting = _fitting(results)
        if len(fitting) < len(results):
            service.hand_back(results[len(fitting) :])
        return _reply(TakeReply(step=service.ledger.step, results=[_to_wire(done) for done in fitting]))

    async def commit(self, request: web.Request) -> web.Response:
        """`CommitStep` → `CommitReply`."""
        asked = await self._read(request, CommitStep, 4096)
        gone = await self._service.commit_step(asked.step)
        return _reply(CommitReply(step=self._service.ledger.step, gone=gone))

    async def _read(self, request: web.Request, kind: type[T], limit: int) -> T:
        borne = request.headers.get(TOKEN_HEADER, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(borne, self._token.encode()):
            raise TokenError("the work token is missing or wrong; it is in the trainer's store")
        body = await read_bounded(request.content.iter_any(), limit)
        if body is None:
            raise TooLargeError(f"a body of more than {limit} bytes; send less at a time")
        try:
            return decode_msgpack(body, kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise FormatError(f"the request is not a {kind.__name__}: {error}") from None


def work_token(path: Path) -> str:
    """Returns the token in a file; draws one at random and writes it if there is no file. Raises `StoreError`."""
    with disk_errors(path):
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            token = secrets.token_hex(16)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            write_durably(path, token.encode())
            path.chmod(0o600)
            return token


def _fitting(results: list[LedgerResult]) -> list[LedgerResult]:
    bytes_left = MAX_TAKE_BYTES
    for index, done in enumerate(results):
        bytes_left -= len(done.result) + len(done.item.payload) + 1024
        if bytes_left < 0:
            return results[:index]
    return results


def _to_wire(done: LedgerResult) -> Taken:
    return Taken(
        item=done.item.item,
        put_for=done.item.version,
        payload=done.item.payload,
        node=done.node,
        version=done.version,
        tokens=done.tokens,
        result=done.result,
    )


def _reply(answer: object) -> web.Response:
    return web.Response(body=encode_msgpack(answer), content_type=MEDIA_TYPE)
