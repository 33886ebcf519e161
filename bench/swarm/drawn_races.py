"""Races on drawn networks: one race for each seed, with why p2psync took as long as it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from p2psync.bench.summary import Figure
from p2psync.bench.swarm.contenders import P2PSYNC, missing
from p2psync.bench.swarm.race import Race, RaceOptions
from p2psync.bench.swarm.report import RaceRun, SwarmReport, figures
from p2psync.errors import UsageError
from p2psync.topology.drawn_report import DrawnNetwork, DrawnRun, Transfer, drawn_network, tail_seconds, transfer
from p2psync.topology.model import Topology
from p2psync.topology.network import from_topology
from p2psync.topology.places import draw_places


class RacedRun(DrawnRun, frozen=True, kw_only=True):
    """One drawn network. results: of warm runs without faults. report: of all runs."""

    report: SwarmReport


def race_drawn(
    seeds: range,
    options: RaceOptions,
    *,
    hosts: int = 12,
    slower: float = 1.0,
    progress: Callable[[str], None] = lambda line: None,
) -> Iterator[RacedRun]:
    """Races on the network that `draw_places` draws from each seed, its rates divided by `slower`.

    progress: gets a line now and then. Raises `UsageError` where p2psync takes no part, and what `Race.run` raises.
    """
    if P2PSYNC not in options.contenders:
        raise UsageError("races on drawn networks judge p2psync: it takes part")
    for name in options.contenders:
        if why := missing(name):
            progress(f"{name} takes no part: {why}")
    contenders = [name for name in options.contenders if not missing(name)]
    options = replace(options, contenders=contenders, reports_chunks=True)
    for seed in seeds:
        topology = draw_places(seed, hosts=hosts)
        yield _race(seed, topology.slower(slower) if slower > 1 else topology, options, progress)


def _race(seed: int, topology: Topology, options: RaceOptions, progress: Callable[[str], None]) -> RacedRun:
    label = f"seed {seed}"
    report = Race(label, topology, options, lambda line: progress(f"{label}: {line}")).run()
    return raced_run(drawn_network(seed, from_topology(topology), options.payload_bytes), report, options.settle)


def raced_run(network: DrawnNetwork, report: SwarmReport, settle: float) -> RacedRun:
    """Returns the figures of a race on a drawn network."""
    runs = [run for run in report.runs if not run.cold and not run.fault]
    results: dict[str, list[Transfer]] = {P2PSYNC: []}
    for run in sorted(runs, key=lambda run: run.round):
        results.setdefault(run.contender, []).append(_transfer(network, run, report.receivers))
    return RacedRun(tcp="real", network=network, settle=settle, results=results, report=report)


def drawn_figures(runs: Sequence[RacedRun]) -> list[Figure]:
    """Returns the figures of all races, each subject with its seed."""
    return [
        msgspec.structs.replace(figure, subject=f"seed {run.network.seed}, {figure.subject}")
        for run in runs
        for figure in figures(run.report)
    ]


def _transfer(network: DrawnNetwork, run: RaceRun, receivers: list[str]) -> Transfer:
    return transfer(
        network,
        run.seconds,
        bound=run.floor,
        plan_rate=run.planned,
        start=_start(run, receivers),
        tail=_tail(run, receivers),
        copies=run.trainer_copies,
    )


def _start(run: RaceRun, receivers: list[str]) -> float | None:
    """Returns when the last receiver had its first piece; None: one of them never had, or it is not known."""
    firsts = [
        _first_held(run, name) if run.chunk_progress else _first_received(run, i) for i, name in enumerate(receivers)
    ]
    known = [first for first in firsts if first is not None]
    return max(known) if known and len(known) == len(firsts) else None


def _first_held(run: RaceRun, name: str) -> float | None:
    """Returns when a receiver reported a chunk first, at the latest when it had everything."""
    moments = [at for at, share in run.chunk_progress.get(name, []) if share > 0]
    return min([*moments[:1], *([run.finished[name]] if name in run.finished else [])], default=None)


def _first_received(run: RaceRun, i: int) -> float | None:
    """Returns when the bytes of a piece had come to receiver i; between two samples of the links they come evenly."""
    times, received = _samples(run, i)
    if not run.piece_bytes or received[-1] < run.piece_bytes:
        return None
    return float(np.interp(run.piece_bytes, received, times))


def _tail(run: RaceRun, receivers: list[str]) -> float | None:
    if run.seconds is None:
        return None
    courses = [_course(run, i, name) for i, name in enumerate(receivers)]
    times = sorted({at for at, _ in (point for course in courses for point in course) if at < run.seconds})
    shares = np.mean([np.interp(times, [p[0] for p in course], [p[1] for p in course]) for course in courses], axis=0)
    return tail_seconds([*zip(times, shares.tolist(), strict=True), (run.seconds, 1.0)], 1.0)


def _course(run: RaceRun, i: int, name: str) -> list[tuple[float, float]]:
    """Returns the share of the payload that a receiver had at each moment, from nothing until it had everything.

    Where it is not known which chunks it held, what came over its link until it had everything, with headers and what
    came twice, counts as what it needed.
    """
    finished = run.finished[name]
    if run.chunk_progress:
        points = run.chunk_progress.get(name, [])
    else:
        times, received = _samples(run, i)
        needed = max(1.0, float(np.interp(finished, times, received)))
        points = [(at, min(1.0, nbytes / needed)) for at, nbytes in zip(times, received, strict=True)]
    return [(0.0, 0.0), *((at, share) for at, share in points if 0 < at < finished), (finished, 1.0)]


def _samples(run: RaceRun, i: int) -> tuple[list[float], list[int]]:
    """Returns the moments of a run's samples (seconds), and the bytes that receiver i had then, from 0 on."""
    return [0.0, *(sample.seconds for sample in run.progress)], [0, *(sample.received[i] for sample in run.progress)]
