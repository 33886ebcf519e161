"""What a `Prober` has its shell do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from p2psync.protocol.messages import ProbeEnd, ProbeInvite, ProbeRequest, SuppressProbes, UplinkRate


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message to a peer."""

    peer: str
    message: ProbeRequest | ProbeEnd | ProbeInvite | UplinkRate | SuppressProbes


@dataclass(frozen=True, slots=True)
class StartPadding:
    """Send junk to a peer: so many bytes, and none after `until`; rate: bytes a second at most, 0: as fast as may be.
    Say `padding_ended` when it is done."""

    peer: str
    size: int
    until: float
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class StopPadding:
    """Send no more junk to a peer; say `padding_ended`."""

    peer: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Hang up on a peer that sends junk nobody asked for."""

    peer: str
    reason: str


ProbeAction: TypeAlias = SendMessage | StartPadding | StopPadding | Disconnect
