"""Manifests: signing, trust, and every bound of their structure."""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import msgspec
import pytest
import zstandard
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec
from p2psync.errors import BaseMismatchError, FormatError, TrustError
from p2psync.protocol.manifest import (
    MAX_BODY_BYTES,
    MAX_CHUNK_BYTES,
    Manifest,
    SignedManifest,
    check_consecutive,
    decode_body,
    open_signed,
    pack_table,
    sign,
    unpack_table,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
TRUSTED = frozenset({PUBLIC})
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
ROWS = [TableRow(TensorSpec(TensorKind.TENSOR, name, "BF16", (4, 4)), True, True) for name in ("a", "b", "c")]
CHUNKS = [b"one", b"two", b"three"]
GOOD = Manifest(
    run="0123456789abcdef" * 2,
    epoch=1,
    version=2,
    base=1,
    digest=bytes(16),
    base_digest=b"\1" * 16,
    profile="fast",
    block_units=1 << 16,
    table=pack_table(ROWS),
    sizes=[len(chunk) for chunk in CHUNKS],
    hashes=b"".join(blake3(chunk).digest() for chunk in CHUNKS),
    first_rows=[0, 0, 2],
    changed=3,
    total=48,
    created=1.0,
)


def changed(**fields: object) -> Manifest:
    """The valid manifest with other fields."""
    return msgspec.structs.replace(GOOD, **fields)


def test_signed_manifest_round_trips() -> None:
    signed = sign(GOOD, KEY)
    manifest, again = open_signed(signed.to_bytes(), TRUSTED)
    assert manifest == GOOD and again == signed
    assert again.id == blake3(signed.body).digest()


def test_a_key_that_is_not_trusted_is_refused_unless_any_is() -> None:
    data = sign(GOOD, OTHER).to_bytes()
    with pytest.raises(TrustError, match="not trusted"):
        open_signed(data, TRUSTED)
    assert open_signed(data, None)[0] == GOOD


def test_a_forged_signature_is_refused() -> None:
    signed = sign(GOOD, OTHER)
    for forged in (
        SignedManifest(signed.body, PUBLIC, signed.signature),
        SignedManifest(signed.body, PUBLIC, b""),
        SignedManifest(signed.body, b"short", signed.signature),
        SignedManifest(signed.body, PUBLIC, KEY.sign(signed.body)),
    ):
        with pytest.raises(TrustError):
            open_signed(forged.to_bytes(), TRUSTED | {b"short"})


def test_a_body_that_was_tampered_with_is_refused_and_never_decoded() -> None:
    signed = sign(GOOD, KEY)
    rng = random.Random(1)
    for _ in range(200):
        body = bytearray(signed.body)
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        with pytest.raises(TrustError):
            open_signed(SignedManifest(bytes(body), PUBLIC, signed.signature).to_bytes(), TRUSTED)


def test_mutated_bytes_raise_nothing_but_format_and_trust_errors() -> None:
    good = sign(GOOD, KEY).to_bytes()
    rng = random.Random(2)
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with pytest.raises((FormatError, TrustError)):
            open_signed(bytes(data) if bytes(data) != good else b"", TRUSTED)


def test_mutated_bodies_of_the_trusted_key_raise_nothing_but_format_errors() -> None:
    body = msgspec.msgpack.encode(GOOD)
    rng = random.Random(3)
    for _ in range(10_000):
        data = bytearray(body)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice([rng.randrange(256), 0, 0xFF, 0x91, 0xDB])
        with contextlib.suppress(FormatError):
            decode_body(bytes(data))


def test_too_many_bytes_are_refused_before_they_are_decoded() -> None:
    with pytest.raises(FormatError, match="over the limit"):
        open_signed(bytes(MAX_BODY_BYTES + 1), TRUSTED)


def test_nesting_without_end_is_a_format_error() -> None:
    with pytest.raises(FormatError):
        open_signed(b"\x94\xc4\x00\xc4\x00\xc4\x00" + b"\x91" * 200_000, TRUSTED)
    with pytest.raises(FormatError):
        decode_body(b"\x81\xa1x" + b"\x91" * 200_000)


@pytest.mark.parametrize(
    "fields",
    [
        {"format": 2},
        {"version": -1, "base": None},
        {"epoch": -1},
        {"base": 2},
        {"base": 3},
        {"base": -1},
        {"run": "0" * 31},
        {"run": "G" * 32},
        {"run": "A" * 32},
        {"digest": bytes(15)},
        {"base_digest": b""},
        {"block_units": 0},
        {"block_units": (1 << 16) + 1},
        {"block_units": 1 << 14},
        {"block_units": 1 << 21},
        {"block_units": -(1 << 16)},
        {"sizes": [3, 3]},
        {"sizes": [3, 3, 0]},
        {"sizes": [3, 3, -5]},
        {"sizes": [3, 3, MAX_CHUNK_BYTES + 1]},
        {"hashes": GOOD.hashes[:-1]},
        {"first_rows": [0, 0]},
        {"first_rows": [0, 2, 1]},
        {"first_rows": [0, 0, 3]},
        {"first_rows": [-1, 0, 0]},
        {"table": b""},
        {"table": b"garbage"},
        {"table": pack_table(ROWS)[:-4]},
        {"table": pack_table(ROWS[::-1])},
        {"table": pack_table([ROWS[0], ROWS[0]])},
        {"table": zstandard.ZstdCompressor().compress(b"\x91" * 200_000)},
        {"table": zstandard.ZstdCompressor().compress(b"\x91\x94\x94\x02\xa2\xff\xfe\xa2U8\x90\xc3\xc3\xc4\x00")},
        {"table": GOOD.table + b"\0"},
        {"changed": -1},
        {"changed": GOOD.total + 1},
    ],
)
def test_every_bound_of_the_structure_holds_even_for_the_trusted_key(fields: dict[str, object]) -> None:
    data = sign(changed(**fields), KEY).to_bytes()
    with pytest.raises(FormatError):
        open_signed(data, TRUSTED)


@pytest.mark.parametrize(
    ("why", "row"),
    [
        ("negative", TableRow(TensorSpec(TensorKind.TENSOR, "a", "BF16", (-2, -2)), True, True)),
        ("unknown dtype", TableRow(TensorSpec(TensorKind.TENSOR, "a", "XX", (2,)), True, True)),
        ("whole bytes", TableRow(TensorSpec(TensorKind.TENSOR, "a", "F4", (3,)), True, True)),
        ("no version", TableRow(TensorSpec(TensorKind.TENSOR, "a", "U8", (3,)), False, False)),
        ("unknown kind", TableRow(TensorSpec(3, "a", "U8", (3,)), True, True)),
        ("unknown kind", TableRow(TensorSpec(-1, "a", "U8", (3,)), True, True)),
        ("length <= 64", TableRow(TensorSpec(TensorKind.TENSOR, "a", "U8", (1,) * 65), True, True)),
        ("over", TableRow(TensorSpec(TensorKind.TENSOR, "a", "U8", (1 << 40, 1 << 40)), True, True)),
        ("digest", TableRow(TensorSpec(TensorKind.TENSOR, "a", "U8", (3,)), True, True, bytes(15))),
    ],
)
def test_every_bound_of_a_row_holds(why: str, row: TableRow) -> None:
    with pytest.raises(FormatError, match=why):
        unpack_table(pack_table([row]))


def test_a_table_that_unpacks_to_too_much_is_refused_before_it_is_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes((64 << 20) + 1))
    with pytest.raises(FormatError, match="over"):
        unpack_table(bomb)
    writer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    with pytest.raises(FormatError, match="does not say its size"):
        unpack_table(writer.compress(b"\x90") + writer.flush())


