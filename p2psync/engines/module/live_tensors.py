"""Access to the tensors of a live torch module as flat arrays of bits, on any device and with any strides."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from p2psync.delta.algebra import gather, scatter
from p2psync.delta.block import Block
from p2psync.delta.digest import digest_units
from p2psync.delta.tensors import TensorKind, TensorSpec, Units
from p2psync.engines.device import unit_transfer as unit_transfer
from p2psync.engines.device.buffers import SIGNED
from p2psync.engines.device.unit_transfer import TensorSelection
from p2psync.errors import EngineError

__all__ = [
    "LiveTensor",
    "host_units",
    "live_tensor",
    "shippable_spec",
    "torch_dtype",
]

_DTYPES: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}
Positions = NDArray[np.uint32] | None


class LiveTensor(Protocol):
    """One live tensor, addressed by unit.

    A range is [start, start + count) units. positions: rising offsets from `start`, or None for every unit of it.
    """

    @property
    def device_bits(self) -> torch.Tensor | None:
        """The tensor as integers, if `unit_transfer` should access many of its blocks at a time; else None."""

    def units(self) -> Units:
        """Returns all bits, flat and read-only: a view where that is possible, else a copy."""

    def digest(self, spec: TensorSpec) -> int:
        """Returns the digest of all bits, mod 2^128; `spec` is the tensor's own."""

    def gather(self, start: int, count: int, positions: Positions) -> Units:
        """Returns a copy of the bits at these positions."""

    def prepare(self, start: int, count: int, positions: Positions, values: Units) -> Callable[[], None]:
        """Prepares the write of `values` at these positions; the returned call only writes."""


def shippable_spec(name: str, tensor: torch.Tensor, key: str = "") -> TensorSpec:
    """Returns the spec of a tensor. key: its name in errors. Raises `EngineError` if safetensors lacks its dtype."""
    if tensor.dtype not in _DTYPES:
        raise EngineError(
            f"{key or name}: safetensors has no {tensor.dtype}: register the tensor with another dtype, as .view(...) "
            "of the same bits where that is possible"
        )
    return _spec(name, tensor)


def torch_dtype(spec: TensorSpec) -> torch.dtype:
    """Returns the torch dtype of a spec. Raises `EngineError` for one that torch does not have."""
    for dtype, name in _DTYPES.items():
        if name == spec.dtype:
            return dtype
    raise EngineError(f"{spec.name}: torch has no dtype {spec.dtype}")


def host_units(tensor: torch.Tensor) -> Units:
    """Returns a tensor's bits as a flat numpy array: a view of a contiguous CPU tensor, else a copy."""
    bits = _bits(tensor).contiguous().cpu().reshape(-1)
    return _unsigned(bits)


def flat_bits(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns a flat view of a contiguous tensor's bits as integers on its device; None if it is strided."""
    return _bits(tensor).view(-1) if tensor.is_contiguous() else None


def live_tensor(tensor: torch.Tensor) -> LiveTensor:
    """Returns access to a live tensor: by numpy for a contiguous CPU tensor, else by `unit_transfer`."""
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        return _HostTensor(tensor)
    return DeviceTensor(tensor)


class _HostTensor:
    """A contiguous CPU tensor, accessed by numpy over its own memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._bits = host_units(tensor)

    @property
    def device_bits(self) -> torch.Tensor | None:
        return None

    def units(self) -> Units:
        view = self._bits.view()
        view.flags.writeable = False
        return view

    def digest(self, spec: TensorSpec) -> int:
        return digest_units(spec, self._bits)

    def gather(self, start: int, count: int, positions: Positions) -> Units:
        if positions is None:
            return self._bits[start : start + count].copy()
        return gather(self._bits, Block(0, start, count, positions, np.empty(positions.size, self._bits.dtype)))

    def prepare(self, start: int, count: int, positions: Positions, values: Units) -> Callable[[], None]:
        bits, block = self._bits, Block(0, start, count, positions, values)
        if positions is not None:
            nothing = Block(0, start, count, positions[:0], values[:0])
            scatter(bits, nothing, nothing.steps)  # compiled and checked here, not in the pause
        return lambda: scatter(bits, block, values)


class DeviceTensor:
    """A tensor on a device, or a strided one. Positions and values are moved to its device before a write."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._bits = _bits(tensor)

    @property
    def device_bits(self) -> torch.Tensor | None:
        return self._bits

    def units(self) -> Units:
        units = host_units(self._tensor)
        units.flags.writeable = False
        return units

    def digest(self, spec: TensorSpec) -> int:
        if self._bits.is_cuda and self._bits.is_contiguous():
            with suppress(ImportError):
                from p2psync.engines.device.digest import digest_tensor

                return digest_tensor(spec, self._bits.view(-1))
        return digest_units(spec, self.units())

    def gather(self, start: int, count: int, positions: Positions) -> Units:
        return unit_transfer.gather_units([TensorSelection(self._bits, start, count, positions)])[0]

    def prepare(self, start: int, count: int, positions: Positions, values: Units) -> Callable[[], None]:
        writes = unit_transfer.prepare_unit_writes([TensorSelection(self._bits, start, count, positions)], [values])

        def write() -> None:
            for part in writes:
                part()

        return write


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(int(TensorKind.TENSOR), name, _DTYPES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(SIGNED[tensor.element_size()])


def _unsigned(bits: torch.Tensor) -> Units:
    units: Units = bits.numpy().view(f"<u{bits.element_size()}")
    return units
