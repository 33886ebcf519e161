"""Forged chunks: a `FormatError` or a valid decode, in bounded time and memory."""

import time
import tracemalloc

import numpy as np
import pytest
import zstandard
from delta_parts import GRID, apply_all, change, encode, random_units, sparse_block, spec

from p2psync.delta.block import block_range, block_span
from p2psync.delta.container import MAX_CHUNK_BYTES, decode_chunk
from p2psync.delta.streams import pack_streams, varint
from p2psync.delta.tensors import TableRow
from p2psync.errors import FormatError

ROWS = [
    TableRow(spec("BF16", (GRID + 500,), "a"), True, True),
    TableRow(spec("F32", (700,), "b"), True, True),
    TableRow(spec("F8_E4M3", (900,), "c"), True, True),
    TableRow(spec("F64", (64,), "d"), False, True),
    TableRow(spec("BF16", (0,), "e"), True, True),
    TableRow(spec("BF16", (300,), "f"), True, False),
]


def sample(seed=0, density=0.02):
    generator = np.random.default_rng(seed)
    old = [random_units(generator, row.spec.unit, row.spec.count) for row in ROWS]
    new = [change(generator, units, density, "any" if k % 2 else "little") for k, units in enumerate(old)]
    old[3], new[5] = None, None
    (chunk,), _ = encode(ROWS, old, new, chunk_bytes=1 << 20)
    return chunk.data, old


