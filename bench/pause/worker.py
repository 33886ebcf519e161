"""Measures other methods in a vLLM worker, on its own live parameters, while it stands still.

Everything writes the bits of the version that is live already, so nothing changes, and each run does all of its work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.model_executor.model_loader.checkpoint_weight_patch import (
    CheckpointWeightPatch,
    load_checkpoint_weight_patches,
)

from p2psync.delta.kernels.unit_loops import address, plain, scatter_at
from p2psync.delta.tensors import TensorKind
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.module.live_tensors import flat_bits, host_units, torch_dtype

#: Bytes that are read between two runs, so that no run finds its units in a cache.
_FLUSH = 256 << 20


class PauseWorker:
    """Methods that vLLM's worker gets (`worker_extension_cls`)."""

    def p2psync_bench(self, old: str, new: str, reload: bool) -> dict[str, float]:
        """Seconds of each way to bring the live parameters from checkpoint `old` to `new`; they are at `new`."""
        worker: Any = self
        model = worker.model_runner.get_model()
        places = _places(worker)
        runs: dict[str, Callable[[], object]] = {
            "scatter": lambda: _scatter(places),
            "torch_scatter": _torch_scatter(places),
        }
        patches = _patches(old, new)
        if patches:
            runs["sparse_loader"] = lambda: load_checkpoint_weight_patches(model, patches)
        if reload:
            runs["reload"] = lambda: worker.reload_weights(weights_path=new)
        seconds = {}
        for name, run in runs.items():
            _flush()
            begun = time.perf_counter()
            run()
            seconds[name] = time.perf_counter() - begun
        return seconds | {"elements": float(sum(values.size for _, _, values in places))}


_Places = list[tuple[torch.Tensor, np.ndarray[Any, Any], np.ndarray[Any, Any]]]


def _places(worker: Any) -> _Places:
    """Returns the positions and bits that the last commit wrote into each live parameter, found by comparing copies."""
    before = getattr(worker, "_p2psync_before", None)
    if before is None:
        _scatter([(torch.zeros(1, dtype=torch.bfloat16), np.zeros(1, np.uint32), np.zeros(1, np.uint16))])  # compiled
    model = worker.model_runner.get_model()
    now = {name: host_units(parameter).copy() for name, parameter in model.named_parameters()}
    worker._p2psync_before = now
    found: _Places = []
    for name, parameter in model.named_parameters():
        if before is not None:
            where = np.flatnonzero(before[name] != now[name]).astype(np.uint32)
            if where.size:
                found.append((parameter.detach(), where, now[name][where]))
    return found


def _scatter(places: _Places) -> None:
    """Writes the elements by one plain compiled loop on one thread."""
    for parameter, where, values in places:
        units = host_units(parameter)
        scatter_at(address(units), plain(where), units.size, plain(values))


def _torch_scatter(places: _Places) -> Callable[[], None]:
    """Writes the elements by torch's own operation, its threads included."""
    ready = []
    for parameter, where, values in places:
        flat = flat_bits(parameter)
        assert flat is not None
        ready.append((flat, torch.from_numpy(where.astype(np.int64)), torch.from_numpy(values.view(np.int16))))

    def run() -> None:
        for flat, where, values in ready:
            flat.index_copy_(0, where, values)

    return run


def _patches(old: str, new: str) -> list[CheckpointWeightPatch]:
    patches = []
    with Checkpoint.open(Path(old)) as before, Checkpoint.open(Path(new)) as after:
        for spec in after.specs:
            if spec.kind != TensorKind.TENSOR:
                continue
            units = after.units(spec)
            where = np.flatnonzero(before.units(spec) != units)
            if where.size:
                values = torch.from_numpy(units[where].view(np.int16)).view(torch_dtype(spec))
                indices = torch.from_numpy(where.astype(np.int32))
                patches.append(CheckpointWeightPatch(spec.name, spec.shape, values.dtype, values, indices))
    return patches


def _flush() -> None:
    global _sink
    _sink = int(np.ones(_FLUSH // 8, np.int64).sum())


_sink = 0
