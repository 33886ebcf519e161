"""One TCP connection between two nodes: bytes to messages and back. The only place that touches a peer's transport.

Received chunk data goes straight from the socket into the memory in which it is verified (`FrameReader`). Sent chunks
are handed to the transport as they are; `flushed` is called once the transport has room again, never from within
`send_chunk`, so that serving cannot recurse.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

from p2psync.errors import FormatError
from p2psync.protocol.frames import FrameReader
from p2psync.protocol.messages import Control, Hello, Message, encode_chunk_header, encode_control

#: Bytes that may wait in user space on one connection before its peer's next chunk is held back.
WRITE_HIGH = 512 << 10
WRITE_LOW = 128 << 10
#: A peer that lets more than this wait for it in user space does not read: it is hung up on. Above what is ever
#: handed out ahead of one (`SwarmConfig.flush_limit` and a chunk), so that only answers to a flood reach it.
MAX_BACKLOG = 16 << 20
#: A connection that has not greeted by then is closed (seconds).
GREETING_TIMEOUT = 10.0


class StreamOwner(Protocol):
    """Who hears of a stream's life."""

    def opened(self, stream: PeerStream) -> None:
        """The connection stands."""

    def greeted(self, stream: PeerStream, hello: Hello) -> None:
        """The other side said who it is."""

    def received(self, stream: PeerStream, message: Message) -> None:
        """A message after the greeting."""

    def flushed(self, stream: PeerStream, size: int) -> None:
        """`size` bytes of chunks have left, or were lost with the connection."""

    def closed(self, stream: PeerStream, reason: str) -> None:
        """The connection is gone. Called once."""


class PeerStream(asyncio.BufferedProtocol):
    """The asyncio protocol of one connection, dialled or accepted."""

    def __init__(self, owner: StreamOwner, hello: Hello) -> None:
        self.peer: str | None = None
        self.heard_at = 0.0
        self.waiting = 0
        self._owner = owner
        self._hello = hello
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._greeting: asyncio.TimerHandle | None = None
        self._reason = "the connection was closed"

    # ---- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection stands; greet."""
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        self.heard_at = self._loop.time()
        self._greeting = self._loop.call_later(GREETING_TIMEOUT, self.close, "the peer did not say who it is")
        self.send(self._hello)
        self._owner.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio: where received bytes go."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: bytes have come."""
        self.heard_at = self._loop.time()
        try:
            messages = self._reader.buffer_updated(nbytes)
        except FormatError as error:
            self.close(str(error))
            return
        for message in messages:
            if isinstance(message, Hello):
                self._on_hello(message)
            else:
                self._owner.received(self, message)

    def eof_received(self) -> bool:
        """asyncio: the other side is done; so are we."""
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
        self._transport = None
        self._paused = False
        self._flush()
        self._owner.closed(self, str(exc) if exc else self._reason)

    # ---- for the owner ---------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Bytes in user space that wait to be sent."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    @property
    def address(self) -> str:
        """The other side's address, for people."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return f"{name[0]}:{name[1]}" if name else "?"

    def send(self, message: Control) -> None:
        """Send a control message; dropped if the connection is gone. A peer that does not read is hung up on."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(encode_control(message))
        if self.backlog > MAX_BACKLOG:
            self.close("the peer does not read")

    def send_chunk(self, manifest: bytes, index: int, data: bytes | memoryview, tag: int = 0) -> None:
        """Send a chunk (manifest: short id). `flushed` follows, always."""
        self.waiting += len(data)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_chunk_header(manifest, index, len(data), tag))
            self._transport.write(data)
        # A transport that took all at once calls neither pause_writing nor resume_writing.
        self._loop.call_soon(self._flush)

    def close(self, reason: str) -> None:
        """Close at once, dropping what waits."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = reason
            self._transport.abort()

    def _on_hello(self, hello: Hello) -> None:
        if self._greeting is not None:
            self._greeting.cancel()
        self._owner.greeted(self, hello)

    def _flush(self) -> None:
        if not self._paused and self.waiting:
            size, self.waiting = self.waiting, 0
            self._owner.flushed(self, size)
