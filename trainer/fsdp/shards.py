"""The shards of a module that `fully_shard` has sharded: its table, and the bits of this rank's shards.

Sharded parameters are cut along their first dimension, as `torch.chunk` cuts: ranks hold runs of whole rows, unequal or
none at all where rows do not divide. Tensors that are not sharded, and the files beside the weights, are held by rank
0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.module.live_tensors import host_units
from p2psync.engines.module.masters import round_to_units
from p2psync.engines.module.table import Names, module_table
from p2psync.engines.module.table_rows import TableEntry
from p2psync.errors import UsageError
from p2psync.trainer.fsdp.unit_ranges import UnitRanges


@dataclass(frozen=True)
class PublishingGroup:
    """The ranks that publish.

    members: global ranks, in the order of their shards. rank: this one's index among them; None: it holds another
    replica of the same shards, and publishes nothing.
    """

    members: tuple[int, ...]
    rank: int | None


def publishing_group(module: nn.Module, names: Names | None = None) -> PublishingGroup:
    """Returns the ranks that hold one replica of the module's shards.

    Raises `UsageError` for a module or mesh that cannot be published.
    """
    entries = module_table(module, names, local=_local).entries.values()
    meshes = {entry.name: entry.tensor.device_mesh for entry in entries if isinstance(entry.tensor, DTensor)}
    if not meshes:
        raise UsageError("no parameter is sharded: call fully_shard(module) first, or use trainer.publisher.Publisher")
    name, mesh = next(iter(meshes.items()))
    other = next((theirs for theirs, its in meshes.items() if its.mesh.tolist() != mesh.mesh.tolist()), None)
    if other is not None:
        raise UsageError(f"{name} and {other} are sharded over different meshes: one mesh for all is supported")
    if mesh.ndim > 2:
        raise UsageError(f"a mesh of {mesh.ndim} dimensions: (shard) and (replicate, shard) are supported")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise UsageError("this rank is not in the mesh that the module is sharded over")
    members = tuple(int(rank) for rank in (mesh.mesh if mesh.ndim == 1 else mesh.mesh[0]))
    return PublishingGroup(members, coordinate[-1] if mesh.ndim == 1 or coordinate[0] == 0 else None)


class Shards:
    """The shards of a module at one rank: a source. They must not change while it is read."""

    def __init__(
        self,
        module: nn.Module,
        group: PublishingGroup,
        dtype: torch.dtype | None,
        blobs: Mapping[TensorSpec, Units],
        names: Names | None = None,
    ) -> None:
        """dtype: bf16, where sharded fp32 parameters are published rounded to it; else None. blobs: files beside the
        weights, whose contents only rank 0 has. names: see `module_table`. Raises `UsageError` for a tensor that cannot
        be published.
        """
        assert group.rank is not None
        self._rank, self._ranks = group.rank, len(group.members)
        self._local: dict[TensorSpec, torch.Tensor] = {}
        self._rounded: set[TensorSpec] = set()
        self._first: dict[TensorSpec, int] = {}
        self._blobs = dict(blobs)
        for spec, entry in module_table(module, names, local=_local).entries.items():
            self._add(spec, entry, dtype)
        #: Sorted, as in a manifest's table.
        self.specs: Sequence[TensorSpec] = sorted([*self._local, *self._blobs])

    @property
    def tensors(self) -> Sequence[TensorSpec]:
        """The tensors that are weights, sorted."""
        return sorted(self._local)

    @property
    def held(self) -> UnitRanges:
        """The units that this rank holds."""
        return UnitRanges.of(self._held_ranges())

    def units(self, spec: TensorSpec) -> Units:
        """Returns the units of a tensor that are held here, flat."""
        row = self.specs.index(spec)
        span = next(iter(self.held.row(row)), (0, 0))
        return self.part(row, *span) if span[1] else np.empty(0, spec.unit)

    def part(self, row: int, start: int, stop: int) -> Units:
        """Returns units [start, stop) of a row, which must be held here: a view of CPU memory, or a copy."""
        spec = self.specs[row]
        blob = self._blobs.get(spec)
        if blob is not None:
            return blob[start:stop]
        first = self._first[spec]
        part = self._local[spec].view(-1)[start - first : stop - first]
        return round_to_units(part) if spec in self._rounded else host_units(part)

    def _held_ranges(self) -> Iterator[tuple[int, int, int]]:
        for row, spec in enumerate(self.specs):
            if spec in self._local:
                first = self._first[spec]
                yield row, first, first + self._local[spec].numel()
            elif self._rank == 0:
                yield row, 0, spec.count

    def _add(self, spec: TensorSpec, entry: TableEntry, dtype: torch.dtype | None) -> None:
        tensor, local, first = entry.tensor, entry.local, 0
        if isinstance(tensor, DTensor) and isinstance(tensor.placements[-1], Shard):
            first = self._shard(entry.name, tensor, local)
        elif self._rank:
            local = local.flatten()[:0]
        if isinstance(tensor, DTensor) and dtype is not None and tensor.dtype == torch.float32:
            spec = TensorSpec(spec.kind, spec.name, "BF16", spec.shape)
            self._rounded.add(spec)
        if not local.is_contiguous():
            local = local.contiguous()  # a copy of one shard, while the version is made
        self._local[spec], self._first[spec] = local, first

    def _shard(self, name: str, tensor: DTensor, local: torch.Tensor) -> int:
        """Returns the flat index of the shard's first unit. Raises `UsageError` for a shard of an unexpected shape."""
        rows = tensor.shape[0] if tensor.ndim else 1
        each = -(-rows // self._ranks)
        first, last = min(rows, self._rank * each), min(rows, (self._rank + 1) * each)
        if tuple(local.shape) != (last - first, *tensor.shape[1:]):
            raise UsageError(
                f"{name}: a shard of shape {tuple(local.shape)} where rows {first} to {last} were expected"
            )
        return first * (tensor.numel() // rows if rows else 0)


def _local(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a tensor. Raises `UsageError` for placements that are not supported."""
    if not isinstance(tensor, DTensor):
        return tensor
    *outer, inner = tensor.placements
    whole = type(inner) is Replicate or (type(inner) is Shard and inner.dim == 0)
    if not whole or any(type(placement) is not Replicate for placement in outer):
        raise UsageError(
            f"{name} is placed as {tensor.placements}: only sharding along the first dimension, by fully_shard alone, "
            "is supported (no tensor parallelism, no shard_placement_fn)"
        )
    return tensor.to_local()
