"""How far a fetch is, as it is told."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from p2psync.net.engine_driver import EngineDriver
from p2psync.net.fetch_progress import TELL_EVERY_SECONDS, RunningFetch, held_bytes
from p2psync.observe.events import Event, FetchProgress

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
    fetch = RunningFetch(path, [range(16)], began=100.0, total_bytes=16 * GB, first_bytes=2 * GB)
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
    fetch = RunningFetch([step(b"known", [7])], [[0]], began=0.0, total_bytes=7, first_bytes=0)
    assert fetch.progress(Held([False]), now=20.0).seconds_left is None  # type: ignore[arg-type]


async def test_a_fetch_that_lasts_is_told_to_the_log_and_with_the_lease_until_it_is_over() -> None:
    told: list[Event] = []
    core: Any = SimpleNamespace(follower=SimpleNamespace(waiting_reason=""), membership=SimpleNamespace())
    store: Any = Held([True, False])
    driver = EngineDriver(SimpleNamespace(), core, store, on_event=told.append, on_trouble=lambda line: None)  # type: ignore[arg-type]
    path = [step(b"known", [GB, GB])]
    driver._path, driver._fetch = path, RunningFetch(path, [[0, 1]], began=0.0, total_bytes=2 * GB, first_bytes=0)
    driver.look_at_fetch(TELL_EVERY_SECONDS - 1)
    assert (told, core.membership.why_waiting()) == ([], "")
    driver.look_at_fetch(2 * TELL_EVERY_SECONDS)
    line = "fetching version 3: 50 % of 2.0 GB, 50.0 MB/s, about 20 s left"
    assert [event.line() for event in told] == [line] == [core.membership.why_waiting()]
    core.follower.waiting_reason = "the disk is full"
    assert core.membership.why_waiting() == "the disk is full"
    core.follower.waiting_reason = ""
    await driver.abandon()
    driver.look_at_fetch(3 * TELL_EVERY_SECONDS)
    assert (len(told), core.membership.why_waiting()) == (1, "")
    await driver.stop()
