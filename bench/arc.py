"""Fireworks' ARC v3, by its own package (PyPI `fireworks-delta-compression`), on tensors made here.

Its decoder unpickles its input, so it gets only bytes that its encoder has just written.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2psync.bench.baselines import Baseline, TensorChanges
from p2psync.bench.deltas import Bits
from p2psync.delta.tensors import TableRow

_FORMAT = "arc_v3"


class _Tensor(msgspec.Struct, frozen=True):
    """One tensor's payload and the checksum that travels with it."""

    row: int
    payload: bytes
    checksum: int | str | None


def missing() -> str | None:
    """Returns why it cannot be run here; None if it can."""
    try:
        importlib.import_module("fireworks_delta_compression")
    except ImportError as error:
        return f"arc3 skipped: {error}; pip install fireworks-delta-compression"
    return None


def _encode(rows: Sequence[TableRow], changes: list[TensorChanges]) -> bytes:
    arc = importlib.import_module("fireworks_delta_compression")
    parts = []
    for part in changes:
        old, new = (_as_tensor(bits, rows[part.row]) for bits in (part.old, part.new))
        payload, checksum = arc.delta_compress(src=old, dst=new, compression_format=_FORMAT)
        parts.append(_Tensor(part.row, payload.numpy().tobytes(), checksum))
    return msgspec.msgpack.encode(parts)


def _decode(
    data: bytes, rows: Sequence[TableRow], base: Callable[[int], Bits]
) -> Iterator[tuple[int, NDArray[np.int64], Bits]]:
    import torch

    arc = importlib.import_module("fireworks_delta_compression")
    for part in msgspec.msgpack.decode(data, type=list[_Tensor]):
        old = base(part.row)
        payload = torch.frombuffer(bytearray(part.payload), dtype=torch.uint8)
        restored = arc.delta_decompress(
            src=_as_tensor(old, rows[part.row]),
            compressed_diff=payload,
            checksum=part.checksum,
            compression_format=_FORMAT,
        )
        new = restored.view(torch.int16).numpy().view("<u2").reshape(-1)
        where = np.flatnonzero(old != new)
        yield part.row, where, new[where]


def _as_tensor(bits: Bits, row: TableRow) -> Any:
    import torch

    signed = np.ascontiguousarray(bits).view(np.int16).copy()
    return torch.from_numpy(signed).view(torch.bfloat16).reshape(row.spec.shape)


ARC = Baseline("arc3", "ARC v3 (Fireworks, its own package)", _encode, _decode)
