"""After any damage to the files of an actor, relay or trainer, the right bits return, or one line refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz_damage import Report, run_cases

#: Where files are in memory: a case waits for the disk at each durable write.
RAM = Path("/dev/shm")


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_seeded_damage_is_repaired_or_refused_in_one_line(first: int) -> None:
    report = Report()
    run_cases(range(first, first + 20), report, RAM if RAM.is_dir() else None)
    assert report.cases == 20
    assert report.faults == []
