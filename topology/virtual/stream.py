"""One end of a TCP connection between two nodes, as the control sees it: a `Connection` over virtual TCP."""

from __future__ import annotations

import math
from typing import Protocol

from p2psync.protocol.messages import (
    Chunk,
    Control,
    Message,
    Ping,
    Pong,
    ProbePadding,
    encode_chunk_header,
    encode_control,
)
from p2psync.sim.clock import VirtualClock
from p2psync.swarm.control.config import MIN_NOTSENT_BYTES, NEAR_RTT_SECONDS, PADDING_BYTES
from p2psync.swarm.control.probe_sender import FRAME_BYTES
from p2psync.swarm.control.send_time import SendTime, notsent_for
from p2psync.swarm.control.tcp_sample import TcpSample
from p2psync.topology.tcp.congestion import MIN_WINDOW, Bbr, Cubic
from p2psync.topology.tcp.connection import TcpConnection
from p2psync.topology.virtual.links import VirtualLinks

#: Bytes in user space at which a connection is full, and at which it has room again: as `net.stream` sets them.
WRITE_HIGH, WRITE_LOW = 64 << 10, 16 << 10
#: Messages up to this size (bytes) leave a connection idle.
SMALL_BYTES = 2048
#: The least limit that the kernel is given (bytes a second): as `net.tcp` bounds it.
LEAST_LIMIT = 64 << 10
#: A connection that repairs losses and has less than this part of its window in flight is away from its window.
AWAY_FACTOR = 4
_PADDING = ProbePadding(memoryview(bytes(PADDING_BYTES)))
_HEADER_BYTES = len(encode_chunk_header(bytes(8), 0, 1, 0))


class StreamListener(Protocol):
    """A node, as its connections see it."""

    def received(self, stream: VirtualStream, message: Message) -> None:
        """A message arrived."""

    def flushed(self, peer: str, size: int) -> None:
        """The connection has room again, after `size` bytes of chunks for this peer."""

    def retired(self, stream: VirtualStream) -> None:
        """The other end sends no more on this stream."""


class VirtualStream:
    """One end. Call `open_pair` to make both. See `Connection` for the attributes."""

    local = False

    def __init__(self, clock: VirtualClock, peer: str, listener: StreamListener) -> None:
        self.peer: str = peer
        self.written = 0
        self.app_limited = 0
        self.out: TcpConnection
        self.other: VirtualStream
        self._clock, self._listener = clock, listener
        self._moved_at = clock.now
        self._send_time = SendTime()
        self._pacing_limit = 0.0
        self._notsent_lowat = MIN_NOTSENT_BYTES
        #: Bytes of chunks that were given and not reported as flushed.
        self._unflushed = 0
        self._is_full = self._queue_was_empty = self._is_flushing = False

    # ---- Connection ------------------------------------------------------------------------------------------------

    @property
    def got(self) -> int:
        """See `Connection`."""
        return self.other.out.received_in_order

    @property
    def backlog(self) -> int:
        """See `Connection`."""
        return max(0, self.out.waiting - self._notsent_lowat)

    @property
    def can_restart(self) -> bool:
        """See `Connection`."""
        out = self.out
        window = out.congestion.cwnd
        return window > MIN_WINDOW and not (out.is_recovering and AWAY_FACTOR * out.inflight < window)

    def restart(self) -> None:
        """See `Connection`; only BBR can, as with the kernel's."""
        if isinstance(self.out.congestion, Bbr):
            self.out.restart(Bbr())

    def set_pacing_limit(self, rate: float) -> None:
        """See `Connection`."""
        self._pacing_limit = rate
        self.out.limit = max(LEAST_LIMIT, rate) if rate else math.inf

    def idle(self, seconds: float) -> bool:
        """See `Connection`."""
        return not self._unflushed and not self.backlog and self._clock.now - self._moved_at >= seconds

    def sample(self) -> TcpSample:
        """See `Connection`."""
        out = self.out
        return TcpSample(
            self.peer,
            delivered=int(out.delivered),
            received=self.other.out.received,
            sent=out.sent,
            retransmitted=out.resent,
            backlog=out.waiting + out.lost_unsent,
            rtt=out.min_rtt,
            app_limited=self.app_limited,
            pacing_limit=self._pacing_limit,
            queueing_delay=max(0.0, out.srtt - out.min_rtt),
        )

    def send_padding(self) -> None:
        """See `Connection`."""
        self._write(FRAME_BYTES, _PADDING)

    # ---- for the owner ---------------------------------------------------------------------------------------------

    def seconds_to_send(self, size: int) -> float:
        """Returns the seconds until `size` bytes more will have been sent, about."""
        out = self.out
        waits = out.waiting + out.lost_unsent
        self._queue_was_empty = not waits
        return self._send_time.seconds(size, waits, out.congestion.cwnd / out.srtt, self._pacing_limit, self._clock.now)

    def send(self, message: Control) -> None:
        """Sends a control message."""
        self._write(len(encode_control(message)), message)

    def send_chunk(self, chunk: Chunk) -> None:
        """Sends a chunk; `flushed` follows, never within this call. `seconds_to_send` comes first."""
        self._unflushed += len(chunk.data)
        self.app_limited += self._queue_was_empty
        self._notsent_lowat = notsent_for(self._send_time.rate)
        self.out.drained_below = self._notsent_lowat + WRITE_LOW
        self._write(_HEADER_BYTES + len(chunk.data), chunk)
        self._is_full = self._is_full or self.backlog > WRITE_HIGH
        self._flush_soon()

    def drained(self) -> None:
        """The connection has room again."""
        self._is_full = False
        if self._unflushed:
            self._flush_soon()

    def retire(self) -> None:
        """The other end sends no more here."""
        self._listener.retired(self)

    def arrived(self, message: object) -> None:
        """A message of the other end has come."""
        match message:
            case Ping():
                self.send(Pong(message.token))
            case Pong():
                pass
            case _:
                if isinstance(message, Chunk | ProbePadding):
                    self._moved_at = self._clock.now
                self._listener.received(self, message)  # type: ignore[arg-type]

    def _write(self, size: int, message: object) -> None:
        self.written += size
        if size > SMALL_BYTES:
            self._moved_at = self._clock.now
        self.out.send(size, message)

    def _flush_soon(self) -> None:
        if not self._is_flushing and not self._is_full:
            self._is_flushing = True
            self._clock.after(0.0, self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if not self._is_full and self._unflushed:
            size, self._unflushed = self._unflushed, 0
            self._listener.flushed(self.peer, size)


def open_pair(
    clock: VirtualClock,
    links: VirtualLinks,
    ends: tuple[tuple[str, int, StreamListener], tuple[str, int, StreamListener]],
) -> tuple[VirtualStream, VirtualStream]:
    """Opens a connection between two nodes, each a name, an index in the network and a listener; returns their ends.

    Its congestion control is cubic towards near peers, else BBR.
    """
    (name, i, listener), (other_name, j, other_listener) = ends
    one = VirtualStream(clock, other_name, listener)
    other = VirtualStream(clock, name, other_listener)
    one.other, other.other = other, one
    near = links.delay(i, j) + links.delay(j, i) <= NEAR_RTT_SECONDS
    for stream, source, target in ((one, i, j), (other, j, i)):
        stream.out = TcpConnection(
            clock,
            clock.rng,
            links.path(source, target),
            links.delay(target, source),
            Cubic() if near else Bbr(),
            on_message=stream.other.arrived,
            on_drained=stream.drained,
        )
        stream.out.handshake()
        stream.out.drained_below = MIN_NOTSENT_BYTES + WRITE_LOW
    return one, other
