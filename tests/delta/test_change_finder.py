"""The change finder: its chunks do not depend on where the compiled loop returns in between."""

import threading

import numpy as np
import pytest
from delta_parts import GRID, spec

from p2psync.delta.container import ChunkEncoder, decode_chunk
from p2psync.delta.digest import MODULUS, digest_units
from p2psync.delta.extract import FoundChanges, extract_block
from p2psync.delta.fast.codec import FAST_CODE
from p2psync.delta.tensors import TableRow
from p2psync.delta.tight import scratch, symbols, writer
from p2psync.delta.tight.writer import TIGHT_CODE, _fast_rate, _gap_rate

#: The share of changed units of each block: none, few, nearly all, all, in an order that changes the classes.
DENSITIES = (0.0, 0.01, 0.9, 1.0, 0.02, 0.0, 0.3, 0.01, 0.9, 0.05, 0.01, 0.001)


def stepped(densities=DENSITIES, seed=0):
    """A tensor whose blocks change in all sorts of shares, small weights more often, and whose last block is short."""
    rng = np.random.default_rng(seed)
    count = GRID * len(densities) - 4321
    weights = rng.standard_normal(count).astype(np.float32)
    old, share = (weights.view(np.uint32) >> 16).astype(np.uint16), np.repeat(densities, GRID)[:count]
    steps = rng.choice(np.array([1, 65535, 2, 65534, 9, 32768], np.uint16), count, p=[0.4, 0.4, 0.08, 0.08, 0.03, 0.01])
    often = np.where(share < 0.5, share * np.where(np.abs(weights) < 0.1, 10, 0.2), share)
    return old, old + steps * (rng.random(count) < often).astype(np.uint16)


def encode(old, new, chunk_bytes, found=None):
    row = TableRow(spec("BF16", (old.size,)), True, True)
    encoder = ChunkEncoder([row], block_units=GRID, chunk_bytes=chunk_bytes, profile="tight")
    chunks = [*(encoder.add(0, old, new) if found is None else encoder.add_found(0, found, old)), *encoder.finish()]
    return [chunk.data for chunk in chunks], encoder, row, chunks


def found_apart(old, new):
    for start in range(0, old.size, GRID):
        count = min(GRID, old.size - start)
        block = extract_block(0, old, new, start, count)
        if block is not None:
            before = old[start : start + count]
            yield FoundChanges(block, before if block.positions is None else before[block.positions])


@pytest.mark.parametrize("chunk_bytes", [4096, 40_000, 1 << 20])
def test_change_finder_gives_the_same_chunks_block_by_block(chunk_bytes):
    old, new = stepped()
    whole, encoder, _, _ = encode(old, new, chunk_bytes)
    parts, other, _, _ = encode(old, new, chunk_bytes, found_apart(old, new))
    assert parts == whole
    assert (other.digest_change, other.changed, other.total) == (encoder.digest_change, encoder.changed, encoder.total)


def decoded(old, data, row, chunks):
    """The new tensor, by the chunks."""
    live = old.copy()
    for chunk, one in zip(chunks, data, strict=True):
        blocks = decode_chunk(one, [row], GRID, lambda _: old)
        assert len(blocks) == chunk.blocks
        for block in blocks:
            live[block.start + (np.arange(block.count) if block.positions is None else block.positions)] += block.steps
    return live


@pytest.mark.parametrize("chunk_bytes", [4096, 1 << 20])
def test_change_finder_reports_digest_counts_and_blocks(chunk_bytes):
    old, new = stepped(seed=1)
    data, encoder, row, chunks = encode(old, new, chunk_bytes)
    assert encoder.digest_change == (digest_units(row.spec, new) - digest_units(row.spec, old)) % MODULUS
    assert encoder.changed == np.count_nonzero(old != new)
    assert np.array_equal(decoded(old, data, row, chunks), new)


