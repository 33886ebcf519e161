"""Encodes and decodes requests, replies and errors of the hub's HTTP service: JSON by msgspec, bytes as base64.

Views are compressed for clients that accept it: base64 and the hex digits of ids and digests shrink by half, so that
the view that every node waits for fits into the initial congestion window of an idle connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from http import HTTPStatus
from typing import TypeVar

import msgspec
import zstandard

from p2psync import errors
from p2psync.errors import FormatError, HubError, P2PSyncError, TrustError
from p2psync.membership.records import ErrorReply
from p2psync.protocol.manifest import MAX_BODY_BYTES
from p2psync.protocol.wire import decode_json, encode_json

#: Bound on request bodies without a bound of their own (bytes).
MAX_REQUEST = 64 << 10
#: Bound on an announcement from anyone; and from the claimant, which sends its token in `CLAIM_HEADER`.
MAX_ANNOUNCE = 1 << 20
MAX_CLAIMANT_ANNOUNCE = 128 << 20
#: Bounds on replies: a view of 16,384 members and a full lineage fits.
MAX_REPLY = 64 << 10
MAX_REFUSAL = 8 << 10
MAX_VIEW_REPLY = 32 << 20
MAX_PLAN_REPLY = 4 << 20
MAX_MANIFEST_REPLY = MAX_BODY_BYTES
#: Raw bytes of manifests in one request: its bound less the overhead of base64.
MAX_ANNOUNCE_BATCH = MAX_CLAIMANT_ANNOUNCE // 4 * 3 - (64 << 10)
#: Longest wait of a long poll (seconds).
MAX_LONG_POLL_SECONDS = 30.0
CLAIM_HEADER = "P2PSync-Claim"
#: The content encoding of packed replies.
PACKED = "zstd"
T = TypeVar("T")

#: Characters of an error's line.
_MAX_MESSAGE = 500

_STATUS: dict[type[P2PSyncError], HTTPStatus] = {
    errors.FormatError: HTTPStatus.BAD_REQUEST,
    errors.UsageError: HTTPStatus.BAD_REQUEST,
    errors.TrustError: HTTPStatus.FORBIDDEN,
    errors.ReplayError: HTTPStatus.FORBIDDEN,
    errors.LeaseError: HTTPStatus.NOT_FOUND,
    errors.FencedError: HTTPStatus.CONFLICT,
    errors.BaseMismatchError: HTTPStatus.CONFLICT,
    errors.LineageFullError: HTTPStatus.CONFLICT,
    errors.HubError: HTTPStatus.CONFLICT,
}
_KINDS = {kind.__name__: kind for kind in _STATUS}


class TooLargeError(FormatError):
    """A body over its bound (status 413; a `FormatError` to the client)."""


class TokenError(TrustError):
    """A join token that is missing or wrong (status 401; a `TrustError` to the client)."""


class NotFoundError(HubError):
    """No such route or manifest (status 404; a `HubError` to the client)."""


_STATUS_HERE: dict[type[P2PSyncError], HTTPStatus] = {
    TooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    TokenError: HTTPStatus.UNAUTHORIZED,
    NotFoundError: HTTPStatus.NOT_FOUND,
}


def status_of(error: P2PSyncError) -> HTTPStatus:
    """Returns the HTTP status of the reply to an error."""
    known = _STATUS | _STATUS_HERE
    return next((known[kind] for kind in type(error).__mro__ if kind in known), HTTPStatus.CONFLICT)


def encode_error(error: P2PSyncError) -> bytes:
    """Returns the body of the reply to an error."""
    kind = next((kind for kind in type(error).__mro__ if kind in _STATUS), HubError)
    return encode_json(ErrorReply(error=kind.__name__, message=one_line(str(error))))


def decode_error(body: bytes, status: int, url: str) -> P2PSyncError:
    """Returns the exception that a reply with an error status stands for; `HubError` if no hub wrote it."""
    try:
        refusal = decode_json(body, ErrorReply)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        refusal = None
    kind = None if refusal is None else _KINDS.get(refusal.error)
    if refusal is None or kind is None:
        return HubError(f"{url} answered status {status} as no hub does; check the address and port")
    return kind(one_line(refusal.message))


def decode(body: bytes, kind: type[T], what: str, refusal: type[P2PSyncError] = FormatError) -> T:
    """Decodes JSON. Raises `refusal`, one line that names `what`."""
    try:
        return decode_json(body, kind)
    except (msgspec.MsgspecError, FormatError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(one_line(f"{what} is malformed: {error}")) from None


def pack(body: bytes) -> bytes:
    """Compresses a body with zstd."""
    return zstandard.ZstdCompressor(level=3).compress(body)


def unpack(body: bytes, limit: int) -> bytes:
    """Decompresses a packed body; returns any other unchanged. Raises `HubError` if damaged or over `limit` bytes."""
    if not body.startswith(zstandard.FRAME_HEADER):
        return body
    try:
        if 0 <= zstandard.frame_content_size(body) <= limit:  # nothing larger is allocated
            return zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError:
        pass
    raise HubError(f"the hub's answer is damaged, or over its bound of {limit} bytes; is that a hub?")


async def read_bounded(chunks: AsyncIterable[bytes], limit: int) -> bytes | None:
    """Returns all bytes of a body, None as soon as there are more than `limit`."""
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            return None
        parts.append(chunk)
    return b"".join(parts)


def one_line(text: str) -> str:
    """Returns `text` with unprintable characters as spaces, cut to a line's length."""
    flat = "".join(c if c.isprintable() else " " for c in text[: 2 * _MAX_MESSAGE])
    return " ".join(flat.split())[:_MAX_MESSAGE]
