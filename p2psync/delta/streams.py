"""Byte streams, packed one after another, each compressed if that saves bytes.

    for each stream: length in bytes (varint); if it is not 0: stored length (varint), 0 if it is not compressed
    then the stored bytes of each stream, in order, and nothing after them

A compressed stream is one zstandard frame that states its content size. Varints are LEB128, at most 5 bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import zstandard

from p2psync.delta.tensors import ByteArray
from p2psync.errors import FormatError

#: Consecutive parts of a byte string, joined only once, where the whole is known.
ByteParts = Sequence[bytes | bytearray | memoryview]

_LEVEL = 1
_MIN_COMPRESSED = 64
_MAX_VARINT_BYTES = 5
_local = threading.local()


def varint(value: int) -> bytes:
    """LEB128: seven bits a byte, low bits first; the high bit says that more follow. `value` < 2^35."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a varint at index `at`: (value, index after it).

    Raises `FormatError` if it is cut off, too long, or not in its shortest form.
    """
    value = 0
    for k in range(_MAX_VARINT_BYTES):
        if at + k >= len(data):
            raise FormatError("a chunk ends within a number")
        byte = data[at + k]
        value |= (byte & 0x7F) << (7 * k)
        if byte < 0x80:
            if not byte and k:
                raise FormatError("a chunk has a number that is not in its shortest form")
            return value, at + k + 1
    raise FormatError("a chunk has a number that is too long")


def pack_streams(streams: Sequence[bytes | bytearray]) -> bytes:
    """Pack byte streams. Their number is not stored: `unpack_streams` takes it as an argument."""
    return b"".join(packed_parts(streams))


def packed_parts(streams: Sequence[bytes | bytearray]) -> ByteParts:
    """Returns the bytes of `pack_streams`, in parts."""
    header = bytearray()
    stored: list[bytes | bytearray] = []
    for stream in streams:
        header += varint(len(stream))
        if not stream:
            continue
        packed = _compress(stream)
        header += varint(0 if packed is None else len(packed))
        stored.append(stream if packed is None else packed)
    return [header, *stored]


def stored_bytes(stream: bytes | bytearray) -> int:
    """Bytes that a stream takes once it is packed, without its lengths."""
    packed = _compress(stream)
    return len(stream if packed is None else packed)


def unpack_streams(data: memoryview, count: int, limit: int) -> list[ByteArray]:
    """Unpack `count` streams of at most `limit` bytes in all. Raises `FormatError` before it allocates more."""
    lengths: list[tuple[int, int]] = []
    at = total = 0
    for _ in range(count):
        length, at = read_varint(data, at)
        packed = 0
        if length:
            packed, at = read_varint(data, at)
        total += length
        lengths.append((length, packed))
    if total > limit:
        raise FormatError(f"a chunk of {total} bytes unpacked is over the limit of {limit}")
    if at + sum(packed or length for length, packed in lengths) != len(data):
        raise FormatError("a chunk's length is not what its streams add up to")
    streams = []
    for length, packed in lengths:
        end = at + (packed or length)
        streams.append(_decompress(data[at:end], length) if packed else np.frombuffer(data[at:end], np.uint8))
        at = end
    return streams


def _compress(stream: bytes | bytearray) -> bytes | None:
    if len(stream) < _MIN_COMPRESSED:
        return None
    compressor = getattr(_local, "compressor", None)
    if compressor is None:
        compressor = _local.compressor = zstandard.ZstdCompressor(
            level=_LEVEL, write_checksum=False, write_content_size=True, write_dict_id=False
        )
    packed: bytes = compressor.compress(stream)
    return packed if len(packed) + len(packed) // 64 < len(stream) else None


def _decompress(data: memoryview, length: int) -> ByteArray:
    try:
        frame = zstandard.get_frame_parameters(data)
        if frame.content_size != length or frame.window_size > max(length, 1 << 10) or frame.dict_id:
            raise FormatError("a chunk's stream does not unpack to the length it states")
        decompressor = getattr(_local, "decompressor", None)
        if decompressor is None:
            decompressor = _local.decompressor = zstandard.ZstdDecompressor()
        raw = decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"a chunk's stream does not unpack: {error}") from None
    if len(raw) != length:
        raise FormatError("a chunk's stream does not unpack to the length it states")
    return np.frombuffer(raw, np.uint8)
