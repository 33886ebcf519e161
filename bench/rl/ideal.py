"""The fastest full broadcast: each copy takes the least time that any broadcast takes on that network."""

from __future__ import annotations

from p2psync.bench.rl.scale import LoopOptions
from p2psync.topology.bound import least_makespan
from p2psync.topology.model import Topology

#: Steps that are reckoned: far more than it takes until each lasts as long as the one before.
_STEPS = 240


def copy_seconds(options: LoopOptions, topology: Topology, payload_bytes: float) -> float:
    """Seconds of the real loop until all actors have a copy of `payload_bytes` (of the model that runs here)."""
    return least_makespan(topology, round(payload_bytes)) * options.faster


def ideal_step_seconds(options: LoopOptions, copy: float) -> float:
    """Seconds of a step of the real loop, in the long run, where copies of `copy` seconds go out one after another.

    Everything else costs nothing. Of versions every one is sent, or every second, … as far as staleness allows:
    whatever makes the shortest steps.
    """
    return min(_step_seconds(options, copy, each) for each in range(1, options.staleness + 2))


def _step_seconds(options: LoopOptions, copy: float, each: int) -> float:
    """Returns the seconds of a step if every `each`-th version is sent.

    The actors begin a step's answers once they have a policy at most `staleness` versions old, and the step before is
    answered; learning begins with the last answer; a copy leaves once it is learned and the one before is everywhere.
    """
    arrived = [0.0]
    answered = learned = 0.0
    ends = [0.0]
    for step in range(_STEPS):
        sent = -(-max(0, step - options.staleness) // each)
        answered = max(answered, arrived[sent]) + options.generation
        learned = max(learned, answered) + options.learning
        ends.append(learned)
        if (step + 1) % each == 0:
            arrived.append(max(learned, arrived[-1]) + copy)
    half = _STEPS // 2 // each * each
    return (ends[-1] - ends[-1 - half]) / half


def ideal_tokens_per_second(options: LoopOptions, actors: int, copy: float) -> float:
    """Tokens a second of that loop, with so many actors."""
    return actors * options.speed * options.generation / ideal_step_seconds(options, copy)
