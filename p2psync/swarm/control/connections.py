"""The interfaces through which the control sees a node's TCP connections and time; a driver implements them.

The control reads samples, sets rates and restarts congestion control through these; `p2psync.net` implements them over
sockets and an event loop, `p2psync.topology.virtual` over virtual TCP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from p2psync.protocol.messages import Control
from p2psync.swarm.control.tcp_sample import TcpSample


class Connection(Protocol):
    """One TCP connection to a peer. Bytes and seconds. Equal only to itself."""

    def __hash__(self) -> int: ...

    @property
    def peer(self) -> str | None:
        """Its name; None before it greeted."""

    @property
    def written(self) -> int:
        """Bytes given to the connection so far."""

    @property
    def got(self) -> int:
        """Bytes that came in order so far."""

    @property
    def backlog(self) -> int:
        """Bytes in user space that wait to be sent."""

    @property
    def local(self) -> bool:
        """Whether the other side is on this machine."""

    @property
    def can_restart(self) -> bool:
        """Whether a restart of congestion control costs no window just now."""

    def restart(self) -> None:
        """Restarts congestion control: it searches for the path's rate as on a new connection."""

    def set_pacing_limit(self, rate: float) -> None:
        """Limits the pacing rate (bytes a second); 0: no limit."""

    def idle(self, seconds: float) -> bool:
        """Returns whether nothing but small messages moved for so long, and no byte waits."""

    def sample(self) -> TcpSample:
        """Returns the connection's counters."""

    def send_padding(self) -> None:
        """Sends one frame of probe padding, of `probe_sender.FRAME_BYTES`."""


class Connections(Protocol):
    """The connections of one node, by peer."""

    @property
    def chunk_at(self) -> float:
        """When the last chunk was sent or had come."""

    def streams(self, name: str) -> Sequence[Connection]:
        """Returns the connections to a peer; none if it is not connected."""

    def all_streams(self) -> Iterator[Connection]:
        """Returns the connections to all connected peers."""

    def dialled(self, name: str) -> bool:
        """Returns whether this node opened the connections to a peer, and so is the one to open more."""

    def set_streams(self, name: str, count: int) -> None:
        """Opens connections to a dialled peer, or closes idle ones, towards this number."""

    def send(self, name: str, message: Control) -> None:
        """Sends a control message; drops it if the peer is gone."""

    def hang_up(self, name: str, reason: str) -> None:
        """Closes every connection to a peer."""


class TimerHandle(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancels the call."""

    def when(self) -> float:
        """Returns the time of the call (seconds)."""


class Scheduler(Protocol):
    """Time, as an event loop has it."""

    def time(self) -> float:
        """Returns the time (seconds of any monotonic clock)."""

    def call_later(self, delay: float, callback: Callable[[], Any]) -> TimerHandle:
        """Schedules a call after so many seconds."""
