"""How far a fetch is, as it is told."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from p2psync.net.fetch_progress import Fetch, held_bytes
from p2psync.observe.events import FetchProgress

GB = 10**9


@dataclass
class Held:
    """A store of one pack."""

    have: list[bool]

    def get(self, id: bytes) -> Any:
        return self if id == b"known" else None


def step(id: bytes, sizes: list[int]) -> Any:
    return SimpleNamespace(id=id, manifest=SimpleNamespace(version=3, sizes=sizes))


def test_only_wanted_chunks_that_are_held_count() -> None:
    path = [step(b"unknown", [5]), step(b"known", [1, 2, 4, 8])]
    assert held_bytes(Held([True, True, False, True]), path, [[0], [0, 2, 3]]) == 9  # type: ignore[arg-type]


def test_rate_and_time_left_are_of_what_came_since_it_began() -> None:
    path = [step(b"known", [GB] * 16)]
    fetch = Fetch(path, [range(16)], began=100.0, total_bytes=16 * GB, first_bytes=2 * GB)
    event = fetch.progress(Held([True] * 6 + [False] * 10), now=140.0)  # type: ignore[arg-type]
    assert event == FetchProgress(3, 6 * GB, 16 * GB, bytes_per_second=GB / 10, seconds_left=100.0)
    assert event.line() == "fetching version 3: 37 % of 16.0 GB, 100.0 MB/s, about 2 min left"


@pytest.mark.parametrize(
    ("left", "says"),
    [(None, "nothing comes"), (89.0, "about 89 s left"), (900.0, "about 15 min left"), (7200.0, "2.0 h")],
)
def test_the_time_left_is_told_in_a_fitting_unit(left: float | None, says: str) -> None:
    assert says in FetchProgress(1, 0, 10**7, 0.0, left).line()


def test_a_fetch_to_which_nothing_comes_has_no_time_left() -> None:
    fetch = Fetch([step(b"known", [7])], [[0]], began=0.0, total_bytes=7, first_bytes=0)
    assert fetch.progress(Held([False]), now=20.0).seconds_left is None  # type: ignore[arg-type]
