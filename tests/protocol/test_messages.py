"""Control messages: their bounds, and refused bytes."""

from __future__ import annotations

import math

import msgspec
import pytest

from p2psync.errors import FormatError
from p2psync.protocol.manifest import MAX_CHUNKS
from p2psync.protocol.messages import (
    _NUMBERS,
    MAGIC,
    MAX_REQUEST_CHUNKS,
    PROTOCOL,
    Bitfield,
    Control,
    DontHave,
    Have,
    Hello,
    ProbeRequest,
    Request,
    decode_control,
)

SHORT = b"12345678"


def decode(message: Control) -> Control:
    """Encode without checks, as a hostile peer may, and decode."""
    return decode_control(_NUMBERS[type(message)], msgspec.msgpack.encode(message))


@pytest.mark.parametrize(
    "message",
    [
        Hello("not p2psync", PROTOCOL, "n", "i", ""),
        Hello(MAGIC, PROTOCOL + 1, "n", "i", ""),
        Hello(MAGIC, PROTOCOL, "", "i", ""),
        Hello(MAGIC, PROTOCOL, "n" * 65, "i", ""),
        Hello(MAGIC, PROTOCOL, "n", "", ""),
        Hello(MAGIC, PROTOCOL, "n", "i", "r" * 65),
        Bitfield(b"short", b""),
        Bitfield(SHORT, bytes(MAX_CHUNKS // 8 + 1)),
        Have(SHORT, [MAX_CHUNKS]),
        Have(SHORT, [-1]),
        Request(SHORT, [0] * (MAX_REQUEST_CHUNKS + 1)),
        DontHave(b"123456789"),
        ProbeRequest(1, 1, 1.0, -1.0),
        ProbeRequest(1, 1, 1.0, math.inf),
        ProbeRequest(1, 1, 1.0, math.nan),
    ],
)
def test_control_messages_out_of_bounds_are_refused(message: Control) -> None:
    with pytest.raises(FormatError):
        decode(message)


def test_control_messages_at_their_bounds_are_accepted() -> None:
    for message in (
        Hello(MAGIC, PROTOCOL, "n" * 64, "i" * 64, "r" * 64),
        Bitfield(SHORT, bytes(MAX_CHUNKS // 8)),
        Have(SHORT, [MAX_CHUNKS - 1] * MAX_REQUEST_CHUNKS),
    ):
        assert decode(message) == message


def test_fields_of_a_later_version_are_ignored() -> None:
    body = msgspec.msgpack.encode([SHORT, [1, 2], "new"])
    assert decode_control(5, body) == Request(SHORT, [1, 2])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x90",
        b"\xc1",
        msgspec.msgpack.encode(["x", 1, 2]),
        # Text that is not UTF-8.
        b"\x95\xa2\xff\xfe\x01\xa1n\xa1i\xa0",
        # Nested without end, where a later version's field would stand.
        b"\x96\xa7p2psync\x01\xa1n\xa1i\xa0" + b"\x91" * 200_000,
    ],
)
def test_broken_bodies_are_format_errors(body: bytes) -> None:
    with pytest.raises(FormatError):
        decode_control(1, body)
