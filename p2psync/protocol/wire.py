"""Encoding and decoding of typed messages as JSON or msgpack, with all numbers finite.

JSON has no infinity and no NaN: msgspec writes null, which a reader does not accept as a number. No message needs one:
"none yet" and "unreachable" are states of their own. So a message that holds one is refused, by the name of its field,
both where it is encoded and where it is decoded.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, TypeVar

import msgspec

from p2psync.errors import FormatError

T = TypeVar("T")
#: Types that can hold a float; types without one of these inside are never inspected at run time.
_Inspected = msgspec.inspect.Type
_FLOAT_TYPES = (msgspec.inspect.FloatType, msgspec.inspect.AnyType)


def encode_json(message: object) -> bytes:
    """Encode a message as JSON. Raises `FormatError` for a number that is not finite."""
    check_finite(message)
    return msgspec.json.encode(message)


def decode_json(data: bytes | bytearray | memoryview, kind: type[T]) -> T:
    """Decode a message of type `kind` from JSON.

    Raises `FormatError` for a number that is not finite, `msgspec.MsgspecError`, `UnicodeDecodeError` or
    `RecursionError` for bytes that are no such message.
    """
    return checked(msgspec.json.decode(data, type=kind))


def encode_msgpack(message: object) -> bytes:
    """Encode a message as msgpack. Raises `FormatError` for a number that is not finite."""
    check_finite(message)
    return msgspec.msgpack.encode(message)


def decode_msgpack(data: bytes | bytearray | memoryview, kind: type[T]) -> T:
    """Decode a message of type `kind` from msgpack. Raises as `decode_json`."""
    return checked(msgspec.msgpack.decode(data, type=kind))


def checked(message: T) -> T:
    """Return the message itself. Raises `FormatError` for a number that is not finite."""
    check_finite(message)
    return message


def check_finite(message: object) -> None:
    """Raise `FormatError`, with the field's name, if a message holds a number that is not finite.

    Only fields that can hold a float are read: a message without such fields costs one look-up.
    """
    if isinstance(message, float):
        if not math.isfinite(message):
            raise FormatError(f"{message} is no finite number")
    elif isinstance(message, msgspec.Struct):
        for name in _float_fields(type(message)):
            try:
                check_finite(getattr(message, name))
            except FormatError as error:
                raise FormatError(f"{type(message).__name__}.{name}: {error}") from None
    elif isinstance(message, list | tuple):
        for part in message:
            check_finite(part)
    elif isinstance(message, dict):
        for part in message.values():
            check_finite(part)


@cache
def _float_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a struct that can hold a float."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return tuple(field.name for field in info.fields if _holds_float(field.type, frozenset({kind})))


def _holds_float(info: _Inspected, seen: frozenset[type]) -> bool:
    """Returns whether a type can hold a float. seen: structs whose fields are being inspected."""
    if isinstance(info, _FLOAT_TYPES):
        return True
    if isinstance(info, msgspec.inspect.StructType):
        if info.cls in seen:
            return False
        return any(_holds_float(field.type, seen | {info.cls}) for field in info.fields)
    parts: list[Any] = [getattr(info, name, None) for name in ("item_type", "value_type", "key_type")]
    parts += [*getattr(info, "item_types", ()), *getattr(info, "types", ())]
    return any(_holds_float(part, seen) for part in parts if isinstance(part, _Inspected))
