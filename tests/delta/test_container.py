"""Chunks: exact round trips in any order; bounded sizes, right digests and counts."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import reference
from delta_parts import (
    DTYPES,
    GRID,
    WIDTHS,
    apply_all,
    change,
    decode,
    encode,
    encode_blocks,
    misaligned,
    pairs,
    random_units,
    same,
    sparse_block,
    spec,
    special,
    total_digest,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from p2psync.delta.algebra import compose, invert
from p2psync.delta.block import Block, block_count, block_range
from p2psync.delta.container import MAX_CHUNK_BYTES, ChunkEncoder, decode_chunk
from p2psync.delta.digest import MODULUS, digest_units
from p2psync.delta.extract import extract_block
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec
from p2psync.errors import FormatError

STATES = [(True, True), (False, True), (True, False)]


@st.composite
def deltas(draw, most=3):
    """A table with a few tensors: patched, added or removed."""
    rows, old, new = [], [], []
    for k in range(draw(st.integers(1, most))):
        one, before, after = draw(pairs(most=GRID + 5))
        one = TensorSpec(one.kind, f"{k}{one.name}", one.dtype, one.shape)
        row = TableRow(one, *draw(st.sampled_from(STATES)))
        rows.append(row)
        old.append(before if row.before else None)
        new.append(after if row.after else None)
    return rows, old, new


def check_round_trip(rows, old, new, **options):
    chunks, encoder = encode(rows, old, new, **options)
    blocks = decode(chunks, rows, options.get("block_units", GRID))
    for live, row, units in zip(apply_all(rows, old, blocks), rows, new, strict=True):
        np.testing.assert_array_equal(live, np.zeros(row.spec.count) if units is None else units)
    ends = (total_digest(rows, new) - total_digest(rows, old)) % MODULUS
    assert encoder.digest_change == ends
    assert encoder.total == sum(row.spec.count for row in rows)
    assert encoder.changed == sum(block.changed for block in blocks)
    return chunks, blocks


@given(deltas(), st.sampled_from([4096, 1 << 16, 4 << 20]), st.sampled_from([1 << 16, 1 << 17, 1 << 20]))
@settings(max_examples=60, deadline=None)
def test_container_round_trips_any_delta(delta, chunk_bytes, block_units):
    chunks, blocks = check_round_trip(*delta, chunk_bytes=chunk_bytes, block_units=block_units)
    assert [chunk.blocks for chunk in chunks] == [
        len(decode_chunk(chunk.data, delta[0], block_units)) for chunk in chunks
    ]
    block_keys = [(block.row, block.start) for block in blocks]
    assert block_keys == sorted(set(block_keys))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("state", STATES)
def test_container_round_trips_every_bit_pattern_of_every_dtype(dtype, state):
    unit = spec(dtype).unit
    values = special(unit)
    old, new = np.repeat(values, values.size), np.tile(values, values.size)
    elements = old.size if spec(dtype).count == 8 else old.size * 4
    if spec(dtype, (elements,)).count != old.size:
        old, new = (np.resize(units, spec(dtype, (elements,)).count) for units in (old, new))
    row = TableRow(spec(dtype, (elements,)), *state)
    check_round_trip([row], [old if row.before else None], [new if row.after else None])


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 5), (1,)])
def test_container_round_trips_scalars_and_empty_tensors(shape, state):
    row = TableRow(spec("F32", shape), *state)
    units = np.full(row.spec.count, 0x7FC00001, np.uint32)
    old = units if row.before else None
    new = (units + np.uint32(1) if row.before else units) if row.after else None
    chunks, _ = check_round_trip([row], [old], [new])
    assert len(chunks) == min(1, row.spec.count)


def test_added_tensor_of_zeros_has_no_chunk_but_a_digest():
    row = TableRow(spec(shape=(100,)), False, True)
    chunks, encoder = encode([row], [None], [np.zeros(100, np.uint16)])
    assert chunks == []
    assert encoder.digest_change == digest_units(row.spec, np.zeros(100, np.uint16)) != 0
    assert (encoder.changed, encoder.total) == (0, 100)


def test_encoder_makes_no_chunk_without_changes():
    units = np.arange(100_000, dtype=np.uint16)
    chunks, encoder = encode([TableRow(spec(shape=(100_000,)), True, True)], [units], [units.copy()])
    assert chunks == []
    assert (encoder.digest_change, encoder.changed, encoder.total) == (0, 0, 100_000)


@pytest.mark.parametrize("kind", [TensorKind.HEADER, TensorKind.FILE])
def test_container_round_trips_headers_and_files(kind):
    old = np.frombuffer(b'{"step": 1, "lr": 1e-6}' * 40, np.uint8)
    new = np.frombuffer(b'{"step": 2, "lr": 1e-6}' * 40, np.uint8)
    check_round_trip([TableRow(TensorSpec(kind, "config.json", "U8", old.shape), True, True)], [old], [new])


@pytest.mark.parametrize("dtype", WIDTHS)
def test_encoder_reads_memory_maps_at_odd_addresses(dtype):
    generator = np.random.default_rng(1)
    row = TableRow(spec(dtype, (GRID + 99,)), True, True)
    old = random_units(generator, row.spec.unit, row.spec.count)
    new = change(generator, old, 0.05, "little")
    assert encode([row], [misaligned(old)], [misaligned(new, 3)])[0] == encode([row], [old], [new])[0]


def three_rows(seed=2, density=0.02):
    generator = np.random.default_rng(seed)
    rows = [TableRow(spec(dtype, (5 * GRID,), name), True, True) for name, dtype in zip("abc", WIDTHS, strict=False)]
    old = [random_units(generator, row.spec.unit, row.spec.count) for row in rows]
    return rows, old, [change(generator, units, density, "little") for units in old]


def test_encoder_is_deterministic():
    delta = three_rows()
    assert encode(*delta)[0] == encode(*delta)[0]


def test_encoders_of_several_threads_are_independent():
    deltas = [three_rows(seed) for seed in range(4)]
    alone = [encode(*delta)[0] for delta in deltas]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert [chunks for chunks, _ in pool.map(lambda delta: encode(*delta), deltas)] == alone


def test_add_block_gives_the_same_chunks_as_add():
    rows, old, new = three_rows()
    chunks, _ = encode(rows, old, new)
    assert encode_blocks(rows, decode(chunks, rows)) == chunks


@given(st.randoms())
@settings(max_examples=10, deadline=None)
def test_chunks_decode_in_any_order(random):
    rows, old, new = three_rows()
    chunks, _ = encode(rows, old, new, chunk_bytes=8192)
    assert len(chunks) > 8
    random.shuffle(chunks)
    for live, units in zip(apply_all(rows, old, decode(chunks, rows)), new, strict=True):
        np.testing.assert_array_equal(live, units)


def test_chunks_name_their_rows_and_hold_every_block():
    rows, old, new = three_rows()
    chunks, _ = encode(rows, old, new, chunk_bytes=8192)
    for chunk in chunks:
        blocks = decode_chunk(chunk.data, rows, GRID)
        assert (chunk.first_row, chunk.last_row, chunk.blocks) == (blocks[0].row, blocks[-1].row, len(blocks))
    assert all(a.last_row <= b.first_row for a, b in pairwise(chunks))


def test_encoder_yields_a_chunk_as_soon_as_it_is_full():
    rows, old, new = three_rows()
    encoder = ChunkEncoder(rows, block_units=GRID, chunk_bytes=8192)
    assert next(iter(encoder.add(0, old[0], new[0]))).last_row == 0


@pytest.mark.parametrize("chunk_bytes", [4096, 1 << 14, 1 << 17, 4 << 20])
def test_chunks_exceed_their_size_only_for_a_single_block(chunk_bytes):
    for density in (0.02, 0.5):
        chunks, _ = encode(*three_rows(density=density), chunk_bytes=chunk_bytes)
        assert all(len(chunk.data) <= chunk_bytes + 64 or chunk.blocks == 1 for chunk in chunks)
        assert all(len(chunk.data) <= MAX_CHUNK_BYTES for chunk in chunks)


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("block_units", [1 << 16, 1 << 20])
def test_random_anchor_takes_its_size_and_a_few_bytes(dtype, block_units):
    generator = np.random.default_rng(3)
    count = (9 << 20) // spec(dtype).width // 4
    row = TableRow(spec(dtype, (count,)), False, True)
    units = generator.integers(1, np.iinfo(row.spec.unit).max, count, row.spec.unit)
    for rows, old in (([row], None), ([TableRow(row.spec, True, True)], np.flip(units).copy())):
        chunks, _ = encode(rows, [old], [units], block_units=block_units, chunk_bytes=1 << 20)
        assert sum(len(chunk.data) for chunk in chunks) <= row.spec.nbytes + 64 * len(chunks)
        assert max(len(chunk.data) for chunk in chunks) <= MAX_CHUNK_BYTES


def test_bf16_anchor_is_compressed_by_its_exponents():
    weights = np.random.default_rng(4).standard_normal(1 << 20).astype(np.float32) * np.float32(0.03)
    units = (weights.view(np.uint32) >> 16).astype(np.uint16)
    chunks, _ = encode([TableRow(spec(shape=(1 << 20,)), False, True)], [None], [units], chunk_bytes=1 << 20)
    assert sum(len(chunk.data) for chunk in chunks) < 0.7 * units.nbytes


def test_fast_takes_ten_bits_a_change_at_one_percent():
    generator = np.random.default_rng(5)
    old = random_units(generator, np.dtype("<u2"), 1 << 21)
    chunks, encoder = encode(
        [TableRow(spec(shape=old.shape), True, True)], [old], [change(generator, old, 0.01, "one")], block_units=1 << 19
    )
    assert 8 * sum(len(chunk.data) for chunk in chunks) < 9.6 * encoder.changed


@given(deltas(most=2))
@settings(max_examples=25, deadline=None)
def test_reference_reader_finds_the_same_steps(delta):
    rows, old, new = delta
    for chunk in encode(rows, old, new, chunk_bytes=1 << 20)[0]:
        expected = []
        for block in decode_chunk(chunk.data, rows, GRID):
            where = np.arange(block.count) if block.positions is None else block.positions
            block_keys = ((block.row, block.start + int(p)) for p in where)
            expected.append({place: int(s) for place, s in zip(block_keys, block.steps, strict=True) if s})
        assert reference.read_chunk(chunk.data, rows, GRID) == expected


FAR = 2**33


def far_table():
    return [TableRow(spec("F8_E4M3", (3, 5)), True, True), TableRow(spec("BF16", (2**20, 2**15), "x"), True, True)]


def test_container_round_trips_blocks_beyond_2_to_the_31_units():
    rows = far_table()
    generator = np.random.default_rng(6)
    starts = [2**31 - GRID, 2**31, FAR, 2**35 - GRID]
    blocks = [sparse_block(generator, np.dtype("<u2"), GRID, 300, start=start, row=1) for start in starts]
    found = decode(encode_blocks(rows, blocks), rows)
    assert all(same(a, b) for a, b in zip(found, blocks, strict=True))


def test_container_round_trips_composed_and_inverted_blocks():
    rows = far_table()
    generator = np.random.default_rng(7)
    first, second = (sparse_block(generator, np.dtype("<u2"), GRID, 3000, start=FAR, row=1) for _ in range(2))
    both = compose(first, second)
    (found,) = decode(encode_blocks(rows, [both]), rows)
    assert same(found, both)
    (back,) = decode(encode_blocks(rows, [invert(both)]), rows)
    assert compose(found, back) is None


@given(st.integers(0, 2**32), st.sampled_from(WIDTHS), st.floats(0, 1), st.sampled_from([1, 3, 300, 2**62]))
@settings(max_examples=60, deadline=None)
def test_container_round_trips_any_density_and_step_size(seed, dtype, density, most):
    generator = np.random.default_rng(seed)
    row = TableRow(spec(dtype, (GRID,)), True, True)
    changed = max(1, int(density * GRID))
    top = min(most, np.iinfo(row.spec.unit).max)
    steps = generator.integers(1, top, changed, row.spec.unit, endpoint=True)
    positions = np.sort(generator.choice(GRID, changed, replace=False)).astype(np.uint32)
    block = Block(0, 0, GRID, positions, np.where(generator.random(changed) < 0.5, steps, np.negative(steps)))
    (found,) = decode(encode_blocks([row], [block]), [row])
    whole = np.zeros(GRID, row.spec.unit)
    where = slice(None) if found.positions is None else found.positions
    whole[where] = found.steps
    expected = np.zeros(GRID, row.spec.unit)
    expected[positions] = block.steps
    np.testing.assert_array_equal(whole, expected)


def test_decoded_blocks_do_not_share_memory_with_the_chunk():
    rows, old, new = three_rows()
    chunks, _ = encode(rows, old, new)
    data = bytearray(chunks[0].data)
    blocks = decode_chunk(data, rows, GRID)
    copies = [block.steps.copy() for block in blocks]
    data[:] = bytes(len(data))
    assert all(np.array_equal(block.steps, copy) for block, copy in zip(blocks, copies, strict=True))


def test_wide_units_have_shorter_blocks():
    one = spec("F64", (1 << 20,))
    assert block_count(one, 1 << 20) == 4
    assert block_range(one, 1 << 20, 3) == (3 << 18, 1 << 18)


def test_encoder_refuses_misuse():
    rows, old, new = three_rows()
    with pytest.raises(FormatError, match="power of two"):
        ChunkEncoder(rows, block_units=3 << 15, chunk_bytes=1 << 16)
    with pytest.raises(FormatError, match="unknown profile"):
        ChunkEncoder(rows, block_units=GRID, chunk_bytes=1 << 16, profile="loose")
    with pytest.raises(ValueError, match="chunks of"):
        ChunkEncoder(rows, block_units=GRID, chunk_bytes=(4 << 20) + 1)
    encoder = ChunkEncoder(rows, block_units=GRID, chunk_bytes=1 << 16)
    list(encoder.add(1, old[1], new[1]))
    for row, before, after in [(0, old[0], new[0]), (1, old[1], new[1]), (2, None, new[2]), (2, old[1], new[2])]:
        with pytest.raises(ValueError):
            list(encoder.add(row, before, after))
    block = extract_block(2, old[2], new[2], 0, GRID)
    for wrong in (
        Block(2, 1, block.count, block.positions, block.steps),
        Block(2, 0, block.count - 1, block.positions, block.steps),
        Block(2, 0, block.count, block.positions, block.steps.astype(np.uint64)),
        Block(0, 0, block.count, block.positions, block.steps),
        Block(2, 5 * GRID, block.count, block.positions, block.steps),
    ):
        with pytest.raises(ValueError):
            list(encoder.add_block(wrong))
    list(encoder.add_block(block))
    with pytest.raises(ValueError, match="rising"):
        list(encoder.add_block(block))
