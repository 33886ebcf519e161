"""One TCP connection between two nodes: bytes to messages and back. The only place that touches a peer's transport.

Received chunk data goes straight from the socket into the memory in which it is verified (`FrameReader`). Sent chunks
are handed to the transport as they are; `flushed` is called once the transport has room again, never from within
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
#: A peer that lets more than this wait for it in user space does not read: it is hung up on. Above what is ever
#: handed out ahead of one (`ExchangeConfig.flush_most`, or three chunks), so that only answers to a flood reach it.
MAX_BACKLOG = 16 << 20
#: Reads and writes up to this size (bytes) leave a connection idle.
_SMALL = 2048
#: Of random bytes: a compressing tunnel on the way shall not look faster than it is.
_PADDING = encode_control(ProbePadding(memoryview(os.urandom(PADDING_BYTES))))
#: Bytes of a chunk that are waited for at a time: few enough that the peer's window stays open.
_PART = 16 << 10
#: A connection that has not greeted by then is closed (seconds).
GREETING_TIMEOUT = 10.0


class StreamOwner(Protocol):
    """Hears of the events of a stream."""

    def opened(self, stream: PeerStream) -> None:
        """The connection stands."""

    def greeted(self, stream: PeerStream, hello: Hello) -> None:
        """The other side said who it is."""

    def received(self, stream: PeerStream, message: Message) -> None:
        """A message after the greeting."""

    def flushed(self, stream: PeerStream, size: int) -> None:
        """`size` bytes of chunks have left, or were lost with the connection."""

    def retired(self, stream: PeerStream) -> None:
        """The other side sends no more here; nothing may be sent on this connection any more."""

    def closed(self, stream: PeerStream, reason: str) -> None:
        """The connection is gone. Called once."""


class PeerStream(asyncio.BufferedProtocol):
    """The asyncio protocol of one connection, dialled or accepted.

    moved_at: when anything but small messages was last sent or received. written, got: bytes so far. round_trip: the
    least that was timed here, 0: none yet. dried: how often nothing was waiting any more when a chunk came to be sent.
    """

    def __init__(self, owner: StreamOwner, hello: Hello, congestion: tcp.Congestion = tcp.KERNELS) -> None:
        """congestion: the algorithms to use."""
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
        """asyncio: the connection stands; greet."""
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
        """Be woken for a part of the chunk that is coming in, not for each packet: on a slow path, waking costs more
        time than all else that is done for a chunk."""
        missing = self._reader.missing
        least = min(missing, _PART) if missing > _SMALL else 1
        if least != self._rcvlowat and self._socket is not None:
            self._rcvlowat = least
            tcp.set_rcvlowat(self._socket, least)

    def eof_received(self) -> bool:
        """asyncio: the other side is done; so are we, once what was written has left."""
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
        """asyncio: the end."""
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
        """Seconds until so many more bytes will have been sent, about: see `SendTime`."""
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
        """Send a control message; dropped if the connection is gone. A peer that does not read is hung up on."""
        if self._transport is None or self._transport.is_closing():
            return
        self._write(encode_control(message))
        if self.backlog > MAX_BACKLOG:
            self.close("the peer does not read")

    def send_chunk(self, manifest: bytes, index: int, data: bytes | bytearray | memoryview, tag: int = 0) -> None:
        """Send a chunk (manifest: short id). `flushed` follows, always. `seconds_to_send` comes first."""
        self.waiting += len(data)
        if self._transport is not None and not self._transport.is_closing() and not self._retired:
            self.app_limited += self._queue_was_empty
            self._fit_queue()
            header = encode_chunk_header(manifest, index, len(data), tag)
            # Both in one call to the kernel: the header does not travel as a packet of its own.
            self._transport.writelines((header, data))
            self._wrote(len(header) + len(data))
        # A transport that took all at once calls neither pause_writing nor resume_writing.
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _fit_queue(self) -> None:
        """Let as much wait in the kernel as suits the rate that `seconds_to_send` has found."""
        fitting = notsent_for(self._send_time.rate)
        if fitting != self._notsent_lowat and self._socket is not None:
            self._notsent_lowat = fitting
            tcp.set_notsent_lowat(self._socket, fitting)

    def set_pacing_limit(self, rate: float) -> None:
        """Have the kernel send no faster than so many bytes a second; 0: as fast as may be."""
        if rate != self._pacing_limit and self._socket is not None:
            self._pacing_limit = rate
            tcp.set_max_pacing_rate(self._socket, rate)

    @property
    def can_restart(self) -> bool:
        """Whether nothing speaks against that just now."""
        return self._socket is None or tcp.can_restart(self._socket)

    def restart(self) -> None:
        """Have the congestion control look for the path's rate as on a new connection."""
        if self._socket is not None:
            tcp.restart(self._socket)

    def send_padding(self) -> None:
        """Send a frame of probe padding."""
        if self._transport is not None and not self._transport.is_closing():
            self._write(_PADDING)

    def reset_rcvlowat(self) -> None:
        """Be woken for whatever has come: a part of a chunk may take long on a path that hardly moves."""
        if self._rcvlowat > 1 and self._socket is not None:
            self._rcvlowat = 1
            tcp.set_rcvlowat(self._socket, 1)

    def ping(self, token: int) -> None:
        """Ask for a sign of life, and time it."""
        self._pinged = (token, self._loop.time())
        self.send(Ping(token))

    def ponged(self, token: int) -> None:
        """The answer to a ping."""
        if self._pinged is not None and self._pinged[0] == token:
            # A loop's clock may stand still for a millisecond.
            seconds = max(1e-4, self._loop.time() - self._pinged[1])
            self.round_trip = min(self.round_trip or seconds, seconds)
            self._pinged = None

    def sample(self) -> TcpSample:
        """The counters of this connection: the kernel's, or what is known here where it does not tell."""
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
        """Whether nothing but small messages went either way for so long, and nothing waits."""
        return not self.waiting and not self.backlog and self._loop.time() - self.moved_at >= seconds

    def retire(self) -> None:
        """Send no more on this connection, and close it once the other side has sent what it wrote."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = "this connection is not needed any more"
            self._retired = True
            self._transport.write_eof()

    def close(self, reason: str) -> None:
        """Close at once, dropping what waits."""
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
