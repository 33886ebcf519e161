"""Mutations of the parts of `tight` chunks, with and without a history. See `fuzz_mutations`."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from fuzz_samples import FuzzSample
from fuzz_values import apart, content, number, numbers, pack, some_stream

from p2psync.delta.container import MAX_CHUNK_BYTES
from p2psync.delta.streams import pack_streams, read_varint, unpack_streams, varint

CODES = (2, 3)
#: Indices into the parts of a chunk with a history (`take_apart`): the part of known units, and the signs.
_KNOWN, _SIGNS = 3, 6


def parts(choice: random.Random, data: bytes, pool: Sequence[FuzzSample]) -> bytes:
    """Change tables, headers, symbols, signs or the rest."""
    split = take_apart(data)
    if split is None:
        return data
    found, first = list(split), 0
    if len(found) > _SIGNS:
        if choice.random() < 0.25:
            return put_together(_sides(choice, found))
        first = choice.choice((0, _KNOWN))
    match choice.randrange(7):
        case 0:
            found[first] = content(choice, found[first])
        case 1 | 2:
            found[first] = _tables(choice, found[first])
        case 3 | 4:
            found[first + 1] = numbers(choice, found[first + 1])
        case 5:
            found[first + 2] = content(choice, found[first + 2])
        case _:
            found[-1] = _rest(choice, found[-1], pool)
    return put_together(found)


def _sides(choice: random.Random, found: list[bytes]) -> list[bytes]:
    """Mutates the parts that only a chunk with a history has: the second part, and the signs."""
    signs = found[_SIGNS]
    match choice.randrange(7):
        case 0:
            found[:_SIGNS] = found[_KNOWN:_SIGNS] + found[:_KNOWN]
        case 1:
            first = choice.choice((0, _KNOWN))
            for k in range(first, first + choice.choice((2, 3, 3))):
                found[k] = b""
        case 2:
            found[_KNOWN:_SIGNS] = found[:_KNOWN]
        case 3:
            found[_SIGNS] = b"" if signs else choice.randbytes(choice.choice((1, 2, 50)))
        case 4 if signs:
            _, end = _varint(signs, 1)
            found[_SIGNS] = signs[:1] + varint(number(choice, 5)) + signs[end:]
        case 5:
            found[_SIGNS] = bytes([choice.choice((0, 1, 2, 40, 41, 42, 255))]) + signs[1:]
        case _:
            found[_SIGNS] = content(choice, signs)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    try:
        return read_varint(memoryview(data), at)
    except Exception:
        return 0, at


def _rest(choice: random.Random, rest: bytes, pool: Sequence[FuzzSample]) -> bytes:
    found = apart(rest, 13) if rest else None
    if found is not None and choice.random() < 0.7:
        return pack(choice, some_stream(choice, list(found)))
    return choice.choice((b"", b"\0", bytes(13), choice.choice(choice.choice(pool).chunks)[2:]))


def _tables(choice: random.Random, tables: bytes) -> bytes:
    """Classes and levels that do not exist, are too high, too low, or missing."""
    forged = bytearray(tables or b"\0")
    if choice.random() < 0.25:
        forged[choice.randrange(min(9, len(forged)))] = choice.choice(
            (0, 7, 8, 0x88, 0x78, 0xFF, choice.randrange(256))
        )
        return bytes(forged)
    # A class: shift, buckets, differences of levels, extras, levels.
    at, places = 9, []
    while at + 1 < len(forged):
        used = forged[at + 1]
        end = at + 2 + 3 * used
        if end >= len(forged):
            break
        places.append((at, end))
        at = end + 1 + forged[end]
    if not places:
        return content(choice, tables)
    begin, end = choice.choice(places)
    levels = range(begin + 2, end)
    match choice.randrange(6):
        case 0:
            forged[begin] = choice.choice((0, 1, 19, 20, 21, 63, 64, 255))
        case 1:
            forged[begin + 1] = choice.choice((0, 1, 47, 48, 49, 255))
        case 2:
            forged[end] = choice.choice((0, 1, 28, 29, 30, 255))
        case 3 if len(levels):
            for k in levels:
                forged[k] = choice.choice((0, 1, 2, 49, 50, 206, 207, 255)) if choice.random() < 0.3 else forged[k]
        case 4 if len(levels):
            rise = choice.choice((0, 1, 2, 49, 50, 128, 255))
            for k in levels:
                forged[k] = rise
        case _:
            for k in range(end + 1, min(end + 1 + forged[end], len(forged))):
                forged[k] = choice.choice((0, 1, 2, 48, 49, 50, 255))
    return bytes(forged)


@functools.lru_cache(maxsize=64)
def take_apart(data: bytes) -> tuple[bytes, ...] | None:
    """Tables, heads, symbols and rest; of a chunk with a history tables, heads and symbols twice, signs and rest. None
    if it has been mutated too much for that."""
    try:
        view, at, lengths = memoryview(data), 2, []
        for _ in range(3 if data[1] == CODES[0] else 6):
            length, at = read_varint(view, at)
            lengths.append(length)
        found = []
        for k, length in enumerate(lengths):
            part = view[at : at + length]
            meta = k in (0, 2) and k + 2 < len(lengths)
            if meta:
                found += unpack_streams(part, 2, MAX_CHUNK_BYTES) if part else [b"", b""]
            else:
                found.append(part)
            at += length
    except Exception:
        return None
    return tuple(map(bytes, found))


def put_together(found: Sequence[bytes]) -> bytes:
    """The inverse of `take_apart`."""
    done = []
    for first in range(0, len(found) // _KNOWN * _KNOWN, _KNOWN):
        tables, headers, bits = found[first : first + 3]
        done += [pack_streams([tables, headers]) if tables or headers else b"", bits]
    done += found[len(found) // _KNOWN * _KNOWN :]
    return bytes((0x70, CODES[len(found) > _SIGNS])) + b"".join([*map(varint, map(len, done)), *done])
