"""Torch modules of many kinds, from (rows, 4) to (rows, 4), and their wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations, spectral_norm, weight_norm


class Tied(nn.Module):
    """Two names for one parameter, and a third for its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4, bias=False)
        self.two = nn.Linear(4, 4, bias=False)
        self.two.weight = self.one.weight
        self.three = nn.Parameter(self.one.weight.data.t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x)) @ self.three


class Interleaved(nn.Module):
    """Parameters that lie between one another in one storage."""

    def __init__(self) -> None:
        super().__init__()
        fused = torch.randn(4, 3, 4)
        self.q, self.k, self.v = (nn.Parameter(fused[:, i]) for i in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.q + (x @ self.k) * (x @ self.v)


class Split(nn.Module):
    """A state_dict that lists views of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = nn.Parameter(torch.randn(8, 4))
        self.register_state_dict_post_hook(Split._split)

    @staticmethod
    def _split(module: nn.Module, state: dict[str, Any], prefix: str, metadata: object) -> None:
        fused = state.pop(prefix + "fused")
        state |= {prefix + "up": fused[:4], prefix + "down": fused[4:]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, down = self.fused.chunk(2)
        return x @ up + x @ down.t()


class Extra(nn.Module):
    """A tensor that state_dict() has as extra state, and nowhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.scale = torch.randn(4).bfloat16()

    def get_extra_state(self) -> torch.Tensor:
        return self.scale.clone()

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.scale = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.scale.float()


class Odd(nn.Module):
    """Holds odd tensors: scalar, empty, complex, strided, and not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.scalar = nn.Parameter(torch.randn(()))
        self.register_buffer("none", torch.zeros(0, 4))
        self.register_buffer("turn", torch.randn(4, dtype=torch.complex64))
        self.strided = nn.Parameter(torch.randn(9, 8)[1:5, ::2])
        self.register_buffer("ones", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.turn).real * self.scalar @ self.strided + self.ones


class Recurrent(nn.LSTM):
    """Returns the first output of an LSTM."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x)[0]


def shared() -> nn.Module:
    """One layer at two places."""
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


def inferred() -> nn.Module:
    """Returns a module whose tensors were made in inference mode; some are strided."""
    with torch.inference_mode():
        return Odd()


KINDS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 4),
    "tied": Tied,
    "shared": shared,
    "interleaved": Interleaved,
    "split": Split,
    "extra": Extra,
    "odd": Odd,
    "recurrent": Recurrent,
    "inferred": inferred,
    "batchnorm": lambda: nn.BatchNorm1d(4),
    "weight_norm": lambda: weight_norm(nn.Linear(4, 4)),
    "spectral_norm": lambda: spectral_norm(nn.Linear(4, 4)),
    "parametrized": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
}

WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "bare": lambda module: module,
    "compiled": lambda module: torch.compile(module, backend="eager"),  # type: ignore[return-value]
    "checkpointed": checkpoint_wrapper,
    "parallel": nn.DataParallel,
    "compiled parallel": lambda module: nn.DataParallel(torch.compile(module, backend="eager")),  # type: ignore[arg-type]
}


def stack(kinds: list[str], wrappers: list[str], outermost: str, seed: int) -> tuple[nn.Module, nn.Module]:
    """A module of wrapped parts, and the same parts without any wrapper, to compute with."""
    torch.manual_seed(seed)
    parts = [KINDS[kind]() for kind in kinds]
    wrapped = nn.Sequential(*(WRAPPERS[name](part) for name, part in zip(wrappers, parts, strict=True)))
    bare = nn.Sequential(*parts)
    with torch.inference_mode():
        for tensor in bare.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.1, 0.9)  # also where every seed begins alike
    return WRAPPERS[outermost](wrapped).eval(), bare.eval()
