"""Access to a module's extra state as a tensor, through `get_extra_state` and `set_extra_state`."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from p2psync.delta.algebra import gather, scatter
from p2psync.delta.block import Block
from p2psync.delta.digest import digest_units
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.engines.module.live_tensors import Positions, host_units, shippable_spec
from p2psync.errors import ModuleError


class ExtraStateTensor:
    """See `LiveTensor`. A write reads the state, changes it, sets it, and checks that it reads back as it was set."""

    def __init__(self, owner: nn.Module, spec: TensorSpec) -> None:
        self._owner = owner
        self._spec = spec
        self._lock = threading.Lock()

    @property
    def device_bits(self) -> torch.Tensor | None:
        """None: extra state has no memory that could be written."""
        return None

    def units(self) -> Units:
        """Returns a copy of the bits. Raises `ModuleError` if dtype or shape are not those of the spec."""
        return self._read()[1]

    def digest(self, spec: TensorSpec) -> int:
        """See `LiveTensor`."""
        return digest_units(spec, self.units())

    def gather(self, start: int, count: int, positions: Positions) -> Units:
        """See `LiveTensor`."""
        bits = self.units()
        if positions is None:
            return bits[start : start + count].copy()
        return gather(bits, Block(0, start, count, positions, np.empty(positions.size, bits.dtype)))

    def prepare(self, start: int, count: int, positions: Positions, values: Units) -> Callable[[], None]:
        """See `LiveTensor`. The returned call raises `ModuleError` if the module does not keep the state exactly."""
        block = Block(0, start, count, positions, values)

        def write() -> None:
            with self._lock:
                state, bits = self._read()
                scatter(bits, block, values)
                self._set(state, bits)

        return write

    def check_round_trip(self) -> None:
        """Sets the state to its current value. Raises `ModuleError` if it does not read back exactly."""
        with self._lock:
            self._set(*self._read())

    def _read(self) -> tuple[torch.Tensor, Units]:
        state = self._owner.get_extra_state()
        if not isinstance(state, torch.Tensor) or shippable_spec(self._spec.name, state) != self._spec:
            raise ModuleError(f"{self._spec.name}: its dtype or shape is not what it was: make it of one size")
        return state, host_units(state.detach().clone())

    def _set(self, state: torch.Tensor, bits: Units) -> None:
        """state: gives device, dtype and shape."""
        new = torch.from_numpy(bits.view(np.uint8).copy()).view(state.dtype).view(state.shape)
        self._owner.set_extra_state(new.to(state.device))
        if not np.array_equal(self._read()[1], bits):
            raise ModuleError(f"{self._spec.name}: set_extra_state does not keep the bits that it is given")
