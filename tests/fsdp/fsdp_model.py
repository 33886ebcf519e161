"""A small policy that shards badly: odd sizes, a tied head, vectors, one lone element, a buffer."""

from __future__ import annotations

import torch
from torch import nn


class Layer(nn.Module):
    """Two matrices whose rows no number of ranks divides, and two vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width + 1)
        self.down = nn.Linear(2 * width + 1, width, bias=False)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Residual."""
        return x + self.down(torch.tanh(self.up(x * self.scale)))


class Policy(nn.Module):
    """About 10 · width² parameters and a few."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = width + 3
        self.embed = nn.Embedding(self.tokens, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.temperature = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(width, self.tokens, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.arange(5, dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x) * self.temperature
