"""Symbols of profile `tight`: their cost, their round trip, and refused input."""

import numpy as np
import pytest

from p2psync.delta.tight import ans, symbols
from p2psync.delta.tight.tables import SymbolTables
from p2psync.errors import FormatError

UNITS = 1 << 20
WINDOW = np.array([100] + [0] * 8 + [1] * 8, np.uint8)


def changes(sizes, seed=0, near=0.02):
    """Items of blocks with so many changes of each class: gaps and steps of all sorts, most of them small."""
    rng = np.random.default_rng(seed)
    count = int(np.sum(sizes))
    gaps = rng.geometric(near, count) - 1
    gaps[rng.random(count) < 0.003] = 5000
    steps = rng.choice(
        [1, 65535, 2, 65534, 3, 9, 32768, 40000], count, p=[0.4, 0.4, 0.08, 0.08, 0.02, 0.01, 0.005, 0.005]
    )
    return gaps, steps


def by_class(sizes, items):
    """Reorder items from block after block to class after class, as the writer takes them."""
    rows = np.zeros((sizes.shape[1], items.size), np.uint64)
    parts = np.split(items, np.cumsum(sizes.ravel())[:-1])
    for c, row in enumerate(rows):
        mine = np.concatenate(parts[c :: sizes.shape[1]])
        row[: mine.size] = mine
    return rows


def write(sizes, gaps, steps, signs=True):
    sizes = np.array(sizes, np.int64)
    items = by_class(sizes, indices_of(sizes, gaps).astype(np.uint64) | steps.astype(np.uint64) << np.uint64(32))
    totals = np.full(sizes.shape[1], int((gaps + 1).sum()) + 1)
    tables = SymbolTables.choose(WINDOW, totals, sizes, items, signs)
    out = np.empty(symbols.symbol_bytes_bound(gaps.size, len(sizes)), np.uint8)
    ends = np.empty(len(sizes), np.int64)
    used = symbols.write_symbols(sizes, items, *tables.encode_tables(signs), out, ends)
    return tables, out[out.size - used :].copy(), ends


def read(tables, data, begins, ends, sizes, signs=True):
    """Class indices and steps of two blocks; None if they are refused."""
    sizes = np.array(sizes, np.int64)
    spans = np.array([(begin, end, UNITS) for begin, end in zip(begins, ends, strict=True)], np.int64)
    items = np.empty(int(sizes.sum()), np.uint64)
    padded = np.concatenate([data, np.full(symbols.READ_SLACK_BYTES, 255, np.uint8)])
    if not symbols.read_symbols(padded, spans, sizes, *tables.decode_tables(signs), items):
        return None
    return (items & np.uint64(0xFFFFFFFF)).astype(np.int64), (items >> np.uint64(32)).astype(np.int64)


def indices_of(sizes, gaps):
    parts = np.split(gaps + 1, np.cumsum(np.ravel(sizes))[:-1])
    return np.concatenate([np.cumsum(part) - 1 for part in parts])


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("sizes", [[[900, 5], [700, 800]], [[0, 1], [1, 0]], [[3, 0], [0, 2000]]])
def test_symbols_round_trip(sizes, signs):
    gaps, steps = changes(sizes)
    tables, data, ends = write(sizes, gaps, steps, signs)
    indices, found = read(tables, data, (0, ends[0]), ends, sizes, signs)
    assert np.array_equal(indices, indices_of(sizes, gaps))
    assert np.array_equal(found, steps if signs else np.minimum(steps, 65536 - steps))


def test_symbols_without_signs_take_a_bit_less():
    sizes = [[5000, 0], [0, 5000]]
    gaps, steps = changes(sizes)
    steps[np.minimum(steps, 65536 - steps) > 3] = 3
    one, other = (write(sizes, gaps, steps, signs)[1].size for signs in (True, False))
    assert 8 * (one - other) == pytest.approx(10000, abs=16)


def test_sign_of_mostly_growing_steps_takes_less_than_a_bit():
    sizes = [[5000], [5000]]
    rng = np.random.default_rng(1)
    gaps, steps = np.zeros(10000, np.int64), rng.integers(4, 6, 10000)
    steps[::50] = 65536 - steps[::50]
    tables, data, ends = write(sizes, gaps, steps)
    # A bit tells 4 from 5; entropy of the signs: 0.14 bits.
    assert 8 * data.size < 1.2 * 10000
    assert np.array_equal(read(tables, data, (0, ends[0]), ends, sizes)[1], steps)


def test_tables_with_signs_are_refused_if_signs_are_apart():
    tables = SymbolTables.from_bytes(np.frombuffer(with_levels((2,), (0, 2, 2)), np.uint8))
    tables.decode_tables(signs=True)
    with pytest.raises(FormatError, match="signs"):
        tables.decode_tables(signs=False)


def test_nearly_certain_change_takes_less_than_a_bit():
    """All units change, by more than 2, nearly always by 3."""
    sizes = [[8000], [8000]]
    steps = np.where(np.arange(16000) % 50 == 7, 12, 3)
    data = write(sizes, np.zeros(16000, np.int64), steps, signs=False)[1]
    # Entropy: 0.14 bits of the extra symbol, and 3 more bits of every 50th.
    assert 8 * data.size < 0.21 * 16000


def test_block_overhead_is_two_bytes():
    sizes = [[1]] * 400
    gaps, steps = np.zeros(400, np.int64), np.ones(400, np.int64)
    assert write(sizes, gaps, steps)[1].size <= 400 * 2


