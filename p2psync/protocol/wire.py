"""How every typed message is written and read: as JSON or msgpack, and never with a figure that is not finite.

JSON has no infinity and no NaN (msgspec writes null, which no reader takes for a number), and no figure of ours means
one: "none yet" and "reaches nobody" are states of their own. So whatever holds one is refused where it is written, by
the name of its field, and where it is read.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, TypeVar

import msgspec

from p2psync.errors import FormatError

T = TypeVar("T")
#: What may hold figures by its type; a type that is not one of these, nor holds one, is never looked into.
_Inspected = msgspec.inspect.Type
_HOLDERS = (msgspec.inspect.FloatType, msgspec.inspect.AnyType)


def encode_json(message: object) -> bytes:
    """A message as JSON. Raises `FormatError` for a figure that is not finite."""
    check_finite(message)
    return msgspec.json.encode(message)


def decode_json(data: bytes | bytearray | memoryview, kind: type[T]) -> T:
    """A message of a type from JSON. Raises `FormatError`, and whatever msgspec raises for what is none."""
    return checked(msgspec.json.decode(data, type=kind))


def encode_msgpack(message: object) -> bytes:
    """A message as msgpack. Raises `FormatError` for a figure that is not finite."""
    check_finite(message)
    return msgspec.msgpack.encode(message)


def decode_msgpack(data: bytes | bytearray | memoryview, kind: type[T]) -> T:
    """A message of a type from msgpack. Raises `FormatError`, and whatever msgspec raises for what is none."""
    return checked(msgspec.msgpack.decode(data, type=kind))


def checked(message: T) -> T:
    """The message itself. Raises `FormatError` for a figure that is not finite."""
    check_finite(message)
    return message


def check_finite(message: object) -> None:
    """Raise `FormatError`, by the field's name, if a message holds a figure that is not finite.

    Only fields that can hold a figure are looked at: a message without any costs one look-up.
    """
    if isinstance(message, float):
        if not math.isfinite(message):
            raise FormatError(f"{message} is no finite number")
    elif isinstance(message, msgspec.Struct):
        for name in _figures(type(message)):
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
def _figures(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a struct that can hold a figure."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return tuple(field.name for field in info.fields if _holds(field.type, frozenset({kind})))


def _holds(info: _Inspected, seen: frozenset[type]) -> bool:
    """Whether a type can hold a figure. seen: structs whose fields are being looked at."""
    if isinstance(info, _HOLDERS):
        return True
    if isinstance(info, msgspec.inspect.StructType):
        if info.cls in seen:
            return False
        return any(_holds(field.type, seen | {info.cls}) for field in info.fields)
    parts: list[Any] = [getattr(info, name, None) for name in ("item_type", "value_type", "key_type")]
    parts += [*getattr(info, "item_types", ()), *getattr(info, "types", ())]
    return any(_holds(part, seen) for part in parts if isinstance(part, _Inspected))
