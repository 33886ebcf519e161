"""The actions that the chunk exchange has its shell carry out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from p2psync.protocol.messages import Control


@dataclass(frozen=True, slots=True)
class Send:
    """Send a control message to a peer."""

    peer: str
    message: Control


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Read a held chunk (manifest id of 32 bytes) and send it with its tag (see `exchange.trees`).

    The shell calls `flushed` with its size once the kernel has taken it, and also if it cannot be read; then it calls
    `lost`, too. The exchange may have ended the manifest by then.
    """

    peer: str
    id: bytes
    index: int
    size: int
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """Store a verified chunk, before any later `SendChunk` of it. If the store cannot, the shell calls `lost`."""

    id: bytes
    index: int
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Complete:
    """Note that the node holds every wanted chunk of this manifest."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Ban:
    """Disconnect this peer and accept no connection of it before `until` (seconds)."""

    peer: str
    reason: str
    until: float


@dataclass(frozen=True, slots=True)
class VerifyManifest:
    """Verify a signed manifest from this peer; the shell answers with `gossip.verified` or `gossip.rejected`.

    id: 32 bytes, as the peer states it, which the shell verifies, too.
    """

    peer: str
    id: bytes
    signed: bytes


@dataclass(frozen=True, slots=True)
class Recheck:
    """Hash a stored chunk that a peer reports as wrong, and call `lost` if it is.

    The shell hashes all other chunks of the manifest again before it sends them.
    """

    id: bytes
    index: int


Action: TypeAlias = Send | SendChunk | Save | Complete | Ban | VerifyManifest | Recheck
