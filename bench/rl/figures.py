"""Computes the figures of a run from the lines of its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from p2psync.bench.rl.generator import ActorResult, SlotTimes
from p2psync.bench.rl.learner import LearnerStep
from p2psync.bench.rl.report import Idle, LoopRun, LoopStep
from p2psync.bench.rl.scale import LoopOptions

#: On what time is spent that makes no tokens.
_WAYS = ("without_work", "without_version", "paused", "staging", "behind")


def figures(
    options: LoopOptions,
    run: LoopRun,
    said: Sequence[LearnerStep],
    actors: Mapping[str, ActorResult],
    hashes: Mapping[str, str],
    uplink: Sequence[int],
) -> LoopRun:
    """run: its settings. said: all steps. hashes: of the versions, by their numbers. uplink: bytes
    that had left the trainer when each step ended."""
    start = said[0].put
    steps = [_step(one, start, actors, uplink[i] - (uplink[i - 1] if i else 0)) for i, one in enumerate(said)]
    counted = steps[options.warm :]
    begin, end = said[options.warm - 1].published, said[-1].published
    seconds = (end - begin) * options.faster
    tokens = sum(step.tokens for step in counted)
    lags = sum((Counter(step.lags) for step in counted), Counter[int]())
    outcomes = sum((Counter(actor.outcomes) for actor in actors.values()), Counter[str]())
    most = len(actors) * options.speed
    return LoopRun(
        way=run.way,
        round=run.round,
        gbit=run.gbit,
        regions=run.regions,
        actors=len(actors),
        steps=steps,
        counted=len(counted),
        tokens_per_second=tokens / seconds,
        share=tokens / seconds / most,
        seconds_per_step=seconds / len(counted),
        idle=idle([actor.spent for actor in actors.values()], begin, end),
        staleness_mean=sum(lag * count for lag, count in lags.items()) / max(1, lags.total()),
        staleness_most=max(lags, default=0),
        spread=[max(step.live.values()) - step.published for step in counted if len(step.live) == len(actors)],
        uplink_bytes=(uplink[-1] - uplink[options.warm - 1]) / len(counted),
        payload_bytes=sum(step.payload_bytes for step in counted) / len(counted),
        refused={outcome: count for outcome, count in outcomes.items() if outcome != "accepted"},
        other_weights=[host for host, actor in actors.items() if hashes.get(str(actor.version)) != actor.sha256],
    )


def idle(spent: Sequence[Sequence[SlotTimes]], begin: float, end: float) -> Idle:
    """Returns the shares of all actors' time that each activity took between two moments."""
    total, parts = 0.0, [0.0] * len(_WAYS)
    for notes in spent:
        inside = [note for note in notes if begin <= note.at <= end]
        if len(inside) < 2:
            continue
        first, last = inside[0], inside[-1]
        found = [getattr(last, way) - getattr(first, way) for way in _WAYS]
        total += last.making - first.making + sum(found)
        parts = [part + more for part, more in zip(parts, found, strict=True)]
    shares = [part / total if total else 0.0 for part in parts]
    return Idle(**dict(zip(_WAYS, shares, strict=True)))


def _step(said: LearnerStep, start: float, actors: Mapping[str, ActorResult], uplink: int) -> LoopStep:
    live = {}
    for host, actor in actors.items():
        at = [commit.at for commit in actor.commits if commit.version >= said.step + 1]
        if at:
            live[host] = min(at) - start
    return LoopStep(
        put=said.put - start,
        collected=said.collected - start,
        learned=said.learned - start,
        published=said.published - start,
        committed=said.committed - start,
        tokens=said.tokens,
        payload_bytes=said.payload_bytes,
        lags=said.lags,
        live=live,
        uplink_bytes=uplink,
    )
