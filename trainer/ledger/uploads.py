"""Receives results: it judges each by its head before it reads a byte, and bounds the bytes that are read at once.

A result is a request's body, with `ResultHead` in a header. A client that sends `Expect: 100-continue` sends no body
that would be refused. Where the bound is reached the answer is 429 with Retry-After, and the claim stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web
from aiohttp.http import HttpVersion11

from p2psync.errors import FormatError, HubError, StoreError
from p2psync.membership.work import (
    MAX_RESULT_BYTES,
    RESULT_HEADER,
    Receipt,
    ResultHead,
    Verdict,
    decode_head,
)
from p2psync.net.hub_routes import reply_json
from p2psync.net.hub_wire import TooLargeError, encode_error, unpack
from p2psync.protocol.wire import encode_json
from p2psync.trainer.ledger.core import Ledger

#: Bytes of results that may be on their way at once.
MAX_UPLOADING = 64 << 20
#: Every upload counts as at least so many bytes.
_MIN_COUNTED_BYTES = 16 << 10
#: When a client may try again, where the bound is reached.
RETRY_AFTER_SECONDS = 1.0
#: A result must have arrived after this time, plus one second for each of so many bytes.
_BASE_SECONDS = 20.0
_MIN_BYTES_PER_SECOND = 64 << 10


class ResultUploads:
    """Serves POST /v1/work/result. size: bytes that are being read now."""

    def __init__(
        self,
        ledger: Ledger,
        now: Callable[[], float],
        settled: Callable[[], Awaitable[None]],
        on_result: Callable[[], None],
        limit: int,
    ) -> None:
        """now: the ledger's clock (seconds). settled: waits until the ledger's changes are durable. on_result: called
        when a result was judged. limit: bytes that may be on their way at once.
        """
        self._ledger = ledger
        self._now = now
        self._settled = settled
        self._on_result = on_result
        self._limit = limit
        self.size = 0

    async def expected(self, _request: web.Request) -> None:
        """Does nothing: `serve` sends "100 Continue" once it has judged the result's head."""

    async def serve(self, request: web.Request) -> web.Response:
        """A result and its head → `Receipt`. Raises `FormatError`, `TooLargeError`."""
        head = decode_head(request.headers.get(RESULT_HEADER, ""))
        size = request.content_length
        if size is None:
            raise FormatError("a result comes with its length")
        if size > MAX_RESULT_BYTES:
            raise TooLargeError(f"a result of {size} bytes; at most {MAX_RESULT_BYTES} are taken")
        verdict = self._ledger.judge(head.work, head.item, size, head.version, head.digest, self._now())
        counted = max(size, _MIN_COUNTED_BYTES)
        if verdict == "accepted" and self.size + counted > self._limit:
            return _busy("full")
        if verdict != "accepted":
            self._ledger.refuse(head.work, head.item, verdict)
            return await self._answer(verdict, self._ledger.void(head.work))
        self.size += counted
        try:
            body = await self._read(request, size)
            result = _unpacked(body) if head.packed else body
            void = self._ledger.void(head.work)  # before the lease may end with this result
            return await self._answer(self._complete(head, result), void)
        finally:
            self.size -= counted

    def _complete(self, head: ResultHead, result: bytes) -> Verdict:
        return self._ledger.complete(head.work, head.item, result, head.version, head.digest, self._now(), head.tokens)

    async def _answer(self, verdict: Verdict, void: list[str]) -> web.Response:
        self._on_result()
        if verdict == "full":
            return _busy(verdict)
        try:
            # "duplicate" says that a result counted, so that must be durable as well.
            await self._settled()
        except StoreError as error:
            refusal = web.Response(body=encode_error(HubError(str(error))), status=503, content_type="application/json")
            refusal.headers["Retry-After"] = f"{RETRY_AFTER_SECONDS:.0f}"
            return refusal
        return reply_json(Receipt(verdict=verdict, void=void))

    async def _read(self, request: web.Request, size: int) -> bytes:
        if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        body = bytearray()
        try:
            async with asyncio.timeout(_BASE_SECONDS + size / _MIN_BYTES_PER_SECOND):
                async for part in request.content.iter_any():
                    body += part
        except TimeoutError:
            raise FormatError("the result did not arrive in time; send it again") from None
        if len(body) != size:
            raise FormatError("the result is shorter than it said; send it again")
        return bytes(body)


def _unpacked(body: bytes) -> bytes:
    try:
        return unpack(body, MAX_RESULT_BYTES)
    except HubError:
        raise FormatError(f"the result is damaged, or over {MAX_RESULT_BYTES} bytes unpacked") from None


def _busy(verdict: Verdict) -> web.Response:
    body = encode_json(Receipt(verdict=verdict))
    answer = web.Response(body=body, status=HTTPStatus.TOO_MANY_REQUESTS, content_type="application/json")
    answer.headers["Retry-After"] = f"{RETRY_AFTER_SECONDS:.0f}"
    return answer
