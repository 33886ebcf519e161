"""What a liar may do to a chunk: to its bytes as they are, to its parts before they are packed, to what it is read
against. Every mutation draws from `random.Random` alone, so that an input can be made again from its number."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import zstandard
from delta_parts import random_units
from fuzz_samples import Sample, other_rows

from p2psync.delta.container import MAX_CHUNK_BYTES
from p2psync.delta.history import History, Past
from p2psync.delta.streams import pack_streams, read_varint, unpack_streams, varint
from p2psync.delta.tensors import Row, Units

#: Numbers at the edges of what a varint, a block, a chunk or a table can hold.
EXTREMES = (0, 1, 2, 3, 47, 127, 128, 255, 65535, 65536, 1 << 20, (1 << 20) + 1, 1 << 31, (1 << 32) - 1, (1 << 35) - 1)
_BYTES = (0, 1, 2, 11, 12, 15, 16, 20, 21, 47, 48, 49, 127, 128, 254, 255)
#: Bytes that a bomb unpacks to; small ones are enough mostly.
_BOMBS = (1 << 10,) * 6 + (1 << 16,) * 6 + (1 << 20, MAX_CHUNK_BYTES - 16, MAX_CHUNK_BYTES, 16 << 20)
_FAST, _TIGHT = b"\x70\x01", b"\x70\x02"
Base = Callable[[int], Units] | None


@dataclass(frozen=True)
class Input:
    """What `decode_chunk` is given."""

    data: bytes
    rows: Sequence[Row]
    block_units: int
    base: Base
    how: str
    history: Past | None = None


def draw(choice: random.Random, pool: Sequence[Sample]) -> Input:
    """One hostile input."""
    # The first two are large, and seldom tell more than the others.
    sample = choice.choice(pool[:2] if choice.random() < 0.04 else pool[2:])
    data = choice.choice(sample.chunks)
    given = Input(data, sample.rows, sample.block_units, sample.old.__getitem__, "", sample.history)
    if sample.history is not None and choice.random() < 0.05:
        other = choice.choice((None, {}.get, lambda row: History(choice.choice((0, 64, 1 << 20)))))
        given = replace(given, history=other, how="other history")
    if choice.random() < 0.15:
        given = _against(choice, given, sample, pool)
        if choice.random() < 0.7:
            return given
    name, mutate = choice.choice(_MUTATIONS)
    for _ in range(choice.choice((1, 1, 1, 2, 3))):
        data = mutate(choice, data, pool)
    return replace(given, data=data, how=f"{given.how} {name}".strip())


def _against(choice: random.Random, given: Input, sample: Sample, pool: Sequence[Sample]) -> Input:
    """The same chunk, read against something else."""
    old = sample.old
    rng = np.random.default_rng(choice.getrandbits(32))
    match choice.randrange(9):
        case 0:
            return replace(given, base=None, how="no base")
        case 1:
            return replace(given, base=lambda row: None, how="base of nothing")
        case 2:
            return replace(given, base=lambda row: _base(old, row)[:-1], how="short base")
        case 3:
            return replace(given, base=lambda row: _base(old, row).astype(np.uint32), how="base of another unit")
        case 4:
            return replace(given, base=lambda row: np.repeat(_base(old, row), 2)[::2], how="strided base")
        case 5:
            return replace(
                given, base=lambda row: random_units(rng, _base(old, row).dtype, _base(old, row).size), how="wrong base"
            )
        case 6:
            return replace(given, block_units=choice.choice((1 << 16, 1 << 18, 1 << 20)), how="other blocks")
        case 7:
            rows = other_rows(choice, sample.rows)
            return replace(given, rows=rows, base=lambda row: _of(rows[row]), how="other table")
        case _:
            other = choice.choice(pool)
            return replace(given, rows=other.rows, base=other.old.__getitem__, how="table of another delta")


def _base(old: Sequence[Units | None], row: int) -> Units:
    units = old[row]
    return np.zeros(0, np.uint16) if units is None else units


def _of(row: Row) -> Units:
    """Zeros, where they are few enough to have."""
    return np.zeros(row.spec.count if row.spec.count < 1 << 21 else 0, row.spec.unit)


# --- bytes as they are


def flip(choice: random.Random, data: bytes, pool: Sequence[Sample]) -> bytes:
    """Turn bits, mostly where the structure is: near the beginning."""
    forged = bytearray(data)
    for _ in range(choice.choice((1, 1, 2, 8))):
        reach = len(forged) if choice.random() < 0.5 else min(len(forged), 200)
        forged[choice.randrange(reach)] ^= 1 << choice.randrange(8)
    return bytes(forged)


def poke(choice: random.Random, data: bytes, pool: Sequence[Sample]) -> bytes:
    """Set a byte to a value at some edge."""
    forged = bytearray(data)
    forged[choice.randrange(min(len(forged), 400))] = choice.choice(_BYTES)
    return bytes(forged)


def splice(choice: random.Random, data: bytes, pool: Sequence[Sample]) -> bytes:
    """Delete, insert, repeat or move some bytes."""
    at, size = choice.randrange(len(data)), choice.choice((1, 2, 5, 9, 100))
    match choice.randrange(4):
        case 0:
            return data[:at] + data[at + size :] or b"p"
        case 1:
            return data[:at] + choice.randbytes(size) + data[at:]
        case 2:
            return data[:at] + data[at : at + size] * 2 + data[at + size :]
        case _:
            other = choice.randrange(len(data))
            return data[:at] + data[other : other + size] + data[at + size :]


def cut(choice: random.Random, data: bytes, pool: Sequence[Sample]) -> bytes:
    """Cut off the end, or the beginning."""
    at = choice.randrange(len(data))
    return (data[:at] if choice.random() < 0.8 else data[at:]) or b"\0"


def extend(choice: random.Random, data: bytes, pool: Sequence[Sample]) -> bytes:
    """Let something follow."""
    other = choice.choice(choice.choice(pool[2:]).chunks)
    return data + choice.choice((b"\0", choice.randbytes(9), bytes(5000), data, other))


def cross(choice: random.Random, data: bytes, pool: Sequence[Sample]) -> bytes:
    """The beginning of one chunk and the end of another."""
    other = choice.choice(choice.choice(pool).chunks)
    return data[: choice.randrange(len(data))] + other[choice.randrange(len(other)) :] or b"\0"


def profile(choice: random.Random, data: bytes, pool: Sequence[Sample]) -> bytes:
    """Claim to be of another profile, or not a chunk at all."""
    return bytes((choice.choice((0x70, 0x70, 0x70, 0x71)), choice.choice((0, 1, 2, 2, 3, 255)))) + data[2:]


def lengths(choice: random.Random, data: bytes, pool: Sequence[Sample]) -> bytes:
    """Rewrite one of the numbers that a chunk begins with."""
    view, at = memoryview(data), 2
    try:
        for _ in range(choice.randrange(20)):
            _, at = read_varint(view, at)
        value, end = read_varint(view, at)
    except Exception:
        return data
    return data[:at] + varint(_number(choice, value)) + data[end:]


# --- parts before they are packed


def streams(choice: random.Random, data: bytes, pool: Sequence[Sample]) -> bytes:
    """Profile `fast`: change one stream before compression. Others: as `parts`."""
    if data[:2] != _FAST:
        return parts(choice, data, pool)
    found = _apart(data[2:], 13)
    return _FAST + _pack(choice, _streams(choice, list(found))) if found else data


def _streams(choice: random.Random, found: list[bytes]) -> list[bytes]:
    k = choice.choice([k for k, stream in enumerate(found) if stream] or [0])
    if choice.random() < 0.35:
        found[0] = _numbers(choice, found[0])
    elif choice.random() < 0.1:
        other = choice.randrange(len(found))
        found[k], found[other] = found[other], found[k]
    else:
        found[k] = _content(choice, found[k])
    return found


def parts(choice: random.Random, data: bytes, pool: Sequence[Sample]) -> bytes:
    """Profile `tight`: change tables, heads, symbols or the rest. Others: as `streams`."""
    if data[:2] != _TIGHT:
        return streams(choice, data, pool) if data[:2] == _FAST else flip(choice, data, pool)
    split = take_apart(data)
    if split is None:
        return data
    tables, heads, bits, rest = split
    match choice.randrange(7):
        case 0:
            tables = _content(choice, tables)
        case 1 | 2:
            tables = _tables(choice, tables)
        case 3 | 4:
            heads = _numbers(choice, heads)
        case 5:
            bits = _content(choice, bits)
        case _:
            rest = _rest(choice, rest, pool)
    return put_together(tables, heads, bits, rest)


def _rest(choice: random.Random, rest: bytes, pool: Sequence[Sample]) -> bytes:
    found = _apart(rest, 13) if rest else None
    if found is not None and choice.random() < 0.7:
        return _pack(choice, _streams(choice, list(found)))
    return choice.choice((b"", b"\0", bytes(13), choice.choice(choice.choice(pool).chunks)[2:]))


def _tables(choice: random.Random, tables: bytes) -> bytes:
    """Classes and levels that do not exist, are too high, too low, or missing."""
    forged = bytearray(tables)
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
        return _content(choice, tables)
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


def bomb(choice: random.Random, data: bytes, pool: Sequence[Sample]) -> bytes:
    """Little that claims, or unpacks to, much."""
    size = choice.choice(_BOMBS)
    piece = choice.choice((b"\0", b"\0\0\1", b"\4\0\1", b"\0\0\x80\x80\4", b"\2\0", b"\6\0", b"\xff", b"\1\1\1"))
    raw = piece * (size // len(piece))
    if choice.random() < 0.3:
        claim = choice.choice((size, 1 << 20, 1 << 31, (1 << 35) - 1))
        frame = _frame(choice, raw)
        return _FAST + varint(claim) + varint(len(frame)) + bytes(12) + frame
    if choice.random() < 0.3:
        count = size // 5
        return _FAST + pack_streams([piece * count, bytes(count), b"\1" * count, *[b""] * 10])
    if data[:2] == _TIGHT and choice.random() < 0.5 and (split := take_apart(data)):
        tables, heads, bits, rest = split
        if choice.random() < 0.5:
            return put_together(tables, raw, bits, b"")
        return put_together(tables, heads, raw[:size], rest)
    many = [b""] * 13
    many[0] = choice.choice((raw, b"\0\0" + varint(choice.choice(EXTREMES)), b"\0\0\1" * 3))
    for k in range(1, 13):
        many[k] = choice.choice((b"", b"", b"\0" * choice.choice((1, size // 4, size)), b"\xff" * size))
    return (_FAST if choice.random() < 0.8 else _TIGHT) + pack_streams(many)


def _frame(choice: random.Random, raw: bytes) -> bytes:
    match choice.randrange(5):
        case 0:
            return zstandard.ZstdCompressor(write_content_size=False).compress(raw)
        case 1:
            return zstandard.ZstdCompressor().compress(raw) * 2
        case 2:
            return b"\x50\x2a\x4d\x18\x04\0\0\0" + bytes(4) + zstandard.ZstdCompressor().compress(raw)
        case 3:
            return zstandard.ZstdCompressor().compress(raw)[:-1]
        case _:
            return zstandard.ZstdCompressor().compress(raw)


_MUTATIONS = [
    (f.__name__, f)
    for f, weight in (
        (flip, 3),
        (poke, 2),
        (splice, 2),
        (cut, 2),
        (extend, 1),
        (cross, 1),
        (profile, 1),
        (lengths, 3),
        (streams, 8),
        (parts, 8),
    )
    for _ in range(weight)
] + [("bomb", bomb)]


# --- helpers


@functools.lru_cache(maxsize=64)
def take_apart(data: bytes) -> tuple[bytes, bytes, bytes, bytes] | None:
    """Tables, heads, symbols and rest of a chunk of profile `tight`; None if it has been mutated too much for that."""
    try:
        view = memoryview(data)
        meta, at = read_varint(view, 2)
        bits, at = read_varint(view, at)
        _, at = read_varint(view, at)
        tables, heads = unpack_streams(view[at : at + meta], 2, MAX_CHUNK_BYTES)
    except Exception:
        return None
    at += meta
    return tables.tobytes(), heads.tobytes(), data[at : at + bits], data[at + bits :]


def put_together(tables: bytes, heads: bytes, bits: bytes, rest: bytes) -> bytes:
    """The inverse of `take_apart`."""
    meta = pack_streams([tables, heads])
    return _TIGHT + varint(len(meta)) + varint(len(bits)) + varint(len(rest)) + meta + bits + rest


@functools.lru_cache(maxsize=64)
def _apart(body: bytes, count: int) -> tuple[bytes, ...] | None:
    try:
        return tuple(stream.tobytes() for stream in unpack_streams(memoryview(body), count, MAX_CHUNK_BYTES))
    except Exception:
        return None


def _pack(choice: random.Random, found: Sequence[bytes]) -> bytes:
    """Streams as an encoder packs them, or, which is faster, each as it is."""
    if choice.random() < 0.2:
        return pack_streams(found)
    head = b"".join(varint(len(stream)) + (b"\0" if stream else b"") for stream in found)
    return b"".join([head, *found])


def _number(choice: random.Random, value: int) -> int:
    return choice.choice((*EXTREMES, max(value - 1, 0), value + 1, 2 * value)) & ((1 << 35) - 1)


def _numbers(choice: random.Random, data: bytes) -> bytes:
    """Varints, one of which is changed, left out, or there twice."""
    view, at, found = memoryview(data), 0, []
    while at < len(data) and len(found) < 1 << 16:
        try:
            value, at = read_varint(view, at)
        except Exception:
            break
        found.append(value)
    if not found:
        return varint(choice.choice(EXTREMES))
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
            found[k] = _number(choice, found[k])
    return b"".join(map(varint, found)) + data[at:]


def _content(choice: random.Random, stream: bytes) -> bytes:
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
                forged[at : at + 20] = bytes((choice.choice(_BYTES),)) * len(forged[at : at + 20])
            case _ if forged:
                forged[at] = choice.choice(_BYTES)
            case _:
                forged += b"\0"
    return bytes(forged)
