"""A second, slow implementation of docs/reference/formats.md in plain Python, which the codec is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import zstandard
from blake3 import blake3

from p2psync.delta.tensors import TableRow, TensorSpec

M64 = (1 << 64) - 1


def read_chunk(data: bytes, rows: Sequence[TableRow], block_units: int) -> list[dict[tuple[int, int], int]]:
    """Returns for each block the steps, as {(row, unit): step}; zeros of dense blocks are left out."""
    assert data[:2] == b"\x70\x01"
    at = 2

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    directory = []
    for _ in range(13):
        length = varint()
        directory.append((length, varint() if length else 0))
    streams = []
    for length, stored in directory:
        raw = data[at : at + (stored or length)]
        at += len(raw)
        streams.append(list(zstandard.ZstdDecompressor().decompress(raw) if stored else raw))
        assert len(streams[-1]) == length
    assert at == len(data)
    for stream in streams:
        stream.reverse()

    def head_varint() -> int:
        value = shift = 0
        while True:
            byte = streams[0].pop()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    headers = []
    row, index = 0, -1
    while streams[0]:
        word, offset = head_varint(), head_varint()
        index = offset if word // 4 else index + 1 + offset
        row += word // 4
        width = rows[row].spec.width
        span = min(block_units, 2**21 // width)
        units = min(span, rows[row].spec.count - index * span)
        headers.append((row, index * span, units, word % 4, units if word % 4 == 2 else head_varint()))
    assert all(a[:2] < b[:2] for a, b in pairwise(headers))

    blocks = []
    for row, start, _, mode, n in headers:
        width = rows[row].spec.width
        positions = range(n)
        if mode != 2:
            positions, position = [], -1
            for _ in range(n):
                position += 1
                while (byte := streams[1].pop()) == 255:
                    position += 255
                position += byte
                positions.append(position)
        if mode == 0:
            codes = [streams[2].pop() for _ in range((n + 3) // 4)]
            steps = [_step(codes[k // 4] >> 2 * (k % 4) & 3, streams, width) for k in range(n)]
        else:
            planes = [[streams[5 + p].pop() for _ in range(n)] for p in range(width)]
            steps = [
                _turn_back(int.from_bytes(bytes(b), "big"), rows[row], 8 * width) for b in zip(*planes, strict=True)
            ]
        blocks.append({(row, start + p): step for p, step in zip(positions, steps, strict=True) if step})
    assert not any(streams)
    return blocks


def _unzigzag(z: int, bits: int) -> int:
    return (z // 2 if z % 2 == 0 else -(z // 2) - 1) % (1 << bits)


def _step(code: int, streams: list[list[int]], width: int) -> int:
    if code < 2:
        return (-1, 1)[code] % (1 << 8 * width)
    if code == 2:
        return _unzigzag(3 + streams[3].pop(), 8 * width)
    return int.from_bytes(bytes(streams[4].pop() for _ in range(width)), "little")


def _turn_back(value: int, row: TableRow, bits: int) -> int:
    if row.before and row.after:
        return _unzigzag(value, bits)
    turned = value >> 1 | (value & 1) << (bits - 1)
    return turned if row.after else -turned % (1 << bits)


def tensor_id(spec: TensorSpec) -> int:
    name = spec.name.encode()
    data = b"p2psync tensor v1\0" + bytes([spec.kind]) + len(name).to_bytes(4, "little") + name
    data += bytes([len(spec.dtype)]) + spec.dtype.encode() + len(spec.shape).to_bytes(2, "little")
    data += b"".join(size.to_bytes(8, "little") for size in spec.shape)
    return int.from_bytes(blake3(data).digest()[:16], "little")


def mix(key: int, index: int, bits: int) -> int:
    x = (key + index * 0x9E3779B97F4A7C15 + bits * 0x9E3779B1) & M64
    x = (x ^ x >> 27) * 0x3C79AC492BA7B653 & M64
    x = (x ^ x >> 33) * 0x1C69B3F74AC4AE35 & M64
    y = ((key >> 64) + index * 0xD1B54A32D192ED03 + bits * 0x85EBCA77) & M64
    y = (y ^ y >> 30) * 0xBF58476D1CE4E5B9 & M64
    y = (y ^ y >> 27) * 0x94D049BB133111EB & M64
    return (x ^ x >> 27) | (y ^ y >> 31) << 64


def digest(spec: TensorSpec, units: Sequence[int], start: int = 0) -> int:
    key = tensor_id(spec)
    return sum(mix(key, start + k, int(bits)) for k, bits in enumerate(units)) % (1 << 128)
