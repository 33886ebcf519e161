"""Scales the times of a measured pair of versions to a larger model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import msgspec

from p2psync.bench.deltas import ModelDelta
from p2psync.bench.timing import CodecWork, timed

#: An 8B model in bf16.
FULL_BYTES = 16_400_000_000
CORES = (2, 8)


class Stages(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for the full model, and what reading both copies in the time of publishing asks of memory."""

    cores: int
    measured: bool
    """False: the seconds of one core divided by the number of cores, as far as memory bandwidth allows."""
    publish: float
    """Extract, encode, hash."""
    first_chunk: float
    """Until the first chunk can leave: one core, whatever the size of the model."""
    stage: float
    """Decode beside the live weights."""
    commit: float
    """Add in place, with digest."""
    bandwidth: float
    """Bytes a second read while publishing."""


class ModelBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of one profile."""

    profile: str
    delta: str
    measured_bytes: int
    full_bytes: int
    read_rates: dict[int, float]
    """Bytes a second of reading at best, by cores: what this machine's memory gives."""
    stages: list[Stages]


def measure_budget(
    delta: ModelDelta, profile: str, all_cores: int, rounds: int, progress: Callable[[str], None]
) -> ModelBudget:
    """Measures the budget on one core and on all, scaled by bytes.

    Times of each piece of work are medians of `rounds` as shares of reading, at the best rate of reading that was seen:
    what the machine does when nothing else disturbs it.
    """
    scale = FULL_BYTES / delta.model_bytes
    stages, reads = [], {}
    for cores in sorted({1, all_cores}):
        progress(f"{delta.name}: budget of {profile}, {cores} core(s)")
        seconds, reads[cores] = _measure(delta, profile, cores, rounds)
        stages.append(_stages(cores, True, {k: v * (1 if k == "first_chunk" else scale) for k, v in seconds.items()}))
    one = stages[0]
    for cores in CORES:
        if cores not in reads:
            scaled = {name: getattr(one, name) / cores for name in ("publish", "stage", "commit")}
            stages.append(_stages(cores, False, {**scaled, "first_chunk": one.first_chunk}))
    return ModelBudget(
        profile=profile,
        delta=delta.name,
        measured_bytes=delta.model_bytes,
        full_bytes=FULL_BYTES,
        read_rates=reads,
        stages=sorted(stages, key=lambda stage: stage.cores),
    )


def _stages(cores: int, measured: bool, seconds: dict[str, float]) -> Stages:
    return Stages(cores=cores, measured=measured, bandwidth=2 * FULL_BYTES / seconds["publish"], **seconds)


def _measure(delta: ModelDelta, profile: str, cores: int, rounds: int) -> tuple[dict[str, float], float]:
    """Seconds of each piece of work on this delta, and the best rate of reading, in bytes a second."""
    shares: dict[str, list[float]] = {"first_chunk": [], "publish": [], "stage": [], "commit": []}
    best = math.inf
    with CodecWork(delta, profile, cores) as work:
        work.encode()
        work.remember()
        pieces = (work.first_chunk, work.encode, work.stage, work.commit)
        for _ in range(rounds):
            before = timed(work.read)
            for figures, piece in zip(shares.values(), pieces, strict=True):
                seconds, after = timed(piece), timed(work.read)
                figures.append(seconds / ((before + after) / 2))
                best = min(best, before, after)
                before = after
            work.undo()
    return {name: statistics.median(values) * best for name, values in shares.items()}, 2 * delta.model_bytes / best
