"""The manifest: the signed, immutable description of an anchor or a delta.

Theory of operation. A trainer writes a `Manifest`, encodes it to bytes (the *body*), and signs the body with its
Ed25519 key: `SignedManifest`. The manifest's id is the BLAKE3 hash of the body, so it names one body for ever, whoever
signed it. A receiver checks, in this order: sizes, signature, trust in the key, structure. A receiver reads
nothing of a manifest whose signature is wrong.

The chunk hashes stand in one byte string of 32 bytes each, and the table of tensors is compressed by itself, so that a
manifest of a 40,000-tensor model stays small, and the table is unpacked only where it is needed.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Annotated, Literal

import msgspec
import zstandard
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from p2psync.delta.tensors import DIGEST_BYTES, TableRow, TensorKind
from p2psync.errors import BaseMismatchError, FormatError, TrustError
from p2psync.protocol.wire import decode_msgpack, encode_msgpack
from p2psync.setting_names import named

FORMAT = 1
#: A manifest's body, and its table unpacked, may not be larger than this (bytes): 40,000 tensors and 10^6 chunks fit.
MAX_BODY_BYTES = 64 << 20
MAX_TABLE_BYTES = 64 << 20
MAX_CHUNKS = 1 << 20
#: Rows of a table, and bytes of one tensor: they bound what a table costs its reader in time and memory.
MAX_ROWS = 1 << 18
MAX_TENSOR_BYTES = 1 << 62
MAX_CHUNK_BYTES = (4 << 20) + 65536
HASH_BYTES = 32
_SIGN_CONTEXT = b"p2psync manifest v1\0"
#: The exceptions that decoding untrusted msgpack raises; invalid UTF-8 and unbounded nesting have their own.
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_Numbers = Annotated[list[int], msgspec.Meta(max_length=MAX_CHUNKS)]
_Table = Annotated[tuple[TableRow, ...], msgspec.Meta(max_length=MAX_ROWS)]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """An anchor (`base` is None) or a delta from `base` to `version`.

    run: 32 hex digits, rising with time (see `membership.records.new_run`). epoch: the fencing number. digest and
    base_digest: 16 bytes, little-endian sums mod 2^128 over all weights after and before. block_units: units per
    block. table: zstd of msgpack of `list[TableRow]`. sizes: bytes of each chunk. hashes: 32 bytes of BLAKE3 for each
    chunk. first_rows: for each chunk the table row of its first block; rising. changed, total: units that differ, units
    in all. created: Unix seconds at the trainer, for people only.
    """

    format: int = FORMAT
    run: str
    epoch: int
    version: int
    base: int | None
    digest: bytes
    base_digest: bytes
    profile: str
    block_units: int
    table: bytes
    sizes: _Numbers
    hashes: bytes
    first_rows: _Numbers
    changed: int
    total: int
    created: float

    @property
    def kind(self) -> Literal["anchor", "delta"]:
        """`anchor` or `delta`."""
        return "anchor" if self.base is None else "delta"

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.sizes)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all chunks together."""
        return sum(self.sizes)

    def chunk_hash(self, index: int) -> bytes:
        """BLAKE3 of chunk `index`, 32 bytes."""
        return self.hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]

    def chunk_rows(self, index: int) -> range:
        """The table rows that blocks of chunk `index` may belong to."""
        last = self.first_rows[index + 1] if index + 1 < self.chunks else None
        end = len(self.rows()) if last is None else last + 1
        return range(self.first_rows[index], end)

    def rows(self) -> tuple[TableRow, ...]:
        """The table, unpacked. Raises `FormatError` if it is broken."""
        return unpack_table(self.table)

    def verify_chunk(self, index: int, data: bytes | bytearray | memoryview) -> bool:
        """Returns whether `data` is chunk `index`, by size and BLAKE3."""
        return len(data) == self.sizes[index] and blake3(data).digest() == self.chunk_hash(index)


class SignedManifest(msgspec.Struct, frozen=True, array_like=True):
    """A manifest on the wire: body, public key (32 bytes), and Ed25519 signature (64 bytes) over context and body."""

    body: bytes
    key: bytes
    signature: bytes

    @property
    def id(self) -> bytes:
        """BLAKE3 of the body, 32 bytes."""
        return blake3(self.body).digest()

    def to_bytes(self) -> bytes:
        """The wire and disk form (msgpack)."""
        return encode_msgpack(self)


def pack_table(rows: list[TableRow]) -> bytes:
    """Compress a table for `Manifest.table`."""
    return zstandard.ZstdCompressor(level=6).compress(msgspec.msgpack.encode(rows))


@functools.lru_cache(maxsize=16)
def unpack_table(table: bytes) -> tuple[TableRow, ...]:
    """Unpack and check `Manifest.table`: rows strictly rising, every spec countable, digests whole.

    Raises `FormatError`, whose message is one line whatever the tensor names are.
    """
    try:
        if not 0 <= zstandard.frame_content_size(table) <= MAX_TABLE_BYTES:
            raise FormatError(f"the manifest's table is over {MAX_TABLE_BYTES} bytes or does not say its size")
        raw = zstandard.ZstdDecompressor().decompress(table, allow_extra_data=False)
        rows = msgspec.msgpack.decode(raw, type=_Table)
    except (zstandard.ZstdError, *_DECODE_ERRORS) as error:
        raise FormatError(f"the manifest's table is broken: {error}") from None
    for row in rows:
        _check_row(row)
    if any(a.spec >= b.spec for a, b in itertools.pairwise(rows)):
        raise FormatError("the manifest's table is not sorted")
    return rows


