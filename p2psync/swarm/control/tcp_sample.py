"""The counters of one TCP connection at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TcpSample:
    """The counters of one connection. Bytes since it began, except backlog: bytes that wait to be sent now.

    delivered: what the peer's machine has acknowledged, selectively too. received: bytes that came. rtt: the least
    round trip (seconds; 0: unknown). receiver_limited: seconds so far in which the peer's receive window was full.
    app_limited: how often so far a chunk met an empty queue. pacing_limit: bytes a second, 0: none. queueing_delay:
    seconds by which the smoothed round trip exceeds the least one.
    """

    peer: str
    delivered: int = 0
    received: int = 0
    sent: int = 0
    retransmitted: int = 0
    backlog: int = 0
    rtt: float = 0.0
    receiver_limited: float = 0.0
    app_limited: int = 0
    pacing_limit: float = 0.0
    queueing_delay: float = 0.0
