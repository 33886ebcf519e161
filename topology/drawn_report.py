"""The report of swarms on drawn networks, over virtual or real TCP: records for JSON lines, their summary, and lines
for people.

`p2psync sim swarm --draw` and `p2psync bench swarm --draw` both write a `DrawnRun` for each network and a
`DrawnSummary` at the end, so that the two worlds can be compared seed by seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from p2psync.errors import UsageError
from p2psync.topology.bound import broadcast_bound, least_makespan
from p2psync.topology.fluid.trace import quantile
from p2psync.topology.network import Network

#: The share of all chunks that are delivered when the tail of a transfer begins.
TAIL_SHARE = 0.9
_ENDLESS = float("inf")
Line: TypeAlias = tuple[str, str]


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One payload's transfer to all nodes. Unknown figures are None.

    seconds: until the last node has the whole payload; None: not every node got it in time. ratio: `seconds` divided by
    the bound's. plan: the rate of the trees in use at the start, limited to that of the slowest downlink, divided by
    the bound's rate. achieved: 1 / (ratio × plan), the share of the plan's rate that the transfer reached. start:
    seconds until the last node has its first chunk. tail: seconds between the delivery of 90 % of all chunks and the
    end. copies: bytes that the trainer sent, divided by the payload's; over real TCP with headers.
    """

    seconds: float | None
    ratio: float | None
    plan: float | None
    achieved: float | None
    start: float | None
    tail: float | None
    copies: float | None


class DrawnNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """The network that a seed draws, and the bound of one payload there.

    bound: the least seconds of any broadcast; bound_rate: its Mbit/s. slowest_down: Mbit/s of the receiver that takes
    least. longest_rtt: seconds. loss: the most that a link loses.
    """

    seed: int
    nodes: int
    places: list[str]
    longest_rtt: float
    loss: float
    slowest_down: float
    bound_rate: float
    bound: float
    payload_bytes: int


class DrawnRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="network"):
    """The transfers on one network, by contender (p2psync first) or by policy (the one named first is first).

    settle: seconds of measuring before the first transfer.
    """

    tcp: Literal["virtual", "real"]
    network: DrawnNetwork
    settle: float
    results: dict[str, list[Transfer]]

    @property
    def subject(self) -> str:
        """The contender or policy that is judged: the first."""
        return next(iter(self.results))

    def ratio(self, name: str) -> float:
        """Returns the median ratio of a contender or policy; inf where half of its transfers or more did not end, or
        there are none."""
        return _median(_ratios(self.results.get(name, []))) or _ENDLESS


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """All transfers of one contender or policy. median, p90, worst: of ratios; None: one that did not end.

    plan, achieved, start, tail, copies: medians of those that are known; None: none is.
    """

    transfers: int
    unfinished: int
    median: float | None
    p90: float | None
    worst: float | None
    plan: float | None
    achieved: float | None
    start: float | None
    tail: float | None
    copies: float | None


class DrawnSummary(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="summary"):
    """All networks. results: by contender or policy; the first is judged.

    behind: the seeds on which the median of another one is less than that of the first, each with that other one, the
    best of them. worst_seed, worst: the transfer of the first with the highest ratio.
    """

    tcp: Literal["virtual", "real"]
    networks: int
    results: dict[str, Spread]
    behind: dict[int, str]
    worst_seed: int
    worst: Transfer


def transfer(
    network: DrawnNetwork,
    seconds: float | None,
    *,
    bound: float | None = None,
    plan_rate: float | None,
    start: float | None,
    tail: float | None,
    copies: float | None,
) -> Transfer:
    """Returns a transfer. bound: seconds, of a payload that is not the network's. plan_rate: Mbit/s of the trees."""
    ratio = None if seconds is None else seconds / (bound or network.bound)
    plan = None if plan_rate is None else min(plan_rate, network.slowest_down) / network.bound_rate
    return Transfer(
        seconds=seconds,
        ratio=ratio,
        plan=plan,
        achieved=1 / (ratio * plan) if ratio and plan else None,
        start=start,
        tail=tail,
        copies=copies,
    )


def drawn_network(seed: int, network: Network, payload_bytes: int) -> DrawnNetwork:
    """Returns the facts of a network that was drawn from a seed."""
    return DrawnNetwork(
        seed=seed,
        nodes=network.size,
        places=list(network.regions),
        longest_rtt=2 * float(network.delay.max()),
        loss=float(network.loss.max()),
        slowest_down=float(np.delete(network.down, network.trainer).min()),
        bound_rate=broadcast_bound(network).rate,
        bound=least_makespan(network, payload_bytes),
        payload_bytes=payload_bytes,
    )


def tail_seconds(delivered: Sequence[tuple[float, float]], whole: float) -> float | None:
    """Returns the seconds from when `TAIL_SHARE` of `whole` was delivered until the last moment.

    delivered: moments (seconds) with what had been delivered by then, in order; None if that is less than `whole`.
    """
    if not delivered or delivered[-1][1] < whole * (1 - 1e-9):
        return None
    times, amounts = zip(*delivered, strict=True)
    return float(times[-1] - np.interp(TAIL_SHARE * whole, amounts, times))


