"""The settings of a loop, scaled to the size of this machine.

A loop is described by the figures of a real one: seconds of generation and of learning, Gbit/s, a model of 16 GB. What
runs is a smaller model, over links that are slower by as much, so that a whole copy takes as long as the real one; and
with `faster`, all of it that many times sooner: paced times are divided, rates multiplied. Round trips, leases and the
writing to disk stay as they are, so they weigh that many times more than in the real loop. Staging and pauses handle a
smaller model in a shorter loop: actors are charged for the rest (see `LoopOptions.machine_share`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from p2psync.topology.model import Link, Region, Topology

#: The model whose loop this is: bytes of its bf16 weights.
REAL_BYTES = 16e9
FREE, P2PSYNC, FULL, FIFO, STRICT, SPARSE = "free", "p2psync", "full", "full-fifo", "full-strict", "full-sparse"
#: Full broadcasts: a newer version takes the place of one under way; each version finishes and the newest waiting one
#: is next; each finishes and the oldest waiting one is next; as few are sent as staleness allows, and each finishes.
FULL_WAYS = (FULL, FIFO, STRICT, SPARSE)
WAYS = (FREE, P2PSYNC, *FULL_WAYS)
#: Maximum share of this machine's cores that all actors' generation takes. The measured processes get the rest.
_BURNT_SHARE = 0.5
#: Round trips between the trainer's region and the others, and between any two of these (ms), in turn.
_RTT_MS = (30, 70, 110, 150)
_LOSS = 0.001
#: Inside a region, one way.
_INSIDE_MS = 0.5
#: Tokens of an answer: the spread of their logarithm, and the most, in means, where real loops cut answers off.
_SIGMA, _LONGEST = 0.5, 2.0
#: Bytes that an answer carries back for each token: its number and its log-probability.
TOKEN_BYTES = 8
#: Layers of the model, each one matrix of so many columns.
_LAYERS, _COLUMNS = 16, 4096


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """A loop, in the figures of a real one, and how it is run here.

    gbits: of every link. regions, actors: regions besides the trainer's own, and actors in each. generation: seconds in
    which all actors together make a step's answers. learning: seconds from the last answer to the new weights. answer:
    seconds that one prompt's answers take on average. slots: prompts that an actor works on at a time. speed: tokens a
    second of one actor. staleness: versions that an answer may lie behind the policy that learns from it. density:
    share of the elements that a step changes. steps, full_steps: of a run, of one by full broadcast; the first `warm`
    do not count. model_bytes, faster: see above. cores: of an actor's real machine, on which generation and staging
    compete. rounds: of all ways, each first in its turn. settle: seconds in which members may measure their links
    before the first step, at most. limit: seconds of all steps of a run.
    """

    gbits: Sequence[float] = (1.0,)
    regions: Sequence[int] = (4,)
    ways: Sequence[str] = (FREE, P2PSYNC, FULL, FIFO, SPARSE)
    actors: int = 2
    generation: float = 60.0
    learning: float = 30.0
    answer: float = 12.0
    slots: int = 8
    speed: float = 2560.0
    staleness: int = 1
    density: float = 0.01
    steps: int = 12
    full_steps: int = 6
    warm: int = 2
    model_bytes: int = 64_000_000
    faster: float = 6.0
    cores: float = 4.0
    rounds: int = 1
    congestion: str = "bbr"
    settle: float = 90.0
    limit: float = 900.0
    seed: int = 1

    @property
    def prompts(self) -> int:
        """Prompts of one actor and step."""
        return max(1, round(self.slots * self.generation / self.answer))

    @property
    def tokens(self) -> float:
        """The mean number of tokens in the answers to one prompt."""
        return self.speed / self.slots * self.answer

    @property
    def shrunk(self) -> float:
        """How many times smaller the model is than the real one."""
        return REAL_BYTES / self.model_bytes

    def rate(self, gbit: float) -> float:
        """Mbit/s of a link here."""
        return 1000 * gbit / self.shrunk * self.faster

    @property
    def machine_share(self) -> float:
        """The part of one core here that stands for an actor's machine: its cores, slower by as much as the links."""
        return self.cores * self.faster / self.shrunk

    def burnt_share(self, actors: int, cores: int) -> float:
        """The part of one core that an actor's generation takes where so many actors share so many cores."""
        return min(self.machine_share, _BURNT_SHARE * cores / actors)

    def steps_of(self, way: str) -> int:
        """Returns how many steps a run of this kind has."""
        return self.full_steps if way in FULL_WAYS else self.steps


def quick_options(options: LoopOptions) -> LoopOptions:
    """The short form: one region of two actors, an 8 MB model, few steps of little work."""
    small = replace(options, gbits=(1.0,), regions=(1,), model_bytes=8_000_000, faster=40.0)
    return replace(small, steps=5, full_steps=4, warm=2, settle=0.0)


def topology(options: LoopOptions, regions: int, gbit: float) -> Topology:
    """The trainer alone in r0, `regions` others with their actors; every host and every pair of regions has a link of
    the same rate."""
    rate = options.rate(gbit)
    own = {"r0": Region(1, rate, delay_ms=_INSIDE_MS)}
    others = {f"r{i + 1}": Region(options.actors, rate, delay_ms=_INSIDE_MS) for i in range(regions)}
    names = [*own, *others]
    links = [
        Link((a, b), rate, delay_ms=_RTT_MS[(i + j - 1) % len(_RTT_MS)] / 2, loss=_LOSS)
        for i, a in enumerate(names)
        for j, b in enumerate(names[i + 1 :], i + 1)
    ]
    return Topology("r0-0", {**own, **others}, links)


def lengths(options: LoopOptions, actors: int, step: int) -> list[int]:
    """Tokens of each prompt's answers in a step: heavy-tailed, cut off, the same sum in every step."""
    count = actors * options.prompts
    draw = np.random.default_rng((options.seed, step)).lognormal(-(_SIGMA**2) / 2, _SIGMA, count).clip(0.1, _LONGEST)
    return [max(1, int(tokens)) for tokens in draw / draw.mean() * options.tokens]


def shapes(model_bytes: int) -> list[tuple[int, int]]:
    """Rows and columns of the model's matrices."""
    return [(max(1, model_bytes // 2 // _LAYERS // _COLUMNS), _COLUMNS)] * _LAYERS
