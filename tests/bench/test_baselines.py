"""Each published format comes back bit for bit, and takes the bytes that its description makes of a delta."""

import numpy as np
import pytest

from p2psync.bench import arc, baselines
from p2psync.bench.patchers import TOOLS, measure_tool, missing
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec

FORMATS = [*baselines.BASELINES, *([] if arc.missing() else [arc.ARC])]
NAMES = [baseline.name for baseline in FORMATS]


def rows_of(*shapes):
    return [
        TableRow(TensorSpec(TensorKind.TENSOR, f"t{i}", "BF16", shape), True, True) for i, shape in enumerate(shapes)
    ]


def changed(rng, shape, positions):
    old = rng.integers(0, 1 << 16, int(np.prod(shape)), np.uint16)
    new = old.copy()
    new[positions] += rng.integers(1, 1 << 16, len(positions), np.uint16)
    return old, new


def far_apart(size):
    return sorted({0, 1, 254, 255, 256, 509, 510, 65535, 65536, size - 2, size - 1})


@pytest.mark.parametrize("baseline", FORMATS, ids=NAMES)
def test_gaps_of_every_length_in_matrices_and_vectors_come_back(baseline):
    rng = np.random.default_rng(0)
    shapes = [(300, 1000), (7,), (5,), (70000,), (2, 3, 70000), (400000, 1)]
    wheres = [far_apart(300000), [], [0, 4], far_apart(70000), [0, 139999, 419999], [3, 399999]]
    rows = rows_of(*shapes)
    old_bits, new_bits = zip(
        *(changed(rng, shape, where) for shape, where in zip(shapes, wheres, strict=True)), strict=True
    )
    size = baselines.measure_baseline(baseline, rows, old_bits, new_bits)
    assert size.changed == sum(map(len, wheres))


@pytest.mark.parametrize("baseline", FORMATS, ids=NAMES)
def test_nothing_and_everything_changed_come_back(baseline):
    old = np.arange(5000, dtype=np.uint16)
    rows = rows_of((50, 100))
    assert baselines.measure_baseline(baseline, rows, [old], [old]).changed == 0
    assert baselines.measure_baseline(baseline, rows, [old], [old + 1]).changed == 5000


@pytest.mark.parametrize("baseline", FORMATS, ids=NAMES)
def test_a_format_that_loses_a_bit_is_found_out(baseline):
    rows, old = rows_of((100,)), np.zeros(100, np.uint16)
    new = old.copy()
    new[5] = 1

    def lossy(data, rows, base):
        for row, positions, bits in baseline.decode(data, rows, base):
            yield row, positions, bits ^ np.uint16(1)

    with pytest.raises(AssertionError, match="did not come back"):
        baselines.measure_baseline(baseline._replace(decode=lossy), rows, [old], [new])


def test_sizes_without_compression_are_exact():
    rows, old = rows_of((1000,)), np.zeros(1000, np.uint16)
    new = old.copy()
    new[[3, 4, 400]] = 7
    sizes = {r.name: baselines.measure_baseline(r, rows, [old], [new]).payload for r in baselines.BASELINES}
    assert sizes["int32"] == 8 + 3 * 6
    assert sizes["sparrow"] == 8 + (1 + 1 + 2) + 3 * 2  # gaps 3, 0 and 395


def test_leb128_is_written_as_everybody_writes_it():
    data = baselines.write_leb128(np.array([0, 127, 128, 624485]))
    assert data.tobytes() == bytes([0, 0x7F, 0x80, 1, 0xE5, 0x8E, 0x26])
    values, used = baselines.read_leb128(data, 4)
    assert values.tolist() == [0, 127, 128, 624485] and used == data.size


@pytest.mark.parametrize("tool", TOOLS, ids=[tool.name for tool in TOOLS])
def test_a_patch_tool_restores_the_new_bytes(tool):
    if (line := missing(tool)) is not None:
        pytest.skip(line)
    rng = np.random.default_rng(1)
    old, new = changed(rng, (1 << 16,), list(range(0, 1 << 16, 97)))
    patch = measure_tool(tool, old, new)
    assert patch.changed == np.count_nonzero(old != new)
    assert 0 < patch.payload < new.nbytes and patch.part_bytes == new.nbytes
