"""Mutations of manifests: of their bytes, fields, table, and signed envelope."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fuzz_samples import FuzzSample, plain_rows

from p2psync.protocol.manifest import sign

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_INTS = (0, 1, -1, 2, 3, 16, 65535, 65536, 1 << 20, (1 << 20) + 1, 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)
_OTHER: tuple[Any, ...] = (
    None,
    True,
    1.5,
    float("nan"),
    "",
    "x" * 300,
    b"",
    bytes(16),
    bytes(33),
    [],
    [0],
    {},
    {"a": 1},
)
_COMPRESSOR = zstandard.ZstdCompressor(level=1)


def draw_body(choice: random.Random, pool: Sequence[FuzzSample]) -> tuple[bytes, str]:
    """A hostile body, and how it was made."""
    sample = choice.choice(pool)
    fields = msgspec.to_builtins(sample.manifest, builtin_types=(bytes,))
    match choice.randrange(7):
        case 0:
            return blind(choice, msgspec.msgpack.encode(fields)), "manifest bytes"
        case 1 | 2:
            name = choice.choice(list(fields))
            fields[name] = _value(choice, fields[name])
            return msgspec.msgpack.encode(fields), f"manifest {name}"
        case 3:
            del fields[choice.choice(list(fields))]
            return msgspec.msgpack.encode(fields), "manifest without a field"
        case 4 | 5:
            fields["table"] = _COMPRESSOR.compress(
                msgspec.msgpack.encode(_table(choice, plain_rows(sample.manifest.rows())))
            )
            return msgspec.msgpack.encode(fields), "manifest table"
        case _:
            fields["table"] = _packed(choice, sample)
            return msgspec.msgpack.encode(fields), "manifest packed table"


def draw_signed(choice: random.Random, pool: Sequence[FuzzSample]) -> tuple[bytes, str]:
    """A hostile signed manifest, and how it was made; a body that is properly signed may be hostile itself."""
    sample = choice.choice(pool)
    if choice.random() < 0.5:
        return blind(choice, sign(sample.manifest, KEY).to_bytes()), "signed bytes"
    parts: list[Any] = list(msgspec.to_builtins(sign(sample.manifest, KEY), builtin_types=(bytes,)))
    k = choice.randrange(3)
    parts[k] = choice.choice((*_OTHER, blind(choice, parts[k])))
    return msgspec.msgpack.encode(parts), "signed parts"


def blind(choice: random.Random, data: bytes) -> bytes:
    """Change bits, bytes and lengths, without regard to their meaning."""
    forged = bytearray(data)
    for _ in range(choice.choice((1, 1, 2, 4))):
        at = choice.randrange(len(forged))
        match choice.randrange(5):
            case 0:
                forged[at] ^= 1 << choice.randrange(8)
            case 1:
                # The first bytes of msgpack's long strings, arrays and maps.
                forged[at] = choice.choice((0xC0, 0xC1, 0xC6, 0xD9, 0xDB, 0xDD, 0xDF, 0x91, 0x81, 0xFF))
            case 2:
                forged[at : at + choice.choice((1, 5))] = b""
            case 3:
                forged[at:at] = choice.randbytes(choice.choice((1, 5)))
            case _:
                forged = forged[:at]
        forged = forged or bytearray(1)
    return bytes(forged)


def _value(choice: random.Random, value: Any) -> Any:
    """Returns another value, of the same type or not."""
    if choice.random() < 0.3:
        return choice.choice(_OTHER)
    if isinstance(value, list):
        found = list(value)
        match choice.randrange(4):
            case 0:
                return found * 2
            case 1:
                return found[1:]
            case 2:
                return [choice.choice(_INTS) for _ in found]
        return [*found, choice.choice(_INTS)]
    if isinstance(value, bytes):
        return choice.choice((value[1:], value + b"\0", blind(choice, value or b"\0")))
    if isinstance(value, str):
        return choice.choice((value[1:], value.upper(), "\0" * len(value), value + "é"))
    return choice.choice(_INTS)


def _table(choice: random.Random, rows: list[Any]) -> Any:
    """Rows with one field changed, moved or doubled."""
    row = choice.choice(rows)
    spec = row[0]
    match choice.randrange(9):
        case 0:
            spec[0] = choice.choice((*_INTS, *_OTHER))
        case 1:
            spec[1] = choice.choice(("", "x" * 70_000, "\0", "é" * 9, "../../etc", "\ud7ff", *_OTHER))
        case 2:
            spec[2] = choice.choice(("", "BF17", "F6_E2M3", "F4", "bf16", "BF16\n", *_OTHER))
        case 3:
            spec[3] = [choice.choice(_INTS) for _ in range(choice.choice((0, 1, 2, 3, 70, 3000)))]
        case 4:
            spec[3] = choice.choice(
                ([1 << 62] * 5000, [2] * 200_000, [0] * 70_000, [0, -5], [1 << 40, 1 << 40], *_OTHER)
            )
        case 5:
            row[choice.choice((1, 2))] = choice.choice((False, False, *_OTHER))
        case 6:
            row[3:] = [choice.choice((b"", bytes(15), bytes(17), bytes(5000), *_OTHER))]
        case 7:
            choice.shuffle(rows)
        case _:
            rows.append(row)
    return choice.choice((rows, rows, rows, [rows], rows[:-1]))


def _packed(choice: random.Random, sample: FuzzSample) -> bytes:
    """A table with a forged packing."""
    raw = msgspec.msgpack.encode(sample.manifest.rows())
    frame = _COMPRESSOR.compress(raw)
    size = choice.choice((1 << 10, 1 << 16, 1 << 20, 4 << 20))
    match choice.randrange(9):
        case 0:
            return blind(choice, frame)
        case 1:
            return frame + choice.choice((b"\0", frame, choice.randbytes(50)))
        case 2:
            return zstandard.ZstdCompressor(write_content_size=False).compress(raw)
        case 3:
            # Arrays in arrays.
            return _COMPRESSOR.compress(b"\x91" * size)
        case 4:
            # As many rows as fit, each of the fewest bytes.
            row = msgspec.msgpack.encode([[2, "", "U8", []], False, True])
            return _COMPRESSOR.compress(b"\xdd" + (size // len(row)).to_bytes(4, "big") + row * (size // len(row)))
        case 5:
            return _COMPRESSOR.compress(b"\x91\x94\x94\x02\xa1a\xa2U8\xdd" + size.to_bytes(4, "big") + b"\x02" * size)
        case 6:
            return _COMPRESSOR.compress(b"\xdd" + choice.choice((b"\xff\xff\xff\xff", b"\0\1\0\0")) + raw[1:])
        case 7:
            return b""
        case _:
            return _COMPRESSOR.compress(blind(choice, raw))
