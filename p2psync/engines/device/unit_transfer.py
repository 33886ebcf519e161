"""Reads and writes selected units of live tensors on a device, many blocks at a time.

The positions of a group of blocks are copied to the device once, from pinned memory; the old bits come back by one
copy; the host waits once for each group. The new bits of a commit are on the device before the pause, which then
contains only launches: with Triton one for each group, else one for each block. Besides the weights, a commit takes
device memory for a position (4 bytes) and the new bits of each changed unit (3 % of a bf16 model at 1 %), up to a
limit; a gather takes that of one group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from p2psync.delta.tensors import Units

#: Maximum bytes of positions and bits in a group, and maximum selections.
GROUP_BYTES, GROUP_SELECTIONS = 32 << 20, 1 << 14
#: Bytes that a commit may copy to a device before the pause; the rest is copied within it.
DEVICE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, eq=False)
class TensorSelection:
    """Selected units of a tensor: of [start, start + count), those at rising offsets `positions` (None: all).

    bits: the live tensor as integers (`SIGNED`), of any shape and strides.
    """

    bits: torch.Tensor
    start: int
    count: int
    positions: NDArray[np.uint32] | None

    @property
    def entries(self) -> int:
        """The number of selected units."""
        return self.count if self.positions is None else self.positions.size

    @property
    def kind(self) -> tuple[torch.device, int, bool]:
        """Properties that all selections of a group share: device, width, whether the tensor is contiguous."""
        return self.bits.device, self.bits.element_size(), self.bits.is_contiguous()


@dataclass(frozen=True, slots=True, eq=False)
class SelectionGroup:
    """Selections of one kind, whose values lie side by side in one array.

    firsts: for each selection, its first entry in `positions` (−1 if it is dense) and in the values. positions: on the
    device. entries: number of values.
    """

    selections: Sequence[TensorSelection]
    firsts: Sequence[tuple[int, int]]
    positions: torch.Tensor
    entries: int

    def slices(self) -> Iterator[tuple[TensorSelection, torch.Tensor | None, slice]]:
        """Yields each selection, its positions on the device, and its slice of the values."""
        for selection, (where, first) in zip(self.selections, self.firsts, strict=True):
            at = None if where < 0 else self.positions[where : where + selection.entries]
            yield selection, at, slice(first, first + selection.entries)


#: Prepares to move a group's units into a flat tensor on the device (gather), or from there to their tensors (scatter);
#: the returned call only moves.
GroupMove = Callable[[SelectionGroup, torch.Tensor], Callable[[], None]]


def gather_units(selections: Sequence[TensorSelection]) -> list[Units]:
    """Returns copies of the selected units, one array for each selection. The tensors must not change meanwhile."""
    found: list[Units] = []
    with torch.inference_mode():
        for part in _batches(selections):
            group = _make_group(part)
            values = torch.empty(group.entries, dtype=part[0].bits.dtype, device=part[0].bits.device)
            _gather_and_scatter(part[0])[0](group, values)()
            host = _pinned(group.entries, values.dtype, values.device)
            host.copy_(values, non_blocking=True)
            synchronize(values.device)
            units: Units = host.numpy().view(f"<u{host.element_size()}")
            found += [units[piece].copy() for _, _, piece in group.slices()]
    return found


def prepare_unit_writes(
    selections: Sequence[TensorSelection], values: Sequence[Units], *, device_bytes: int = DEVICE_BYTES
) -> list[Callable[[], None]]:
    """Copies to the devices what writing `values` to the selections needs; the returned calls only write.

    Values beyond `device_bytes` (an anchor, a model that changed whole) stay on the host; their calls copy them, one
    group at a time.
    """
    writes: list[Callable[[], None]] = []
    begin = kept = 0
    selections, values = _split_dense(selections, values)
    for part in _batches(selections):
        mine = values[begin : begin + len(part)]
        begin += len(part)
        kept += sum(_device_bytes(selection) for selection in part)
        writes.append(
            _prepare_group(part, mine) if kept <= device_bytes else functools.partial(_write_from_host, part, mine)
        )
    for device in {selection.bits.device for selection in selections}:
        synchronize(device)
    return writes


def synchronize(device: torch.device) -> None:
    """Waits until all work queued on a device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _prepare_group(selections: Sequence[TensorSelection], values: Sequence[Units]) -> Callable[[], None]:
    with torch.inference_mode():
        group = _make_group(selections)
        bits = selections[0].bits
        host = _pinned(group.entries, bits.dtype, bits.device)
        flat = host.numpy()
        for units, (_, _, piece) in zip(values, group.slices(), strict=True):
            flat[piece] = units.view(flat.dtype)
        return _in_inference_mode(_gather_and_scatter(selections[0])[1](group, host.to(bits.device, non_blocking=True)))


