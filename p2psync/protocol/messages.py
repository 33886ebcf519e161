"""What peers say to each other, and how each message stands in a frame.

A frame is a header of 5 bytes (body length u32, type u8, little-endian) and a body. A CHUNK's body is the manifest's
short id (8 bytes), the chunk's index (u32), its tag (u64) and the chunk's bytes, so that it can be received in place;
every other body is msgpack of the message's fields in order. Either side may send anything but HELLO at any time; HELLO
is first, once, on every connection, both ways.

Nothing here is trusted: a HAVE may lie, a CHUNK is verified against the signed manifest before anything else is done
with it, and a REQUEST obliges nobody.
"""

from __future__ import annotations

import math
import struct
from typing import Annotated, TypeAlias

import msgspec

from p2psync.delta.tensors import DIGEST_BYTES
from p2psync.errors import FormatError
from p2psync.protocol.manifest import HASH_BYTES, MAX_CHUNK_BYTES, MAX_CHUNKS
from p2psync.protocol.wire import checked, encode_msgpack

PROTOCOL = 6
MAGIC = "p2psync"
FRAME_HEADER = struct.Struct("<IB")
CHUNK_HEADER = struct.Struct("<8sIQ")
#: A manifest's short id: the first bytes of its id. Only ids of signed manifests are ever looked up by it.
SHORT_ID_BYTES = 8
#: Bodies: a HAVE for 2^20 chunks is a bitmap of 128 KiB; a REQUEST names at most MAX_REQUEST chunks.
MAX_CONTROL_BYTES = 256 << 10
MAX_REQUEST_CHUNKS = 1024
#: Signed manifests up to this size (bytes) travel as an Offer; larger ones are had from the hub.
MAX_GOSSIP_BYTES = 255 << 10
#: What a Probe may ask for at all; how many connections a peer may wish for.
MAX_PROBE_BYTES = 1 << 30
MAX_PROBE_SECONDS = 60.0
MAX_STREAMS = 32


#: Indices of a manifest's chunks.
_Chunks = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, lt=MAX_CHUNKS)]],
    msgspec.Meta(max_length=MAX_REQUEST_CHUNKS),
]


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """First on every connection. node: 32 hex digits; instance: differs after each start of that node's daemon."""

    magic: str
    protocol: int
    node: str
    instance: str
    region: str


class Bitfield(msgspec.Struct, frozen=True, array_like=True):
    """All that the sender holds of a manifest's chunks: bit i of byte i // 8 (lowest first) is chunk i."""

    manifest: bytes
    bitmap: bytes


class Have(msgspec.Struct, frozen=True, array_like=True):
    """Chunks that the sender holds since its last word on this manifest."""

    manifest: bytes
    chunks: _Chunks


class DontHave(msgspec.Struct, frozen=True, array_like=True):
    """The sender no longer holds anything of this manifest."""

    manifest: bytes


class Request(msgspec.Struct, frozen=True, array_like=True):
    """Please send these chunks, in the order that suits you."""

    manifest: bytes
    chunks: _Chunks


class Cancel(msgspec.Struct, frozen=True, array_like=True):
    """These requested chunks are no longer needed."""

    manifest: bytes
    chunks: _Chunks


class Reject(msgspec.Struct, frozen=True, array_like=True):
    """These requested chunks will not come from here."""

    manifest: bytes
    chunks: _Chunks


class BadChunk(msgspec.Struct, frozen=True, array_like=True):
    """These chunks came from you, and do not have the hash that the manifest signs: look at what you hold of them."""

    manifest: bytes
    chunks: _Chunks


class Subscribe(msgspec.Struct, frozen=True, array_like=True):
    """Send every chunk of this manifest as you get it, along the plan's trees, without being asked for each.

    wanted: False takes it back. What the sender holds already it says with a Have.
    """

    manifest: bytes
    wanted: bool


#: The digest of no weights, from which an anchor leads on.
NO_VERSION = bytes(DIGEST_BYTES)


