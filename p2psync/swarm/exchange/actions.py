"""What the chunk exchange asks its shell to do."""

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

    Say `flushed` with its size when it has left, and also when it could not be read; in that case say `lost` too. The
    manifest may be exchanged no longer by then.
    """

    peer: str
    id: bytes
    index: int
    size: int
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """A verified chunk to keep, before any later `SendChunk` of it is carried out. If it cannot be kept, say `lost`."""

    id: bytes
    index: int
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Complete:
    """Every wanted chunk of this manifest is held."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Ban:
    """Hang up on this peer and do not take it back before `until`."""

    peer: str
    reason: str
    until: float


@dataclass(frozen=True, slots=True)
class VerifyManifest:
    """Check a signed manifest that this peer offered; answer `manifest_verified` or
    `manifest_rejected`. id: 32 bytes, as the peer says."""

    peer: str
    id: bytes
    signed: bytes


@dataclass(frozen=True, slots=True)
class Recheck:
    """A peer says that this chunk came from here with other bytes: hash what the store holds, and say `lost` if it is
    wrong. All other chunks of the manifest are hashed again before they are sent."""

    id: bytes
    index: int


Action: TypeAlias = Send | SendChunk | Save | Complete | Ban | VerifyManifest | Recheck