def test_change_finder_moves_a_waiting_block_to_the_next_chunk():
    old, new = stepped((0.05,) * 40, seed=2)
    data, _, row, chunks = encode(old, new, 20_000)
    assert len(data) > 2
    assert all(one[1] == TIGHT_CODE for one in data)
    assert np.array_equal(decoded(old, data, row, chunks), new)


def test_change_finder_moves_a_waiting_block_to_a_fast_chunk():
    """A fast chunk is coded from positions and steps, and not from class indices."""
    rng = np.random.default_rng(5)
    old = np.full(GRID * 8, 0x3F80, np.uint16)
    new = old.copy()
    # Gaps that repeat are nothing to a compressor of bytes, and new to a coder of symbols.
    new[np.tile(np.cumsum(rng.integers(1, 40, 600)), 40) + np.repeat(np.arange(40) * 13_000, 600)] += 1
    data, _, row, chunks = encode(old, new, 4096)
    assert len(data) > 1
    assert data[1][1] == FAST_CODE
    assert np.array_equal(decoded(old, data, row, chunks), new)


def test_change_finder_keeps_changes_when_scratch_grows(monkeypatch):
    old, new = stepped((0.45,) * 24, seed=3)
    usual = encode(old, new, 1 << 20)[0]
    assert len(usual) == 1
    assert usual[0][1] == TIGHT_CODE
    monkeypatch.setattr(scratch, "_KEPT_CHANGES", 0)
    monkeypatch.setattr(scratch, "_local", threading.local())
    assert encode(old, new, 1 << 20)[0] == usual


@pytest.mark.parametrize("density", [0.07, 0.2, 0.6])
def test_gap_rate_is_at_most_the_fast_rate(density, monkeypatch):
    rates = []

    def is_surely_smaller(size, changed, fast_bound, blocks, block_units):
        some = list(blocks)
        rates.append((_gap_rate(some[0][0]), _fast_rate(some, block_units)))
        return True

    monkeypatch.setattr(writer, "is_surely_smaller", is_surely_smaller)
    encode(*stepped((density,) * 4, seed=3), 1 << 20)
    assert rates
    assert all(0 <= gaps <= whole for gaps, whole in rates)
    assert density > 0.5 or all(gaps for gaps, _ in rates)


def test_count_symbols_follows_the_definition():
    rng = np.random.default_rng(4)
    sizes = np.array([[1500, 3], [0, 700], [513, 512]], np.int64)
    items, wanted = np.zeros((2, 4000), np.uint64), []
    shifts = np.array([2, 0], np.uint8)
    counts, extras = np.zeros((2, symbols.SYMBOLS), np.int64), np.zeros((2, symbols.EXTRAS), np.int64)
    for c, shift in enumerate((2, 0)):
        at = 0
        for size in sizes[:, c]:
            gaps = rng.geometric(0.02, size) - 1
            steps = rng.choice([1, 65535, 2, 65534, 3, 65533, 9, 32768], size)
            indices = np.cumsum(gaps + 1) - 1
            items[c, at : at + size] = indices.astype(np.uint64) | steps.astype(np.uint64) << np.uint64(32)
            at += size
            for gap, step in zip(gaps.tolist(), steps.tolist(), strict=True):
                magnitude = min(step, 65536 - step)
                symbol = symbols.BUCKETS * (min(magnitude, 3) - 1) + min(gap >> shift, symbols.BUCKETS - 1)
                front = step & 1 if magnitude > 3 else step >> 15
                wanted.append((c, symbol, magnitude, step >> 15, front | gap << 1 | symbol << 24 | step << 32))
    symbols.count_symbols(sizes, items, shifts, True, counts, extras)
    noted = [int(item) for c in range(2) for item in items[c, : sizes[:, c].sum()]]
    assert noted == [item for *_, item in wanted]
    for c, symbol, magnitude, sign, _ in wanted:
        counts[c, symbol] -= 1
        if magnitude > 2:
            length = (magnitude - 2).bit_length() - 1
            extras[c, 2 * length - 1 + sign if length else 0] -= 1
    assert not counts.any()
    assert not extras.any()
