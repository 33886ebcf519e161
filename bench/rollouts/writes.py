"""Measures the journal: results made durable in batches, against merely appending the same bytes and syncing.

    python -m p2psync.bench.rollouts.writes --place DIR

Both are run in turn, and medians are shown: of processor time a megabyte, and of elapsed time as a ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from p2psync.membership.work import WorkItem
from p2psync.trainer.ledger.journal import Journal
from p2psync.trainer.ledger.records import ItemsPut, LedgerChange, ResultAccepted, ResultsTaken, StepCommitted

WriteSeconds = tuple[float, float]


def journaled(place: Path, size: int, batch: int, batches: int) -> WriteSeconds:
    """Seconds of (processor time, elapsed time) to write so many batches of results through a journal."""
    path = place / "ledger.db"
    journal = Journal(path)
    data = os.urandom(size)
    count = batch * batches
    journal.write([ItemsPut(first=0, items=[WorkItem(item=str(n), version=0, payload=b"") for n in range(count)])])

    def write() -> None:
        for first in range(0, count, batch):
            numbers = range(first, first + batch)
            changes: list[LedgerChange] = [
                ResultAccepted(item=n, order=n, node="n", version=0, tokens=1, result=data) for n in numbers
            ]
            changes += [ResultsTaken(step=0, items=list(numbers)), StepCommitted(step=first)]
            journal.write(changes)

    try:
        return _spent(write)
    finally:
        journal.close()
        for file in place.iterdir():
            file.unlink()


def appended(place: Path, size: int, batch: int, batches: int) -> WriteSeconds:
    """Returns the seconds of `journaled` for one file that is only appended to."""
    data = os.urandom(size)

    def write() -> None:
        with (place / "log").open("wb", buffering=0) as file:
            for _ in range(batches):
                file.write(data * batch)
                os.fsync(file.fileno())

    try:
        return _spent(write)
    finally:
        (place / "log").unlink()


def _spent(call: Callable[[], None]) -> WriteSeconds:
    cpu, began = time.process_time(), time.perf_counter()
    call()
    return time.process_time() - cpu, time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", type=Path, help="a directory on the disk that is meant")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.place) as place:
        print(f"{'results':>20} {'journal':>14} {'append':>14} {'elapsed':>10}")
        for size, batch in ((2_000, 16), (100_000, 16), (100_000, 1), (2_000_000, 4)):
            batches = max(4, 20_000_000 // (size * batch)) if size > 2_000 else 100
            megabytes = size * batch * batches / 1e6
            rounds = [
                (journaled(Path(place), size, batch, batches), appended(Path(place), size, batch, batches))
                for _ in range(args.rounds)
            ]
            journaled_ms = statistics.median(pair[0][0] for pair in rounds) / megabytes * 1e3
            bare = statistics.median(pair[1][0] for pair in rounds) / megabytes * 1e3
            ratio = statistics.median(pair[0][1] / pair[1][1] for pair in rounds)
            name = f"{batch} × {size / 1000:.0f} kB"
            print(f"{name:>20} {journaled_ms:8.2f} ms/MB {bare:8.2f} ms/MB {ratio:9.1f}x")


if __name__ == "__main__":
    main()