def _write_from_host(selections: Sequence[TensorSelection], values: Sequence[Units]) -> None:
    _prepare_group(selections, values)()


def _in_inference_mode(write: Callable[[], None]) -> Callable[[], None]:
    def in_inference_mode() -> None:
        with torch.inference_mode():
            write()

    return in_inference_mode


def _device_bytes(selection: TensorSelection) -> int:
    """Returns the bytes that a selection takes on its device."""
    return selection.entries * (selection.bits.element_size() + 4 * (selection.positions is not None))


def _split_dense(
    selections: Sequence[TensorSelection], values: Sequence[Units]
) -> tuple[list[TensorSelection], list[Units]]:
    """Splits dense selections so that none is larger than a group."""
    cut: list[tuple[TensorSelection, Units]] = []
    for selection, units in zip(selections, values, strict=True):
        most = GROUP_BYTES // selection.bits.element_size()
        if selection.positions is not None or selection.count <= most or not selection.bits.is_contiguous():
            cut.append((selection, units))
            continue
        for k in range(0, selection.count, most):
            part = units[k : k + most]
            cut.append((TensorSelection(selection.bits, selection.start + k, part.size, None), part))
    return [selection for selection, _ in cut], [units for _, units in cut]


def _batches(selections: Sequence[TensorSelection]) -> Iterator[Sequence[TensorSelection]]:
    """Yields consecutive selections of one kind, of bounded bytes."""
    part: list[TensorSelection] = []
    size = 0
    for selection in selections:
        cost = _device_bytes(selection)
        full = size + cost > GROUP_BYTES or len(part) == GROUP_SELECTIONS
        if part and (full or part[0].kind != selection.kind):
            yield part
            part, size = [], 0
        part.append(selection)
        size += cost
    if part:
        yield part


def _make_group(selections: Sequence[TensorSelection]) -> SelectionGroup:
    """Makes a group: copies the positions of its selections to their device."""
    device = selections[0].bits.device
    sparse = [selection.positions for selection in selections if selection.positions is not None]
    host = _pinned(sum(positions.size for positions in sparse), torch.int32, device)
    if sparse:
        np.concatenate(sparse, out=host.numpy().view(np.uint32))
    firsts, where, first = [], 0, 0
    for selection in selections:
        firsts.append((-1 if selection.positions is None else where, first))
        where += 0 if selection.positions is None else selection.entries
        first += selection.entries
    return SelectionGroup(selections, firsts, host.to(device, non_blocking=True), first)


def _pinned(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns pinned host memory, which torch keeps until the copies that use it are done."""
    return torch.empty(size, dtype=dtype, pin_memory=device.type == "cuda")


def _gather_and_scatter(selection: TensorSelection) -> tuple[GroupMove, GroupMove]:
    """Returns the functions that gather and scatter selections of this kind."""
    if selection.bits.is_cuda and selection.bits.is_contiguous():
        try:
            from p2psync.engines.device.triton_scatter import gather_group, scatter_group
        except ImportError:
            return torch_gather, torch_scatter
        return gather_group, scatter_group
    return torch_gather, torch_scatter


def torch_gather(group: SelectionGroup, values: torch.Tensor) -> Callable[[], None]:
    """Gathers by torch operations, one block at a time, on any device and with any strides."""
    return functools.partial(_torch_gather, group, values)


def torch_scatter(group: SelectionGroup, values: torch.Tensor) -> Callable[[], None]:
    """Writes by torch operations, one block at a time, on any device and with any strides."""
    return functools.partial(_torch_scatter, group, values)


def _torch_gather(group: SelectionGroup, values: torch.Tensor) -> None:
    for selection, at, piece in group.slices():
        if not selection.bits.is_contiguous():
            whole = at is None and selection.count == selection.bits.numel()
            values[piece] = selection.bits.reshape(-1) if whole else selection.bits[_unravel(selection, at)]
            continue
        window = selection.bits.view(-1).narrow(0, selection.start, selection.count)
        if at is None:
            values[piece] = window
        else:
            torch.index_select(window, 0, at, out=values[piece])


def _torch_scatter(group: SelectionGroup, values: torch.Tensor) -> None:
    for selection, at, piece in group.slices():
        if not selection.bits.is_contiguous():
            if at is None and selection.count == selection.bits.numel():
                selection.bits.copy_(values[piece].view(selection.bits.shape))
            else:
                selection.bits[_unravel(selection, at)] = values[piece]
            continue
        window = selection.bits.view(-1).narrow(0, selection.start, selection.count)
        if at is None:
            window.copy_(values[piece])
        else:
            window.index_put_((at,), values[piece])


def _unravel(selection: TensorSelection, at: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    device = selection.bits.device
    flat = torch.arange(selection.count, device=device) if at is None else at.long()
    return tuple(torch.unravel_index(flat + selection.start, selection.bits.shape))