def test_lists_beyond_their_limits_are_refused_before_memory_is_taken() -> None:
    """A list of small numbers takes a byte for each in a message and eight in memory."""
    numbers = b"\xdd" + (48 << 20).to_bytes(4, "big") + b"\1" * (48 << 20)
    body = msgspec.msgpack.encode(GOOD)
    table = zstandard.ZstdCompressor(level=1).compress(b"\x91\x94\x94\2\xa1a\xa2U8" + numbers + b"\xc3\xc3\xc4\0")
    row = msgspec.msgpack.encode(ROWS[0])
    count = (32 << 20) // len(row)
    rows = zstandard.ZstdCompressor(level=1).compress(b"\xdd" + count.to_bytes(4, "big") + row * count)
    places = [body.index(b"\x93", body.index(name)) for name in (b"sizes", b"first_rows")]
    tracemalloc.start()
    for forged in [body[:at] + numbers + body[at + 4 :] for at in places]:
        with pytest.raises(FormatError, match="length"):
            decode_body(forged)
    for forged in (table, rows):
        with pytest.raises(FormatError, match="length"):
            unpack_table(forged)
    assert tracemalloc.get_traced_memory()[1] < 400 << 20
    tracemalloc.stop()


def test_a_tensor_of_many_huge_dimensions_is_refused_at_once() -> None:
    """Their product has millions of digits, and would take hours."""
    spec = TensorSpec(TensorKind.TENSOR, "a", "U8", (2**63 - 1,) * 1_000_000)
    with pytest.raises(FormatError, match="length"):
        unpack_table(pack_table([TableRow(spec, True, True)]))


@pytest.mark.parametrize("bad", [("U8", (-1,)), ("F4", (3,)), ("BF\n16" * 99, (4,)), ("U8", (1 << 63,))])
def test_an_error_is_one_line_of_bounded_length_for_any_names(bad: tuple[str, tuple[int, ...]]) -> None:
    with pytest.raises(FormatError) as caught:
        unpack_table(pack_table([TableRow(TensorSpec(TensorKind.TENSOR, "a\nb\x1b" * 1000, *bad), True, True)]))
    assert len(str(caught.value)) < 2000 and str(caught.value).isprintable()


def test_chunks_are_verified_by_size_and_hash() -> None:
    for index, chunk in enumerate(CHUNKS):
        assert GOOD.verify_chunk(index, chunk)
        assert GOOD.verify_chunk(index, bytearray(chunk)) and GOOD.verify_chunk(index, memoryview(chunk))
        assert not GOOD.verify_chunk(index, chunk + b"\0")
        assert not GOOD.verify_chunk(index, b"\0" * len(chunk))


def test_a_chunk_may_hold_blocks_of_the_rows_from_its_first_to_the_next_ones_first() -> None:
    assert [GOOD.chunk_rows(i) for i in range(3)] == [range(1), range(3), range(2, 3)]


def test_manifest_of_no_chunks_is_valid() -> None:
    empty = changed(sizes=[], hashes=b"", first_rows=[])
    assert open_signed(sign(empty, KEY).to_bytes(), TRUSTED)[0].payload_bytes == 0


def test_check_consecutive_refuses_a_gap() -> None:
    then = changed(base=2, version=3, base_digest=GOOD.digest)
    check_consecutive(GOOD, then)
    for wrong in ({"base": 1}, {"base_digest": b"\2" * 16}, {"run": "f" * 32}, {"base": None}):
        with pytest.raises(BaseMismatchError):
            check_consecutive(GOOD, msgspec.structs.replace(then, **wrong))
