"""Nodes of one region that pull what pushes owe: each its part from afar, the rest from each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2psync.protocol.messages import Request
from p2psync.swarm.asking import ENDGAME_HELD, OTHERS_PART, STRANGERS
from p2psync.swarm.lag import FIRST, LEAST
from tests.swarm.tree_parts import CONFIG, push, relay


def test_nodes_of_a_region_take_different_chunks_from_far_parents() -> None:
    first = []
    for me, mate in (("a", "b"), ("b", "a")):
        bench = relay(("p", ""), ("slow", ""), node=me)
        assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
        bench.peer(mate, near=True)
        push(bench, "p", 7, now=1.0)
        bench.have(mate, 7, now=1.0)
        bench.have("p", *range(8), now=1.0)
        bench.have("trainer", *range(8), now=1.0)
        bench.actions()
        bench.swarm.poll(2.0)
        first.append(set(bench.sent(Request)[0][1].chunks))
    assert first[0]
    assert first[1]
    assert not first[0] & first[1]


def test_overdue_chunks_are_fetched_into_a_region_by_one_node_first() -> None:
    soon, later = [], []
    for me, mate in (("a", "b"), ("b", "a")):
        bench = relay(("p", ""), ("slow", ""), node=me)
        bench.peer(mate, near=True)
        push(bench, "p", 7, now=1.0)
        bench.have(mate, 7, now=1.0)
        bench.have("p", *range(8), now=1.0)
        bench.actions()
        wakes: list[set[int]] = []
        while len(wakes) < 2:
            due = bench.swarm.next_wake()
            assert due is not None
            bench.swarm.poll(due)
            if requests := bench.sent(Request):
                wakes.append({index for name, request in requests if name == "p" for index in request.chunks})
        soon.append(wakes[0])
        later.append(wakes[1])
    assert not soon[0] & soon[1]
    assert soon[0] | soon[1] == set(range(7)), "the trainer says nothing: these chunks are still being pushed"
    assert later[0] <= soon[1]
    assert later[1] <= soon[0]


def test_a_node_with_its_own_part_requests_the_last_chunks_of_its_region_peers() -> None:
    order: list[list[int]] = []
    for me, mate in (("a", "b"), ("b", "a")):
        bench = relay(("p", ""), node=me, chunks=32, config=replace(CONFIG, window_least=1, flight_least=0))
        assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
        bench.peer(mate, near=True)
        push(bench, "p", 31, now=1.0)
        bench.have(mate, 31, now=1.0)
        for index in range(31):
            bench.have("p", *range(index + 1), 31, now=1.0 + index / 1000)
        bench.have("trainer", *range(32), now=1.4)
        bench.actions()
        order.append([])
        now = 1.4
        while bench.swarm.progress(bench.id)[0] < 32:
            now = max(now, bench.swarm.next_wake())
            bench.swarm.poll(now)
            asked = [index for name, request in bench.sent(Request) if name == "p" for index in request.chunks]
            order[-1] += asked
            for index in asked:
                bench.chunk("p", index, now)
        assert now < 1.4 + ENDGAME_HELD + 1.0, "neither waits for what the other will not fetch"
    a, b = order
    assert all(abs(a.index(chunk) + b.index(chunk) - 30) <= 4 for chunk in range(31)), "they meet, wherever that is"


def test_chunks_that_a_region_peer_never_fetches_are_pulled_after_its_timeout() -> None:
    bench = relay(("p", ""), node="a", config=replace(CONFIG, flight_least=0))
    bench.peer("b", near=True)
    push(bench, "p", 7, now=1.0)
    bench.have("b", 7, now=1.0)
    bench.have("p", *range(8), now=1.0)
    bench.actions()
    now = 1.0
    while bench.swarm.progress(bench.id)[0] < 8:
        due = bench.swarm.next_wake()
        assert due is not None, "it sleeps, and the mate does, too"
        now = max(now, due)
        bench.swarm.poll(now)
        for name, request in bench.sent(Request):
            for index in request.chunks:
                bench.chunk(name, index, now)
    assert now < 1.0 + OTHERS_PART * FIRST + 1.0


def test_without_a_connected_parent_every_peer_may_be_requested() -> None:
    bench = relay(("p", ""), ("other", ""))
    assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
    bench.peer("stranger")
    push(bench, "p", 7, now=1.0)
    bench.have("stranger", *range(8), now=1.0)
    bench.have("trainer", *range(8), now=1.0)
    bench.swarm.peer_down("p", 1.1)
    bench.swarm.peer_down("other", 1.1)
    bench.actions()
    bench.swarm.poll(1.05 + FIRST)
    assert [name for name, _ in bench.sent(Request)] == ["stranger"]


@pytest.mark.parametrize(("every", "asked"), [(0.25, True), (0.05, False)])
def test_a_node_that_would_wait_for_seconds_requests_the_last_chunks_of_far_peers(every: float, asked: bool) -> None:
    bench = relay(("p", ""), chunks=64)
    bench.peer("stranger")
    assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
    now = 1.0
    for index in range(26):
        now += every
        push(bench, "p", index, now=now)
    bench.have("stranger", *range(64), now=now)
    bench.have("trainer", *range(64), now=now)
    bench.actions()
    bench.swarm.poll(now + ENDGAME_HELD + 0.05)
    assert {name for name, _ in bench.sent(Request)} == ({"stranger", "trainer"} if asked else set())


def test_the_time_left_is_estimated_from_recent_arrivals_after_a_link_fell() -> None:
    bench = relay(("p", ""), chunks=870, config=replace(CONFIG, flight_least=0))
    bench.peer("stranger")
    assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
    now = 1.0
    for index in range(770):
        now += 0.005 if index < 700 else 0.2
        push(bench, "p", index, now=now)
    bench.have("stranger", *range(870), now=now)
    bench.have("trainer", *range(870), now=now)
    bench.actions()
    bench.swarm.poll(now + ENDGAME_HELD + 0.05)
    assert "stranger" in {name for name, _ in bench.sent(Request)}


def test_far_peers_who_are_no_parents_are_asked_last_once_everything_is_on_its_way() -> None:
    bench = relay(("p", ""), ("other", ""))
    assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
    bench.peer("stranger")
    push(bench, "p", 7, now=1.0)
    bench.have("stranger", *range(8), now=1.0)
    bench.have("other", 0, 1, 2, 3, now=1.0)
    bench.have("trainer", *range(8), now=1.0)
    bench.actions()
    asked: dict[tuple[str, int], float] = {}
    while ("stranger", 4) not in asked:
        now = bench.swarm.next_wake()
        assert now is not None
        bench.swarm.poll(now)
        for name, request in bench.sent(Request):
            asked |= {(name, index): now - 1.0 for index in request.chunks if (name, index) not in asked}
    assert asked["other", 0] < 1.5 * ENDGAME_HELD
    assert asked["stranger", 4] >= STRANGERS * LEAST
