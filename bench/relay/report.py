"""The report of the relay bench: plain figures, written as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

import msgspec

from p2psync.bench.summary import Figure, summarize

#: Bytes a second of 1 Gbit/s.
GIGABIT = 125e6


class Passage(msgspec.Struct, frozen=True):
    """One contender's run in one round: one payload through one relay.

    rate: Mbit/s of each link, 0: no limit. size: bytes asked for; payload_bytes: bytes of the payload made.
    piece_bytes: bytes that are verified and passed on at a time. seconds: from the offer of the payload until relay and
    leaves had every byte, verified. cpu_seconds: of the relay's process meanwhile, user and kernel. received, sent:
    bytes of packets at the relay. trouble: why it did not end, or which bytes were wrong; the figures then mean
    nothing.
    """

    contender: str
    round: int
    rate: float
    size: int
    payload_bytes: int = 0
    piece_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    received: int = 0
    sent: int = 0
    trouble: str = ""

    @property
    def gigabytes(self) -> float:
        """10^9 bytes of payload."""
        return self.payload_bytes / 1e9


class RelayReport(msgspec.Struct, frozen=True, kw_only=True):
    """leaves: to how many the relay sends. load_before: processes that wanted to run before, on average."""

    leaves: int
    congestion: str
    passages: list[Passage]
    skipped: list[str] = []
    file_system: str = ""
    load_before: float = 0.0
    cpu: str = ""
    cpus_allowed: int = 0


class RelayLine(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one contender's runs of one kind. through: Mbit/s of payload. waste: bytes received, by the payload.

    per_gb: CPU seconds for 10^9 bytes of payload received (and passed on); of the runs the least and the most, too.
    per_cpu_second: MB (10^6 bytes) of it for a CPU second. share: of a core that 1 Gbit/s takes, from that cost. busy:
    of a core that was really in use meanwhile.
    """

    contender: str
    rate: float
    size: int
    piece_bytes: int
    runs: int
    seconds: float
    seconds_least: float
    seconds_most: float
    through: float
    per_gb: float
    per_gb_least: float
    per_gb_most: float
    per_cpu_second: float
    share: float
    busy: float
    waste: float


def kinds(passages: Iterable[Passage]) -> dict[tuple[float, int], list[Passage]]:
    """Runs by rate of the links and size of the payload that was asked for, in the order in which they first ran."""
    found: dict[tuple[float, int], list[Passage]] = {}
    for passage in passages:
        found.setdefault((passage.rate, passage.size), []).append(passage)
    return found


def lines(passages: Iterable[Passage]) -> list[RelayLine]:
    """A line for each contender and kind that came to an end."""
    found = []
    for runs in kinds(passages).values():
        for contender in dict.fromkeys(run.contender for run in runs):
            ended = [run for run in runs if run.contender == contender and not run.trouble]
            if ended:
                found.append(_line(ended))
    return found


def times_cheaper(passages: Sequence[Passage], p2psync: str, baseline: str) -> float | None:
    """Returns how many times the CPU time a baseline takes for the same bytes: the median over rounds in which both
    came to an end, so that what disturbs a round disturbs both. None where there is no such round."""
    costs = {(run.contender, run.round): run.cpu_seconds for run in passages if not run.trouble}
    pairs = [
        costs[baseline, round] / cost
        for (name, round), cost in costs.items()
        if name == p2psync and (baseline, round) in costs and cost
    ]
    return median(pairs) if pairs else None


def figures(report: RelayReport) -> list[Figure]:
    """Returns the figures of a report, of the runs that came to an end."""
    found: list[Figure] = []
    for (rate, size), passages in kinds(report.passages).items():
        for contender in dict.fromkeys(run.contender for run in passages):
            runs = [run for run in passages if run.contender == contender and not run.trouble]
            links = f"{rate:g} Mbit/s" if rate else "no limit"
            subject = f"{contender}, {size / (1 << 20):.4g} MiB, {links}"
            per_gb = [run.cpu_seconds / run.gigabytes for run in runs]
            found += summarize(subject, "processor time for a GB", "s", per_gb)
            found += summarize(subject, "until all have it", "s", [run.seconds for run in runs])
    return found


def _line(runs: Sequence[Passage]) -> RelayLine:
    def middle(figure: Callable[[Passage], float]) -> float:
        return median(figure(run) for run in runs)

    per_byte = middle(lambda run: run.cpu_seconds / run.payload_bytes)
    first = runs[0]
    return RelayLine(
        contender=first.contender,
        rate=first.rate,
        size=first.size,
        piece_bytes=first.piece_bytes,
        runs=len(runs),
        seconds=middle(lambda run: run.seconds),
        seconds_least=min(run.seconds for run in runs),
        seconds_most=max(run.seconds for run in runs),
        through=middle(lambda run: 8e-6 * run.payload_bytes / run.seconds),
        per_gb=per_byte * 1e9,
        per_gb_least=min(run.cpu_seconds / run.gigabytes for run in runs),
        per_gb_most=max(run.cpu_seconds / run.gigabytes for run in runs),
        per_cpu_second=1e-6 / per_byte if per_byte else 0.0,
        share=per_byte * GIGABIT,
        busy=middle(lambda run: run.cpu_seconds / run.seconds),
        waste=middle(lambda run: run.received / run.payload_bytes),
    )
