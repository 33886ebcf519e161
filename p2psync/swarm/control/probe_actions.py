"""The actions of a `Prober`, which its driver carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from p2psync.protocol.messages import ProbeEnd, ProbeInvite, ProbeRequest, SuppressProbes, UplinkRate


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Sends a message to a peer."""

    peer: str
    message: ProbeRequest | ProbeEnd | ProbeInvite | UplinkRate | SuppressProbes


@dataclass(frozen=True, slots=True)
class StartPadding:
    """Sends padding to a peer, `size` bytes at most and none after `until` (seconds); the driver calls
    `Prober.padding_ended` when it is done. rate: bytes a second at most, 0: no limit."""

    peer: str
    size: int
    until: float
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class StopPadding:
    """Stops the padding for a peer; the driver calls `Prober.padding_ended`."""

    peer: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Closes the connections to a peer that sends padding unasked."""

    peer: str
    reason: str


ProbeAction: TypeAlias = SendMessage | StartPadding | StopPadding | Disconnect
