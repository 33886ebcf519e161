"""A torrent of one file (BEP 3), and the little bencoding that it and a tracker need."""

from __future__ import annotations

import hashlib
from pathlib import Path

Value = int | bytes | list["Value"] | dict[bytes, "Value"]


def bencode(value: Value) -> bytes:
    """Returns the bencoding of a value."""
    if isinstance(value, int):
        return b"i%de" % value
    if isinstance(value, bytes):
        return b"%d:%s" % (len(value), value)
    if isinstance(value, list):
        return b"l" + b"".join(map(bencode, value)) + b"e"
    return b"d" + b"".join(bencode(key) + bencode(value[key]) for key in sorted(value)) + b"e"


def torrent_of(file: Path, piece: int, tracker: str) -> bytes:
    """The torrent of a file, with pieces of so many bytes. tracker: its URL, "" for none."""
    hashes = bytearray()
    with file.open("rb") as content:
        while part := content.read(piece):
            hashes += hashlib.sha1(part).digest()
    info: Value = {
        b"name": file.name.encode(),
        b"length": file.stat().st_size,
        b"piece length": piece,
        b"pieces": bytes(hashes),
    }
    return bencode({b"info": info, b"announce": tracker.encode()} if tracker else {b"info": info})