class AcceptNext(msgspec.Struct, frozen=True, array_like=True):
    """The sender runs the version of this digest (16 bytes): a delta from it is wanted without a word.

    `NO_VERSION`: it runs nothing, and wants an anchor so. Empty: it wants nothing without a word. So the chunks of the
    next version, pushed as soon as it is there, do not wait for a round trip.
    """

    digest: bytes


class ManifestGossip(msgspec.Struct, frozen=True, array_like=True):
    """A new version's signed manifest (its id, 32 bytes, and the bytes of a `SignedManifest`), down the plan's trees.

    So nobody's first chunk waits for the hub's word, which confirms it before anything is committed.
    """

    id: bytes
    signed: bytes


class Ping(msgspec.Struct, frozen=True, array_like=True):
    """Answered at once with a Pong of the same token."""

    token: int


class Pong(msgspec.Struct, frozen=True, array_like=True):
    """See Ping."""

    token: int


class ProbeRequest(msgspec.Struct, frozen=True, array_like=True):
    """Please send me up to `size` bytes of junk, for so many seconds at most; size 0: stop. Obliges nobody.

    token: the asker's name for this probe, or that of the offer which it takes up. rate: bytes a second at most, 0: as
    fast as may be.
    """

    token: int
    size: int
    seconds: float
    rate: float = 0.0


