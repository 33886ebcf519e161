"""Unchanged, wholly changed and adversarial data: sizes are bounded, and all of it round-trips."""

import numpy as np
import pytest
from delta_parts import DTYPES, GRID, WIDTHS, apply_all, change, misaligned, pairs, random_units, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from p2psync.delta.block import block_count
from p2psync.delta.block_headers import MAX_BODY_BLOCKS
from p2psync.delta.container import MAX_CHUNK_BYTES, PROFILES, ChunkEncoder, decode_chunk
from p2psync.delta.streams import pack_streams
from p2psync.delta.tensors import DTYPE_BITS, TableRow, TensorKind, TensorSpec
from p2psync.errors import FormatError

#: Bytes that a chunk, and each of its blocks, may take beyond the units of its blocks.
CHUNK_BYTES, BLOCK_BYTES = 112, 15
SPARSE = (0.0, 1e-5, 0.01, 0.5, 0.97, 1.0)


def encode(rows, old, new, profile, *, block_units=GRID, chunk_bytes=1 << 18):
    encoder = ChunkEncoder(rows, block_units=block_units, chunk_bytes=chunk_bytes, profile=profile)
    chunks = [chunk for k in range(len(rows)) for chunk in encoder.add(k, old[k], new[k])]
    return [*chunks, *encoder.finish()]


def round_trip(rows, old, new, profile, **options):
    """Encode, hold every chunk to its bound, decode, apply; the chunks."""
    chunks = encode(rows, old, new, profile, **options)
    block_units, blocks = options.get("block_units", GRID), []
    for chunk in chunks:
        found = decode_chunk(chunk.data, rows, block_units, lambda row: old[row])
        whole = sum(block.count * block.steps.itemsize for block in found)
        assert len(chunk.data) <= min(whole + CHUNK_BYTES + BLOCK_BYTES * len(found), MAX_CHUNK_BYTES)
        blocks += found
    for row, live, wanted in zip(rows, apply_all(rows, old, blocks), new, strict=True):
        assert np.array_equal(live, np.zeros(row.spec.count, row.spec.unit) if wanted is None else wanted)
    return chunks


def payload(chunks):
    return sum(len(chunk.data) for chunk in chunks)


def stepped(old, where, steps):
    new = old.copy()
    new[where] += np.asarray(steps).astype(old.dtype)
    return new


def every(old):
    """Another bit pattern for every unit, drawn at random."""
    other = np.random.default_rng(8).integers(0, np.iinfo(old.dtype).max, old.size, old.dtype, endpoint=True)
    return np.where(other == old, ~old, other)