def summarize_runs(runs: Sequence[DrawnRun]) -> DrawnSummary:
    """Returns the summary of one or more networks. Raises `UsageError` if the first contender or policy has none."""
    by_name: dict[str, list[Transfer]] = {}
    for run in runs:
        for name, found in run.results.items():
            by_name.setdefault(name, []).extend(found)
    subject = next(iter(by_name), "")
    judged = [(run.network.seed, one) for run in runs for one in run.results.get(subject, [])]
    if not judged:
        raise UsageError("no payload was sent: give at least one seed, and one version or round")
    worst_seed, worst = max(judged, key=lambda pair: _ENDLESS if pair[1].ratio is None else pair[1].ratio)
    behind = {}
    for run in runs:
        best = min(run.results, key=run.ratio)
        if run.ratio(best) < run.ratio(subject):
            behind[run.network.seed] = best
    return DrawnSummary(
        tcp=runs[0].tcp,
        networks=len(runs),
        results={name: _spread(found) for name, found in by_name.items() if found},
        behind=behind,
        worst_seed=worst_seed,
        worst=worst,
    )


def network_line(run: DrawnRun) -> Line:
    """Returns one network's figures as (label, text): medians, and why the first contender or policy took so long."""
    network = run.network
    ratios = ", ".join(f"{name} {ratio_text(run.ratio(name))}" for name in run.results)
    text = (
        f"{network.nodes} nodes: {' '.join(network.places)}; up to {1000 * network.longest_rtt:.0f} ms, "
        f"{100 * network.loss:.1f} % loss; bound {network.bound_rate:.1f} Mbit/s, {network.bound:.1f} s; "
        f"× the bound: {ratios}; {why(_spread(run.results[run.subject]))}"
    )
    return f"seed {network.seed}", text


def why(figures: Transfer | Spread) -> str:
    """Returns the figures that say why transfers took as long as they did, for people."""
    plan = None if figures.plan is None else f"plan {100 * figures.plan:.0f} %"
    achieved = None if figures.achieved is None else f"achieved {100 * figures.achieved:.0f} % of it"
    parts = [
        ", ".join(filter(None, (plan, achieved))),
        f"start {_seconds(figures.start)}, tail {_seconds(figures.tail)}",
        None if figures.copies is None else f"{figures.copies:.2f} copies from the trainer",
    ]
    return "; ".join(filter(None, parts))


def summary_lines(summary: DrawnSummary) -> list[Line]:
    """Returns the figures of all networks as (label, text)."""
    lines = []
    for name, spread in summary.results.items():
        ends = ", ".join(
            f"{word} {ratio_text(value)}"
            for word, value in (("median", spread.median), ("p90", spread.p90), ("worst", spread.worst))
        )
        unfinished = f"; {spread.unfinished} of {spread.transfers} did not end" if spread.unfinished else ""
        lines.append((name, f"{ends} × the bound{unfinished}; medians: {why(spread)}"))
    subject = next(iter(summary.results))
    if len(summary.results) > 1:
        where = ", ".join(f"seed {seed} ({name})" for seed, name in summary.behind.items())
        lines.append(
            ("behind", f"{subject} on {len(summary.behind)} of {summary.networks} networks{': ' * bool(where)}{where}")
        )
    worst = f"{ratio_text(summary.worst.ratio)} × the bound; {why(summary.worst)}"
    return [*lines, ("worst", f"{subject} on seed {summary.worst_seed}: {worst}")]


def _spread(transfers: Sequence[Transfer]) -> Spread:
    median, p90, worst = summarize_ratios(transfers)
    return Spread(
        transfers=len(transfers),
        unfinished=sum(one.ratio is None for one in transfers),
        median=_finite(median),
        p90=_finite(p90),
        worst=_finite(worst),
        plan=_median(one.plan for one in transfers),
        achieved=_median(one.achieved for one in transfers),
        start=_median(one.start for one in transfers),
        tail=_median(one.tail for one in transfers),
        copies=_median(one.copies for one in transfers),
    )


def summarize_ratios(transfers: Sequence[Transfer]) -> tuple[float, float, float]:
    """Returns the median, the 90th percentile and the highest ratio; inf: a transfer that did not end, or there is
    none."""
    median, p90, worst = (quantile(_ratios(transfers), part) for part in (0.5, 0.9, 1.0))
    return median or _ENDLESS, p90 or _ENDLESS, worst or _ENDLESS


def _ratios(transfers: Sequence[Transfer]) -> list[float]:
    return [_ENDLESS if one.ratio is None else one.ratio for one in transfers]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _finite(value: float | None) -> float | None:
    return None if value == _ENDLESS else value


def ratio_text(value: float | None) -> str:
    """Returns a ratio for people; None and inf: not every node got the payload."""
    return "unfinished" if value is None or value == _ENDLESS else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
