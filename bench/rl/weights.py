"""The model of the loop: bf16 matrices, moved each step as AdamW moves real ones (see `p2psync.bench.policy`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from p2psync.bench.policy import learning_rate, to_bf16

_SIGMA = 0.03
#: Normal deviates that are drawn once; each step reads them from somewhere else for each matrix.
_POOL = 1 << 22


def draw_masters(shapes: Sequence[tuple[int, int]], seed: int) -> NDArray[np.float32]:
    """All matrices' fp32 masters, one after the other, before the first step."""
    count = sum(rows * columns for rows, columns in shapes)
    return np.random.default_rng(seed).standard_normal(count, np.float32) * np.float32(_SIGMA)


def make_module(shapes: Sequence[tuple[int, int]], masters: Path) -> nn.Module:
    """A module that holds the masters in a file, rounded."""
    layers = [nn.Linear(columns, rows, bias=False, device="meta", dtype=torch.bfloat16) for rows, columns in shapes]
    module = nn.Sequential(*layers).to_empty(device="cpu")
    bits = to_bf16(np.load(masters)).view(np.int16)
    at = 0
    for parameter in module.parameters():
        part = torch.from_numpy(bits[at : at + parameter.numel()]).view(torch.bfloat16)
        parameter.data.copy_(part.reshape(parameter.shape))
        at += parameter.numel()
    return module


def sha256(module: nn.Module) -> str:
    """Returns the SHA-256 of all bits, in the order of the parameters (hex)."""
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.data.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


class Optimizer:
    """Moves masters by lr·u, u ~ N(0, 1), and rounds them into the module."""

    def __init__(self, module: nn.Module, masters: Path, density: float, seed: int) -> None:
        """density: share of the elements that a step changes."""
        self._rng = np.random.default_rng((seed, 1))
        lr = learning_rate(density, _SIGMA, self._rng)
        self._moves = self._rng.standard_normal(_POOL, np.float32) * np.float32(lr)
        whole = np.load(masters)
        self._pairs: list[tuple[NDArray[np.float32], nn.Parameter]] = []
        at = 0
        for parameter in module.parameters():
            self._pairs.append((whole[at : at + parameter.numel()], parameter))
            at += parameter.numel()

    @torch.no_grad()
    def step(self) -> None:
        """One step."""
        for master, parameter in self._pairs:
            for start in range(0, master.size, _POOL // 2):
                part = master[start : start + _POOL // 2]
                begin = int(self._rng.integers(_POOL - part.size + 1))
                part += self._moves[begin : begin + part.size]
            parameter.copy_(torch.from_numpy(master).reshape(parameter.shape))
