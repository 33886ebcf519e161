"""Bytes in, messages out: the receiving half of a connection, without I/O.

`FrameReader` is shaped after asyncio's BufferedProtocol: it is asked for a buffer, told how much was written into it,
and returns the messages that are complete. Small frames are cut out of one reused scratch buffer; once the header of a
CHUNK has come, the rest of its data is received straight into the memory in which the chunk will be verified and kept.
That memory has a little room behind the chunk, so that the header of the chunk after it comes with the same read.
Lengths are checked before it is allocated, and a connection holds at most one such chunk at a time.

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
#: Room behind a chunk's data: for the next chunk's prefix, and little more, since all else that comes here is copied.
_AHEAD = 64
#: The chunks of all connections.
_BUFFERS = BufferPool(spare=16 << 20)


class FrameReader:
    """The parser of one connection's incoming bytes."""

    def __init__(self) -> None:
        self._scratch = bytearray(4096)
        self._filled = 0
        self._chunk: memoryview | None = None
        self._chunk_size = 0
        self._chunk_filled = 0
        self._chunk_name = (b"", 0, 0)
        self._greeted = False

    @property
    def missing(self) -> int:
        """Bytes of a chunk that are still to come; 0 while none is received."""
        return self._chunk_size - self._chunk_filled if self._chunk is not None else 0

    def get_buffer(self) -> memoryview:
        """Where the next received bytes go; never empty."""
        if self._chunk is not None:
            return self._chunk[self._chunk_filled :]
        return memoryview(self._scratch)[self._filled :]

    def buffer_updated(self, count: int) -> list[Message]:
        """`count` bytes were written into the last buffer; returns the messages they complete.

        Raises `FormatError` for anything that this protocol does not allow; the connection must then be closed.
        """
        if self._chunk is not None:
            self._chunk_filled += count
            return self._end_chunk(self._chunk) if self._chunk_filled >= self._chunk_size else []
        self._filled += count
        return self._parse_scratch()

    def feed(self, data: bytes | memoryview) -> list[Message]:
        """The same for bytes that were received elsewhere (the simulator)."""
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
        """Move what has come of a chunk into its own memory; returns the scratch bytes used."""
        manifest, index, tag = CHUNK_HEADER.unpack_from(self._scratch, start + FRAME_HEADER.size)
        begin = start + _CHUNK_PREFIX
        here = min(size, self._filled - begin)
        # Not cleared: each byte of it is received before anyone sees it.
        self._chunk = _BUFFERS.take(size + _AHEAD)
        self._chunk[:here] = memoryview(self._scratch)[begin : begin + here]
        self._chunk_size, self._chunk_filled = size, here
        self._chunk_name = (manifest, index, tag)
        return _CHUNK_PREFIX + here

    def _end_chunk(self, memory: memoryview) -> list[Message]:
        """The chunk is whole; what came behind it belongs to the next frame."""
        manifest, index, tag = self._chunk_name
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
        """Before anything of a frame's body is waited for: a stranger gets no memory but for its Hello."""
        if is_hello == self._greeted:
            raise FormatError("a second Hello" if is_hello else "the peer did not begin with Hello")
