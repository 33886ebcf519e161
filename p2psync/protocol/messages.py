"""The messages between peers, and the frame of each.

A frame is a header of 5 bytes (body length u32, type u8, little-endian) and a body. A CHUNK's body is the manifest's
short id (8 bytes), the chunk's index (u32), its tag (u64) and the chunk's bytes, so that it can be received in place;
every other body is msgpack of the message's fields in order. Either side sends HELLO first, once on every
connection, and then any other message at any time.

A receiver trusts no message: a peer may lie in a BITFIELD or HAVE, every CHUNK is verified against the signed manifest
before it is used, and a peer may leave a REQUEST unanswered.
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
#: Bytes of a control message's body: a BITFIELD for 2^20 chunks is a bitmap of 128 KiB.
MAX_CONTROL_BYTES = 256 << 10
#: Chunks that one message names at most.
MAX_REQUEST_CHUNKS = 1024
#: Signed manifests up to this size (bytes) travel as a ManifestGossip; nodes get larger ones from the hub.
MAX_GOSSIP_BYTES = 255 << 10
#: Bytes and seconds that a ProbeRequest may ask for; connections that a RequestStreams may ask for.
MAX_PROBE_BYTES = 1 << 30
MAX_PROBE_SECONDS = 60.0
MAX_STREAMS = 32


#: Indices of a manifest's chunks.
_Chunks = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, lt=MAX_CHUNKS)]],
    msgspec.Meta(max_length=MAX_REQUEST_CHUNKS),
]

_Tags = Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=MAX_REQUEST_CHUNKS)]


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first message on a connection. node: 32 hex digits. instance: new with each start of the node's daemon."""

    magic: str
    protocol: int
    node: str
    instance: str
    region: str


class Bitfield(msgspec.Struct, frozen=True, array_like=True):
    """The chunks of a manifest that the sender holds: bit i % 8 (lowest first) of byte i // 8 is chunk i."""

    manifest: bytes
    bitmap: bytes


class Have(msgspec.Struct, frozen=True, array_like=True):
    """Chunks that the sender got since its last Bitfield or Have of this manifest.

    tags: of each, the plan's tree that it came down (see `swarm.exchange.trees`): the sender pushes it to its children
    there; empty: none came down a tree. backlog: seconds for which the sender's uplink is busy with queued chunks.
    """

    manifest: bytes
    chunks: _Chunks
    tags: _Tags = []
    backlog: float = 0.0


class DontHave(msgspec.Struct, frozen=True, array_like=True):
    """The sender holds no chunk of this manifest any more."""

    manifest: bytes


class Request(msgspec.Struct, frozen=True, array_like=True):
    """Asks the receiver for these chunks, in any order."""

    manifest: bytes
    chunks: _Chunks


class Cancel(msgspec.Struct, frozen=True, array_like=True):
    """The sender no longer needs these chunks that it requested."""

    manifest: bytes
    chunks: _Chunks


class Reject(msgspec.Struct, frozen=True, array_like=True):
    """The sender will not send these chunks that were requested of it."""

    manifest: bytes
    chunks: _Chunks


class BadChunk(msgspec.Struct, frozen=True, array_like=True):
    """The receiver sent these chunks with a wrong hash; it verifies its own copies."""

    manifest: bytes
    chunks: _Chunks


class Subscribe(msgspec.Struct, frozen=True, array_like=True):
    """Asks a parent for every chunk of a manifest as soon as it has it, along the plan's trees, without requests.

    wanted: False ends the subscription. A Bitfield lists the chunks that the sender holds already.
    """

    manifest: bytes
    wanted: bool


#: The digest of a node without weights: the base of every anchor.
NO_VERSION = bytes(DIGEST_BYTES)


class AcceptNext(msgspec.Struct, frozen=True, array_like=True):
    """Asks a parent to push the next version without a subscription, so that its chunks do not wait for a round trip.

    digest: of the version that the sender runs (16 bytes); it accepts a delta from that version. `NO_VERSION`: it runs
    none, and accepts an anchor. Empty: it accepts nothing without a Subscribe.
    """

    digest: bytes


