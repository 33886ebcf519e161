"""Tensors as the codec sees them: a name, a dtype and a shape over a flat array of units.

A *unit* is the unsigned integer of one element's bits (1, 2, 4 or 8 bytes); elements smaller than a byte are packed,
and their unit is a byte. Everything a checkpoint holds is a tensor here. Besides weights there are two kinds of byte
blobs: `header`, the raw header of a safetensors file (its length field and JSON, byte for byte), and `file`, any other
file (configuration, tokenizer). Both are one-dimensional U8 tensors, so the same deltas, chunks and digest carry them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import IntEnum
from functools import cached_property
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2psync.errors import FormatError

#: safetensors dtype name → bits of one element. Elements of less than 8 bits are packed; their unit is a byte.
DTYPE_BITS: dict[str, int] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

_UNITS: dict[int, np.dtype[np.unsignedinteger]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}

#: Bytes of a digest on the wire. It stands here so that a relay need not load the digest's compiled loops.
DIGEST_BYTES = 16
#: Dimensions of a received tensor spec, at most.
MAX_DIMENSIONS = 64
_Shape = Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]

#: A flat array of unsigned units (u1, u2, u4 or u8): the bits of one tensor.
Units = NDArray[np.unsignedinteger]
#: A flat array of bytes.
ByteArray = NDArray[np.uint8]


class TensorKind(IntEnum):
    """The role of a tensor in a checkpoint. In a table, headers and small files come before weights."""

    HEADER = 0
    FILE = 1
    TENSOR = 2


class TensorSpec(msgspec.Struct, frozen=True, array_like=True, order=True, dict=True):
    """One tensor's identity: two tensors with equal specs hold equally many units of equal width.

    `name` of a HEADER or FILE is the path of the file within the checkpoint, with `/` between its parts.
    """

    kind: int
    name: str
    dtype: str
    shape: _Shape

    @cached_property
    def width(self) -> int:
        """Bytes of one unit: 1, 2, 4 or 8."""
        return max(1, _bits(self.dtype) // 8)

    @cached_property
    def unit(self) -> np.dtype[np.unsignedinteger]:
        """The numpy dtype of one unit, little-endian."""
        return _UNITS[self.width]

    @cached_property
    def count(self) -> int:
        """Units in the tensor; 1 for a scalar, 0 if a dimension is 0. Raises `FormatError` for a broken packed size."""
        elements = math.prod(self.shape)
        bits = _bits(self.dtype)
        if bits >= 8:
            return elements
        if elements * bits % 8:
            raise FormatError(f"{self.name[:200]!a}: {elements} elements of {self.dtype} do not fill whole bytes")
        return elements * bits // 8

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.count * self.width


class TableRow(msgspec.Struct, frozen=True, array_like=True):
    """One line of a manifest's table: a tensor, and whether it exists before and after the delta.

    (True, True): changed in place. (False, True): added, its delta taken from zeros. (True, False): removed, its delta
    leads to zeros, so that inversion needs no weights. A tensor that changes shape or dtype is one removal and one
    addition. `digest` is the tensor's own digest after the delta (16 bytes, little-endian), given in anchors only.
    """

    spec: TensorSpec
    before: bool
    after: bool
    digest: bytes = b""


def unit_widths(specs: Iterable[TensorSpec]) -> frozenset[int]:
    """Returns the widths (bytes) of the units of a version of these tensors. Its header is bytes."""
    return frozenset({1, *(spec.width for spec in specs)})


def _bits(dtype: str) -> int:
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        raise FormatError(f"unknown dtype {dtype[:40]!r}; known: {', '.join(DTYPE_BITS)}")
    return bits
