"""Sources of torch tensors: of a live module, or of an optimizer's fp32 masters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec, Units
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.checkpoint.header import canonical_header
from p2psync.engines.module.live_tensors import host_units
from p2psync.engines.module.masters import round_to_units
from p2psync.engines.module.table import module_rows
from p2psync.engines.module.tensor_refusals import tensor_refusal
from p2psync.errors import UsageError
from p2psync.trainer.versions.device_path import DeviceChanges, DevicePath
from p2psync.trainer.versions.source import BaseVersion

#: The one weights file that an actor's directory gets.
WEIGHTS_FILE = "model.safetensors"


class TensorSource:
    """A source of tensors, of the header of a safetensors file that holds them, and of files that go along."""

    def __init__(
        self, tensors: Mapping[TensorSpec, torch.Tensor], files: Path | None = None, path: DevicePath | None = None
    ) -> None:
        """tensors: of the dtype and shape of their specs, or fp32 masters of BF16 specs. files: a directory whose files
        other than weights (configuration, tokenizer) go along. path: finds changes where the tensors are; without it
        they are read on the host. Raises `FormatError`.
        """
        self._tensors = dict(tensors)
        self._path = path
        self._blobs = file_blobs(self._tensors, files)
        self._specs = sorted([*self._tensors, *self._blobs])

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """See `Source`."""
        return self._specs

    def units(self, spec: TensorSpec) -> Units:
        """Returns a view of a CPU tensor's storage; a copy of a device tensor, or of rounded masters. See `Source`."""
        blob = self._blobs.get(spec)
        if blob is not None:
            return blob
        tensor = self._tensors[spec]
        return round_to_units(tensor) if _masters(spec, tensor) else host_units(tensor)

    def find(self, rows: Sequence[TableRow], block_units: int, base: BaseVersion) -> DeviceChanges | None:
        """See `ChangeFindingSource`."""
        if self._path is None:
            return None
        wanted = [
            (index, row.spec, self._tensors[row.spec])
            for index, row in enumerate(rows)
            if row.before and row.after and row.spec in self._tensors
        ]
        return self._path.find(wanted, block_units, base)


class ModuleSource(TensorSource):
    """A source of a live module's tensors, under their published names."""

    def __init__(self, module: nn.Module, files: Path | None = None, path: DevicePath | None = None) -> None:
        """See `TensorSource`. Raises `ModuleError` for a module that cannot be published."""
        super().__init__(module_rows(module), files, path)


class MasterSource(TensorSource):
    """A source of fp32 masters, published as bf16, and of other tensors as they are.

    Masters are rounded while they are read, a block at a time where `path` finds the changes; no bf16 copy is made.
    """

    def __init__(
        self,
        masters: Mapping[str, torch.Tensor],
        others: Mapping[str, torch.Tensor] | None = None,
        files: Path | None = None,
        path: DevicePath | None = None,
    ) -> None:
        """masters: by the names under which they are published. others: tensors without masters (buffers, or parameters
        that are trained in their own dtype). Raises `UsageError` for masters that are not fp32, or are among `others`.
        """
        tensors = master_rows(masters)
        for spec, tensor in module_rows(others or {}).items():
            if spec.name in masters:
                raise UsageError(f"{spec.name} is given both as masters and as it is")
            tensors[spec] = tensor
        super().__init__(tensors, files, path or DevicePath())


def file_blobs(specs: Iterable[TensorSpec], files: Path | None) -> dict[TensorSpec, Units]:
    """Returns the header of a safetensors file of these tensors, and the files in `files` that are not weights.

    Each is a flat uint8 array. Raises `FormatError`.
    """
    header = canonical_header(specs, WEIGHTS_FILE)
    blobs: dict[TensorSpec, Units] = {
        TensorSpec(TensorKind.HEADER, WEIGHTS_FILE, "U8", (len(header),)): np.frombuffer(header, np.uint8)
    }
    if files is not None:
        with Checkpoint.open(files) as checkpoint:
            for spec in checkpoint.specs:
                if spec.kind == TensorKind.FILE:
                    blobs[spec] = checkpoint.units(spec).copy()
    return blobs


def master_rows(masters: Mapping[str, torch.Tensor]) -> dict[TensorSpec, torch.Tensor]:
    """Returns masters by the BF16 specs that they are published under. Raises `UsageError` unless they are fp32."""
    for name, tensor in masters.items():
        if tensor.dtype != torch.float32:
            raise UsageError(f"{name}: masters are fp32 tensors, not ones of {tensor.dtype}")
        if reason := tensor_refusal(tensor):
            raise UsageError(f"the masters of {name}: {reason}")
    return {
        TensorSpec(int(TensorKind.TENSOR), name, "BF16", tuple(tensor.shape)): tensor.detach()
        for name, tensor in masters.items()
    }


def _masters(spec: TensorSpec, tensor: torch.Tensor) -> bool:
    return spec.dtype == "BF16" and tensor.dtype == torch.float32
