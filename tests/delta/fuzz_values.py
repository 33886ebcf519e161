"""Mutations that all profiles share: of streams, varints and bytes. See `fuzz_mutations`."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from p2psync.delta.container import MAX_CHUNK_BYTES
from p2psync.delta.streams import pack_streams, read_varint, unpack_streams, varint

#: Numbers at the limits of a varint, a block, a chunk or a table.
EDGE_NUMBERS = (
    0,
    1,
    2,
    3,
    47,
    127,
    128,
    255,
    65535,
    65536,
    1 << 20,
    (1 << 20) + 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 35) - 1,
)
#: Bytes at such edges.
EDGE_BYTES = (0, 1, 2, 11, 12, 15, 16, 20, 21, 47, 48, 49, 127, 128, 254, 255)


@functools.lru_cache(maxsize=64)
def apart(body: bytes, count: int) -> tuple[bytes, ...] | None:
    """The streams of a body; None if it is malformed."""
    try:
        return tuple(stream.tobytes() for stream in unpack_streams(memoryview(body), count, MAX_CHUNK_BYTES))
    except Exception:
        return None


def pack(choice: random.Random, found: Sequence[bytes]) -> bytes:
    """Streams as an encoder packs them, or, which is faster, uncompressed."""
    if choice.random() < 0.2:
        return pack_streams(found)
    head = b"".join(varint(len(stream)) + (b"\0" if stream else b"") for stream in found)
    return b"".join([head, *found])


def number(choice: random.Random, value: int) -> int:
    """A mutation of a number."""
    return choice.choice((*EDGE_NUMBERS, max(value - 1, 0), value + 1, 2 * value)) & ((1 << 35) - 1)


def numbers(choice: random.Random, data: bytes) -> bytes:
    """Varints with one changed, left out or doubled."""
    view, at, found = memoryview(data), 0, []
    while at < len(data) and len(found) < 1 << 16:
        try:
            value, at = read_varint(view, at)
        except Exception:
            break
        found.append(value)
    if not found:
        return varint(choice.choice(EDGE_NUMBERS))
    k = choice.randrange(len(found))
    match choice.randrange(6):
        case 0:
            del found[k]
        case 1:
            found.insert(k, choice.choice(found))
        case 2:
            return (
                b"".join(map(varint, found[:k])) + b"\x80" * choice.randrange(1, 7) + b"".join(map(varint, found[k:]))
            )
        case _:
            found[k] = number(choice, found[k])
    return b"".join(map(varint, found)) + data[at:]


def content(choice: random.Random, stream: bytes) -> bytes:
    """Change some of a stream's bytes, or its length."""
    forged = bytearray(stream or b"\0")
    for _ in range(choice.choice((1, 1, 2, 5))):
        at = choice.randrange(len(forged)) if forged else 0
        match choice.randrange(6):
            case 0:
                del forged[at : at + choice.choice((1, 4))]
            case 1:
                forged[at:at] = choice.randbytes(choice.choice((1, 4)))
            case 2 if forged:
                forged[at] ^= 1 << choice.randrange(8)
            case 3:
                forged[at : at + 20] = bytes((choice.choice(EDGE_BYTES),)) * len(forged[at : at + 20])
            case _ if forged:
                forged[at] = choice.choice(EDGE_BYTES)
            case _:
                forged += b"\0"
    return bytes(forged)


def some_stream(choice: random.Random, found: list[bytes]) -> list[bytes]:
    """Streams of a body of profile `fast`, one of which is changed, or two swapped."""
    k = choice.choice([k for k, stream in enumerate(found) if stream] or [0])
    if choice.random() < 0.35:
        found[0] = numbers(choice, found[0])
    elif choice.random() < 0.1:
        other = choice.randrange(len(found))
        found[k], found[other] = found[other], found[k]
    else:
        found[k] = content(choice, found[k])
    return found