def _check_row(row: TableRow) -> None:
    spec = row.spec
    if not TensorKind.HEADER <= spec.kind <= TensorKind.TENSOR:
        raise FormatError(f"the manifest's table has a tensor of unknown kind {spec.kind}: {_name(row)}")
    if any(size < 0 for size in spec.shape):
        raise FormatError(f"the manifest's table has a tensor of negative size: {_name(row)}")
    if spec.nbytes > MAX_TENSOR_BYTES:
        raise FormatError(f"the manifest's table has a tensor of over {MAX_TENSOR_BYTES} bytes: {_name(row)}")
    if not (row.before or row.after):
        raise FormatError(f"the manifest's table has a tensor of no version: {_name(row)}")
    if len(row.digest) not in (0, DIGEST_BYTES):
        raise FormatError(f"the manifest's table has a digest of {len(row.digest)} bytes: {_name(row)}")


def _name(row: TableRow) -> str:
    """A tensor's name for an error message: ASCII on one line, cut to 200 characters."""
    return ascii(row.spec.name[:200])


def sign(manifest: Manifest, key: Ed25519PrivateKey) -> SignedManifest:
    """Encode a manifest and sign it."""
    body = encode_msgpack(manifest)
    return SignedManifest(body, key.public_key().public_bytes_raw(), key.sign(_SIGN_CONTEXT + body))


def open_signed(data: bytes, trusted: frozenset[bytes] | None) -> tuple[Manifest, SignedManifest]:
    """Check and decode the bytes of a `SignedManifest`.

    `trusted` holds raw public keys (32 bytes each); None trusts any key, and is for tools that only look.
    Raises `TrustError` for an unknown key or a wrong signature, `FormatError` for malformed bytes.
    """
    if len(data) > MAX_BODY_BYTES:
        raise FormatError(f"a manifest of {len(data)} bytes is over the limit of {MAX_BODY_BYTES}")
    try:
        signed = decode_msgpack(data, SignedManifest)
    except _DECODE_ERRORS as error:
        raise FormatError(f"not a signed manifest: {error}") from None
    if trusted is not None and signed.key not in trusted:
        setting = named("trusted", "--trust")
        raise TrustError(f"manifest signed by {signed.key.hex()[:16]}…, a key that is not trusted; see {setting}")
    try:
        Ed25519PublicKey.from_public_bytes(signed.key).verify(signed.signature, _SIGN_CONTEXT + signed.body)
    except (InvalidSignature, ValueError):
        raise TrustError("the manifest's signature is wrong: it was forged or damaged on the way") from None
    return decode_body(signed.body), signed


def open_expected(data: bytes, id: str, trusted: frozenset[bytes]) -> tuple[Manifest, SignedManifest]:
    """Opens as `open_signed` the manifest of an id (hex). Raises as it does, and `TrustError` for another one."""
    manifest, signed = open_signed(data, trusted)
    if signed.id.hex() != id:
        raise TrustError("the hub gave another manifest than the one it announced; not used")
    return manifest, signed


def decode_body(body: bytes) -> Manifest:
    """Decode and check a manifest's body; raises `FormatError`."""
    try:
        manifest = decode_msgpack(body, Manifest)
    except _DECODE_ERRORS as error:
        raise FormatError(f"not a manifest: {error}") from None
    _check(manifest)
    return manifest


def _check(m: Manifest) -> None:
    if m.format != FORMAT:
        raise FormatError(f"manifest format {m.format}; this p2psync reads {FORMAT}: update the older side")
    if m.version < 0 or m.epoch < 0 or (m.base is not None and not 0 <= m.base < m.version):
        raise FormatError(f"manifest of version {m.version} from {m.base}: versions only rise")
    if len(m.run) != 32 or not all(c in "0123456789abcdef" for c in m.run):
        raise FormatError("the manifest's run is not 32 hex digits")
    if len(m.digest) != DIGEST_BYTES or len(m.base_digest) != DIGEST_BYTES:
        raise FormatError("the manifest's digests are not 16 bytes")
    if m.block_units & (m.block_units - 1) or not 1 << 15 <= m.block_units <= 1 << 20:
        raise FormatError(f"blocks of {m.block_units} units; a power of two from 2^15 to 2^20 is wanted")
    if not 0 <= m.changed <= m.total or not math.isfinite(m.created):
        raise FormatError("the manifest's counts or time are impossible")
    n = len(m.sizes)
    if n > MAX_CHUNKS or len(m.hashes) != n * HASH_BYTES or len(m.first_rows) != n:
        raise FormatError("the manifest's chunk lists differ in length or are too long")
    if any(not 0 < size <= MAX_CHUNK_BYTES for size in m.sizes):
        raise FormatError("the manifest has a chunk of impossible size")
    rows = len(m.rows())
    if any(not 0 <= row < rows for row in m.first_rows) or m.first_rows != sorted(m.first_rows):
        raise FormatError("the manifest's chunks are not in table order")


def check_consecutive(first: Manifest, then: Manifest) -> None:
    """Raise `BaseMismatchError` unless `then` starts exactly where `first` ends."""
    if then.base != first.version or then.base_digest != first.digest or then.run != first.run:
        raise BaseMismatchError(f"delta {then.base}→{then.version} does not start where version {first.version} is")
