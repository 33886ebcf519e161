"""The receiving half of a connection: any split gives the same messages, and bad bytes give only FormatError."""

from __future__ import annotations

import contextlib
import itertools
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2psync.errors import FormatError
from p2psync.protocol.frames import FrameReader
from p2psync.protocol.manifest import MAX_CHUNK_BYTES
from p2psync.protocol.messages import (
    CHUNK_HEADER,
    MAGIC,
    MAX_CONTROL_BYTES,
    MAX_HELLO_BYTES,
    PROTOCOL,
    AcceptNext,
    Bitfield,
    Cancel,
    Chunk,
    Control,
    DontHave,
    Have,
    Hello,
    Message,
    Ping,
    Pong,
    Reject,
    Request,
    Subscribe,
    SuppressProbes,
    UplinkRate,
    encode_chunk_header,
    encode_control,
)

HELLO = Hello(MAGIC, PROTOCOL, "ab" * 16, "1", "east")
SHORT = b"12345678"

shorts = st.binary(min_size=8, max_size=8)
chunk_lists = st.lists(st.integers(0, (1 << 20) - 1), max_size=30)
controls: st.SearchStrategy[Control] = st.one_of(
    st.builds(Bitfield, shorts, st.binary(max_size=9000)),
    st.builds(Have, shorts, chunk_lists),
    st.builds(DontHave, shorts),
    st.builds(Request, shorts, chunk_lists),
    st.builds(Cancel, shorts, chunk_lists),
    st.builds(Reject, shorts, chunk_lists),
    st.builds(Subscribe, shorts, st.booleans()),
    st.builds(AcceptNext, st.one_of(st.just(b""), st.binary(min_size=16, max_size=16))),
    st.builds(Ping, st.integers(0, 1 << 60)),
    st.builds(Pong, st.integers(0, 1 << 60)),
    st.builds(UplinkRate, st.floats(1, 1e12)),
    st.builds(SuppressProbes, st.floats(0.01, 60)),
)
chunks = st.builds(
    Chunk, shorts, st.integers(0, (1 << 32) - 1), st.binary(min_size=1, max_size=9000), st.integers(0, 1 << 63)
)
streams = st.lists(st.one_of(controls, chunks), max_size=8)


def encode(message: Message) -> bytes:
    """The whole frame of any message."""
    if isinstance(message, Chunk):
        return encode_chunk_header(message.manifest, message.index, len(message.data), message.tag) + bytes(
            message.data
        )
    return encode_control(message)


def plain(messages: list[Message]) -> list[Message]:
    """Messages with chunk data as bytes, so that they compare."""
    return [Chunk(m.manifest, m.index, bytes(m.data), m.tag) if isinstance(m, Chunk) else m for m in messages]


def feed_split(reader: FrameReader, data: bytes, cuts: list[int]) -> list[Message]:
    """Feed data in pieces through the buffers, as an event loop does."""
    messages: list[Message] = []
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        piece = data[start:end]
        while piece:
            buffer = reader.get_buffer()
            assert len(buffer) > 0
            count = min(len(buffer), len(piece))
            buffer[:count] = piece[:count]
            messages += reader.buffer_updated(count)
            piece = piece[count:]
    return plain(messages)


@settings(max_examples=150, deadline=None)
@given(streams, st.lists(st.integers(0, 1 << 30), max_size=12))
def test_frame_reader_gives_the_same_messages_at_any_split(stream: list[Message], cuts: list[int]) -> None:
    data = b"".join(encode(message) for message in [HELLO, *stream])
    assert feed_split(FrameReader(), data, cuts) == [HELLO, *stream]
    assert plain(FrameReader().feed(data)) == [HELLO, *stream]


def test_frame_reader_accepts_single_bytes() -> None:
    stream: list[Message] = [HELLO, Ping(1), Chunk(SHORT, 7, b"data"), Bitfield(SHORT, b"\1" * 5000), Ping(2)]
    reader = FrameReader()
    data = b"".join(encode(message) for message in stream)
    got = [m for i in range(len(data)) for m in plain(reader.feed(data[i : i + 1]))]
    assert got == stream


def greeted() -> FrameReader:
    """A reader that got its Hello."""
    reader = FrameReader()
    assert reader.feed(encode_control(HELLO)) == [HELLO]
    return reader


def test_chunk_data_is_received_in_place() -> None:
    reader = greeted()
    size = 100_000
    reader.feed(encode_chunk_header(SHORT, 3, size) + b"x" * 10)
    buffer = reader.get_buffer()
    assert len(buffer) > size - 10
    memory = buffer.obj
    buffer[: size - 10] = b"y" * (size - 10)
    (chunk,) = reader.buffer_updated(size - 10)
    assert isinstance(chunk, Chunk) and isinstance(chunk.data, memoryview) and chunk.data.obj is memory
    assert bytes(chunk.data) == b"x" * 10 + b"y" * (size - 10)


