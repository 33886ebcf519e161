"""A model's parameters and buffers: what its loader may write, and a check that learning left them as they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from p2psync.engines.module.live_tensors import flat_bits
from p2psync.errors import EngineError


class _LoadedTensor(NamedTuple):
    """A parameter or buffer of a loaded model. table, key: where its module holds it. form: address, dtype, shape, …"""

    name: str
    table: dict[str, torch.Tensor | None]
    key: str
    tensor: torch.Tensor
    form: tuple[object, ...]


class RegisteredTensors:
    """The registered tensors of a loaded model. A load that registers other objects is redirected into these."""

    def __init__(self, model: Any) -> None:
        """model: has `load_weights`. Raises `EngineError` for strided parameters, whose units cannot be numbered."""
        self._model = model
        self._entries = list(_entries(model))
        self._distinct_tensors = _distinct_tensors(self._entries)
        first = {tensor.data_ptr(): name for name, tensor in self._distinct_tensors.items()}
        self._known = {entry.name: first.get(entry.tensor.data_ptr()) for entry in self._entries}

    def distinct_tensors(self) -> dict[str, torch.Tensor]:
        """Returns everything that a loader may write, by name; of tensors that share memory, one."""
        return self._distinct_tensors

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str] | None:
        """Makes the model load tensors; returns the names in `distinct_tensors` that it wrote, None if it names none.

        A loader may register new parameters in place of old ones. Their values are then copied into the old ones, which
        are registered again. Raises `EngineError` if a new parameter has another shape or dtype, or replaces none.
        """
        names = self._model.load_weights(weights)
        self._restore()
        if names is None or not all(self._known.get(name) for name in names):
            return None
        return {self._known[name] or name for name in names}

    def check_untouched(self) -> None:
        """Raises `EngineError`, with the name, if a parameter or buffer is not the same object, memory and form."""
        now = {entry.name: entry for entry in _entries(self._model)}
        for old in self._entries:
            new = now.pop(old.name, None)
            if new is None or new.tensor is not old.tensor or new.form != old.form:
                raise EngineError(f"{old.name} is not what it was before the loader was asked where weights go")
        if now:
            raise EngineError(f"{min(now)} was registered again when the loader was asked where weights go")

    def _restore(self) -> None:
        for entry in self._entries:
            now = entry.table.get(entry.key)
            if now is entry.tensor:
                continue
            if now is None or now.shape != entry.tensor.shape or now.dtype != entry.tensor.dtype:
                raise EngineError(f"{entry.name}: the model's loader puts another parameter in its place")
            entry.tensor.data.copy_(now)
            entry.table[entry.key] = entry.tensor


def _entries(model: torch.nn.Module) -> Iterator[_LoadedTensor]:
    for prefix, module in model.named_modules():
        for table in (module._parameters, module._buffers):
            for key, tensor in list(table.items()):
                if tensor is not None:
                    form = (tensor.data_ptr(), tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride())
                    yield _LoadedTensor(f"{prefix}.{key}".lstrip("."), table, key, tensor, form)


def _distinct_tensors(entries: Iterable[_LoadedTensor]) -> dict[str, torch.Tensor]:
    whole = {
        (entry.tensor.device, entry.tensor.untyped_storage().data_ptr())
        for entry in entries
        if entry.tensor.is_contiguous() and entry.tensor.untyped_storage().nbytes() == entry.tensor.nbytes
    }
    found: dict[str, torch.Tensor] = {}
    seen: set[tuple[object, ...]] = set()
    for entry in entries:
        tensor = entry.tensor.detach()
        if not tensor.numel() or tensor.is_meta:
            continue
        extent = (tensor.device, tensor.data_ptr(), tensor.numel())
        if extent in seen:
            continue
        if flat_bits(tensor) is None:
            if (tensor.device, tensor.untyped_storage().data_ptr()) in whole:
                continue  # a view of what another parameter holds whole
            raise EngineError(f"{entry.name} is strided: its live units cannot be numbered")
        seen.add(extent)
        found[entry.name] = tensor
    return found
