"""Peers that owe chunks and do not send them: what is given up, and what is requested of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2psync.protocol.messages import Cancel, Have
from p2psync.swarm.exchange.actions import Save
from tests.exchange.exchange_parts import CONFIG, Bench, asked
from tests.swarm.swarm_parts import CHUNK

#: A chunk that was requested of a peer which never sent anything is given up after so long (seconds).
TIMEOUT = CONFIG.request_timeout


def poll_until(bench: Bench, end: float, start: float = 0.0) -> None:
    """Wakes the node at the start, and whenever it is due."""
    bench.swarm.poll(start)
    while (due := bench.swarm.next_wake()) <= end:
        bench.swarm.poll(due)


def test_a_chunk_that_a_silent_peer_owes_is_requested_of_another_too() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.peer("b", 0)
    assert asked(bench) == {"a": [0]}
    poll_until(bench, 3.0)
    actions = bench.actions()
    messages = [(action.peer, type(action.message).__name__) for action in actions if hasattr(action, "message")]
    assert messages == [("b", "Request")]


def test_a_chunk_is_left_with_a_peer_that_is_silent_for_a_moment() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.peer("b", 0)
    bench.actions()
    poll_until(bench, CONFIG.silent_after)
    assert asked(bench) == {}


def test_a_second_copy_counts_as_waste_and_is_not_saved_again() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.peer("b", 0)
    poll_until(bench, 3.0)
    bench.chunk("a", 0, 3.0)
    bench.actions()
    bench.chunk("b", 0, 3.1)
    assert bench.done(Save) == []
    statistics = bench.swarm.statistics
    assert (statistics.received_bytes, statistics.wasted_bytes) == (2 * CHUNK, CHUNK)


def test_a_chunk_that_comes_late_after_all_is_kept_and_its_second_request_cancelled() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.peer("b", 0)
    poll_until(bench, 3.0)
    bench.actions()
    bench.chunk("a", 0, 3.0)
    assert bench.sent(Cancel) == [("b", Cancel(bench.short, [0]))]


def test_a_request_that_timed_out_is_cancelled_and_repeated() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.actions()
    poll_until(bench, TIMEOUT - 0.1)
    assert bench.actions() == []
    poll_until(bench, TIMEOUT + 0.1)
    messages = [type(action.message).__name__ for action in bench.actions() if hasattr(action, "message")]
    assert messages == ["Cancel", "Request"]


def test_a_snubbed_peer_owes_one_chunk_at_a_time_and_has_twice_as_long_until_it_delivers() -> None:
    bench = Bench(8)
    bench.fetch_all()
    bench.peer("a", *range(8))
    assert len(asked(bench)["a"]) == 8
    poll_until(bench, TIMEOUT + 0.1)
    (again,) = asked(bench)["a"]
    poll_until(bench, 3 * CONFIG.request_timeout - 0.1)
    assert asked(bench) == {}
    bench.chunk("a", again, 3 * CONFIG.request_timeout - 0.1)
    assert len(asked(bench)["a"]) > 1


def steady(rate: float, *, same_region: bool = False) -> tuple[Bench, list[int]]:
    """A node to which a peer has sent ten of forty chunks, so many a second; and the order of those that it owes."""
    bench = Bench(40, config=replace(CONFIG, window_least=40 * CHUNK))
    bench.fetch_all()
    bench.peer("slow", *range(40), same_region=same_region)
    order = asked(bench)["slow"]
    for turn in range(10):
        bench.chunk("slow", order[turn], (1 + turn) / rate)
        bench.swarm.poll((1 + turn) / rate)
    bench.actions()
    return bench, order[10:]


def test_the_end_of_a_long_queue_is_requested_of_a_node_of_the_region_that_brings_it_sooner() -> None:
    bench, owed = steady(10.0)
    bench.peer("fast", *range(40), now=1.0, same_region=True)
    bench.swarm.poll(1.05)
    moved = asked(bench)["fast"]
    assert moved == owed[: -len(moved) - 1 : -1], "the last ones first"
    assert 20 < len(moved) < 30, "the first ones are about to come"


def test_the_end_of_a_long_queue_is_not_requested_of_a_peer_whose_uplink_is_busy() -> None:
    bench, _ = steady(10.0)
    bench.peer("busy", now=1.0, same_region=True)
    bench.say("busy", Have(bench.short, list(range(40)), backlog=60.0), 1.0)
    bench.swarm.poll(1.05)
    assert asked(bench) == {}


@pytest.mark.parametrize("far", [False, True])
def test_what_a_node_of_the_region_owes_is_requested_of_another_of_the_region_only(far: bool) -> None:
    bench, _ = steady(10.0, same_region=True)
    bench.peer("other", *range(40), now=1.0, same_region=not far)
    bench.swarm.poll(1.06)
    assert ("other" in asked(bench)) is not far


@pytest.mark.parametrize("polls", [1, 3])
def test_polling_early_finds_nothing_and_sets_no_wake_up_in_the_past(polls: int) -> None:
    bench = Bench(4)
    bench.fetch_all()
    bench.peer("a", *range(4))
    for index in range(3):
        bench.chunk("a", index, 1.0)
    bench.actions()
    for _ in range(polls):
        bench.swarm.poll(1.01)
    assert bench.swarm.next_wake() > 1.01
    assert bench.actions() != []
