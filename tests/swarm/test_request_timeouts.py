"""Requests that are overdue, and the endgame: who is asked next, and what a second copy counts as."""

from __future__ import annotations

import pytest
from swarm_parts import CHUNK, CONFIG, Bench, asked

from p2psync.protocol.messages import Cancel
from p2psync.swarm.core import Save

OVERDUE = 1.0


def test_at_the_end_a_chunk_is_asked_of_a_second_peer_and_the_slower_one_is_cancelled() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    assert sorted(asked(bench)["a"]) == [0, 1]
    bench.peer("b", 0, 1, now=1.0)
    assert sorted(asked(bench)["b"]) == [0, 1]
    bench.peer("c", 0, 1, now=1.0)
    assert asked(bench) == {}
    bench.chunk("b", 0, 2.0)
    assert bench.sent(Cancel) == [("a", Cancel(bench.short, [0]))]


def test_there_is_no_endgame_while_something_nobody_was_asked_for_is_missing() -> None:
    bench = Bench(3)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    bench.actions()
    bench.peer("b", 0, 1)
    assert asked(bench) == {}


def test_the_endgame_waits_until_the_first_one_asked_is_overdue() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.peer("b", 0)
    assert asked(bench) == {"a": [0]}
    wake = bench.swarm.next_wake()
    assert CONFIG.endgame_after <= wake < OVERDUE < CONFIG.late_after
    bench.swarm.poll(wake - 0.01)
    assert asked(bench) == {}
    bench.swarm.poll(wake)
    assert asked(bench) == {"b": [0]}


def test_a_second_copy_counts_as_waste_and_is_not_saved_again() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.peer("b", 0)
    bench.chunk("a", 0, 1.0)
    bench.actions()
    bench.chunk("b", 0, 1.1)
    assert bench.done(Save) == []
    assert (bench.swarm.received_bytes, bench.swarm.wasted_bytes) == (2 * CHUNK, CHUNK)


def test_a_late_request_is_cancelled_and_given_to_another_peer() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.actions()
    wake = bench.swarm.next_wake()
    assert wake == pytest.approx(CONFIG.late_after)
    bench.peer("b", 0, now=1.0)
    bench.swarm.poll(1.0)
    bench.actions()
    bench.swarm.poll(CONFIG.late_after)
    actions = bench.actions()
    messages = [(a.peer, a.message) for a in actions if hasattr(a, "message")]
    assert ("a", Cancel(bench.short, [0])) in messages
    assert next(p for p in bench.swarm.peers if p.name == "a").snubbed


def test_a_snubbed_peer_has_a_window_of_one_chunk_and_more_time_until_it_delivers() -> None:
    bench = Bench(8)
    bench.fetch_all()
    bench.peer("a", *range(8))
    assert len(asked(bench)["a"]) == 8
    bench.swarm.poll(CONFIG.late_after)
    (again,) = asked(bench)["a"]
    assert bench.swarm.next_wake() == pytest.approx(3 * CONFIG.late_after)
    bench.chunk("a", again, CONFIG.late_after + 1)
    assert len(asked(bench)["a"]) > 1


def test_a_late_chunk_that_comes_after_all_is_kept_and_its_second_request_cancelled() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    bench.actions()
    bench.swarm.poll(CONFIG.late_after)
    (again,) = asked(bench)["a"]
    bench.chunk("a", again, CONFIG.late_after + 1)
    actions = bench.actions()
    assert any(isinstance(a, Save) and a.index == again for a in actions)
    assert [a.message for a in actions if isinstance(getattr(a, "message", None), Cancel)] == [
        Cancel(bench.short, [again])
    ]


def test_polling_early_finds_nothing_and_sets_no_alarm_in_the_past() -> None:
    bench = Bench(4)
    bench.fetch_all()
    bench.peer("a", *range(4))
    for index in range(4):
        bench.chunk("a", index, 1.0)
    bench.actions()
    bench.swarm.poll(CONFIG.late_after)
    wake = bench.swarm.next_wake()
    assert wake > CONFIG.late_after
