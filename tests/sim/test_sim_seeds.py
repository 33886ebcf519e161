"""Many seeds: every fault at random, every invariant, and the same trace for the same seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from p2psync.sim.run import run_sim

BATCHES, PER_BATCH = 10, 16


@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_invariant_breaks_under_random_faults(batch: int) -> None:
    for seed in range(batch * PER_BATCH, (batch + 1) * PER_BATCH):
        report = run_sim(seed)
        assert report.commits > 0


def test_a_seed_replays_to_the_identical_trace() -> None:
    first, second = run_sim(7), run_sim(7)
    assert first == second
    assert first.trace != run_sim(8).trace


def test_a_seed_replays_in_another_process_with_another_hash_seed() -> None:
    code = "from p2psync.sim.run import run_sim; print(run_sim(11).trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert traces == {run_sim(11).trace + "\n"}
