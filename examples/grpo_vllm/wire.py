"""The messages of the ledger's users: a prompt to be answered some times, and the answers. MessagePack.

Rewards are not among it: the trainer works them out from the tokens, so no actor can claim one.
"""

from __future__ import annotations

import msgspec


class Prompt(msgspec.Struct, frozen=True):
    """Work: answer these tokens `samples` times, each until a token of `stop` or `max_tokens` of them."""

    tokens: list[int]
    samples: int
    max_tokens: int
    stop: list[int]
    temperature: float = 1.0


class Sample(msgspec.Struct, frozen=True):
    """One answer, its stop token included, and the log-probability of each token when it was drawn."""

    tokens: list[int]
    logprobs: list[float]


class Rollout(msgspec.Struct, frozen=True):
    """A prompt's answers, made under versions from `start` to `end`. pause: how long the engine stood still for its
    last commit (seconds); 0 before the first."""

    actor: str
    start: int
    end: int
    pause: float
    samples: list[Sample]