CHANGES = {
    "nothing": lambda old: old.copy(),
    "one unit": lambda old: stepped(old, [old.size // 2], 1),
    "all by +1": lambda old: stepped(old, slice(None), 1),
    "all by one ulp of either sign": lambda old: stepped(old, slice(None), np.tile([1, -1], old.size)[: old.size]),
    "all at random": every,
    "all but one at random": lambda old: np.where(np.arange(old.size) == 77, old, every(old)),
    "every other by the largest step": lambda old: stepped(old, slice(0, None, 2), 1 << (8 * old.itemsize - 1)),
    "the last of every 255": lambda old: stepped(old, slice(254, None, 255), 1),
    "first and last": lambda old: stepped(old, [0, -1], [1, -1]),
    "set to zeros": np.zeros_like,
}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("change_name", CHANGES)
def test_delta_is_never_larger_than_the_whole_tensors(change_name, dtype, profile):
    row = TableRow(spec(dtype, (3 * GRID + 77,)), True, True)
    old = random_units(np.random.default_rng(1), row.spec.unit, row.spec.count)
    new = CHANGES[change_name](old)
    chunks = round_trip([row], [old], [new], profile)
    if change_name == "nothing":
        assert not chunks
    if change_name in ("one unit", "first and last"):
        assert payload(chunks) < 900


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("state", [(False, True), (True, False)])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_added_or_removed_random_tensor_takes_its_size(dtype, state, profile):
    row = TableRow(spec(dtype, (3 * GRID + 77,)), *state)
    units = np.random.default_rng(1).integers(1, np.iinfo(row.spec.unit).max, row.spec.count, row.spec.unit)
    sides = [units if row.before else None], [units if row.after else None]
    assert payload(round_trip([row], *sides, profile)) < units.nbytes + 8 * 128


@pytest.mark.parametrize("profile", PROFILES)
def test_single_unit_tensors_take_a_few_bytes_each(profile):
    dtypes = sorted(set(DTYPES) - {dtype for dtype, bits in DTYPE_BITS.items() if bits < 8})
    rows = [TableRow(spec(dtypes[k % len(dtypes)], (), f"{k:04d}"), True, True) for k in range(3000)]
    old = [np.array([k % 200], row.spec.unit) for k, row in enumerate(rows)]
    new = [units + units.dtype.type(1) for units in old]
    assert payload(round_trip(rows, old, new, profile)) < 8 * len(rows)


@pytest.mark.parametrize("profile", PROFILES)
def test_chunk_of_random_steps_after_a_typical_block_is_bounded(profile):
    """The first block of a chunk suits class indices; the next is noise, nearly everywhere."""
    rng = np.random.default_rng(0)
    first = np.full(60_000, 0x3F80, np.uint16)
    old = np.full(1 << 20, 0x3F80, np.uint16)
    where = np.flatnonzero(rng.random(old.size) < 0.999)
    new = stepped(old, where, rng.integers(3, 65533, where.size))
    rows = [TableRow(spec("BF16", first.shape, "a"), True, True), TableRow(spec("BF16", old.shape, "b"), True, True)]
    sides = [first, old], [stepped(first, [5], 1), new]
    chunks = round_trip(rows, *sides, profile, block_units=1 << 20, chunk_bytes=4 << 20)
    assert payload(chunks) <= old.nbytes + CHUNK_BYTES + 2 * BLOCK_BYTES + 100


@pytest.mark.parametrize("density", [0.02, 0.085, 0.33, 0.66])
@pytest.mark.parametrize("profile", PROFILES)
def test_chunk_stays_within_its_limit_after_cheap_chunks(density, profile):
    """Steps that take a bit or two each, then steps that take all their bits."""
    rng = np.random.default_rng(2)
    old = np.full(8 << 20, 0x3F80, np.uint16)
    where = np.flatnonzero(rng.random(old.size) < density)
    steps = rng.integers(3, 65533, where.size).astype(np.uint16)
    steps[: where.size // 4] = 1
    rows = [TableRow(spec("BF16", old.shape), True, True)]
    round_trip(rows, [old], [stepped(old, where, steps)], profile, block_units=1 << 18, chunk_bytes=4 << 20)


def test_rarely_changed_large_class_round_trips():
    """The mean gap of the class, over many blocks, is larger than any block."""
    rng = np.random.default_rng(0)
    old = np.where(rng.random(9 << 20) < 0.05, 0x3F80, 0x3C00).astype(np.uint16)
    often = np.flatnonzero(old == 0x3F80)
    new = stepped(old, often[rng.random(often.size) < 0.01], 1)
    new[np.flatnonzero(old == 0x3C00)[-1]] += 1
    (chunk,) = round_trip([TableRow(spec("BF16", old.shape), True, True)], [old], [new], "tight", block_units=1 << 19)
    assert chunk.data[1] == 2


WORST = {
    "one class, alternating signs": lambda rng, old: stepped(old, slice(0, None, 64), np.tile([1, -1], 1 << 10)),
    "all steps 0x8000": lambda rng, old: stepped(old, slice(0, None, 90), 0x8000),
    "every size of step": lambda rng, old: stepped(old, slice(1, 65536, 1), np.arange(1, 65536)),
    "first and last unit": lambda rng, old: stepped(old, [0, old.size - 1], [1, 0x8000]),
    "runs": lambda rng, old: stepped(old, (np.arange(old.size) // 300) % 40 == 7, 2),
    "geometric gaps": lambda rng, old: stepped(old, np.unique(np.geomspace(1, old.size - 1, 900).astype(int)), 1),
}


@pytest.mark.parametrize("scales", ["one scale", "alternating scales", "all scales"])
@pytest.mark.parametrize("worst", WORST)
@pytest.mark.parametrize("profile", PROFILES)
def test_artificial_changes_round_trip(profile, worst, scales):
    rng = np.random.default_rng(4)
    size = 1 << 17
    old = {
        "one scale": np.full(size, 0x3F80, np.uint16),
        "alternating scales": np.tile(np.array([0x3F80, 0x3C00], np.uint16), size // 2),
        "all scales": rng.integers(0, 65536, size).astype(np.uint16),
    }[scales]
    rows = [TableRow(spec("BF16", old.shape), True, True)]
    round_trip(rows, [old], [WORST[worst](rng, old)], profile, block_units=1 << 20)


@pytest.mark.parametrize("units", [256, 2048, 8192])
def test_many_small_tensors_take_the_same_in_both_profiles(units):
    """Headers are a large share of small blocks, and larger if they hold a number for every class."""
    rng = np.random.default_rng(6)
    rows = [TableRow(spec("BF16", (units,), f"{k:04d}"), True, True) for k in range(400)]
    masters = [rng.standard_normal(units).astype(np.float32) * np.float32(0.03) for _ in rows]
    old = [(weights.view(np.uint32) >> 16).astype(np.uint16) for weights in masters]
    new = [stepped(weights, np.unique(rng.integers(0, units, 1 + units // 100)), 1) for weights in old]
    fast, tight = (payload(round_trip(rows, old, new, profile)) for profile in ("fast", "tight"))
    assert tight <= fast


def many_blocks(count):
    """A chunk of `count` blocks of one change each, a few hundred bytes in all."""
    return b"\x70\x01" + pack_streams([b"\0\0\1" * count, bytes(count), b"\1" * count, *[b""] * 10])


def test_reader_refuses_more_blocks_than_the_limit():
    """A block takes half a kilobyte of memory and a hundredth of a millisecond, but few bytes on the wire."""
    rows = [TableRow(spec("BF16", (1 << 40,)), True, True)]
    assert len(decode_chunk(many_blocks(MAX_BODY_BLOCKS), rows, GRID)) == MAX_BODY_BLOCKS
    assert len(many_blocks(MAX_BODY_BLOCKS + 1)) < 200
    with pytest.raises(FormatError, match="more than"):
        decode_chunk(many_blocks(MAX_BODY_BLOCKS + 1), rows, GRID)


@pytest.mark.parametrize("profile", PROFILES)
def test_writer_keeps_to_the_limit_of_blocks(profile):
    count = MAX_BODY_BLOCKS + 9
    rows = [TableRow(TensorSpec(TensorKind.TENSOR, f"{k:06d}", "U8", (1,)), True, True) for k in range(count)]
    old, new = [np.zeros(1, np.uint8)] * count, [np.ones(1, np.uint8)] * count
    chunks = encode(rows, old, new, profile, chunk_bytes=4 << 20)
    assert [chunk.blocks for chunk in chunks] == [MAX_BODY_BLOCKS, 9]
    assert all(len(decode_chunk(chunk.data, rows, GRID)) == chunk.blocks for chunk in chunks)


@st.composite
def tables(draw):
    """A few tensors of any dtypes, patched, added or removed, some at odd addresses."""
    rows, old, new = [], [], []
    for k in range(draw(st.integers(1, 5))):
        one, before, after = draw(pairs(most=GRID + 5))
        one = TensorSpec(one.kind, f"{k}{one.name}", one.dtype, one.shape)
        row = TableRow(one, *draw(st.sampled_from([(True, True), (True, True), (False, True), (True, False)])))
        shift = draw(st.sampled_from([0, 0, 1, 3]))
        rows.append(row)
        old.append((misaligned(before, shift) if shift else before) if row.before else None)
        new.append((misaligned(after, shift) if shift else after) if row.after else None)
    return rows, old, new


@settings(max_examples=120, deadline=None)
@given(tables(), st.sampled_from(PROFILES), st.sampled_from([GRID, 1 << 18]), st.sampled_from([4096, 1 << 18, 4 << 20]))
def test_any_table_round_trips_in_both_profiles(table, profile, block_units, chunk_bytes):
    round_trip(*table, profile, block_units=block_units, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_dtype_round_trips_any_bits(dtype, profile, data):
    """Old and new are bytes that hypothesis chooses itself: it finds the patterns that a generator would not."""
    width = spec(dtype, (8,)).width
    units = data.draw(st.integers(0, 40)) * (3 if DTYPE_BITS[dtype] == 6 else 1)
    elements = units * 8 // DTYPE_BITS[dtype] if DTYPE_BITS[dtype] < 8 else units
    row = TableRow(spec(dtype, (elements,)), True, True)
    old, new = (
        np.frombuffer(data.draw(st.binary(min_size=units * width, max_size=units * width)), row.spec.unit)
        for _ in range(2)
    )
    assert row.spec.count == units
    round_trip([row], [old], [new], profile)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_round_trips_every_density(dtype, profile):
    one = spec(dtype, (GRID + 333, 8))
    rng = np.random.default_rng(5)
    old = random_units(rng, one.unit, one.count)
    for density in SPARSE:
        chunks = round_trip([TableRow(one, True, True)], [old], [change(rng, old, density, "any")], profile)
        assert bool(chunks) == bool(density)
    assert block_count(one, GRID) > 1
