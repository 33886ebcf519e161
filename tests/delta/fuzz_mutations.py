"""Mutations of a chunk that a hostile peer could make: of its bytes, of its parts before they are packed, and of the
base and table that it is read against.

Every mutation draws from `random.Random` alone, so an input can be made again from its number."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import fuzz_tight
import numpy as np
import zstandard
from delta_parts import random_units
from fuzz_samples import FuzzSample, other_rows
from fuzz_values import EDGE_BYTES, EDGE_NUMBERS, apart, number, pack, some_stream

from p2psync.delta.container import MAX_CHUNK_BYTES
from p2psync.delta.history import ChangeHistory, HistoryLookup
from p2psync.delta.streams import pack_streams, read_varint, varint
from p2psync.delta.tensors import TableRow, Units

#: Bytes that a bomb unpacks to; mostly small ones.
_BOMBS = (1 << 10,) * 6 + (1 << 16,) * 6 + (1 << 20, MAX_CHUNK_BYTES - 16, MAX_CHUNK_BYTES, 16 << 20)
_FAST, _TIGHT = b"\x70\x01", b"\x70\x02"
Base = Callable[[int], Units] | None


@dataclass(frozen=True)
class Input:
    """The arguments of `decode_chunk`."""

    data: bytes
    rows: Sequence[TableRow]
    block_units: int
    base: Base
    how: str
    history: HistoryLookup | None = None


def draw(choice: random.Random, pool: Sequence[FuzzSample]) -> Input:
    """One hostile input."""
    # The first two are large, and seldom tell more than the others.
    sample = choice.choice(pool[:2] if choice.random() < 0.04 else pool[2:])
    data = choice.choice(sample.chunks)
    given = Input(data, sample.rows, sample.block_units, sample.old.__getitem__, "", sample.history)
    if sample.history is not None and choice.random() < 0.05:
        other = choice.choice((None, {}.get, lambda row: ChangeHistory(choice.choice((0, 64, 1 << 20)))))
        given = replace(given, history=other, how="other history")
    if choice.random() < 0.15:
        given = _against(choice, given, sample, pool)
        if choice.random() < 0.7:
            return given
    name, mutate = choice.choice(_MUTATIONS)
    for _ in range(choice.choice((1, 1, 1, 2, 3))):
        data = mutate(choice, data, pool)
    return replace(given, data=data, how=f"{given.how} {name}".strip())


def _against(choice: random.Random, given: Input, sample: FuzzSample, pool: Sequence[FuzzSample]) -> Input:
    """Gives the chunk another table, base or history."""
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


def _of(row: TableRow) -> Units:
    """Zeros, unless they are too many to allocate."""
    return np.zeros(row.spec.count if row.spec.count < 1 << 21 else 0, row.spec.unit)


# --- bytes as they are


def flip(choice: random.Random, data: bytes, pool: Sequence[FuzzSample]) -> bytes:
    """Flip bits, mostly near the beginning, where the structure is."""
    forged = bytearray(data)
    for _ in range(choice.choice((1, 1, 2, 8))):
        reach = len(forged) if choice.random() < 0.5 else min(len(forged), 200)
        forged[choice.randrange(reach)] ^= 1 << choice.randrange(8)
    return bytes(forged)


def poke(choice: random.Random, data: bytes, pool: Sequence[FuzzSample]) -> bytes:
    """Set a byte to a value at some edge."""
    forged = bytearray(data)
    forged[choice.randrange(min(len(forged), 400))] = choice.choice(EDGE_BYTES)
    return bytes(forged)


def splice(choice: random.Random, data: bytes, pool: Sequence[FuzzSample]) -> bytes:
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


def cut(choice: random.Random, data: bytes, pool: Sequence[FuzzSample]) -> bytes:
    """Cut off the end, or the beginning."""
    at = choice.randrange(len(data))
    return (data[:at] if choice.random() < 0.8 else data[at:]) or b"\0"


def extend(choice: random.Random, data: bytes, pool: Sequence[FuzzSample]) -> bytes:
    """Append bytes."""
    other = choice.choice(choice.choice(pool[2:]).chunks)
    return data + choice.choice((b"\0", choice.randbytes(9), bytes(5000), data, other))


def cross(choice: random.Random, data: bytes, pool: Sequence[FuzzSample]) -> bytes:
    """The beginning of one chunk and the end of another."""
    other = choice.choice(choice.choice(pool).chunks)
    return data[: choice.randrange(len(data))] + other[choice.randrange(len(other)) :] or b"\0"


def profile(choice: random.Random, data: bytes, pool: Sequence[FuzzSample]) -> bytes:
    """Claim to be of another profile, or not a chunk at all."""
    return bytes((choice.choice((0x70, 0x70, 0x70, 0x71)), choice.choice((0, 1, 2, 2, 3, 255)))) + data[2:]


def lengths(choice: random.Random, data: bytes, pool: Sequence[FuzzSample]) -> bytes:
    """Rewrite one of the numbers that a chunk begins with."""
    view, at = memoryview(data), 2
    try:
        for _ in range(choice.randrange(20)):
            _, at = read_varint(view, at)
        value, end = read_varint(view, at)
    except Exception:
        return data
    return data[:at] + varint(number(choice, value)) + data[end:]


# --- parts before they are packed


def streams(choice: random.Random, data: bytes, pool: Sequence[FuzzSample]) -> bytes:
    """Profile `fast`: change one stream before compression. Others: as `parts`."""
    if data[:2] != _FAST:
        return parts(choice, data, pool)
    found = apart(data[2:], 13)
    return _FAST + pack(choice, some_stream(choice, list(found))) if found else data


def parts(choice: random.Random, data: bytes, pool: Sequence[FuzzSample]) -> bytes:
    """Profile `tight`: change tables, headers, symbols, signs or the rest. Others: as `streams`."""
    if data[0] == 0x70 and len(data) > 1 and data[1] in fuzz_tight.CODES:
        return fuzz_tight.parts(choice, data, pool)
    return streams(choice, data, pool) if data[:2] == _FAST else flip(choice, data, pool)


def bomb(choice: random.Random, data: bytes, pool: Sequence[FuzzSample]) -> bytes:
    """A few bytes that claim to be, or unpack to, many."""
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
    if data[1:2] in (b"\2", b"\3") and choice.random() < 0.5 and (split := fuzz_tight.take_apart(data)):
        found = list(split)
        first = choice.choice((0, 3)) if len(found) > 4 else 0
        # Heads or symbols.
        found[first + choice.choice((1, 2))] = raw
        return fuzz_tight.put_together(found)
    many = [b""] * 13
    many[0] = choice.choice((raw, b"\0\0" + varint(choice.choice(EDGE_NUMBERS)), b"\0\0\1" * 3))
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
