"""The report of the race: plain figures, written as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from p2psync.bench.summary import Figure, summarize

#: The factor by which TCP and IP headers lengthen a payload at full packets.
HEADERS = 1.04


class LinkSample(msgspec.Struct, frozen=True):
    """Bytes of IP packets that had come to each receiver (in the report's order) so many seconds after the start."""

    seconds: float
    received: list[int]


class RaceRun(msgspec.Struct, frozen=True, kw_only=True):
    """One contender's run in one round.

    cold: nothing was connected at the start. fault: the one injected meanwhile, "" for nothing.
    seconds: until the last receiver that lived had every byte, verified; None: not within the limit, or it failed.
    finished: of each receiver that came to an end, in seconds. more_seconds: the same as `seconds` from other moments,
    such as the call to publish. trainer_copies: bytes that left the trainer, headers included, by the payload.
    region_copies: the same for bytes over links into each other region. cpu_seconds: of all processes of the run,
    meanwhile. replanned: seconds from the fault until the trainer followed another plan; None: it did not. unsound:
    receivers whose bytes are not the published ones. over_limit: it was given up for time. planned: Mbit/s to each
    receiver of the plan that was followed as the payload set out, from measuring; None: there was no plan. piece_bytes:
    verified and passed on at a time, on average; 0: not known. chunk_progress: shares of the payload that each receiver
    held, each with its seconds; empty where that was not reported.
    """

    contender: str
    round: int
    cold: bool = False
    fault: str = ""
    payload_bytes: int
    floor: float
    seconds: float | None
    finished: dict[str, float]
    more_seconds: dict[str, float] = {}
    trainer_copies: float
    region_copies: dict[str, float]
    cpu_seconds: float
    unsound: list[str] = []
    trouble: str = ""
    over_limit: bool = False
    replanned: float | None = None
    planned: float | None = None
    piece_bytes: int = 0
    chunk_progress: dict[str, list[tuple[float, float]]] = {}
    progress: list[LinkSample] = []

    @property
    def ratio(self) -> float | None:
        """How many times the floor."""
        return None if self.seconds is None else self.seconds / self.floor


class SwarmReport(msgspec.Struct, frozen=True, kw_only=True):
    """One race. floor: seconds before which not all can have the payload. bound: Mbit/s, and why not more.

    load_before: what else kept the machine busy (processes that wanted to run, on average). late_ms: how much later
    than its links say the network delivered one in a hundred packets, which shows whether the machine was fast enough.
    """

    topology: str
    receivers: list[str]
    congestion: str
    payload_bytes: int
    delta: bool
    floor: float
    bound: float
    because: str
    limit: float
    runs: list[RaceRun]
    skipped: list[str] = []
    load_before: float = 0.0
    late_ms: float = 0.0
    cpu: str = ""
    cpus_allowed: int = 0


class SwarmLine(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one contender's runs of one kind. finished: how many of them came to an end within the limit.

    A median over runs of which half or more did not end is None.
    """

    contender: str
    cold: bool
    fault: str
    runs: int
    finished: int
    seconds: float | None
    least: float | None
    most: float | None
    ratio: float | None
    trainer_copies: float
    region_copies: float | None
    cpu_seconds: float
    replanned: float | None = None


def lines(runs: Sequence[RaceRun]) -> list[SwarmLine]:
    """A line for each contender, warm and cold, and for each fault, in the order in which they first ran."""
    kinds: dict[tuple[str, bool, str], list[RaceRun]] = {}
    for run in sorted(runs, key=lambda run: (bool(run.fault), run.cold)):
        kinds.setdefault((run.contender, run.cold, run.fault), []).append(run)
    return [_line(*kind, found) for kind, found in kinds.items()]


def _line(contender: str, cold: bool, fault: str, runs: Sequence[RaceRun]) -> SwarmLine:
    ended = [run.seconds for run in runs if run.seconds is not None]
    copies = [max(run.region_copies.values()) for run in runs if run.region_copies]
    return SwarmLine(
        contender=contender,
        cold=cold,
        fault=fault,
        runs=len(runs),
        finished=len(ended),
        seconds=_median(runs, lambda run: run.seconds),
        least=min(ended, default=None),
        most=max(ended, default=None),
        ratio=_median(runs, lambda run: run.ratio),
        trainer_copies=median(run.trainer_copies for run in runs),
        region_copies=median(copies) if copies else None,
        cpu_seconds=median(run.cpu_seconds for run in runs),
        replanned=_median(runs, lambda run: run.replanned),
    )


def figures(report: SwarmReport) -> list[Figure]:
    """Returns the figures of a report, of the runs that came to an end."""
    found: list[Figure] = []
    for line in lines(report.runs):
        key = (line.contender, line.cold, line.fault)
        runs = [run for run in report.runs if (run.contender, run.cold, run.fault) == key and run.seconds is not None]
        subject = ", ".join(filter(None, (line.contender, "cold" if line.cold else "", line.fault)))
        found += summarize(subject, "until all have it", "s", [run.seconds for run in runs])
        found += summarize(subject, "to the floor", "", [run.ratio for run in runs])
        found += summarize(subject, "copies from the trainer", "", [run.trainer_copies for run in runs])
        found += summarize(subject, "processor time of all hosts", "s", [run.cpu_seconds for run in runs])
    return found


def _median(runs: Sequence[RaceRun], figure: Callable[[RaceRun], float | None]) -> float | None:
    """The median where what did not end counts as endless; None if that is endless."""
    found = median(float("inf") if (value := figure(run)) is None else value for run in runs)
    return None if found == float("inf") else found


def times_faster(all_lines: Sequence[SwarmLine], p2psync: str, baseline: str, *, cold: bool = False) -> float | None:
    """Returns how many times as long a baseline's runs took, warm or cold, without faults; None where one of the two
    has no median."""
    seconds = {line.contender: line.seconds for line in all_lines if line.cold == cold and not line.fault}
    mine, other = seconds.get(p2psync), seconds.get(baseline)
    return None if not mine or not other else other / mine
