"""Profile `tight`: exact, small, deterministic, and safe against any base or bytes."""

import hashlib
import os
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fuzz_tight
import numpy as np
import pytest
import reference
import reference_tight
from delta_parts import GRID, apply_all, change, misaligned, pairs, random_units, spec, special
from hypothesis import given, settings
from test_tight_history import drifting

from p2psync.bench.bounds import measure_bounds
from p2psync.bench.policy import draw_step, model_rows
from p2psync.delta.algebra import apply_block
from p2psync.delta.block import Block
from p2psync.delta.container import ChunkEncoder, decode_chunk, iter_chunk
from p2psync.delta.extract import FoundChanges, extract_block
from p2psync.delta.streams import varint
from p2psync.delta.tensors import TableRow
from p2psync.delta.tight import scratch
from p2psync.delta.tight.change_finder import UNIT_BYTES
from p2psync.delta.tight.scratch import MAX_TIGHT_BLOCKS
from p2psync.errors import FormatError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def encode(rows, old, new, *, block_units=GRID, chunk_bytes=1 << 16, profile="tight"):
    encoder = ChunkEncoder(rows, block_units=block_units, chunk_bytes=chunk_bytes, profile=profile)
    chunks = [chunk for k in range(len(rows)) for chunk in encoder.add(k, old[k], new[k])]
    return [chunk.data for chunk in [*chunks, *encoder.finish()]], encoder


def decode(chunks, rows, old, block_units=GRID):
    return [block for data in chunks for block in decode_chunk(data, rows, block_units, lambda row: old[row])]


def weights(count, density=0.01, seed=0):
    """A bf16 tensor, and a step of it by the law of real steps: about `density` of the units change."""
    rng = np.random.default_rng(seed)
    masters = rng.standard_normal(count).astype(np.float32) * np.float32(0.03)
    moved = masters + rng.standard_normal(count).astype(np.float32) * np.float32(1.6e-4 * density)
    return (masters.view(np.uint32) >> 16).astype(np.uint16), (moved.view(np.uint32) >> 16).astype(np.uint16)


def round_trip(rows, old, new, **options):
    chunks, encoder = encode(rows, old, new, **options)
    blocks = decode(chunks, rows, old, options.get("block_units", GRID))
    for row, live, wanted in zip(rows, apply_all(rows, old, blocks), new, strict=True):
        assert np.array_equal(live, np.zeros(row.spec.count, row.spec.unit) if wanted is None else wanted)
    assert sum(block.changed for block in blocks) == encoder.changed
    return chunks


@settings(max_examples=150, deadline=None)
@given(pairs())
def test_tight_round_trips_any_change_of_any_dtype(drawn):
    one, old, new = drawn
    round_trip([TableRow(one, True, True)], [old], [new])


