"""The report of the pause bench: plain figures, written as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from p2psync.bench.summary import Figure, summarize


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of some runs of one thing, each over so many changed elements."""

    name: str
    title: str
    elements: int
    runs: list[float]

    @property
    def p50(self) -> float:
        """The median."""
        return statistics.median(self.runs)

    @property
    def p99(self) -> float:
        """The 99th percentile, by the nearest rank: of less than a hundred runs the longest."""
        return sorted(self.runs)[-max(1, len(self.runs) // 100)]


class ShareReport(msgspec.Struct, frozen=True, kw_only=True):
    """Commits of one share of the model. elements: changed live elements of one commit."""

    share: float
    elements: int
    times: list[Times]

    def of(self, name: str) -> Times | None:
        """Returns the times of this name, None if there are none."""
        return next((times for times in self.times if times.name == name and times.runs), None)

    def ratio(self, name: str, to: str) -> float | None:
        """The median over rounds of one thing's seconds by another's, of the same rounds."""
        mine, other = self.of(name), self.of(to)
        if mine is None or other is None:
            return None
        pairs = zip(mine.runs[-len(other.runs) :], other.runs[-len(mine.runs) :], strict=True)
        return statistics.median(a / b for a, b in pairs)


class PauseReport(msgspec.Struct, frozen=True, kw_only=True):
    """One model, commits of several shares of it, under load. model_bytes: of one copy."""

    model: str
    model_bytes: int
    tensor_parallel: int
    requests: int
    cpu: str
    shares: list[ShareReport]


TITLES = {
    "pause": "p2psync: engine still",
    "write": "p2psync: writing, in the pause",
    "stage": "p2psync: staging, beside generation",
    "scatter": "bare scatter, one thread",
    "torch_scatter": "bare scatter, torch",
    "sparse_loader": "vLLM's sparse patch loader",
    "reload": "full reload",
}


def times_of(found: dict[str, Sequence[float]], elements: int) -> list[Times]:
    """The times of each method, in the order of `TITLES`. elements: changed in each run."""
    return [
        Times(name=name, title=title, elements=elements, runs=list(found[name]))
        for name, title in TITLES.items()
        if found.get(name)
    ]


def figures(report: PauseReport) -> list[Figure]:
    """Returns the figures of a report; each subject names the number of changed elements."""
    found: list[Figure] = []
    for share in report.shares:
        for times in share.times:
            subject = f"{times.elements} changed elements, {times.name}"
            found += summarize(subject, "time", "ms", [1e3 * run for run in times.runs])
            if times.elements:
                each = [1e9 * run / times.elements for run in times.runs]
                found += summarize(subject, "time for an element", "ns", each)
    return found
