"""Reading and writing the changed units of live tensors on a device, many blocks at a time.

Positions cross to the device once for a group of blocks, in pinned memory; old bits come back once; the host waits once
a group. What a commit writes is on the device before it pauses, so that the pause holds launches and their writes only:
with Triton one launch a group, else one a block. Beside the weights the device holds, for a commit, 4 bytes of position
and the new bits of each changed unit (3 % of a bf16 model at 1 %), up to a limit; for gathering, those of a group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from p2psync.delta.tensors import Units

#: Bytes of positions and bits in a group, and blocks.
GROUP_BYTES, GROUP_SELECTIONS = 32 << 20, 1 << 14
#: Bytes that a commit may have brought to a device before it pauses.
DEVICE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, eq=False)
class UnitSelection:
    """Where bits lie: units [start, start + count) of a tensor, at rising offsets from `start` (None: all of them).

    bits: the live tensor as integers (`SIGNED`), of any shape and strides.
    """

    bits: torch.Tensor
    start: int
    count: int
    positions: NDArray[np.uint32] | None

    @property
    def entries(self) -> int:
        """How many units are meant."""
        return self.count if self.positions is None else self.positions.size

    @property
    def kind(self) -> tuple[torch.device, int, bool]:
        """What is the same for all places of a group: device, width, whether the tensor is contiguous."""
        return self.bits.device, self.bits.element_size(), self.bits.is_contiguous()


@dataclass(frozen=True, slots=True, eq=False)
class SelectionGroup:
    """Places of one kind, and where their entries begin in `positions` (of dense places: −1) and in the bits."""

    places: Sequence[UnitSelection]
    firsts: Sequence[tuple[int, int]]
    positions: torch.Tensor
    entries: int

    def slices(self) -> Iterator[tuple[UnitSelection, torch.Tensor | None, slice]]:
        """Each place, its positions on the device, and its part of the bits."""
        for place, (where, first) in zip(self.places, self.firsts, strict=True):
            at = None if where < 0 else self.positions[where : where + place.entries]
            yield place, at, slice(first, first + place.entries)


#: Makes ready to move a group's bits from where they lie into a flat tensor on the device, or from there to where they
#: lie; the call that is returned only moves.
GroupMove = Callable[[SelectionGroup, torch.Tensor], Callable[[], None]]


def gather_units(places: Sequence[UnitSelection]) -> list[Units]:
    """Copies of the bits at the places, which must not change meanwhile."""
    found: list[Units] = []
    with torch.inference_mode():
        for part in _parts(places):
            group = _group(part)
            values = torch.empty(group.entries, dtype=part[0].bits.dtype, device=part[0].bits.device)
            _moves(part[0])[0](group, values)()
            host = _host(group.entries, values.dtype, values.device)
            host.copy_(values, non_blocking=True)
            synchronize(values.device)
            units: Units = host.numpy().view(f"<u{host.element_size()}")
            found += [units[piece].copy() for _, _, piece in group.slices()]
    return found


def prepare_unit_writes(
    places: Sequence[UnitSelection], values: Sequence[Units], *, device_bytes: int = DEVICE_BYTES
) -> list[Callable[[], None]]:
    """Bring everything to the devices that writing `values` to the places needs; the calls returned only write.

    What is beyond `device_bytes` (an anchor, a model rewritten whole) stays on the host, and is brought, a group at a
    time, when it is written.
    """
    writes: list[Callable[[], None]] = []
    begin = kept = 0
    places, values = _cut(places, values)
    for part in _parts(places):
        mine = values[begin : begin + len(part)]
        begin += len(part)
        kept += sum(_cost(place) for place in part)
        writes.append(_ready(part, mine) if kept <= device_bytes else functools.partial(_late, part, mine))
    for device in {place.bits.device for place in places}:
        synchronize(device)
    return writes


def synchronize(device: torch.device) -> None:
    """Wait until everything that was asked of a device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _ready(places: Sequence[UnitSelection], values: Sequence[Units]) -> Callable[[], None]:
    with torch.inference_mode():
        group = _group(places)
        bits = places[0].bits
        host = _host(group.entries, bits.dtype, bits.device)
        flat = host.numpy()
        for units, (_, _, piece) in zip(values, group.slices(), strict=True):
            flat[piece] = units.view(flat.dtype)
        return _inferring(_moves(places[0])[1](group, host.to(bits.device, non_blocking=True)))


def _late(places: Sequence[UnitSelection], values: Sequence[Units]) -> None:
    _ready(places, values)()


