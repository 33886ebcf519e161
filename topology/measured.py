"""Builds a network from measurements: measured paths beat unmeasured ones, and those beat failed ones; no claim counts
without a witness.

A node knows its own uplink best, but a node that overstates it would become the parent of many and slow them all. So a
claim counts only up to about twice the rate that others received from the node: an honest node's figure rises as it is
used, as a congestion window does. A single witness may be an accomplice; with several, the second highest bounds the
highest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from p2psync.errors import FormatError
from p2psync.topology.model import MAX_RATE
from p2psync.topology.network import Floats, Network
from p2psync.topology.regions import cluster

#: A node's claim counts up to this multiple of the rate that others received from it.
CLAIM_FACTOR = 2.0
#: The highest witness counts up to this multiple of the second: a node that mostly sends to one peer may have been
#: measured by that peer alone.
LONE_WITNESS_FACTOR = 3.0
#: A source's rate on one path counts up to this multiple of its target's, because both average over spans of their own.
WITNESS_FACTOR = 1.2
#: Mbit/s that is assumed of every uplink while nothing was measured.
FIRST_UPLINK_MBITS = 20.0


class NodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a node. Mbit/s. claimed_up, claimed_down: its own claims (None: none).

    seen_up: the total Mbit/s that each witness received from it at one time. region: "" is found from round trips.
    """

    name: str
    region: str = ""
    claimed_up: float | None = None
    claimed_down: float | None = None
    seen_up: Mapping[str, float] = {}
    dialable: bool = True


class PathFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures from one node to another. Mbit/s, seconds; None: not measured.

    rate: what the source reports that it sent. seen: what the target reports that it received. failed: no connection
    could be opened in this direction.
    """

    source: str
    target: str
    rate: float | None = None
    seen: float | None = None
    rtt: float | None = None
    loss: float | None = None
    failed: bool = False


def from_measurements(
    trainer: str, nodes: Sequence[NodeFigures], paths: Iterable[PathFigures], *, trusted: Iterable[str] = ()
) -> Network:
    """Returns the network of these figures. trusted: names whose claims count in full; the trainer's always does.

    A path between regions gets the highest rate of its pairs that both ends confirm, or, if none is confirmed, that one
    end reports; a path without any is assumed to equal the slower quarter of the others. Raises `FormatError` if the
    trainer is not among the nodes, or a name occurs twice.
    """
    nodes = sorted(nodes, key=lambda node: node.name)
    index = {node.name: i for i, node in enumerate(nodes)}
    if trainer not in index or len(index) < len(nodes):
        raise FormatError(f"the trainer {trainer!r} is not among the nodes, or a name comes twice")
    known = [path for path in paths if path.source in index and path.target in index and path.source != path.target]
    ends = [(index[path.source], index[path.target]) for path in known]
    names = regions_of(nodes, known)
    regions = tuple(sorted(set(names.values())))
    region = np.array([regions.index(names[node.name]) for node in nodes], np.int64)
    shape = (len(regions), len(regions))
    reports: dict[tuple[int, int], list[_RateReport]] = {}
    delays: dict[tuple[int, int], list[float]] = {}
    losses: dict[tuple[int, int], list[float]] = {}
    for path, (i, j) in zip(known, ends, strict=True):
        pair = (int(region[i]), int(region[j]))
        if path.rtt is not None and _plausible(path.rtt, 60):
            for direction in (pair, pair[::-1]):
                delays.setdefault(direction, []).append(path.rtt / 2)
        if pair[0] != pair[1] and (report := _rate_report(path)) is not None:
            reports.setdefault(pair, []).append(report)
        if path.loss is not None and 0 <= path.loss < 1:
            losses.setdefault(pair, []).append(path.loss)
    delay, loss = _table(shape, delays, 0.5, 0.05), _table(shape, losses, 0.5, 0.0)
    np.fill_diagonal(delay, [np.median(delays.get((a, a), [0.0])) for a in range(len(regions))])
    # The highest confirmed rate, or the highest of all if none is confirmed.
    rates = {pair: [max(found).rate] for pair, found in reports.items()}
    usual = float(np.quantile([rate for found in rates.values() for rate in found] or [FIRST_UPLINK_MBITS], 0.25))
    rate = _table(shape, rates, 1.0, usual)
    np.fill_diagonal(rate, np.inf)
    measured = np.eye(len(regions), dtype=bool)
    for pair in rates:
        measured[pair] = True
    believed = {trainer, *trusted}
    return Network(
        names=tuple(node.name for node in nodes),
        trainer=index[trainer],
        up=_ups(nodes, believed),
        down=np.array([_down(node) for node in nodes]),
        region=region,
        regions=regions,
        rate=rate,
        delay=delay,
        loss=loss,
        measured=measured,
        dialable=np.array([node.dialable for node in nodes], bool),
        blocked=frozenset(pair for path, pair in zip(known, ends, strict=True) if path.failed),
    )


class _RateReport(NamedTuple):
    """A rate of a pair (Mbit/s), and whether both ends confirm it."""

    confirmed: bool
    rate: float


def _rate_report(path: PathFigures) -> _RateReport | None:
    sent, seen = (rate if rate is not None and _plausible(rate, MAX_RATE) else None for rate in (path.rate, path.seen))
    if sent is None or seen is None:
        one = sent if seen is None else seen
        return None if one is None else _RateReport(False, one)
    return _RateReport(True, min(sent, seen * WITNESS_FACTOR))


def _down(node: NodeFigures) -> float:
    """Returns the Mbit/s of a downlink: twice the highest rate that came through it, since nobody may have sent
    more."""
    known = _claim(node.claimed_down, 0.0)
    return min(MAX_RATE, known * CLAIM_FACTOR) if known else MAX_RATE


def _ups(nodes: Sequence[NodeFigures], believed: set[str]) -> Floats:
    """Returns the Mbit/s of each uplink: the claim, as far as others confirm it."""
    seen = [_witnessed(node) for node in nodes]
    tested = [rate / CLAIM_FACTOR for rate in seen if rate is not None]
    # A node that nobody has received from yet is assumed to be like the slower quarter of those with witnesses.
    first = float(np.quantile(tested, 0.25)) if tested else FIRST_UPLINK_MBITS
    ups = []
    for node, rate in zip(nodes, seen, strict=True):
        claim = _claim(node.claimed_up, MAX_RATE)
        believable = first if rate is None else rate
        if node.name in believed:
            ups.append(claim if node.claimed_up is not None else max(believable, FIRST_UPLINK_MBITS))
        else:
            ups.append(min(claim, believable))
    return np.array(ups)


def _witnessed(node: NodeFigures) -> float | None:
    """Returns the Mbit/s that witnesses confirm for a node: the sum of the two highest figures, since nodes that
    measure an uplink at the same time see a share each, with the highest counted as `LONE_WITNESS_FACTOR` times the
    second at most. A single figure counts `CLAIM_FACTOR` times.
    """
    reported = sorted(rate for name, rate in node.seen_up.items() if name != node.name and _plausible(rate, MAX_RATE))
    if len(reported) < 2:
        return reported[0] * CLAIM_FACTOR if reported else None
    second, first = reported[-2:]
    return second + min(first, LONE_WITNESS_FACTOR * second)


def regions_of(nodes: Sequence[NodeFigures], paths: Iterable[PathFigures]) -> dict[str, str]:
    """Returns the region of each node by name; those not given are found from round-trip times."""
    if all(node.region for node in nodes):
        return {node.name: node.region for node in nodes}
    nodes = sorted(nodes, key=lambda node: node.name)
    index = {node.name: i for i, node in enumerate(nodes)}
    rtt = np.full((len(nodes), len(nodes)), np.nan)
    for path in paths:
        i, j = index.get(path.source), index.get(path.target)
        if i is not None and j is not None and path.rtt is not None and _plausible(path.rtt, 60):
            rtt[i, j] = np.fmin(rtt[i, j], path.rtt)
    labels = cluster(rtt)
    given: dict[int, list[str]] = {}
    for node, label in zip(nodes, labels.tolist(), strict=True):
        if node.region:
            given.setdefault(label, []).append(node.region)
    # A node without a given region joins the region that most nodes of its cluster name.
    said = {label: max(sorted(set(names)), key=names.count) for label, names in given.items()}
    return {
        node.name: node.region or said.get(label, f"near-{label}")
        for node, label in zip(nodes, labels.tolist(), strict=True)
    }


def _table(
    shape: tuple[int, int], found: Mapping[tuple[int, int], list[float]], quantile: float, otherwise: float
) -> Floats:
    table = np.full(shape, otherwise)
    for pair, values in found.items():
        table[pair] = np.quantile(values, quantile)
    return table


def _claim(rate: float | None, otherwise: float) -> float:
    return rate if rate is not None and _plausible(rate, MAX_RATE) else otherwise


def _plausible(value: float, most: float) -> bool:
    return 0 < value <= most
