"""What the bench of the loop reports: plain figures, written as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from p2psync.bench.rl.scale import FREE, FULL, P2PSYNC


class LoopStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the trainer. Moments are seconds of the run here, from the first step's start: work put in, all
    answers there, learning over, version out, ledger told. live: when it was live on each actor. lags: answers by how
    many versions they lay behind the policy that learned from them."""

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
    """Shares of the actors' time: without a prompt, with one that asks for a newer version, waiting for a commit."""

    without_work: float = 0.0
    without_version: float = 0.0
    paused: float = 0.0

    @property
    def whole(self) -> float:
        """In which an actor made nothing."""
        return self.without_work + self.without_version + self.paused


class LoopRun(msgspec.Struct, frozen=True, kw_only=True):
    """One loop, one way. counted: the steps that count, from the end of the first ones to the end of the last.

    tokens_per_second: learned from, in the figures of the real loop; share: of what the actors could make without ever
    idling. seconds_per_step: of the real loop. staleness: versions behind, mean and most. pauses: seconds (as they were
    here) of all commits while steps counted. spread: seconds here from a version's publication to its last commit, of
    each. uplink_bytes, payload_bytes: a step, as they were here. refused: results that did not count. other_weights:
    actors whose weights were others than the published ones at the end. cpu_share: cores that all processes kept busy.
    """

    way: str
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
    pauses: list[float] = []
    spread: list[float] = []
    uplink_bytes: float = 0.0
    payload_bytes: float = 0.0
    refused: dict[str, int] = {}
    other_weights: list[str] = []
    cpu_share: float = 0.0
    trouble: str = ""

    def pause(self, percent: float) -> float | None:
        """A percentile of the pauses (seconds); None without commits."""
        return float(np.percentile(self.pauses, percent)) if self.pauses else None


class RlReport(msgspec.Struct, frozen=True, kw_only=True):
    """All loops. The rest: what they were like, see `p2psync.bench.rl.scale.LoopOptions`; late_ms: how much later than
    its links say the network delivered one in a hundred packets."""

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
    load_before: float = 0.0
    late_ms: float = 0.0
    cpu: str = ""
    cpus_allowed: int = 0


class LoopLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one run has to do with the others on the same network. lost: share of the cost-free sync's tokens/s that
    it does not reach; times: its tokens/s by those of full broadcast. None: there is no such run."""

    run: LoopRun
    lost: float | None
    times: float | None


def lines(runs: Sequence[LoopRun]) -> list[LoopLine]:
    """A line for each run, network by network."""
    at = {(run.gbit, run.regions, run.way): run.tokens_per_second for run in runs if not run.trouble}
    found = []
    for run in sorted(runs, key=lambda run: (run.regions, run.gbit)):
        free, full = at.get((run.gbit, run.regions, FREE)), at.get((run.gbit, run.regions, FULL))
        mine = at.get((run.gbit, run.regions, run.way))
        lost = 1 - mine / free if mine is not None and free and run.way != FREE else None
        times = mine / full if mine is not None and full and run.way != FULL else None
        found.append(LoopLine(run=run, lost=lost, times=times))
    return found


__all__ = ["FREE", "FULL", "P2PSYNC", "Idle", "LoopLine", "LoopRun", "LoopStep", "RlReport", "lines"]