class ProbePadding(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that mean nothing, sent because a Probe asked for them."""

    data: memoryview


class ProbeEnd(msgspec.Struct, frozen=True, array_like=True):
    """No more junk for this probe or offer: `sent` bytes of it were sent; 0: it suits neither now."""

    token: int
    sent: int


class ProbeInvite(msgspec.Struct, frozen=True, array_like=True):
    """Please ask me for junk now (a Probe with this token): I want to know what I can send."""

    token: int


class UplinkRate(msgspec.Struct, frozen=True, array_like=True):
    """I measured what I can send to all together: `rate` bytes a second. Whoever looks at the way from my region does
    so best through the widest uplink there.
    """

    rate: float


class SuppressProbes(msgspec.Struct, frozen=True, array_like=True):
    """A version is about to come down the plan's trees: no junk for so many seconds. From a parent to its children, who
    pass it on.
    """

    seconds: float


class RequestStreams(msgspec.Struct, frozen=True, array_like=True):
    """So many parallel connections between us would suit what I send to you; for the side that dialled."""

    count: int


class Chunk(msgspec.Struct, frozen=True):
    """One chunk's bytes, not yet verified. tag: the plan's tree that it goes down (see `swarm.trees`), 0: none."""

    manifest: bytes
    index: int
    data: bytes | bytearray | memoryview
    tag: int = 0


Probing: TypeAlias = ProbeRequest | ProbePadding | ProbeEnd | ProbeInvite | UplinkRate | SuppressProbes | RequestStreams
Control: TypeAlias = (
    Hello
    | Bitfield
    | Have
    | DontHave
    | Request
    | Cancel
    | Reject
    | Ping
    | Pong
    | Subscribe
    | AcceptNext
    | ManifestGossip
    | BadChunk
    | Probing
)
Message: TypeAlias = Control | Chunk

CHUNK_TYPE = 0
HELLO_TYPE = 1
#: A Hello is the one message of a peer that has not said who it is.
MAX_HELLO_BYTES = 1024
_TYPES: dict[int, type[Control]] = {
    HELLO_TYPE: Hello,
    2: Bitfield,
    3: Have,
    4: DontHave,
    5: Request,
    6: Cancel,
    7: Reject,
    8: Ping,
    9: Pong,
    10: Subscribe,
    11: AcceptNext,
    12: ManifestGossip,
    13: BadChunk,
    20: ProbeRequest,
    21: ProbePadding,
    22: ProbeEnd,
    23: ProbeInvite,
    24: RequestStreams,
    25: UplinkRate,
    26: SuppressProbes,
}
_NUMBERS = {kind: number for number, kind in _TYPES.items()}
_DECODERS = {number: msgspec.msgpack.Decoder(kind) for number, kind in _TYPES.items()}


def encode_control(message: Control) -> bytes:
    """The whole frame of a control message."""
    body = encode_msgpack(message)
    return FRAME_HEADER.pack(len(body), _NUMBERS[type(message)]) + body


def encode_chunk_header(manifest: bytes, index: int, size: int, tag: int = 0) -> bytes:
    """Frame and chunk header of a CHUNK whose `size` bytes follow; the data itself is never copied."""
    return FRAME_HEADER.pack(CHUNK_HEADER.size + size, CHUNK_TYPE) + CHUNK_HEADER.pack(manifest, index, tag)


def check_frame(length: int, kind: int) -> None:
    """Raise `FormatError` unless a frame of this length and type may be received at all."""
    if kind == CHUNK_TYPE:
        if not CHUNK_HEADER.size < length <= CHUNK_HEADER.size + MAX_CHUNK_BYTES:
            raise FormatError(f"a chunk frame of {length} bytes")
    elif kind not in _TYPES:
        raise FormatError(f"a frame of unknown type {kind}")
    elif length > (limit := MAX_HELLO_BYTES if kind == HELLO_TYPE else MAX_CONTROL_BYTES):
        raise FormatError(f"a {_TYPES[kind].__name__} frame of {length} bytes is over the limit of {limit}")


def decode_control(kind: int, body: bytes | bytearray | memoryview) -> Control:
    """Decode and bound a control message; raises `FormatError`."""
    try:
        message: Control = checked(_DECODERS[kind].decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"a broken {_TYPES[kind].__name__} message: {error}") from None
    _check(message)
    return message


def _check(message: Control) -> None:
    if isinstance(message, Hello):
        _check_hello(message)
        return
    if isinstance(message, AcceptNext):
        if len(message.digest) not in (0, DIGEST_BYTES):
            raise FormatError("a digest is 16 bytes")
        return
    if isinstance(message, ManifestGossip):
        if len(message.id) != HASH_BYTES:
            raise FormatError("a manifest's id is 32 bytes")
        return
    if isinstance(message, Ping | Pong | ProbePadding):
        return
    if isinstance(message, ProbeRequest | ProbeEnd | ProbeInvite | UplinkRate | SuppressProbes | RequestStreams):
        _check_probing(message)
        return
    if len(message.manifest) != SHORT_ID_BYTES:
        raise FormatError("a manifest's short id is 8 bytes")
    if isinstance(message, Bitfield) and len(message.bitmap) > MAX_CHUNKS // 8:
        raise FormatError("a bitmap of more chunks than a manifest may have")


def _check_hello(hello: Hello) -> None:
    if hello.magic != MAGIC:
        raise FormatError("the other side does not speak p2psync")
    if hello.protocol != PROTOCOL:
        raise FormatError(f"the peer speaks protocol {hello.protocol}, this node {PROTOCOL}: update the older side")
    if not 1 <= len(hello.node) <= 64 or not 1 <= len(hello.instance) <= 64 or len(hello.region) > 64:
        raise FormatError("a Hello with a name that is too long or empty")


def _check_probing(
    message: ProbeRequest | ProbeEnd | ProbeInvite | UplinkRate | SuppressProbes | RequestStreams,
) -> None:
    match message:
        case ProbeRequest():
            bounded = 0 <= message.size <= MAX_PROBE_BYTES and 0 <= message.seconds <= MAX_PROBE_SECONDS
            bounded = bounded and 0 <= message.rate < math.inf
        case ProbeEnd():
            bounded = 0 <= message.sent <= MAX_PROBE_BYTES
        case ProbeInvite():
            bounded = True
        case UplinkRate():
            bounded = 0 < message.rate < math.inf
        case SuppressProbes():
            bounded = 0 < message.seconds <= MAX_PROBE_SECONDS
        case RequestStreams():
            bounded = 1 <= message.count <= MAX_STREAMS
    if not bounded or not 0 <= getattr(message, "token", 0) < 1 << 32:
        raise FormatError(f"a {type(message).__name__} with figures out of bounds")
