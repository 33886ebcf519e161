"""The report of the loop bench: plain figures, written as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import msgspec

from p2psync.bench.rl.scale import FREE, FULL_WAYS, P2PSYNC
from p2psync.bench.summary import Figure, summarize


class LoopStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the trainer. Moments are seconds of the run here, from the first step's start: work put in, all
    answers there, learning over, version out, step committed to the ledger. live: when it was live on each actor. lags:
    answers by how many versions they lay behind the policy that learned from them."""

    put: float
    collected: float
    learned: float
    published: float
    committed: float
    tokens: int
    payload_bytes: int
    lags: dict[int, int]
    live: dict[str, float] = {}
    uplink_bytes: int = 0


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the actors' time: without a prompt; with one that asks for a newer version; standing still for a
    commit; lost to staging; lost because another process had the core. Commits and staging are those of a model of the
    real size on the machine that an actor stands for."""

    without_work: float = 0.0
    without_version: float = 0.0
    paused: float = 0.0
    staging: float = 0.0
    behind: float = 0.0

    @property
    def whole(self) -> float:
        """The share of time in which an actor made no tokens."""
        return self.without_work + self.without_version + self.paused + self.staging + self.behind


class LoopRun(msgspec.Struct, frozen=True, kw_only=True):
    """One loop, one way. counted: the steps that count, from the end of the first ones to the end of the last.

    tokens_per_second: learned from, in the figures of the real loop; share: of what the actors could make without ever
    idling. seconds_per_step: of the real loop. staleness: versions behind, mean and most. spread: seconds here from the
    publication of each version to its last commit. uplink_bytes, payload_bytes: a step, as they were here. refused:
    results that did not count. other_weights: actors whose weights were others than the published ones at the end.
    cpu_share: cores that all processes kept busy. skipped: versions that were never sent, for a newer one waited.
    ideal_copy_seconds, ideal_tokens_per_second: of a full broadcast of such a payload at the bound (`ideal`), in the
    real loop; 0 where versions are not whole.
    """

    way: str
    round: int = 0
    gbit: float
    regions: int
    actors: int
    steps: list[LoopStep] = []
    counted: int = 0
    tokens_per_second: float = 0.0
    share: float = 0.0
    seconds_per_step: float = 0.0
    idle: Idle = Idle()
    staleness_mean: float = 0.0
    staleness_most: int = 0
    spread: list[float] = []
    uplink_bytes: float = 0.0
    payload_bytes: float = 0.0
    refused: dict[str, int] = {}
    other_weights: list[str] = []
    cpu_share: float = 0.0
    trouble: str = ""
    skipped: int = 0
    ideal_copy_seconds: float = 0.0
    ideal_tokens_per_second: float = 0.0


class RlReport(msgspec.Struct, frozen=True, kw_only=True):
    """All loops. The rest: their settings, see `p2psync.bench.rl.scale.LoopOptions`; late_ms: how much later than
    its links say the network delivered one in a hundred packets. burnt_share: the share of a core
    here that an actor's generation takes; machine_share: the share that stands for its machine."""

    runs: list[LoopRun]
    generation: float
    learning: float
    answer: float
    staleness: int
    density: float
    model_bytes: int
    faster: float
    speed: float
    slots: int
    warm: int
    burnt_share: float = 0.0
    machine_share: float = 0.0
    load_before: float = 0.0
    late_ms: float = 0.0
    cpu: str = ""
    cpus_allowed: int = 0


class LoopLine(msgspec.Struct, frozen=True, kw_only=True):
    """One way on one network, compared with the others there. runs: of all rounds. run: the one in the middle.

    tokens, least, most: tokens/s of the runs that came to an end, the median first; None where none did. lost: share of
    the cost-free sync's tokens/s that it does not reach; times: its tokens/s by those of the fastest full broadcast;
    to_ideal: by those of a full broadcast at the bound. None: there is no such run.
    """

    run: LoopRun
    runs: list[LoopRun]
    tokens: float | None
    least: float | None
    most: float | None
    lost: float | None
    times: float | None
    to_ideal: float | None = None


def lines(runs: Sequence[LoopRun]) -> list[LoopLine]:
    """Returns a line for each way, network by network."""
    kinds: dict[tuple[int, float, str], list[LoopRun]] = {}
    for run in sorted(runs, key=lambda run: (run.regions, run.gbit)):
        kinds.setdefault((run.regions, run.gbit, run.way), []).append(run)
    ended = {
        kind: sorted((run for run in found if not run.trouble), key=lambda run: run.tokens_per_second)
        for kind, found in kinds.items()
    }
    medians = {kind: median(run.tokens_per_second for run in found) for kind, found in ended.items() if found}
    made = []
    for (regions, gbit, way), found in kinds.items():
        kind = (regions, gbit, way)
        mine, free = medians.get(kind), medians.get((regions, gbit, FREE))
        full = max((medians.get((regions, gbit, other), 0.0) for other in FULL_WAYS), default=0.0)
        ideal = max(run.ideal_tokens_per_second for run in runs if (run.regions, run.gbit) == (regions, gbit))
        whole = way in FULL_WAYS
        made.append(
            LoopLine(
                run=ended[kind][len(ended[kind]) // 2] if ended[kind] else found[0],
                runs=found,
                tokens=mine,
                least=ended[kind][0].tokens_per_second if ended[kind] else None,
                most=ended[kind][-1].tokens_per_second if ended[kind] else None,
                lost=1 - mine / free if mine is not None and free and way != FREE else None,
                times=mine / full if mine is not None and full and not whole else None,
                to_ideal=mine / ideal if mine is not None and ideal and not whole else None,
            )
        )
    return made


def figures(report: RlReport) -> list[Figure]:
    """Returns the figures of a report, of the runs that came to an end; steps are those of all of them."""
    found: list[Figure] = []
    for line in lines(report.runs):
        runs = [run for run in line.runs if not run.trouble]
        subject = f"{line.run.way}, {line.run.gbit:g} Gbit/s, {line.run.regions} region(s)"
        steps = [seconds for run in runs for seconds in _step_seconds(run)]
        spread = [seconds for run in runs for seconds in run.spread]
        found += summarize(subject, "tokens", "1/s", [run.tokens_per_second for run in runs])
        found += summarize(subject, "step", "s", [seconds * report.faster for seconds in steps])
        found += summarize(subject, "until live everywhere", "s", [seconds * report.faster for seconds in spread])
        for way in msgspec.structs.fields(Idle):
            found += summarize(
                subject, f"idle: {way.name}", "of the time", [getattr(run.idle, way.name) for run in runs]
            )
        found += summarize(subject, "to the fastest full broadcast", "", [line.times])
        found += summarize(subject, "to the ideal full broadcast", "", [line.to_ideal])
    return found


def _step_seconds(run: LoopRun) -> list[float]:
    """Seconds here of each step that counts."""
    ends = [step.published for step in run.steps][-run.counted - 1 :]
    return [end - begin for begin, end in pairwise(ends)]


__all__ = ["FREE", "FULL_WAYS", "P2PSYNC", "Idle", "LoopLine", "LoopRun", "LoopStep", "RlReport", "lines"]
