"""Ordering of changes found on a device, whose tiles write their runs in any order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels.unit_loops import kernel
from p2psync.delta.tensors import Units

OrderedRuns = tuple[NDArray[np.uint32], Units, Units]


def order_runs(runs: NDArray[np.int32], positions: NDArray[np.uint32], olds: Units, steps: Units) -> OrderedRuns:
    """Copy positions, old bits and steps, run after run. runs: i32 (runs, 2), first entry and length of each.

    Raises `ValueError` for a run outside the arrays.
    """
    total = int(runs[:, 1].sum(dtype=np.int64))
    out = np.empty(total, np.uint32), np.empty(total, olds.dtype), np.empty(total, steps.dtype)
    entries = min(positions.size, olds.size, steps.size)
    ends = runs.sum(axis=1, dtype=np.int64)[runs[:, 1] > 0]
    if int(runs.min(initial=0)) < 0 or int(ends.max(initial=0)) > entries:
        raise ValueError("a run of changes lies outside its array")
    _order(np.ascontiguousarray(runs), positions, olds, steps, *out)
    return out


@kernel
def _order(
    runs: NDArray[np.int32],
    positions: NDArray[np.uint32],
    olds: Units,
    steps: Units,
    to_positions: NDArray[np.uint32],
    to_olds: Units,
    to_steps: Units,
) -> None:
    at = 0
    for k in range(runs.shape[0]):
        first = runs[k, 0]
        for j in range(runs[k, 1]):
            to_positions[at] = positions[first + j]
            to_olds[at] = olds[first + j]
            to_steps[at] = steps[first + j]
            at += 1