def judge(data):
    """Decode, and check the promises about a successful decode; returns whether it succeeded."""
    try:
        blocks = decode_chunk(data, ROWS, GRID)
    except FormatError as error:
        assert "\n" not in str(error)
        return False
    block_keys = [(block.row, block.start) for block in blocks]
    assert blocks
    assert block_keys == sorted(set(block_keys))
    for block in blocks:
        one = ROWS[block.row].spec
        span = block_span(one.width, GRID)
        assert (block.start, block.count) == block_range(one, GRID, block.start // span)
        assert block.count > 0
        assert block.steps.dtype == one.unit
        if block.positions is None:
            assert block.steps.size == block.count
            continue
        assert block.positions.dtype == np.uint32
        assert 0 < block.positions.size == block.steps.size
        assert int(block.positions[-1]) < block.count
        assert (np.diff(block.positions.astype(np.int64)) > 0).all()
        assert block.steps.all()
    return True


def test_a_chunk_cut_off_anywhere_is_refused():
    data, _ = sample()
    assert judge(data)
    assert not any(judge(data[:size]) for size in range(len(data)))


def test_a_chunk_with_anything_after_it_is_refused():
    data, _ = sample()
    assert not any(judge(data + bytes(tail)) for tail in ([0], [1, 2, 3], bytes(500)))


@pytest.mark.parametrize("seed", range(4))
def test_single_bits_flipped_are_refused_or_decode_to_valid_blocks(seed):
    data, _ = sample(seed, density=0.004)
    generator = np.random.default_rng(seed)
    for _ in range(4000):
        forged = bytearray(data)
        forged[generator.integers(len(data))] ^= 1 << int(generator.integers(8))
        judge(forged)


@pytest.mark.parametrize("seed", range(4))
def test_random_mutations_are_refused_or_decode_to_valid_blocks(seed):
    data, old = sample(seed, density=0.004)
    generator = np.random.default_rng(100 + seed)
    valid = 0
    for _ in range(4000):
        forged = bytearray(data)
        for _ in range(int(generator.integers(1, 4))):
            place = int(generator.integers(len(forged)))
            match int(generator.integers(5)):
                case 0:
                    forged[place] = int(generator.integers(256))
                case 1:
                    del forged[place : place + int(generator.integers(1, 9))]
                case 2:
                    forged[place:place] = generator.bytes(int(generator.integers(1, 9)))
                case 3:
                    forged[min(place, 60)] = int(generator.choice([0, 1, 127, 128, 255]))
                case _:
                    other = int(generator.integers(len(forged)))
                    forged[place : place + 8] = forged[other : other + 8]
            forged = forged or bytearray(1)
        if judge(forged):
            valid += 1
            apply_all(ROWS, old, decode_chunk(forged, ROWS, GRID))
    assert 400 < valid < 900  # of 4,000: most are refused, and enough decode for the promise to be tried


def test_mutated_streams_are_refused_or_decode_to_valid_blocks():
    """Mutations of compressed bytes are mostly refused by zstandard; these are not."""
    generator = np.random.default_rng(9)
    plain = body_streams()
    for _ in range(6000):
        streams = [bytearray(stream) for stream in plain]
        stream = streams[int(generator.choice([k for k, s in enumerate(streams) if s]))]
        place = int(generator.integers(len(stream)))
        match int(generator.integers(3)):
            case 0:
                stream[place] = int(generator.choice([0, 1, 2, 254, 255, int(generator.integers(256))]))
            case 1:
                del stream[place]
            case _:
                stream.insert(place, int(generator.integers(256)))
        judge(chunk_of(streams))


def body_streams():
    """The 13 streams of a small chunk, none of them long enough to be compressed."""
    streams = [bytearray() for _ in range(13)]
    streams[0] += bytes([0, 0, 6, 0, 0, 3]) + bytes([4 * 1 + 1, 0, 4]) + bytes([4 * 1 + 0, 0, 5]) + bytes([4 + 2, 0])
    streams[1] += (
        bytes([0, 255, 255, 3, 7, 7, 255, 0, 9]) + bytes([1, 2, 3]) + bytes([0, 0, 0, 255, 2]) + bytes(range(5))
    )
    streams[2] += bytes([0b11100100, 0b1001]) + bytes([0b010010]) + bytes([0b00100100, 0b10])
    streams[3] += bytes([3, 200, 0, 250, 9])
    streams[4] += bytes([0xE8, 0x03])
    for k in range(5, 13):
        streams[k] += bytes(range(1, 65))
    for k in range(5, 9):
        streams[k] += bytes([1, 2, 3, 4])
    return streams


def chunk_of(streams):
    return b"\x70\x01" + pack_streams(streams)


def test_unmutated_streams_are_valid():
    assert judge(chunk_of(body_streams()))


def one_block(*, head=(0, 0, 1), gaps=(5,), codes=(1,), small=(), wide=(), planes=()):
    streams = [bytes(part) for part in (head, gaps, codes, small, wide, *planes)]
    return chunk_of(streams + [b""] * (13 - len(streams)))


def test_smallest_chunk_is_valid():
    assert judge(one_block())


@pytest.mark.parametrize(
    ("why", "data"),
    [
        ("no bytes", b""),
        ("not a chunk", b"\x71\x01" + one_block()[2:]),
        ("unknown profile", b"\x70\x09" + one_block()[2:]),
        ("no block", chunk_of([b""] * 13)),
        ("mode 3", one_block(head=(3, 0, 1))),
        ("row outside the table", one_block(head=(4 * 6, 0, 1))),
        ("block of a tensor of no units", one_block(head=(4 * 4, 0, 1))),
        ("block outside its tensor", one_block(head=(0, 2, 1))),
        ("no positions", one_block(head=(0, 0, 0), gaps=(), codes=())),
        ("more positions than units", one_block(head=(8, 0, 133, 7), gaps=bytes(901), codes=bytes(226))),
        ("position outside the block", one_block(head=(8, 0, 1), gaps=(255, 255, 255, 135))),
        ("position outside the last block", one_block(head=(0, 1, 1), gaps=(255, 255))),
        ("unfinished gap", one_block(gaps=(255,))),
        ("gap left over", one_block(gaps=(5, 5))),
        ("code left over", one_block(codes=(1, 1))),
        ("code missing", one_block(codes=())),
        ("small missing", one_block(codes=(2,))),
        ("small left over", one_block(small=(1,))),
        ("zero step in small of a byte", one_block(head=(8, 0, 1), codes=(2,), small=(253,))),
        ("too large a step in small of a byte", one_block(head=(8, 0, 1), codes=(2,), small=(255,))),
        ("wide missing", one_block(codes=(3,), wide=(1,))),
        ("zero step in wide", one_block(codes=(3,), wide=(0, 0))),
        ("wide left over", one_block(codes=(3,), wide=(1, 0, 0))),
        ("plane missing", one_block(head=(1, 0, 1), codes=(), planes=[b"\1"])),
        ("zero step in planes", one_block(head=(1, 0, 1), codes=(), planes=[b"\0", b"\0"])),
        ("plane left over", one_block(head=(1, 0, 1), codes=(), planes=[b"\0", b"\1\1"])),
        ("plane that no unit has", one_block(head=(1, 0, 1), codes=(), planes=[b"\0", b"\1", b"\1"])),
        ("head cut off", one_block(head=(0, 0))),
        ("number not in its shortest form", one_block(head=(0, 0, 0x81, 0))),
        ("number too long", one_block(head=(0, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 1))),
    ],
)
def test_reader_refuses_each_forged_chunk(why, data):
    assert not judge(data)


def test_largest_small_step_of_a_byte_is_valid():
    assert judge(one_block(head=(8, 0, 1), codes=(2,), small=(252,)))


def test_block_headers_cannot_name_a_block_twice():
    """Indices within a row are coded as differences less one, so any value rises."""
    found = decode_chunk(one_block(head=(0, 0, 1, 0, 0, 1), gaps=(5, 5), codes=(1, 1)), ROWS, GRID)
    assert [block.start for block in found] == [0, GRID]


def frame_chunk(length, frame):
    return b"\x70\x01" + varint(length) + varint(len(frame)) + bytes(12) + frame


@pytest.mark.parametrize("claim", [1 << 20, 1 << 31, (1 << 34) + 7])
def test_reader_refuses_a_large_length_before_it_allocates(claim):
    frame = zstandard.ZstdCompressor().compress(bytes(4 << 20))
    tracemalloc.start()
    start = time.monotonic()
    assert not judge(frame_chunk(claim, frame))
    assert not judge(b"\x70\x01" + varint(claim) + bytes(13))
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    assert time.monotonic() - start < 5
    tracemalloc.stop()


def test_reader_refuses_frames_of_another_content_size():
    honest = zstandard.ZstdCompressor().compress(bytes(1000))
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    wide = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    ).compressobj()
    stream = wide.compress(bytes(1000)) + wide.flush()
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00" + bytes(4)
    for frame in (honest + honest, hidden, stream, skippable, honest[:-1], b"", honest + b"\0"):
        assert not judge(frame_chunk(1000, frame))
        assert not judge(frame_chunk(4, frame))


def test_reader_refuses_a_chunk_over_the_limit():
    assert not judge(bytes(MAX_CHUNK_BYTES + 1))


def test_most_expensive_chunk_stays_within_the_documented_memory():
    """All zero bytes: a position and a step for every byte."""
    count = 1 << 20
    row = TableRow(spec("F64", (16 * count,)), True, True)
    span = block_span(8, count)
    blocks = 12
    headers = (bytes([0, 0]) + varint(span)) * blocks
    data = chunk_of([headers, bytes(span * blocks), bytes(span * blocks // 4)] + [b""] * 10)
    assert len(data) < 5000
    tracemalloc.start()
    found = decode_chunk(data, [row], count)
    assert tracemalloc.get_traced_memory()[1] < 16 * MAX_CHUNK_BYTES
    tracemalloc.stop()
    assert sum(block.steps.size for block in found) == span * blocks


def test_block_of_a_removed_row_is_checked_alike():
    generator = np.random.default_rng(1)
    block = sparse_block(generator, np.dtype("<u2"), 300, 7, row=5)
    assert block.steps.all()
    assert judge(one_block(head=(4 * 5, 0, 1)))