def test_first_and_last_state_detect_damage():
    """Most flipped bits are detected although only states are written; the others reach the right state again."""
    sizes = [[300], [300]]
    rng = np.random.default_rng(0)
    tables, data, ends = write(sizes, rng.integers(0, 3, 600), rng.integers(1, 3, 600), signs=False)
    assert tables.shifts[0] == 0
    valid = 0
    for bit in range(8 * data.size):
        forged = data.copy()
        forged[bit >> 3] ^= 1 << (bit & 7)
        valid += read(tables, forged, (0, ends[0]), ends, sizes, signs=False) is not None
    assert valid < 0.2 * 8 * data.size


def test_a_block_cut_off_or_with_more_in_front_or_behind_is_refused():
    sizes = [[300], [200]]
    tables, data, ends = write(sizes, *changes(sizes))
    assert read(tables, data, (0, ends[0]), ends, sizes)
    longer = np.concatenate([[np.uint8(0)], data]).astype(np.uint8)
    assert not read(tables, longer, (0, ends[0] + 1), ends + 1, sizes)
    for first, last in ((0, ends[0] - 1), (0, ends[0] + 1), (1, ends[0]), (0, 0), (ends[0], ends[0])):
        assert not read(tables, data, (first, ends[0]), (last, ends[1]), sizes)


def test_symbols_of_a_class_that_has_none_are_refused():
    sizes = [[300, 0], [200, 0]]
    tables, data, ends = write(sizes, *changes(sizes))
    assert not read(tables, data, (0, ends[0]), ends, [[299, 1], [200, 0]])


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_and_levels_are_read_or_refused(seed):
    rng = np.random.default_rng(seed)
    for _ in range(300):
        levels = rng.integers(0, 50, (1, symbols.SYMBOLS)).astype(np.uint8) * (rng.random(symbols.SYMBOLS) < 0.1)
        extra = rng.integers(0, 50, (1, symbols.EXTRAS)).astype(np.uint8) * (rng.random(symbols.EXTRAS) < 0.3)
        levels = levels.astype(np.uint8)
        frequencies = np.empty(levels.shape, np.int64), np.empty(extra.shape, np.int64)
        if not (ans.frequency_rows(levels, frequencies[0]) and ans.frequency_rows(extra, frequencies[1])):
            continue
        tables = SymbolTables(WINDOW, rng.integers(0, 19, 1).astype(np.uint8), levels, extra, *frequencies)
        size = int(rng.integers(2, 200))
        data = np.frombuffer(rng.bytes(size), np.uint8)
        found = read(tables, data, (0, size // 2), (size // 2, size), [[30], [7]])
        assert found is None or (found[0].max() < UNITS and found[1].min() > 0)


def test_frequencies_use_all_states_at_any_levels():
    rng = np.random.default_rng(1)
    frequencies = np.empty(symbols.SYMBOLS, np.int64)
    for share in (0.01, 0.2, 1.0):
        for _ in range(50):
            levels = (rng.integers(0, 50, symbols.SYMBOLS) * (rng.random(symbols.SYMBOLS) < share)).astype(np.uint8)
            levels[3] = 2
            assert ans.frequencies_of(levels, frequencies)
            assert frequencies.sum() == ans.STATES
            assert ((frequencies > 0) == (levels > 0)).all()


def test_chosen_levels_are_near_the_entropy():
    rng = np.random.default_rng(2)
    counts = rng.poisson(20000 * 0.9 ** np.arange(100))
    levels, frequencies = np.empty(100, np.uint8), np.empty(100, np.int64)
    ans.choose_levels(counts, levels)
    assert levels.max() <= ans.MAX_LEVEL
    assert ans.frequencies_of(levels, frequencies)
    some, shares = counts > 0, counts / counts.sum()
    entropy = -(shares[some] * np.log2(shares[some])).sum()
    assert -(shares[some] * np.log2(frequencies[some] / ans.STATES)).sum() < 1.005 * entropy


def with_levels(levels, extra=()):
    one = np.zeros((1, symbols.SYMBOLS), np.uint8)
    one[0, : len(levels)] = levels
    other = np.zeros((1, symbols.EXTRAS), np.uint8)
    other[0, : len(extra)] = extra
    frequencies = np.zeros(one.shape, np.int64), np.zeros(other.shape, np.int64)
    return SymbolTables(WINDOW * (np.arange(17) == 0), np.zeros(1, np.uint8), one, other, *frequencies).to_bytes()


@pytest.mark.parametrize(("levels", "extra"), [((50,), ()), ((3, 50), ()), ((2,), (50,)), ((1,), ()), ((2,), (1, 1))])
def test_levels_too_high_and_symbols_of_no_weight_are_refused(levels, extra):
    with pytest.raises(FormatError, match=r"level|weight"):
        SymbolTables.from_bytes(np.frombuffer(with_levels(levels, extra), np.uint8))


@pytest.mark.parametrize(("levels", "extra"), [((49,), (49,)), ((0, 0, 2), ()), ((), ()), ((1, 2), (1, 2))])
def test_tables_round_trip(levels, extra):
    data = with_levels(levels, extra)
    tables = SymbolTables.from_bytes(np.frombuffer(data, np.uint8))
    assert tables.to_bytes() == data
    assert tables.levels[0, : len(levels)].tolist() == list(levels)