@pytest.mark.parametrize("density", [0.0, 1e-5, 0.003, 0.01, 0.04, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("kind", ["one", "little", "any"])
def test_tight_round_trips_any_density(density, kind):
    rng = np.random.default_rng(7)
    old, _ = weights(5 * GRID + 77)
    round_trip([TableRow(spec("BF16", old.shape), True, True)], [old], [change(rng, old, density, kind)])


@pytest.mark.parametrize("count", [1, 5, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097, 4096 + 65, GRID - 1, GRID + 1])
def test_tight_round_trips_every_length_in_misaligned_memory(count):
    rng = np.random.default_rng(count)
    old = random_units(rng, np.dtype("<u2"), count)
    new = change(rng, old, 0.3, "little")
    new[-1] = old[-1] + 1
    new[0] = old[0] - 1
    round_trip([TableRow(spec("BF16", (count,)), True, True)], [misaligned(old)], [misaligned(new)])


def test_tight_round_trips_steps_to_special_values():
    old = np.repeat(np.arange(65536, dtype=np.uint16), 3)
    targets = special(np.dtype("<u2"))
    new = old.copy()
    new[::3] = targets[np.arange(65536) % targets.size]
    chunks = round_trip([TableRow(spec("BF16", old.shape), True, True)], [old], [new], block_units=1 << 18)
    assert chunks


def mixed(seed=0, density=0.01):
    rows = [
        TableRow(spec("BF16", (3 * GRID + 500,), "a"), True, True),
        TableRow(spec("F32", (700,), "b"), True, True),
        TableRow(spec("F16", (GRID,), "c"), True, True),
        TableRow(spec("BF16", (64,), "d"), False, True),
        TableRow(spec("BF16", (GRID + 9,), "e"), True, True),
        TableRow(spec("BF16", (300,), "f"), True, False),
        TableRow(spec("BF16", (90,), "g"), True, True),
    ]
    rng = np.random.default_rng(seed)
    old, new = (list(side) for side in zip(*(weights(row.spec.count, density, seed) for row in rows), strict=True))
    old[1] = random_units(rng, np.dtype("<u4"), 700)
    new[1] = change(rng, old[1], 0.05, "any")
    new[6] = old[6] + np.uint16(1)
    old[3], new[5] = None, None
    return rows, old, new


def test_tight_chunk_carries_fast_blocks():
    rows, old, new = mixed()
    (data,) = round_trip(rows, old, new)
    assert data[:2] == b"\x70\x02"
    blocks = decode([data], rows, old)
    assert [block.row for block in blocks] == [0, 0, 0, 0, 1, 2, 3, 4, 4, 5, 6]


@pytest.mark.parametrize("seed", range(3))
def test_reference_reads_tight_chunks(seed):
    rows, old, new = mixed(seed, density=(0.002, 0.01, 0.08)[seed])
    chunks, _ = encode(rows, old, new, chunk_bytes=6000)
    for data in chunks:
        steps = reference_tight.read_chunk(data, rows, GRID, lambda row: old[row])
        for block, wanted in zip(decode([data], rows, old), steps, strict=True):
            places = range(block.count) if block.positions is None else block.positions.tolist()
            found = {(block.row, block.start + p): int(s) for p, s in zip(places, block.steps, strict=True) if s}
            assert found == wanted


def test_chunks_are_read_alone_and_in_any_order():
    rows, old, new = mixed(3)
    chunks, _ = encode(rows, old, new, chunk_bytes=4096)
    assert len(chunks) > 2
    alone = [decode([data], rows, old) for data in reversed(chunks)]
    live = apply_all(rows, old, [block for blocks in alone for block in blocks])
    assert all(np.array_equal(a, b) for a, b in zip(live, new, strict=True) if b is not None)


def test_a_block_may_be_added_to_the_old_weights_before_the_next_is_read():
    rows, old, new = mixed(8)
    live = [
        np.zeros(row.spec.count, row.spec.unit) if side is None else side.copy()
        for row, side in zip(rows, old, strict=True)
    ]
    for data in encode(rows, old, new, chunk_bytes=4096)[0]:
        for block in iter_chunk(data, rows, GRID, lambda row: live[row]):
            apply_block(live[block.row], block)
    assert all(np.array_equal(a, b) for a, b in zip(live, new, strict=True) if b is not None)


def test_dense_tensor_does_not_spoil_the_classes():
    """Its blocks are dense, not tight, but they could still change the choice of classes."""
    rng = np.random.default_rng(2)
    first, second = weights(GRID, 0.01, 1), weights(3 * GRID, 0.01, 2)
    dense = random_units(rng, np.dtype("<u2"), 2 * GRID)
    rows = [TableRow(spec("BF16", (n * GRID,), name), True, True) for n, name in ((1, "a"), (2, "b"), (3, "c"))]
    round_trip(rows, [first[0], dense, second[0]], [first[1], dense + np.uint16(1), second[1]], chunk_bytes=1 << 20)


def test_encoder_is_deterministic():
    rows, old, new = mixed(4)
    assert encode(rows, old, new)[0] == encode(rows, old, new)[0]


@pytest.mark.parametrize("density", [0.003, 0.01, 0.024, 0.04])
def test_tight_is_within_four_percent_of_the_bound(density):
    rows = model_rows(64 << 20)
    steps = list(draw_step(rows, density, seed=5))
    chunks, encoder = encode(rows, *zip(*steps, strict=True), block_units=1 << 19, chunk_bytes=256 << 10)
    bits = 8 * sum(map(len, chunks)) / encoder.changed
    bound = measure_bounds(steps).entropy_given_exponent
    # A quarter of a gigabyte is what benchmarks draw; of less, tables are a larger share.
    assert bound < bits < 1.045 * bound


@pytest.mark.parametrize("kind", ["one", "any"])
@pytest.mark.parametrize("density", [1e-4, 0.01, 0.2, 0.97, 1.0])
def test_tight_is_never_larger_than_fast(density, kind):
    rng = np.random.default_rng(3)
    old = random_units(rng, np.dtype("<u2"), 4 * GRID)
    new = change(rng, old, density, kind)
    rows = [TableRow(spec("BF16", old.shape), True, True)]
    tight, fast = (encode(rows, [old], [new], chunk_bytes=1 << 20, profile=name)[0] for name in ("tight", "fast"))
    assert sum(map(len, tight)) <= sum(map(len, fast))


def test_tight_refuses_blocks_without_old_weights():
    block = Block(0, 0, 8, np.array([1], np.uint32), np.array([1], np.uint16))
    encoder = ChunkEncoder([TableRow(spec(), True, True)], block_units=GRID, chunk_bytes=1 << 16, profile="tight")
    with pytest.raises(ValueError, match="old weights"):
        list(encoder.add_block(block))


def test_tight_chunk_without_old_weights_is_a_format_error():
    rows, old, new = mixed()
    (data,), _ = encode(rows, old, new)
    for base in (None, lambda row: old[row][:-1], lambda row: old[row].astype(np.uint32)):
        with pytest.raises(FormatError, match="old units"):
            decode_chunk(data, rows, GRID, base)


def judge(data, rows, old):
    """Decode, and check the promises about a successful decode; returns whether it succeeded."""
    try:
        blocks = decode_chunk(data, rows, GRID, lambda row: old[row])
    except FormatError as error:
        assert "\n" not in str(error)
        return False
    places = [(block.row, block.start) for block in blocks]
    assert places == sorted(set(places))
    for block in blocks:
        if block.positions is not None:
            assert 0 < block.positions.size == block.steps.size
            assert int(block.positions[-1]) < block.count
            assert (np.diff(block.positions.astype(np.int64)) > 0).all()
            assert block.steps.all()
    return True


@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_base_gives_an_error_or_valid_blocks(seed):
    rows, old, new = mixed(seed)
    (data,), _ = encode(rows, old, new)
    rng = np.random.default_rng(seed)
    for other in (
        [None if units is None else random_units(rng, units.dtype, units.size) for units in old],
        [None if units is None else np.zeros_like(units) for units in old],
        [None if units is None else change(rng, units, 0.01, "any") for units in old],
    ):
        judge(data, rows, other)


@pytest.mark.parametrize("seed", range(4))
def test_mutations_are_refused_or_decode_to_valid_blocks(seed):
    rows, old, new = mixed(seed, 0.004)
    (data,), _ = encode(rows, old, new)
    assert judge(data, rows, old)
    rng = np.random.default_rng(seed)
    for _ in range(1500):
        forged = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            place = int(rng.integers(2, len(forged)))
            match int(rng.integers(4)):
                case 0:
                    forged[place] ^= 1 << int(rng.integers(8))
                case 1:
                    del forged[place : place + int(rng.integers(1, 9))]
                case 2:
                    forged[place:place] = rng.bytes(int(rng.integers(1, 9)))
                case _:
                    forged[min(place, 200)] = int(rng.choice([0, 1, 127, 128, 255]))
        judge(forged, rows, old)


def taken_apart(data):
    return [bytearray(part) for part in fuzz_tight.take_apart(data)]


def put_together(*parts):
    return fuzz_tight.put_together(parts)


@pytest.mark.parametrize("seed", range(4))
def test_parts_mutated_before_packing_are_refused_or_decode_to_valid_blocks(seed):
    rows, old, new = mixed(seed, 0.004)
    (data,), _ = encode(rows, old, new)
    parts = taken_apart(data)
    assert put_together(*parts) == data
    rng = np.random.default_rng(50 + seed)
    for turn in range(2000):
        forged = [bytearray(part) for part in parts]
        part = forged[turn % 3]
        for _ in range(int(rng.integers(1, 4))):
            part[int(rng.integers(len(part)))] = int(rng.choice([0, 1, 2, 11, 12, 47, 48, 255, rng.integers(256)]))
        judge(put_together(*forged), rows, old)


def test_a_chunk_cut_off_or_with_anything_after_it_is_refused():
    rows, old, new = mixed(1, 0.002)
    (data,), _ = encode(rows, old, new)
    assert not any(judge(data[:size], rows, old) for size in range(2, len(data)))
    assert not any(judge(data + bytes(tail), rows, old) for tail in (1, 3, 500))


def test_tight_reader_refuses_too_many_changes_before_it_allocates():
    rows, old, new = mixed(1, 0.002)
    (data,), _ = encode(rows, old, new)
    tables = taken_apart(data)[0]
    classes = max(reference_tight.read_tables(bytes(tables))[0][1:]) + 1
    huge = [TableRow(spec("BF16", (1 << 40,), "a"), True, True)]
    head = b"\0\0" + varint(2 * GRID) + bytes(classes - 1) + b"\0"
    more = b"\0\0" + bytes(classes) + b"\0"
    tracemalloc.start()
    with pytest.raises(FormatError):
        decode_chunk(put_together(tables, head + 100 * more, b"", b""), huge, GRID, lambda row: old[0])
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_tight_reader_refuses_too_many_blocks_before_it_reads_any():
    rows, old, new = mixed(1, 0.002)
    (data,), _ = encode(rows, old, new)
    tables = taken_apart(data)[0]
    classes = max(reference_tight.read_tables(bytes(tables))[0][1:]) + 1
    huge = [TableRow(spec("BF16", (1 << 40,), "a"), True, True)]
    headers = b"\0\0\2" + bytes(classes) + (b"\0\0" + bytes(classes) + b"\0") * MAX_TIGHT_BLOCKS
    with pytest.raises(FormatError, match="tight blocks"):
        decode_chunk(put_together(tables, headers, b"", b""), huge, GRID, lambda row: old[0])


def test_tensors_of_other_scales_get_other_classes():
    """The first tensor's weights are a thousand times the second's, and few: its classes would tell little."""
    old, new = weights(6 * GRID, 0.01, 3)
    few, more = weights(GRID, 0.01, 4)
    rows = [TableRow(spec("BF16", (n,), name), True, True) for n, name in ((GRID, "a"), (6 * GRID, "b"))]
    scaled = [(units + (10 << 7)).astype(np.uint16) for units in (few, more)]
    both = round_trip(rows, [scaled[0], old], [scaled[1], new], chunk_bytes=1 << 20)
    alone = round_trip(rows[1:], [old], [new], chunk_bytes=1 << 20)
    first = round_trip(rows[:1], scaled[:1], scaled[1:], chunk_bytes=1 << 20)
    assert len(both) > 1
    assert sum(map(len, both)) < 1.12 * (sum(map(len, alone)) + sum(map(len, first)))


def test_two_encoders_of_one_thread_are_independent():
    """A consumer of chunks may run another encoder in between."""
    rows, old, new = mixed(5)
    alone = encode(rows, old, new, chunk_bytes=4096)[0]
    encoder = ChunkEncoder(rows, block_units=GRID, chunk_bytes=4096, profile="tight")
    found = []
    for k in range(len(rows)):
        for chunk in encoder.add(k, old[k], new[k]):
            encode(*mixed(6), chunk_bytes=4096)
            found.append(chunk.data)
    assert found + [chunk.data for chunk in encoder.finish()] == alone


@pytest.mark.parametrize(("profile", "dtype"), [("fast", "BF16"), ("tight", "F32")])
def test_tight_reader_reads_only_the_needed_old_weights(profile, dtype):
    """They cannot be: nothing that is not contiguous is scanned."""
    one = spec(dtype, (3 * GRID,))
    rng = np.random.default_rng(6)
    old = random_units(rng, one.unit, one.count)
    new = change(rng, old, 0.01, "any")
    found, chunks = [], []
    for start in range(0, one.count, GRID):
        block = extract_block(0, old, new, start, GRID)
        found.append(FoundChanges(block, old[start : start + GRID][block.positions]))
    encoder = ChunkEncoder([TableRow(one, True, True)], block_units=GRID, chunk_bytes=1 << 20, profile=profile)
    chunks += encoder.add_found(0, found, np.repeat(old, 2)[::2])
    chunks += encoder.finish()
    assert [chunk.data for chunk in chunks] == encode([TableRow(one, True, True)], [old], [new], profile=profile)[0]


def test_scratch_grows_with_the_chunk(monkeypatch):
    rows, old, new = mixed(7, 0.05)
    usual = encode(rows, old, new, chunk_bytes=1 << 18)[0]
    monkeypatch.setattr(scratch, "_KEPT_CHANGES", 0)
    # Another thread has no kept scratch buffers.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(encode, rows, old, new, chunk_bytes=1 << 18).result()[0] == usual


def digest_of_chunks() -> str:
    """SHA-256 of chunks that were read back: all of `mixed` whose units are of 16 bits, and one with a history."""
    digest = hashlib.sha256()
    for seed in range(2):
        rows, old, new = mixed(seed)
        half = [k for k, row in enumerate(rows) if row.spec.width == UNIT_BYTES]
        for data in round_trip(*([part[k] for k in half] for part in (rows, old, new)), chunk_bytes=5000):
            digest.update(data)
    case = drifting(GRID + 77)
    chunks = case.encode()
    case.assert_exact(chunks)
    for data in chunks:
        digest.update(data)
    return digest.hexdigest()


def test_processors_without_simd_write_and_read_the_same_bytes(tmp_path):
    """The same loops compiled for the least of processors, and for this one."""
    script = f"import sys; sys.path.insert(0, {str(HERE)!r}); import test_tight; print(test_tight.digest_of_chunks())"
    extra = {"NUMBA_CPU_NAME": "generic", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=os.environ | extra, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == digest_of_chunks()


def test_both_references_find_the_same_steps():
    rows, old, new = mixed(2)
    fast, _ = encode(rows, old, new, profile="fast", chunk_bytes=1 << 20)
    (data,), _ = encode(rows, old, new)
    assert reference_tight.read_chunk(data, rows, GRID, lambda row: old[row]) == [
        steps for chunk in fast for steps in reference.read_chunk(chunk, rows, GRID)
    ]
