"""`p2psync sim faults --seeds 0:300`, or `python -m p2psync.sim`: simulate many seeds, and report the results."""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from p2psync.errors import UsageError
from p2psync.sim.build import SimConfig
from p2psync.sim.faults import KINDS
from p2psync.sim.liars import LIARS
from p2psync.sim.run import SimFailure, SimReport, run_sim


def main() -> int:
    """Returns 1 if any seed failed."""
    arguments = _parse()
    config = SimConfig(
        faults=tuple(arguments.fault) if arguments.fault else None,
        liars=tuple(arguments.liar) if arguments.liar else None,
    )
    return 1 if sweep(parse_seeds(arguments.seeds), config) else 0


def parse_seeds(text: str, option: str = "--seeds") -> range:
    """Parses `FIRST:LAST` (LAST excluded) or one number. Raises `UsageError`, also for an empty range."""
    first, _, last = text.partition(":")
    try:
        seeds = range(int(first), int(last or int(first) + 1))
    except ValueError:
        raise UsageError(f"{option} {text!r}: write it like 0:100") from None
    if not seeds or seeds.start < 0:
        raise UsageError(f"{option} {text!r}: from FIRST, 0 or more, to before LAST; none lies between these")
    return seeds


def sweep(seeds: range, config: SimConfig) -> int:
    """Simulates each seed and prints the results; returns how many failed."""
    reports, failures = [], 0
    began = shown = time.perf_counter()
    for seed in seeds:
        try:
            reports.append(run_sim(seed, config))
        except SimFailure as failure:
            failures += 1
            print(f"seed {seed}: {failure}", flush=True)
        if time.perf_counter() - shown > 10:
            shown = time.perf_counter()
            print(f"{seed + 1 - seeds.start} of {len(seeds)} seeds, {failures} failed", flush=True)
    _summarize(reports, failures, time.perf_counter() - began)
    return failures


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m p2psync.sim", description=__doc__)
    parser.add_argument("--seeds", default="0:100", metavar="FIRST:LAST", help="from FIRST to before LAST")
    parser.add_argument("--fault", action="append", choices=sorted(KINDS), help="only these kinds of fault")
    parser.add_argument("--liar", action="append", choices=sorted(LIARS), help="these liars, in every simulation")
    return parser.parse_args()


def _summarize(reports: list[SimReport], failures: int, seconds: float) -> None:
    count = len(reports) + failures
    print(f"{count} seeds in {seconds:.1f} s ({seconds / max(1, count):.3f} s each), {failures} failed")
    if not reports:
        return
    spans = sorted(span for report in reports for span in report.makespans) or [0.0]
    slowest = max(reports, key=lambda report: report.converged_after)
    received = sum(report.received_bytes for report in reports)
    print(
        f"events {sum(r.events for r in reports)}, commits {sum(r.commits for r in reports)}, "
        f"bans {sum(r.bans for r in reports)}; virtual hours {sum(r.seconds for r in reports) / 3600:.1f}"
    )
    print(
        f"makespan p50 {statistics.median(spans):.2f} s, p99 {spans[len(spans) * 99 // 100]:.2f} s; newest version "
        f"everywhere after {slowest.converged_after:.1f} s at most (seed {slowest.seed}); wasted "
        f"{_share(reports, received):.1%} of the received bytes; trainers sent {_copies(reports):.2f} copies"
    )


def _share(reports: list[SimReport], received: int) -> float:
    return sum(report.wasted_bytes for report in reports) / max(1, received)


def _copies(reports: list[SimReport]) -> float:
    return sum(r.trainer_bytes for r in reports) / max(1, sum(r.payload_bytes for r in reports))


if __name__ == "__main__":
    sys.exit(main())
