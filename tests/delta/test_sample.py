"""Samples before coding: equal for copies and for found blocks, representative, and worth their time."""

import numpy as np
import pytest
from delta_parts import GRID, change, spec

from p2psync.delta.container import ChunkEncoder
from p2psync.delta.extract import FoundChanges, extract_block
from p2psync.delta.kernels.simd import WINDOW
from p2psync.delta.kernels.unit_loops import address
from p2psync.delta.tensors import TableRow
from p2psync.delta.tight.class_choice import MAX_CHOSEN_CLASSES, ClassChooser
from p2psync.delta.tight.sample import ChangeSample, sample_blocks, sample_copies
from p2psync.store.encoding import DELTA_BLOCK_UNITS, Encoding


class Sink(list):
    def append(self, data):
        super().append(bytes(data))


def weights(count, density, seed, scale=0.03):
    rng = np.random.default_rng(seed)
    masters = rng.standard_normal(count).astype(np.float32) * np.float32(scale)
    moved = masters + rng.standard_normal(count).astype(np.float32) * np.float32(1.6e-4 * density)
    return (masters.view(np.uint32) >> 16).astype(np.uint16), (moved.view(np.uint32) >> 16).astype(np.uint16)


def blocks_of(row, old, new, span):
    for start in range(0, old.size, span):
        block = extract_block(row, old, new, start, min(span, old.size - start))
        if block is not None:
            olds = old[start : start + block.count]
            yield FoundChanges(block, olds if block.positions is None else olds[block.positions])


@pytest.mark.parametrize("every", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("first", [0, GRID])
def test_samples_of_copies_and_of_blocks_are_equal(every, first):
    old, new = weights(3 * GRID + 77, 0.02, 1)
    new[2 * GRID : 3 * GRID] = old[2 * GRID : 3 * GRID] + np.uint16(1)
    one = sample_copies(address(old), address(new), 5, first, old.size, every)
    found = [one.block for one in blocks_of(5, old, new, GRID) if one.block.start >= first]
    other = sample_blocks(address(old), 5, first, old.size, every, found)
    assert [array.tolist() for array in (one.units, one.olds, one.steps)] == [
        array.tolist() for array in (other.units, other.olds, other.steps)
    ]
    assert one.size == other.size
    assert abs(one.units.sum() - one.size) < 4 * (1 + one.size // 256)
    assert abs(one.size * every / (old.size - first) - 1) < 0.1 or every > 7


def test_sample_of_every_piece_holds_all_changes():
    old, new = weights(2 * GRID + 5, 0.02, 2)
    sample = sample_copies(address(old), address(new), 0, 0, old.size, 1)
    changed = old != new
    assert np.allclose(sample.units, np.bincount(old >> 7 & 255, minlength=256), rtol=0.05, atol=300)
    assert np.array_equal(sample.olds, old[changed])
    assert np.array_equal(sample.steps, (new - old)[changed])


def test_sample_covers_matrix_columns_evenly():
    """Each of 64 columns of pieces is sampled, though stretches have as many pieces as a row."""
    columns = np.tile(np.repeat(np.arange(64, dtype=np.uint16) << 7, 256), 2000)
    units = sample_copies(address(columns), address(columns), 3, 0, columns.size, 64).units
    assert (units[:64] > 0).all()
    assert units.max() < 4 * units[:64].mean()


def test_chosen_classes_take_the_fewest_bits():
    rng = np.random.default_rng(3)
    old, new = weights(1 << 18, 0.05, 3)
    changed = old != new
    sample = ChangeSample(np.bincount(old >> 7 & 255, minlength=256), old.size, old[changed], (new - old)[changed])

    def bits(window):
        """Entropy of the positions and of the steps' sizes, given the class."""
        classes = window[1 + np.clip((old >> 7 & 255).astype(int) - window[0], 0, WINDOW - 1)]
        steps = (new - old).astype(np.int16)
        total = 0.0
        for c in range(MAX_CHOSEN_CLASSES):
            sizes = np.minimum(np.abs(steps[classes == c]), 3)
            _, counts = np.unique(sizes, return_counts=True)
            total -= (counts * np.log2(counts / max(1, counts.sum()))).sum()
        return total

    classes = ClassChooser()
    classes.sample(sample)
    classes.choose_from_sample()
    least = bits(classes.window)
    for _ in range(200):
        first = int(rng.integers(100, 115))
        cuts = np.sort(rng.choice(np.arange(1, WINDOW), MAX_CHOSEN_CLASSES - 1, replace=False))
        other = np.concatenate([[first], np.searchsorted(cuts, np.arange(WINDOW), side="right")]).astype(np.uint8)
        assert least < 1.002 * bits(other)


def mixed():
    """Tensors of other scales, one that does not change, one that changes whole; the first is small."""
    rows, old, new = [], [], []
    sizes = ((GRID, 0.01, 30.0), (2 * DELTA_BLOCK_UNITS + 9, 0.01, 0.03), (5000, 0.0, 0.03), (70_000, 1.0, 0.03))
    for k, (count, density, scale) in enumerate((*sizes, (3 * DELTA_BLOCK_UNITS, 0.01, 0.02))):
        a, b = weights(count, density, k, scale)
        if density in (0.0, 1.0):
            b = a + np.uint16(density)
        rows.append(TableRow(spec("BF16", (count,), f"t{k}"), True, True))
        old.append(a)
        new.append(b)
    return rows, old, new


def encoded(rows, old, new, *, found=False):
    sink = Sink()
    with Encoding(sink, rows, profile="tight") as encoding:
        for k in range(len(rows)):
            if not found:
                encoding.take(k, old[k], new[k])
            elif (old[k] != new[k]).any():
                # For an unchanged row no changes are found, so none are added.
                encoding.take_found(k, blocks_of(k, old[k], new[k], DELTA_BLOCK_UNITS), lambda k=k: old[k])
        encoding.finish()
    return list(sink)


def test_add_found_gives_the_same_bytes_as_add():
    rows, old, new = mixed()
    assert encoded(rows, old, new) == encoded(rows, old, new, found=True)


def test_samples_save_bytes_if_the_first_tensor_is_unlike_the_rest(monkeypatch):
    rows = [
        TableRow(spec("BF16", (count,), f"t{k}"), True, True) for k, count in enumerate((600, 3 * DELTA_BLOCK_UNITS))
    ]
    old, new = zip(*(weights(row.spec.count, 0.03, k) for k, row in enumerate(rows)), strict=True)
    with_look = sum(map(len, encoded(rows, old, new)))
    monkeypatch.setattr(ChunkEncoder, "add_sample", lambda *_: None)
    assert with_look < 0.99 * sum(map(len, encoded(rows, old, new)))


def test_add_sample_refuses_arrays_that_do_not_fit():
    encoder = ChunkEncoder(
        [TableRow(spec("BF16", (64,)), True, True)], block_units=GRID, chunk_bytes=4096, profile="tight"
    )
    units = np.zeros(63, np.uint16)
    with pytest.raises(ValueError, match="64 units"):
        encoder.add_sample(0, units, units, range(1), 1)


def test_small_sample_is_discarded():
    old, new = weights(4096, 0.02, 4)
    new = change(np.random.default_rng(0), old, 0.01, "one")
    classes = ClassChooser()
    classes.sample(sample_copies(address(old), address(new), 0, 0, old.size, 1))
    classes.choose_from_sample()
    assert classes.window is None
    assert not any(histogram.any() for histogram in classes.histograms)
