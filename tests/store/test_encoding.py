"""Encoding a table: segments in parallel, the same bytes at any number of threads, the first chunk early."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2psync.delta.block import block_count, block_range
from p2psync.delta.container import decode_chunk
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec, Units
from p2psync.parallel import limit_threads
from p2psync.store.encoding import DELTA_BLOCK_UNITS, Encoding, block_and_chunk
from p2psync.store.segments import MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, Segments

Pair = tuple[Units, Units]


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """A limit on threads, for the time of a test."""
    limit_threads(request.param)
    yield request.param
    limit_threads(None)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Encodes on one thread."""
    limit_threads(1)
    yield
    limit_threads(None)


class Sink:
    """Keeps chunks, and calls `at` when each one comes."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.taken = 0
        self.seen: list[int] = []

    def append(self, data: bytes) -> None:
        self.chunks.append(data)
        self.seen.append(self.taken)


def row(number: int, *shape: int, dtype: str = "BF16") -> TableRow:
    return TableRow(TensorSpec(TensorKind.TENSOR, f"{number:04}", dtype, shape), True, True)


def model(rows: list[TableRow], share: float) -> list[Pair]:
    """Bits before and after a change of this share of each tensor."""
    rng = np.random.default_rng(5)
    pairs = []
    for r in rows:
        old = rng.integers(0, 1 << 8 * r.spec.width, r.spec.count, r.spec.unit, endpoint=False)
        new = old.copy()
        where = rng.random(r.spec.count) < share
        new[where] += np.ones(int(where.sum()), r.spec.unit)
        pairs.append((old, new))
    return pairs


def encode(rows: list[TableRow], pairs: list[Pair], profile: str) -> tuple[Encoding, Sink]:
    sink = Sink()
    with Encoding(sink, rows, profile=profile) as encoding:
        for index, (old, new) in enumerate(pairs):
            sink.taken += old.nbytes
            encoding.take(index, old, new)
        encoding.finish()
    return encoding, sink


MIXED = [row(0, 9_000_000), row(1, 64), *(row(n, 50_000) for n in range(2, 40)), row(40, 700_000, dtype="F32")]


@pytest.mark.parametrize("profile", ["fast", "tight"])
def test_encoding_does_not_depend_on_the_number_of_threads(profile: str, threads: int) -> None:
    pairs = model(MIXED, 0.02)
    encoding, sink = encode(MIXED, pairs, profile)
    limit_threads(1)
    alone, reference = encode(MIXED, pairs, profile)
    assert sink.chunks == reference.chunks and len(sink.chunks) >= 3
    assert (encoding.digest_change, encoding.changed) == (alone.digest_change, alone.changed)


@pytest.mark.parametrize("profile", ["fast", "tight"])
def test_parallel_encoding_decodes_to_every_new_bit(profile: str, threads: int) -> None:
    pairs = model(MIXED, 0.02)
    encoding, sink = encode(MIXED, pairs, profile)
    made = [old.copy() for old, _ in pairs]
    for chunk in sink.chunks:
        for block in decode_chunk(chunk, MIXED, DELTA_BLOCK_UNITS, lambda index: pairs[index][0]):
            part = made[block.row][block.start : block.start + block.count]
            if block.positions is None:
                part += block.steps
            else:
                part[block.positions] += block.steps
    assert all(np.array_equal(a, new) for a, (_, new) in zip(made, pairs, strict=True))
    assert encoding.changed == sum(int((old != new).sum()) for old, new in pairs)


@pytest.mark.usefixtures("one_thread")
def test_first_chunk_leaves_before_a_twentieth_of_the_model_is_read() -> None:
    rows = [row(n, 1 << 20) for n in range(100)]
    _, sink = encode(rows, model(rows[:1], 0.01) * len(rows), "fast")
    assert sink.seen[0] <= sum(r.spec.nbytes for r in rows) / 20


def test_encoding_refuses_a_wrong_array_found_by_another_thread(threads: int) -> None:
    pairs = model(MIXED, 0.02)
    with pytest.raises(ValueError, match="units of"), Encoding(Sink(), MIXED) as encoding:
        for index, (old, new) in enumerate(pairs):
            encoding.take(index, old, new if index != 1 else new[:5])
        encoding.finish()


def test_manifest_like_keeps_the_target_of_the_manifest() -> None:
    rows = [row(0, 300, 700)]
    pairs = model(rows, 0.02)
    tight, fast = (encode(rows, pairs, profile)[0] for profile in ("tight", "fast"))
    told_of = tight.manifest(
        run=f"{7:032x}", epoch=3, version=9, base=8, digest=bytes(range(16)), base_digest=b"b" * 16, created=12.5
    )
    like = fast.manifest_like(told_of)
    told = ("run", "epoch", "version", "base", "digest", "base_digest", "created", "table", "changed", "total")
    assert [getattr(like, name) for name in told] == [getattr(told_of, name) for name in told]
    assert (told_of.profile, like.profile) == ("tight", "fast")


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 40_000_000), max_size=12),
    dtypes=st.lists(st.sampled_from(["U8", "BF16", "F32"]), min_size=12, max_size=12),
)
def test_segments_hold_every_block_once_and_are_bounded(counts: list[int], dtypes: list[str]) -> None:
    rows = [row(n, count, dtype=dtype) for n, (count, dtype) in enumerate(zip(counts, dtypes, strict=False))]
    segments = Segments(rows, DELTA_BLOCK_UNITS)
    total = sum(r.spec.nbytes for r in rows)
    last, sizes = 0, {0: 0}
    for index, r in enumerate(rows):
        seen = []
        for number, blocks in segments.parts(index):
            assert number in (last, last + 1) and len(blocks)
            last = number
            seen += blocks
            assert all(segments.of(index, block) == number for block in blocks)
            units = sum(block_range(r.spec, DELTA_BLOCK_UNITS, block)[1] for block in blocks)
            sizes[number] = sizes.get(number, 0) + units * r.spec.width
        assert seen == list(range(block_count(r.spec, DELTA_BLOCK_UNITS)))
    # A segment may go over its share by the block that fills it.
    assert all(
        size <= min(MAX_SEGMENT_BYTES, max(MIN_SEGMENT_BYTES, total / 16)) + (2 << 20) for size in sizes.values()
    )


@pytest.mark.parametrize(("megabytes", "chunk"), [(1, 64 << 10), (64, 64 << 10), (300, 512 << 10), (16_000, 512 << 10)])
def test_small_anchor_has_small_chunks(megabytes: int, chunk: int) -> None:
    rows = [TableRow(TensorSpec(TensorKind.TENSOR, "w", "BF16", (megabytes << 19,)), False, True)]
    encoding = Encoding(Sink(), rows, anchor=True)
    assert encoding.block_units * 2 <= chunk
    assert encoding.block_units == min(1 << 17, chunk // 2)


def test_small_delta_has_small_chunks() -> None:
    rng = np.random.default_rng(1)
    old = rng.integers(0, 1 << 16, 1 << 23, np.uint16)
    new = old + (rng.random(old.size) < 0.08).astype(np.uint16)
    sink = Sink()
    with Encoding(sink, [TableRow(TensorSpec(TensorKind.TENSOR, "w", "BF16", (old.size,)), True, True)]) as encoding:
        encoding.take(0, old, new)
        encoding.finish()
    assert len(sink.chunks) > 4
    assert max(len(chunk) for chunk in sink.chunks) <= 128 << 10


MIB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "mbps", "chunk"),
    [
        (64 * MIB, 0, 64 << 10),
        (64 * MIB, 100, 64 << 10),
        (64 * MIB, 1000, 256 << 10),
        (64 * MIB, 40_000, 256 << 10),
        (64 * MIB, float("inf"), 256 << 10),
        (16 * MIB, 1000, 64 << 10),
        (64 * MIB, 200, 64 << 10),
        (64 * MIB, 500, 256 << 10),
        (256 * MIB, 40_000, 512 << 10),
        (512 * MIB, 100, 512 << 10),
    ],
)
def test_small_anchor_has_larger_chunks_at_a_high_rate(nbytes: int, mbps: float, chunk: int) -> None:
    block, found = block_and_chunk([row(0, nbytes // 2)], anchor=True, rate=mbps * 125_000)
    assert (found, block) == (chunk, min(1 << 17, chunk // 2))


def test_delta_chunks_do_not_depend_on_the_rate() -> None:
    rows = [row(0, 32 * MIB)]
    assert block_and_chunk(rows, anchor=False, rate=1e9) == block_and_chunk(rows, anchor=False)
