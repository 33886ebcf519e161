"""Gathers or writes the changed units of many blocks by one launch of a Triton kernel.

Each changed unit costs reading its position (4 bytes) and its bits on one side, and one sector of 32 bytes read or
changed on the other. That is the minimum, since changes have no clusters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from p2psync.engines.device.unit_transfer import SelectionGroup

#: Units that one program moves.
TILE = 1024
_WARPS = 4


@triton.jit  # type: ignore[untyped-decorator]
def move_units(table, positions, values, TILE: tl.constexpr, GATHER: tl.constexpr):  # type: ignore[no-untyped-def]
    """Moves one tile of one selection.

    table: (selections, 4) int64: the address of the first unit, the first entry in `values`, the number of entries,
    and the first entry in `positions`, or −1 if the selection is dense.
    """
    entry = table + tl.program_id(1) * 4
    entries = tl.load(entry + 2).to(tl.int32)
    begin = tl.program_id(0) * TILE
    if begin >= entries:
        return
    base = tl.load(entry).to(values.dtype)
    mine = values + tl.load(entry + 1)
    where = tl.load(entry + 3)
    lane = begin + tl.arange(0, TILE)
    live = lane < entries
    at = lane
    if where >= 0:
        at = tl.load(positions + where + lane, mask=live, other=0)
    if GATHER:
        tl.store(mine + lane, tl.load(base + at, mask=live, other=0), mask=live)
    else:
        tl.store(base + at, tl.load(mine + lane, mask=live, other=0), mask=live)


def gather_group(group: SelectionGroup, values: torch.Tensor) -> Callable[[], None]:
    """See `GroupMove`: of contiguous tensors."""
    return _prepare_launch(group, values, gather=True)


def scatter_group(group: SelectionGroup, values: torch.Tensor) -> Callable[[], None]:
    """See `GroupMove`: of contiguous tensors."""
    return _prepare_launch(group, values, gather=False)


def _prepare_launch(group: SelectionGroup, values: torch.Tensor, *, gather: bool) -> Callable[[], None]:
    table = torch.from_numpy(_table(group))
    if values.is_cuda:
        table = table.pin_memory().to(values.device, non_blocking=True)
    tiles = -(-max(selection.entries for selection in group.selections) // TILE)

    def launch(rows: torch.Tensor, grid: tuple[int, int]) -> None:
        # Triton launches on the current device, which need not be the tensors'.
        with torch.cuda.device(values.device) if values.is_cuda else nullcontext():
            move_units[grid](rows, group.positions, values, TILE=TILE, GATHER=gather, num_warps=_WARPS)

    # A selection without entries compiles the kernel and moves nothing.
    launch(torch.zeros_like(table[:1]), (1, 1))
    return functools.partial(launch, table, (max(1, tiles), len(group.selections)))


def _table(group: SelectionGroup) -> NDArray[np.int64]:
    rows = np.empty((len(group.selections), 4), np.int64)
    for k, (selection, (where, first)) in enumerate(zip(group.selections, group.firsts, strict=True)):
        rows[k] = (
            selection.bits.data_ptr() + selection.start * selection.bits.element_size(),
            first,
            selection.entries,
            where,
        )
    return rows
