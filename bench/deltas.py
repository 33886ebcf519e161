"""The measured delta: two whole models, where they are from, and the steps before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.history import ChangeHistory
from p2psync.delta.tensors import TableRow

Bits = NDArray[np.uint16]


@dataclass(frozen=True)
class ModelHistory:
    """The last change of every unit of a model, tensor after tensor: its step (0: none), and whether it went up."""

    last: NDArray[np.uint8]
    rose: NDArray[np.bool_]

    @classmethod
    def empty(cls, units: int) -> ModelHistory:
        return cls(np.zeros(units, np.uint8), np.zeros(units, np.bool_))

    def add(self, number: int, positions: NDArray[np.uint32], steps: Bits) -> None:
        """Note what step `number` (1 to 255) changed."""
        self.last[positions] = number
        self.rose[positions] = steps < 0x8000

    def of_tensors(self, rows: list[TableRow]) -> list[ChangeHistory]:
        """Both models as the codec takes them."""
        made, start = [], 0
        for row in rows:
            history, count = ChangeHistory(row.spec.count), row.spec.count
            changed, rose = self.last[start : start + count] > 0, self.rose[start : start + count]
            history.known[:], history.down[:] = _words(changed), _words(changed & ~rose)
            made.append(history)
            start += count
        return made


def _words(bits: NDArray[np.bool_]) -> NDArray[np.uint64]:
    padded = np.zeros(-(-bits.size // 64) * 64, np.bool_)
    padded[: bits.size] = bits
    return np.packbits(padded, bitorder="little").view("<u8")


@dataclass(frozen=True)
class ModelDelta:
    """One delta: flat bf16 units of every row before and after, in the order of the rows."""

    name: str
    source: str
    rows: list[TableRow]
    old_bits: list[Bits]
    new_bits: list[Bits]
    history: ModelHistory | None = None
    rate: float | None = None
    step: int | None = None
    asked_density: float | None = None

    @property
    def units(self) -> int:
        """Units of the whole model."""
        return sum(old.size for old in self.old_bits)

    @property
    def model_bytes(self) -> int:
        """Bytes of one copy."""
        return sum(old.nbytes for old in self.old_bits)