class ManifestGossip(msgspec.Struct, frozen=True, array_like=True):
    """A new version's signed manifest, passed down the plan's trees. id: 32 bytes. signed: bytes of a `SignedManifest`.

    It lets a node fetch and stage before the hub announces the version; the node commits only after the announcement.
    """

    id: bytes
    signed: bytes


class Ping(msgspec.Struct, frozen=True, array_like=True):
    """Asks for a Pong of the same token, at once."""

    token: int


class Pong(msgspec.Struct, frozen=True, array_like=True):
    """Answers a Ping; token: that of the Ping."""

    token: int


class ProbeRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for up to `size` bytes of probe padding within `seconds`; size 0 stops the probe. A peer may ignore it.

    token: the sender's number for this probe, or that of the invitation that it follows. rate: bytes a second at most;
    0: no limit.
    """

    token: int
    size: int
    seconds: float
    rate: float = 0.0


class ProbePadding(msgspec.Struct, frozen=True, array_like=True):
    """Probe padding: bytes without meaning, sent for a ProbeRequest."""

    data: memoryview


class ProbeEnd(msgspec.Struct, frozen=True, array_like=True):
    """Ends a probe, or declines an invitation. sent: bytes of padding that were sent; 0: the sender declines."""

    token: int
    sent: int


class ProbeInvite(msgspec.Struct, frozen=True, array_like=True):
    """Asks the receiver for a ProbeRequest with this token, so that the sender can measure its uplink."""

    token: int


class UplinkRate(msgspec.Struct, frozen=True, array_like=True):
    """The sender's measured uplink rate to all peers together, in bytes a second.

    A node probes the path from a region through the peer with the widest uplink there.
    """

    rate: float


class SuppressProbes(msgspec.Struct, frozen=True, array_like=True):
    """Asks for no probe padding for `seconds`, because a version is about to come down the plan's trees.

    A parent sends it to its children, who pass it on.
    """

    seconds: float


class RequestStreams(msgspec.Struct, frozen=True, array_like=True):
    """Asks the side that dialled for `count` parallel connections between the two nodes."""

    count: int


class Chunk(msgspec.Struct, frozen=True):
    """One chunk's bytes, not yet verified. tag: of the plan's tree (see `swarm.exchange.trees`); 0: none."""

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
#: Bytes of a Hello's body: the only message that an unidentified peer may send.
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
    """Encode a control message as a whole frame."""
    body = encode_msgpack(message)
    return FRAME_HEADER.pack(len(body), _NUMBERS[type(message)]) + body


def encode_chunk_header(manifest: bytes, index: int, size: int, tag: int = 0) -> bytes:
    """Encode the frame and chunk headers of a CHUNK of `size` bytes; the caller sends the data itself after them."""
    return FRAME_HEADER.pack(CHUNK_HEADER.size + size, CHUNK_TYPE) + CHUNK_HEADER.pack(manifest, index, tag)


def check_frame(length: int, kind: int) -> None:
    """Raise `FormatError` for a frame of unknown type, or of a length (bytes) over its limit."""
    if kind == CHUNK_TYPE:
        if not CHUNK_HEADER.size < length <= CHUNK_HEADER.size + MAX_CHUNK_BYTES:
            raise FormatError(f"a chunk frame of {length} bytes")
    elif kind not in _TYPES:
        raise FormatError(f"a frame of unknown type {kind}")
    elif length > (limit := MAX_HELLO_BYTES if kind == HELLO_TYPE else MAX_CONTROL_BYTES):
        raise FormatError(f"a {_TYPES[kind].__name__} frame of {length} bytes is over the limit of {limit}")


def decode_control(kind: int, body: bytes | bytearray | memoryview) -> Control:
    """Decode a control message and check its bounds. Raises `FormatError`."""
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
    if isinstance(message, Have) and (len(message.tags) not in (0, len(message.chunks)) or not message.backlog >= 0):
        raise FormatError("a Have with tags or a backlog out of bounds")
    if isinstance(message, Bitfield) and len(message.bitmap) > MAX_CHUNKS // 8:
        raise FormatError("a bitmap of more chunks than a manifest may have")


def _check_hello(hello: Hello) -> None:
    if hello.magic != MAGIC:
        raise FormatError("the peer does not speak p2psync")
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
        raise FormatError(f"a {type(message).__name__} with values out of bounds")
