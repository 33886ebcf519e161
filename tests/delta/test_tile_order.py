"""Runs of changes in any order are copied in the given order."""

import numpy as np
import pytest

from p2psync.delta.kernels.tile_order import order_runs


def test_order_runs_copies_runs_in_order() -> None:
    positions = np.arange(10, dtype=np.uint32)
    olds, steps = positions.astype(np.uint16) + 100, positions.astype(np.uint16) + 200
    runs = np.array([[4, 3], [0, 0], [0, 2], [9, 1]], np.int32)
    found = order_runs(runs, positions, olds, steps)
    wanted = [4, 5, 6, 0, 1, 9]
    for array, first in zip(found, (0, 100, 200), strict=True):
        np.testing.assert_array_equal(array, np.array(wanted) + first)
    assert [array.dtype for array in found] == [np.uint32, np.uint16, np.uint16]
    positions[:] = 0
    assert found[0].tolist() == wanted, "copies"


@pytest.mark.parametrize("run", [[8, 3], [-1, 1], [2**31 - 1, 2]])
def test_order_runs_refuses_a_run_outside_the_arrays(run: list[int]) -> None:
    array = np.zeros(10, np.uint16)
    with pytest.raises(ValueError, match="outside"):
        order_runs(np.array([[0, 1], run], np.int64).astype(np.int32), np.zeros(10, np.uint32), array, array)
