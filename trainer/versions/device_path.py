"""Finds the changes between a snapshot's bits and the training's new bits on the device that holds the module.

The old bits come from the nearest place: the trainer's own copy on the device if there is one (the module's bf16
parameters, `p2psync.trainer.versions.resident`, or a twin, which costs the memory of one more copy); else they are
streamed there from the snapshot through pinned memory, which moves one copy of the model over the bus for each version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch

from p2psync.delta.extract import FoundChanges
from p2psync.delta.kernels.block_sums import ScanSums
from p2psync.delta.tensors import TensorSpec
from p2psync.engines.device import unit_transfer as unit_transfer
from p2psync.engines.device.buffers import SIGNED
from p2psync.engines.device.extract import DeviceExtraction
from p2psync.engines.device.finder import VersionPair
from p2psync.engines.device.unit_transfer import TensorSelection
from p2psync.engines.module.live_tensors import flat_bits
from p2psync.engines.module.masters import find_rounded_changes
from p2psync.protocol.versions import Position
from p2psync.trainer.versions.source import BaseVersion

#: Changed units that are written to a twin at a time.
_BATCH = 1 << 20


@runtime_checkable
class DeviceBaseVersion(Protocol):
    """A snapshot whose bits are on the module's device."""

    def tensor(self, spec: TensorSpec) -> torch.Tensor | None:
        """Returns the tensor that holds the bits of `spec`, as flat integers; None if none does, or it is strided."""


class DeviceChanges:
    """The changes that were found, row after row."""

    def __init__(self, found: dict[int, Iterator[FoundChanges]], sums: dict[int, ScanSums]) -> None:
        """found: for each covered row, an iterator over its blocks and then those of later rows. sums: of rows, filled
        while their blocks are found."""
        self._found = found
        self._sums = sums
        self._next: dict[Iterator[FoundChanges], FoundChanges | None] = {}

    def of(self, row: int) -> Iterable[FoundChanges] | None:
        """See `p2psync.trainer.versions.source.SourceChanges`."""
        found = self._found.get(row)
        return None if found is None else self._take(row, found)

    def sums(self, row: int) -> ScanSums | None:
        """See `p2psync.trainer.versions.source.SourceChanges`."""
        return self._sums.get(row)

    def _take(self, row: int, found: Iterator[FoundChanges]) -> Iterator[FoundChanges]:
        if found not in self._next:
            self._next[found] = next(found, None)
        while (one := self._next[found]) is not None and one.block.row == row:
            yield one
            self._next[found] = next(found, None)


class DevicePath:
    """Finds changes on devices; it keeps its buffers and twins from version to version."""

    def __init__(self, *, twin: bool = False, everywhere: bool = False) -> None:
        """twin: keep a copy of the published bits beside the module, on its devices. everywhere: also find changes of
        CPU tensors this way, which is slower than the scan there and finds the same."""
        self._keep_twin = twin
        self._everywhere = everywhere
        self._twin: dict[TensorSpec, torch.Tensor] = {}
        #: The version whose bits the twin holds; None while that is not known.
        self.twin_position: Position | None = None
        self._extractions: dict[torch.device, DeviceExtraction] = {}

    def find(
        self, rows: Sequence[tuple[int, TensorSpec, torch.Tensor]], block_units: int, base: BaseVersion
    ) -> DeviceChanges | None:
        """Returns the changes of those rows that are on devices, or are masters; None if there are none such.

        rows: (index, spec, new tensor), where a BF16 spec may have fp32 masters. block_units: see `block_span`.
        """
        known = self.twin_position is not None and self.twin_position == base.position
        # Until the version is made, the twin holds neither version.
        self.twin_position = None
        if not known:
            self._twin = {}
        pairs: dict[torch.device, list[VersionPair]] = {}
        found: dict[int, Iterator[FoundChanges]] = {}
        sums: dict[int, ScanSums] = {}
        for index, spec, tensor in rows:
            new = _flat(spec, tensor)
            if new is None:
                continue
            here = new.device.type == "cpu" and not self._everywhere
            if here and new.dtype != torch.float32:
                continue
            if here:
                sums[index] = ScanSums(spec)
                pair = VersionPair(index, spec, self._old(spec, new.device, base), new)
                found[index] = find_rounded_changes(pair, block_units, sums[index])
            else:
                pairs.setdefault(new.device, []).append(
                    VersionPair(index, spec, self._old(spec, new.device, base), new)
                )
        for device, theirs in pairs.items():
            one = self._follow(self._extraction(device, block_units).extract(theirs), theirs)
            found |= dict.fromkeys((pair.row for pair in theirs), one)
        return DeviceChanges(found, sums) if found else None

    def published(self, position: Position | None) -> None:
        """Take in the version that the compared bits are now (the one before, where nothing had changed)."""
        self.twin_position = position

    def _extraction(self, device: torch.device, block_units: int) -> DeviceExtraction:
        if device not in self._extractions:
            self._extractions[device] = DeviceExtraction(device, block_units)
        return self._extractions[device]

    def _old(self, spec: TensorSpec, device: torch.device, base: BaseVersion) -> torch.Tensor:
        if (
            isinstance(base, DeviceBaseVersion)
            and (resident := base.tensor(spec)) is not None
            and resident.device == device
        ):
            return resident
        host = _host_tensor(base, spec)
        if not self._keep_twin or (device.type == "cpu" and not self._everywhere):
            return host
        twin = self._twin.get(spec)
        if twin is None or twin.device != device:  # the module may have been moved since
            self._twin[spec] = twin = host.to(device, copy=True)
        return twin

    def _follow(self, found: Iterator[FoundChanges], pairs: Sequence[VersionPair]) -> Iterator[FoundChanges]:
        """Pass the found blocks on, and write them into the twin."""
        twins = {pair.row: self._twin[pair.spec] for pair in pairs if pair.spec in self._twin}
        waiting: list[FoundChanges] = []
        units = 0
        for one in found:
            if one.block.row in twins:
                waiting.append(one)
                units += one.block.steps.size
            if units >= _BATCH:
                _write(twins, waiting)
                waiting, units = [], 0
            yield one
        _write(twins, waiting)


def _write(twins: dict[int, torch.Tensor], found: Sequence[FoundChanges]) -> None:
    blocks = [one.block for one in found]
    places = [TensorSelection(twins[block.row], block.start, block.count, block.positions) for block in blocks]
    for write in unit_transfer.prepare_unit_writes(places, [one.olds + one.block.steps for one in found]):
        write()


def _flat(spec: TensorSpec, tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the tensor flat, as a side of a `VersionPair`; None if it is strided or empty."""
    if not tensor.is_contiguous() or not tensor.numel():
        return None
    masters = tensor.dtype == torch.float32 and spec.dtype == "BF16"
    return tensor.detach().view(-1) if masters else flat_bits(tensor)


def _host_tensor(base: BaseVersion, spec: TensorSpec) -> torch.Tensor:
    units = base.units(spec)
    if not units.flags.writeable:
        units = units.copy()  # torch takes no other arrays
    return torch.from_numpy(units.view(f"i{spec.width}") if spec.width > 1 else units).to(SIGNED[spec.width])
