"""The receiving half of a connection, without I/O: bytes in, messages out.

`FrameReader` is shaped after asyncio's BufferedProtocol: it hands out a buffer, learns how much was written into it,
and returns the messages that are complete. It cuts small frames out of one reused scratch buffer. Once the header of a
CHUNK has come, it receives the rest straight into the buffer in which the chunk is verified and kept. That buffer has
a few bytes behind the chunk, so that the next chunk's header comes with the same read. Lengths are checked before a
buffer is taken, and a connection holds at most one chunk that is not complete.

States: SCRATCH (between frames, or within a small one) → CHUNK (receiving in place) → SCRATCH …; any error is final.
"""

from __future__ import annotations

from p2psync.errors import FormatError
from p2psync.protocol.buffer_pool import BufferPool
from p2psync.protocol.messages import (
    CHUNK_HEADER,
    CHUNK_TYPE,
    FRAME_HEADER,
    HELLO_TYPE,
    MAX_CONTROL_BYTES,
    Chunk,
    Message,
    check_frame,
    decode_control,
)

_CHUNK_PREFIX = FRAME_HEADER.size + CHUNK_HEADER.size
#: Holds the largest control frame; a chunk frame needs only its prefix here.
_SCRATCH_BYTES = FRAME_HEADER.size + MAX_CONTROL_BYTES
#: Bytes behind a chunk's data, for the next chunk's prefix. More would only be copied to the scratch buffer.
_READ_AHEAD_BYTES = 64
#: Buffers for the chunks of all connections.
_BUFFERS = BufferPool(max_idle_bytes=16 << 20)


class FrameReader:
    """The parser of one connection's incoming bytes."""

    def __init__(self) -> None:
        self._scratch = bytearray(4096)
        self._filled = 0
        self._chunk: memoryview | None = None
        self._chunk_size = 0
        self._chunk_filled = 0
        self._chunk_key = (b"", 0, 0)
        self._greeted = False

    @property
    def missing(self) -> int:
        """Bytes missing of the chunk that is being received; 0 if none is."""
        return self._chunk_size - self._chunk_filled if self._chunk is not None else 0

    def get_buffer(self) -> memoryview:
        """The buffer for the next received bytes; never empty."""
        if self._chunk is not None:
            return self._chunk[self._chunk_filled :]
        return memoryview(self._scratch)[self._filled :]

    def buffer_updated(self, count: int) -> list[Message]:
        """Parse `count` bytes that were written into the last buffer; returns the messages that they complete.

        Raises `FormatError` for a breach of the protocol; the caller must then close the connection.
        """
        if self._chunk is not None:
            self._chunk_filled += count
            return self._end_chunk(self._chunk) if self._chunk_filled >= self._chunk_size else []
        self._filled += count
        return self._parse_scratch()

    def feed(self, data: bytes | memoryview) -> list[Message]:
        """Parse bytes that were received elsewhere (the simulator). Returns and raises as `buffer_updated`."""
        messages: list[Message] = []
        view = memoryview(data)
        while view:
            buffer = self.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            buffer.release()
            messages += self.buffer_updated(count)
            view = view[count:]
        return messages

    def _parse_scratch(self) -> list[Message]:
        messages: list[Message] = []
        start = 0
        while self._filled - start >= FRAME_HEADER.size and self._chunk is None:
            length, kind = FRAME_HEADER.unpack_from(self._scratch, start)
            check_frame(length, kind)
            self._check_order(kind == HELLO_TYPE)
            if kind == CHUNK_TYPE:
                if self._filled - start < _CHUNK_PREFIX:
                    break
                start += self._begin_chunk(start, length - CHUNK_HEADER.size)
                if self._chunk is not None and self._chunk_filled == self._chunk_size:
                    messages += self._end_chunk(self._chunk)
                continue
            end = start + FRAME_HEADER.size + length
            if end > self._filled:
                break
            messages.append(decode_control(kind, bytes(memoryview(self._scratch)[start + FRAME_HEADER.size : end])))
            self._greeted = True
            start = end
        self._keep_rest(start)
        return messages

    def _begin_chunk(self, start: int, size: int) -> int:
        """Move the received bytes of a chunk into its own buffer; returns the scratch bytes used."""
        manifest, index, tag = CHUNK_HEADER.unpack_from(self._scratch, start + FRAME_HEADER.size)
        begin = start + _CHUNK_PREFIX
        received = min(size, self._filled - begin)
        # Not cleared: a chunk is passed on only once all of its bytes were received.
        self._chunk = _BUFFERS.take(size + _READ_AHEAD_BYTES)
        self._chunk[:received] = memoryview(self._scratch)[begin : begin + received]
        self._chunk_size, self._chunk_filled = size, received
        self._chunk_key = (manifest, index, tag)
        return _CHUNK_PREFIX + received

    def _end_chunk(self, memory: memoryview) -> list[Message]:
        """Return the complete chunk, and the messages in the bytes behind it."""
        manifest, index, tag = self._chunk_key
        messages: list[Message] = [Chunk(manifest, index, memory[: self._chunk_size], tag)]
        ahead = self._chunk_filled - self._chunk_size
        self._chunk = None
        if ahead:
            # The scratch buffer is empty while a chunk is received.
            self._scratch[:ahead] = memory[self._chunk_size : self._chunk_filled]
            self._filled = ahead
            messages += self._parse_scratch()
        return messages

    def _keep_rest(self, start: int) -> None:
        rest = self._filled - start
        if start:
            self._scratch[:rest] = self._scratch[start : self._filled]
        self._filled = rest
        if self._chunk is None and rest == len(self._scratch):
            # Only a large control frame comes here, and check_frame has bounded it. A new buffer, because an event
            # loop may still hold a view of the old one, which then cannot be resized.
            bigger = bytearray(min(2 * rest, _SCRATCH_BYTES))
            bigger[:rest] = self._scratch
            self._scratch = bigger

    def _check_order(self, is_hello: bool) -> None:
        """Raise `FormatError` unless Hello comes first and once.

        Checked before a body is buffered: an unidentified peer gets no memory beyond its Hello.
        """
        if is_hello == self._greeted:
            raise FormatError("a second Hello" if is_hello else "the peer did not begin with Hello")
