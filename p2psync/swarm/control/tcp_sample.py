"""The counters of one TCP connection at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TcpSample:
    """The counters of one connection. Bytes since it began, except backlog: bytes that wait to be sent now.

    delivered: what the peer's machine has confirmed, in order or not. received: what has come in order. rtt: the least
    round trip (seconds; 0: not known). held: seconds so far in which the peer's window was full. dried: how often so
    far nothing waited any more. limit: bytes a second that it may send, 0: any number. delay: by how much longer than
    the least round trips are now (seconds).
    """

    peer: str
    delivered: int = 0
    received: int = 0
    sent: int = 0
    resent: int = 0
    backlog: int = 0
    rtt: float = 0.0
    held: float = 0.0
    app_limited: int = 0
    limit: float = 0.0
    delay: float = 0.0
