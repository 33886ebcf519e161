"""Compares laws of exchange over drawn networks in virtual time.

    python -m p2psync.bench.laws --draw 0:100 --laws trees,full --error 0,0.4

Ratios are to the least time that any broadcast could take; the second payload's, whose connections know their paths,
then the first's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

from p2psync.bench.laws.law import LAWS, Law
from p2psync.bench.laws.race import Outcome, Race
from p2psync.topology.bound import least_makespan
from p2psync.topology.network import from_topology
from p2psync.topology.places import draw_places

PAYLOAD_BYTES, CHUNK_BYTES = 64 << 20, 128 << 10


def ratios(seed: int, law: Law) -> tuple[float, float, float]:
    """Returns the first and second payload's ratio to the bound on one drawn network, and the second's copies."""
    network = from_topology(draw_places(seed))
    least = least_makespan(network, PAYLOAD_BYTES)
    race = Race(network, law, payload_bytes=PAYLOAD_BYTES, chunk_bytes=CHUNK_BYTES, seed=seed)
    first, second = race.run(), race.run()
    return first.seconds / least, second.seconds / least, second.copies


def summary(figures: list[float]) -> str:
    """Returns median, 90th percentile and worst."""
    ordered = sorted(figures)
    p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return f"{statistics.median(ordered):6.2f} {p90:6.2f} {ordered[-1]:6.2f}"


def main() -> None:
    """Print a line for each law and error."""
    parser = argparse.ArgumentParser(description="Compares laws of exchange over drawn networks in virtual time.")
    parser.add_argument("--draw", default="0:100", help="seeds of networks, FIRST:END")
    parser.add_argument("--laws", default=",".join(LAWS), help=f"of {', '.join(LAWS)}")
    parser.add_argument("--error", default="0", help="errors of the plan's figures (standard deviations of logarithms)")
    parser.add_argument("--congestion", default="bbr", choices=["bbr", "cubic"])
    parser.add_argument("--each", action="store_true", help="the second payload's ratio of each network, too")
    options = parser.parse_args()
    first, end = (int(part) for part in options.draw.split(":"))
    print(f"{'law':18} {'error':>5}  {'median    p90  worst':>20}  {'first payload':>20}  copies  seconds", flush=True)
    for error in (float(part) for part in options.error.split(",")):
        for name in options.laws.split(","):
            law = replace(LAWS[name], error=error, congestion=options.congestion)
            began = time.process_time()
            found = [ratios(seed, law) for seed in range(first, end)]
            seconds = time.process_time() - began
            cold, warm = ([figure[k] for figure in found] for k in (0, 1))
            copies = statistics.mean(figure[2] for figure in found)
            both = f"{summary(warm)}  {summary(cold)}"
            print(f"{name:18} {error:5.2f}  {both}  {copies:6.3f}  {seconds:7.0f}", flush=True)
            if options.each:
                each = zip(range(first, end), warm, strict=True)
                print("  " + " ".join(f"{seed}:{ratio:.2f}" for seed, ratio in each), flush=True)


__all__ = ["Outcome", "main", "ratios"]

if __name__ == "__main__":
    main()
