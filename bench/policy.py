"""Model weights before and after a training step, drawn from the law by which real steps change them.

A trainer keeps fp32 masters and publishes them rounded to bf16. With Adam a step moves a master w by lr·u, u of order 1
whatever the gradient, and the bf16 weight changes where the move crosses a rounding boundary: with probability
min(1, lr·|u| / ulp(w)). This generator does just that: masters w ~ N(0, σ²), σ per tensor between 0.02 and 0.04 as
after training; old = bf16(w); new = bf16(w − lr·u), u ~ N(0, 1); lr is found by bisection on a sample so that the
wanted fraction of units changes. So steps are ±1 ulp for the most part, small weights change more often and
by more, and some cross zero. Uniformly random positions with random values would hide all of this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec

_SAMPLE = 1 << 20
_SLICE = 1 << 20
_WIDTH = 4096


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round fp32 to bf16 bits, nearest and ties to even; finite values only."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.asarray(rounded, np.uint16)


def learning_rate(density: float, sigma: float, rng: np.random.Generator) -> float:
    """The lr at which `density` (0 < density < 1) of the units of a tensor of scale `sigma` change, within 1 %."""
    masters = rng.standard_normal(_SAMPLE, np.float32) * np.float32(sigma)
    moves = rng.standard_normal(_SAMPLE, np.float32)
    old = to_bf16(masters)
    low, high = 1e-12, 1e2
    for _ in range(40):
        middle = (low * high) ** 0.5
        changed = np.count_nonzero(to_bf16(masters - np.float32(middle) * moves) != old)
        low, high = (middle, high) if changed < density * _SAMPLE else (low, middle)
    return float((low * high) ** 0.5)


def model_rows(model_bytes: int) -> list[TableRow]:
    """A table of bf16 matrices of 4096 columns, each with a norm weight beside it, of about `model_bytes` in all."""
    units = max(model_bytes // 2, 2 * _WIDTH)
    rows = []
    for layer in range(max(1, units // (1 << 24))):
        height = units // max(1, units // (1 << 24)) // _WIDTH
        for name, shape in (("norm.weight", (_WIDTH,)), ("proj.weight", (height, _WIDTH))):
            rows.append(TableRow(TensorSpec(TensorKind.TENSOR, f"layers.{layer:04}.{name}", "BF16", shape), True, True))
    return rows


def draw_step(
    rows: list[TableRow], density: float, seed: int
) -> Iterator[tuple[NDArray[np.uint16], NDArray[np.uint16]]]:
    """Returns for each row its units before and after one step in which `density` of the matrices' units change.

    Norm weights are ones and do not change, as in real steps. Rows are drawn side by side on all cores, each from a
    generator of its own.
    """
    lr = learning_rate(density, 0.03, np.random.default_rng(seed))
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        yield from pool.map(lambda number: _draw_row(rows[number], lr, seed, number), range(len(rows)))


def _draw_row(row: TableRow, lr: float, seed: int, number: int) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    count = row.spec.count
    old = np.empty(count, np.uint16)
    if len(row.spec.shape) == 1:
        old[:] = 0x3F80
        return old, old.copy()
    rng = np.random.default_rng((seed, number))
    new = np.empty(count, np.uint16)
    sigma = np.float32(rng.uniform(0.02, 0.04))
    for start in range(0, count, _SLICE):
        part = slice(start, min(start + _SLICE, count))
        masters = rng.standard_normal(part.stop - start, np.float32) * sigma
        old[part] = to_bf16(masters)
        new[part] = to_bf16(masters - np.float32(lr) * rng.standard_normal(masters.size, np.float32))
    return old, new
