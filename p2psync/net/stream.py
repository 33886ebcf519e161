"""One TCP connection between two nodes: bytes to messages and back. Only this module touches a peer's transport.

Received chunk data goes straight from the socket into the memory in which it is verified (`FrameReader`). The transport
gets sent chunks without a copy; the stream calls `flushed` once the transport has room again, never from within
`send_chunk`, so that serving cannot recurse.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, Protocol, cast

from p2psync.errors import FormatError
from p2psync.net import tcp
from p2psync.protocol.frames import FrameReader
from p2psync.protocol.messages import Control, Hello, Message, Ping, ProbePadding, encode_chunk_header, encode_control
from p2psync.swarm.control.config import MIN_NOTSENT_BYTES, PADDING_BYTES
from p2psync.swarm.control.send_time import SendTime, notsent_for
from p2psync.swarm.control.tcp_sample import TcpSample

#: Bytes that may wait in user space on one connection before its peer's next chunk is held back.
WRITE_HIGH = 64 << 10
WRITE_LOW = 16 << 10
#: A peer that leaves more bytes than this in user space does not read, and is disconnected. Above what the exchange
#: hands out to one peer (`ExchangeConfig.flush_most`, or three chunks), so that only answers to a flood reach it.
MAX_BACKLOG = 16 << 20
#: Reads and writes up to this size (bytes) leave a connection idle.
_SMALL = 2048
#: Random bytes: a compressing tunnel on the path must not look faster than it is.
_PADDING = encode_control(ProbePadding(memoryview(os.urandom(PADDING_BYTES))))
#: Bytes of a chunk for which the loop wakes at once: few enough that the peer's window stays open.
_PART = 16 << 10
#: Seconds in which a new connection must greet, or be closed.
GREETING_TIMEOUT = 10.0


class StreamOwner(Protocol):
    """The owner of streams, which handles their events."""

    def opened(self, stream: PeerStream) -> None:
        """The connection is established."""

    def greeted(self, stream: PeerStream, hello: Hello) -> None:
        """The other side said who it is."""

    def received(self, stream: PeerStream, message: Message) -> None:
        """A message after the greeting."""

    def flushed(self, stream: PeerStream, size: int) -> None:
        """The kernel has taken `size` bytes of chunks, or they were lost with the connection."""

    def retired(self, stream: PeerStream) -> None:
        """The other side has ended its sending; send nothing more on this connection."""

    def closed(self, stream: PeerStream, reason: str) -> None:
        """The connection is gone. Called once."""


class PeerStream(asyncio.BufferedProtocol):
    """The asyncio protocol of one connection, dialled or accepted.

    heard_at: when bytes last came. moved_at: when anything but small messages was last sent or received. written, got:
    bytes so far. waiting: bytes of chunks that `flushed` has not reported. round_trip: the least that was timed here,
    0: none yet. app_limited: chunks that found an empty send queue.
    """

    def __init__(self, owner: StreamOwner, hello: Hello, congestion: tcp.Congestion = tcp.KERNELS) -> None:
        """congestion: the congestion controls to use."""
        self.peer: str | None = None
        self.heard_at = 0.0
        self.moved_at = 0.0
        self.waiting = 0
        self.written = 0
        self.got = 0
        self.round_trip = 0.0
        self.app_limited = 0
        self._queue_was_empty = True
        self._congestion = congestion
        self._send_time = SendTime()
        self._notsent_lowat = MIN_NOTSENT_BYTES
        self._pacing_limit = 0.0
        self._rcvlowat = 1
        self._retired = False
        self._socket: Any = None
        self._handle: socket.socket | None = None
        self._pinged: tuple[int, float] | None = None
        self._owner = owner
        self._hello = hello
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._flushing = False
        self._loop = asyncio.get_running_loop()
        self._greeting: asyncio.TimerHandle | None = None
        self._reason = "the connection was closed"

    # ---- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is established; greets."""
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        given = transport.get_extra_info("socket")
        if given is not None:
            self._handle = tcp.dup(given)
            self._socket = given if self._handle is None else self._handle
            tcp.tune(self._socket, self._congestion)
        self._transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        self.heard_at = self.moved_at = self._loop.time()
        self._greeting = self._loop.call_later(GREETING_TIMEOUT, self.close, "the peer did not say who it is")
        self.send(self._hello)
        self._owner.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio: where received bytes go."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: bytes have come."""
        self.heard_at = self._loop.time()
        self.got += nbytes
        if nbytes > _SMALL:
            self.moved_at = self.heard_at
        try:
            messages = self._reader.buffer_updated(nbytes)
        except FormatError as error:
            self.close(str(error))
            return
        self._raise_rcvlowat()
        for message in messages:
            if isinstance(message, Hello):
                self._on_hello(message)
            else:
                self._owner.received(self, message)

    def _raise_rcvlowat(self) -> None:
        """Raises SO_RCVLOWAT, so that the loop wakes once per chunk part: on a slow path, a wake-up for each packet
        costs more time than all other work for a chunk.
        """
        missing = self._reader.missing
        least = min(missing, _PART) if missing > _SMALL else 1
        if least != self._rcvlowat and self._socket is not None:
            self._rcvlowat = least
            tcp.set_rcvlowat(self._socket, least)

    def eof_received(self) -> bool:
        """asyncio: the other side has ended its sending; asyncio closes the connection once it has sent all bytes."""
        self._owner.retired(self)
        return False

    def pause_writing(self) -> None:
        """asyncio: the transport is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """asyncio: the transport has room again."""
        self._paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is closed or broken."""
        if self._greeting is not None:
            self._greeting.cancel()
        if self._handle is not None:
            self._handle.close()
        self._transport = self._socket = self._handle = None
        self._paused = False
        self._flush()
        self._owner.closed(self, str(exc) if exc else self._reason)

    # ---- for the owner ---------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Bytes in user space that wait to be sent."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def seconds_to_send(self, size: int) -> float:
        """Returns about how many seconds pass until `size` more bytes have been sent: see `SendTime`."""
        waits, window = tcp.queue_and_window_rate(self._socket) if self._socket is not None else (0, 0.0)
        waits += self.backlog
        self._queue_was_empty = not waits
        return self._send_time.seconds(size, waits, window, self._pacing_limit, self._loop.time())

    @property
    def address(self) -> str:
        """The other side's address, for people."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return f"{name[0]}:{name[1]}" if name else "?"

    @property
    def local(self) -> bool:
        """Whether the other side is on this machine."""
        ends = [self._transport.get_extra_info(end) for end in ("peername", "sockname")] if self._transport else []
        return len(ends) == 2 and all(ends) and ends[0][0] == ends[1][0]

    def send(self, message: Control) -> None:
        """Sends a control message; drops it if the connection is gone. Disconnects a peer that does not read."""
        if self._transport is None or self._transport.is_closing():
            return
        self._write(encode_control(message))
        if self.backlog > MAX_BACKLOG:
            self.close("the peer does not read")

    def send_chunk(self, manifest: bytes, index: int, data: bytes | bytearray | memoryview, tag: int = 0) -> None:
        """Sends a chunk (manifest: short id). `flushed` always follows. Call `seconds_to_send` before it."""
        self.waiting += len(data)
        if self._transport is not None and not self._transport.is_closing() and not self._retired:
            self.app_limited += self._queue_was_empty
            self._fit_queue()
            header = encode_chunk_header(manifest, index, len(data), tag)
            # Both in one system call, so that the header is no packet of its own.
            self._transport.writelines((header, data))
            self._wrote(len(header) + len(data))
        # A transport that takes all bytes at once calls neither pause_writing nor resume_writing.
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _fit_queue(self) -> None:
        """Sizes TCP_NOTSENT_LOWAT to the rate that `seconds_to_send` estimated."""
        fitting = notsent_for(self._send_time.rate)
        if fitting != self._notsent_lowat and self._socket is not None:
            self._notsent_lowat = fitting
            tcp.set_notsent_lowat(self._socket, fitting)

    def set_pacing_limit(self, rate: float) -> None:
        """Limits the kernel's pacing rate (bytes a second); 0: no limit."""
        if rate != self._pacing_limit and self._socket is not None:
            self._pacing_limit = rate
            tcp.set_max_pacing_rate(self._socket, rate)

    @property
    def can_restart(self) -> bool:
        """Whether `restart` costs no window just now."""
        return self._socket is None or tcp.can_restart(self._socket)

    def restart(self) -> None:
        """Restarts the congestion control: it searches for the path's rate as on a new connection."""
        if self._socket is not None:
            tcp.restart(self._socket)

    def send_padding(self) -> None:
        """Sends a frame of probe padding."""
        if self._transport is not None and not self._transport.is_closing():
            self._write(_PADDING)

    def reset_rcvlowat(self) -> None:
        """Sets SO_RCVLOWAT to 1: on a path that hardly moves, a part of a chunk may take long."""
        if self._rcvlowat > 1 and self._socket is not None:
            self._rcvlowat = 1
            tcp.set_rcvlowat(self._socket, 1)

    def ping(self, token: int) -> None:
        """Sends a ping, and times its answer."""
        self._pinged = (token, self._loop.time())
        self.send(Ping(token))

    def ponged(self, token: int) -> None:
        """Takes the answer to a ping, and times the round trip."""
        if self._pinged is not None and self._pinged[0] == token:
            # A loop's clock may stand still for a millisecond.
            seconds = max(1e-4, self._loop.time() - self._pinged[1])
            self.round_trip = min(self.round_trip or seconds, seconds)
            self._pinged = None

    def sample(self) -> TcpSample:
        """Returns the counters of this connection: the kernel's, or those of this object where it offers none."""
        peer, backlog = self.peer or "", self.backlog
        info = tcp.tcp_info(self._socket) if self._socket is not None else None
        if info is None:
            gone = self.written - backlog
            return TcpSample(peer, gone, self.got, gone, 0, backlog, self.round_trip, app_limited=self.app_limited)
        waits = backlog + info.waits
        return TcpSample(
            peer,
            info.delivered,
            info.received,
            info.sent,
            info.resent,
            waits,
            info.rtt or self.round_trip,
            info.receiver_limited,
            self.app_limited,
            self._pacing_limit,
            info.delay,
        )

    def idle(self, seconds: float) -> bool:
        """Returns whether nothing but small messages moved for so long, and no byte waits."""
        return not self.waiting and not self.backlog and self._loop.time() - self.moved_at >= seconds

    def retire(self) -> None:
        """Ends the sending on this connection, which closes once the other side has ended its own."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = "this connection is not needed any more"
            self._retired = True
            self._transport.write_eof()

    def close(self, reason: str) -> None:
        """Closes the connection at once, and drops unsent bytes."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = reason
            self._transport.abort()

    def _write(self, data: bytes | memoryview) -> None:
        if self._retired or self._transport is None:
            return
        self._transport.write(data)
        self._wrote(len(data))

    def _wrote(self, nbytes: int) -> None:
        self.written += nbytes
        if nbytes > _SMALL:
            self.moved_at = self._loop.time()

    def _on_hello(self, hello: Hello) -> None:
        if self._greeting is not None:
            self._greeting.cancel()
        self._owner.greeted(self, hello)

    def _flush(self) -> None:
        self._flushing = False
        if not self._paused and self.waiting:
            size, self.waiting = self.waiting, 0
            self._owner.flushed(self, size)