def test_frame_reader_begins_the_next_chunk_in_its_own_buffer() -> None:
    reader = greeted()
    reader.feed(encode_chunk_header(SHORT, 3, 10_000))
    buffer = reader.get_buffer()
    header = encode_chunk_header(SHORT, 4, 20_000)
    buffer[: 10_000 + len(header)] = b"y" * 10_000 + header
    (first,) = reader.buffer_updated(10_000 + len(header))
    assert isinstance(first, Chunk) and bytes(first.data) == b"y" * 10_000
    after = reader.get_buffer()
    assert len(after) >= 20_000
    after[:20_000] = b"z" * 20_000
    assert plain(reader.buffer_updated(20_000)) == [Chunk(SHORT, 4, b"z" * 20_000)]
    assert bytes(first.data) == b"y" * 10_000


def test_frame_reader_never_writes_to_a_returned_chunk() -> None:
    reader = greeted()
    frame = encode_chunk_header(SHORT, 1, 50) + b"a" * 50
    (first,) = reader.feed(frame)
    reader.feed(encode_chunk_header(SHORT, 2, 50) + b"b" * 50)
    assert isinstance(first, Chunk) and bytes(first.data) == b"a" * 50


def test_unidentified_peer_gets_no_memory_beyond_its_hello() -> None:
    for data in (
        encode_chunk_header(SHORT, 0, MAX_CHUNK_BYTES),
        struct.pack("<IB", MAX_CONTROL_BYTES, 2),
        struct.pack("<IB", MAX_HELLO_BYTES + 1, 1),
        encode_control(Ping(1)),
    ):
        with pytest.raises(FormatError):
            FrameReader().feed(data)


def test_a_second_hello_is_refused() -> None:
    with pytest.raises(FormatError, match="second Hello"):
        greeted().feed(encode_control(HELLO))


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<IB", MAX_CONTROL_BYTES + 1, 2),
        struct.pack("<IB", CHUNK_HEADER.size + MAX_CHUNK_BYTES + 1, 0),
        struct.pack("<IB", CHUNK_HEADER.size, 0),
        struct.pack("<IB", 0, 0),
        struct.pack("<IB", 5, 77),
        struct.pack("<IB", 0xFFFFFFFF, 9),
    ],
)
def test_impossible_lengths_and_types_are_refused_at_once(header: bytes) -> None:
    reader = greeted()
    before = len(reader.get_buffer())
    with pytest.raises(FormatError):
        reader.feed(header)
    assert len(reader.get_buffer()) <= before


def test_the_largest_control_frame_and_the_largest_chunk_pass() -> None:
    reader = greeted()
    have = Bitfield(SHORT, b"\xff" * (1 << 17))
    assert reader.feed(encode_control(have)) == [have]
    chunk = b"z" * MAX_CHUNK_BYTES
    (got,) = reader.feed(encode_chunk_header(SHORT, 0, len(chunk)) + chunk)
    assert isinstance(got, Chunk) and bytes(got.data) == chunk


def test_an_error_is_final() -> None:
    reader = greeted()
    with pytest.raises(FormatError):
        reader.feed(encode_control(Ping(1)) + b"\xff" * 50)
    for data in (encode_control(Ping(2)), b"\0", encode_control(HELLO)):
        with pytest.raises(FormatError):
            reader.feed(data)


def test_mutated_streams_raise_nothing_but_format_errors() -> None:
    rng = random.Random(20)
    stream: list[Message] = [
        HELLO,
        Bitfield(SHORT, b"\x0f" * 40),
        Have(SHORT, [1, 2, 300, 70_000]),
        Chunk(SHORT, 5, b"payload" * 9, 65536),
        Subscribe(SHORT, True),
        Request(SHORT, [4, 5]),
        DontHave(SHORT),
        Ping(3),
    ]
    good = b"".join(encode(message) for message in stream)
    outcomes = {"fine": 0, "refused": 0}
    for _ in range(30_000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[place] ^= 1 << rng.randrange(8)
                case 1:
                    data[place] = rng.choice([0, 0x7F, 0x80, 0x91, 0xC0, 0xDC, 0xFF])
                case 2:
                    del data[place : place + rng.randint(1, 8)]
                case _:
                    data[place:place] = rng.randbytes(rng.randint(1, 8))
        try:
            FrameReader().feed(bytes(data))
            outcomes["fine"] += 1
        except FormatError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 1000


def test_noise_raises_nothing_but_format_errors() -> None:
    rng = random.Random(21)
    for _ in range(10_000):
        noise = rng.randbytes(rng.randint(1, 60))
        kind = rng.randrange(10)
        frame = struct.pack("<IB", len(noise), kind) + noise
        with contextlib.suppress(FormatError):
            greeted().feed(frame if rng.random() < 0.8 else noise)