def _inferring(write: Callable[[], None]) -> Callable[[], None]:
    def inferring() -> None:
        with torch.inference_mode():
            write()

    return inferring


def _cost(place: UnitSelection) -> int:
    """Bytes that a place takes on its device."""
    return place.entries * (place.bits.element_size() + 4 * (place.positions is not None))


def _cut(places: Sequence[UnitSelection], values: Sequence[Units]) -> tuple[list[UnitSelection], list[Units]]:
    """Cut dense places so that none is larger than a group."""
    cut: list[tuple[UnitSelection, Units]] = []
    for place, units in zip(places, values, strict=True):
        most = GROUP_BYTES // place.bits.element_size()
        if place.positions is not None or place.count <= most or not place.bits.is_contiguous():
            cut.append((place, units))
            continue
        for k in range(0, place.count, most):
            part = units[k : k + most]
            cut.append((UnitSelection(place.bits, place.start + k, part.size, None), part))
    return [place for place, _ in cut], [units for _, units in cut]


def _parts(places: Sequence[UnitSelection]) -> Iterator[Sequence[UnitSelection]]:
    """Consecutive places of one kind, of bounded bytes."""
    part: list[UnitSelection] = []
    size = 0
    for place in places:
        cost = _cost(place)
        full = size + cost > GROUP_BYTES or len(part) == GROUP_SELECTIONS
        if part and (full or part[0].kind != place.kind):
            yield part
            part, size = [], 0
        part.append(place)
        size += cost
    if part:
        yield part


def _group(places: Sequence[UnitSelection]) -> SelectionGroup:
    """Bring the positions of some places to their device."""
    device = places[0].bits.device
    sparse = [place.positions for place in places if place.positions is not None]
    host = _host(sum(positions.size for positions in sparse), torch.int32, device)
    if sparse:
        np.concatenate(sparse, out=host.numpy().view(np.uint32))
    firsts, where, first = [], 0, 0
    for place in places:
        firsts.append((-1 if place.positions is None else where, first))
        where += 0 if place.positions is None else place.entries
        first += place.entries
    return SelectionGroup(places, firsts, host.to(device, non_blocking=True), first)


def _host(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory of the host that the device can read by itself; torch keeps it until the copies asked for are done."""
    return torch.empty(size, dtype=dtype, pin_memory=device.type == "cuda")


def _moves(place: UnitSelection) -> tuple[GroupMove, GroupMove]:
    """How to gather and to write places of this kind."""
    if place.bits.is_cuda and place.bits.is_contiguous():
        try:
            from p2psync.engines.device.triton_scatter import gather_group, scatter_group
        except ImportError:
            return torch_gather, torch_scatter
        return gather_group, scatter_group
    return torch_gather, torch_scatter


def torch_gather(group: SelectionGroup, values: torch.Tensor) -> Callable[[], None]:
    """Gather by torch's own operations, a block at a time, on any device and of any strides."""
    return functools.partial(_gather, group, values)


def torch_scatter(group: SelectionGroup, values: torch.Tensor) -> Callable[[], None]:
    """Write by torch's own operations, a block at a time, on any device and of any strides."""
    return functools.partial(_scatter, group, values)


def _gather(group: SelectionGroup, values: torch.Tensor) -> None:
    for place, at, piece in group.slices():
        if not place.bits.is_contiguous():
            whole = at is None and place.count == place.bits.numel()
            values[piece] = place.bits.reshape(-1) if whole else place.bits[_unravel(place, at)]
            continue
        window = place.bits.view(-1).narrow(0, place.start, place.count)
        if at is None:
            values[piece] = window
        else:
            torch.index_select(window, 0, at, out=values[piece])


def _scatter(group: SelectionGroup, values: torch.Tensor) -> None:
    for place, at, piece in group.slices():
        if not place.bits.is_contiguous():
            if at is None and place.count == place.bits.numel():
                place.bits.copy_(values[piece].view(place.bits.shape))
            else:
                place.bits[_unravel(place, at)] = values[piece]
            continue
        window = place.bits.view(-1).narrow(0, place.start, place.count)
        if at is None:
            window.copy_(values[piece])
        else:
            window.index_put_((at,), values[piece])


def _unravel(place: UnitSelection, at: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    device = place.bits.device
    flat = torch.arange(place.count, device=device) if at is None else at.long()
    return tuple(torch.unravel_index(flat + place.start, place.bits.shape))
