"""Chunks that were to be pushed here and are overdue: when they are requested, and of whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2psync.protocol.messages import Cancel, Chunk, Request
from p2psync.swarm.asking import ENDGAME_HELD, IDLE_AFTER, SPENT_AFTER
from p2psync.swarm.core import Send
from p2psync.swarm.lag import FIRST, LEAST
from p2psync.swarm.transfer import STALL_LEAST
from p2psync.swarm.trees import tag_of
from tests.swarm.swarm_parts import Bench
from tests.swarm.tree_parts import CONFIG, push, relay, relay_plan


def test_pushed_chunks_are_not_requested_before_they_are_overdue() -> None:
    bench = relay(("p", ""))
    bench.peer("x", 0, 1, now=0.0)
    bench.swarm.poll(FIRST - 0.01)
    assert bench.sent(Request) == []


def test_overdue_pushes_are_requested_of_peers_that_hold_them() -> None:
    bench = relay(("p", ""))
    bench.peer("x", 0, 1, now=0.0)
    bench.swarm.poll(FIRST + 0.01)
    assert [(name, sorted(request.chunks)) for name, request in bench.sent(Request)] == [("x", [0, 1])]


def test_pushes_that_come_late_as_a_rule_are_waited_for_longer() -> None:
    bench = relay(("p", ""), chunks=64)
    for index in range(60):
        bench.have("x", *range(index + 1), now=4.0 * index) if index else bench.peer("x", 0, now=0.0)
        push(bench, "p", index, now=4.0 * index + 3.0)
    bench.actions()
    bench.have("x", *range(62), now=300.0)
    bench.swarm.poll(300.0 + LEAST + 0.1)
    assert bench.sent(Request) == []
    bench.swarm.poll(306.0)
    assert bench.sent(Request)


@pytest.mark.parametrize("pushed_first", [False, True])
def test_a_push_that_comes_after_its_request_lengthens_the_next_timeout(pushed_first: bool) -> None:
    bench = Bench(600, config=replace(CONFIG, flight_least=0))
    bench.swarm.follow(relay_plan(("p", "")), 0.0)
    bench.peer("p")
    bench.fetch_all()
    for index in range(200):
        push(bench, "p", index, now=0.0)  # as a rule pushes come at once
    bench.peer("x", 200, now=10.0)
    bench.swarm.poll(10.0 + LEAST + 0.01)
    assert [request.chunks for _, request in bench.sent(Request)] == [[200]]
    if not pushed_first:
        bench.chunk("x", 200, now=11.1)
    push(bench, "p", 200, now=11.9)
    bench.have("x", 200, 201, now=20.0)
    bench.swarm.poll(20.0 + LEAST + 0.5)
    assert bench.sent(Request) == []
    bench.swarm.poll(20.0 + 1.91)
    assert [request.chunks for _, request in bench.sent(Request)] == [[201]]


def test_a_chunk_beyond_the_manifest_does_not_count_as_a_late_push() -> None:
    bench = relay(("p", ""))
    bench.say("p", Chunk(bench.short, 99, b"x", tag_of(1, 0)), 50.0)
    bench.peer("x", 0, now=60.0)
    bench.swarm.poll(60.0 + FIRST + 0.01)
    assert [request.chunks for _, request in bench.sent(Request)] == [[0]]


def test_stalled_chunks_of_a_small_manifest_are_requested_at_once() -> None:
    bench = Bench(8, config=replace(CONFIG, flight_least=1 << 20))
    bench.swarm.follow(relay_plan(("p", ""), ("q", "")), 0.0)
    for name in ("p", "q", "other"):
        bench.peer(name)
    bench.fetch_all()
    for index in range(6):
        push(bench, "p", index, now=1.0 + index / 100)
    bench.have("other", *range(8), now=1.06)
    bench.swarm.poll(1.05 + STALL_LEAST - 0.005)
    assert bench.sent(Request) == []
    bench.swarm.poll(1.06 + STALL_LEAST + 0.005)
    assert [(name, sorted(request.chunks)) for name, request in bench.sent(Request)] == [("other", [6, 7])]


def test_a_small_manifest_that_is_slow_or_hardly_begun_is_not_stalled() -> None:
    for gap, count in ((0.1, 6), (0.01, 3)):
        bench = Bench(8, config=replace(CONFIG, flight_least=1 << 20))
        bench.swarm.follow(relay_plan(("p", "")), 0.0)
        for name in ("p", "other"):
            bench.peer(name)
        bench.fetch_all()
        for index in range(count):
            push(bench, "p", index, now=1.0 + index * gap)
        end = 1.0 + (count - 1) * gap
        bench.have("other", *range(8), now=end)
        bench.swarm.poll(end + 2 * gap + STALL_LEAST)
        assert bench.sent(Request) == []


def test_the_source_is_asked_only_when_it_has_long_told_that_it_holds_it() -> None:
    bench = relay(("p", ""))
    assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
    bench.have("trainer", 0, 1, now=0.0)
    bench.swarm.poll(FIRST + 0.01)
    assert bench.sent(Request) == []
    bench.swarm.poll(FIRST + 5.0)
    assert [name for name, _ in bench.sent(Request)] == ["trainer"]


def test_once_the_source_has_put_all_in_near_peers_are_asked_for_what_they_have_got() -> None:
    bench = relay(("p", ""))
    bench.peer("near", now=0.0, near=True)
    assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
    bench.have("near", 0, 1, now=1.0)
    bench.swarm.poll(1.0 + ENDGAME_HELD + 0.05)
    assert bench.sent(Request) == []
    bench.have("trainer", *range(8), now=1.4)
    bench.swarm.poll(1.4 + ENDGAME_HELD)
    assert [(name, sorted(request.chunks)) for name, request in bench.sent(Request)] == [("near", [0, 1])]


def test_once_the_source_has_put_all_in_a_parent_that_pushes_nothing_more_is_asked_for_what_others_owe() -> None:
    bench = relay(("p", ""), ("slow", ""))
    bench.peer("stranger")
    assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
    push(bench, "p", 7, now=1.0)
    for name in ("p", "stranger"):
        bench.have(name, 0, 1, 7, now=1.0)
    bench.have("trainer", *range(8), now=1.0)
    bench.actions()
    bench.swarm.poll(1.0 + IDLE_AFTER - 0.05)
    assert bench.sent(Request) == []
    bench.swarm.poll(1.0 + IDLE_AFTER + 0.05)
    assert [(name, sorted(request.chunks)) for name, request in bench.sent(Request)] == [("p", [0, 1])]


def test_a_parent_who_holds_all_is_asked_for_what_others_owe_soon_after_its_last_push() -> None:
    bench = relay(("p", ""), ("slow", ""))
    assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
    push(bench, "p", 7, now=1.0)
    bench.have("p", *range(8), now=1.0)
    bench.have("trainer", *range(8), now=1.0)
    bench.actions()
    bench.swarm.poll(1.0 + SPENT_AFTER - 0.05)
    assert bench.sent(Request) == []
    bench.swarm.poll(1.0 + max(SPENT_AFTER, ENDGAME_HELD) + 0.05)
    assert [name for name, _ in bench.sent(Request)] == ["p"]


def test_parents_need_not_push_what_is_asked_of_one_who_has_answered_before() -> None:
    bench = relay(("p", ""), ("slow", ""), ("empty", ""), chunks=40)
    assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
    push(bench, "p", 39, now=1.0)
    bench.have("slow", *range(20), now=1.0)
    bench.have("p", *range(40), now=1.0)
    bench.have("trainer", *range(40), now=1.0)
    bench.actions()
    bench.swarm.poll(2.0)
    for index in [index for name, request in bench.sent(Request) if name == "p" for index in request.chunks]:
        bench.chunk("p", index, 2.05)
    messages = [(action.peer, action.message) for action in bench.actions() if isinstance(action, Send)]
    asked = {index for name, m in messages if isinstance(m, Request) and name == "p" for index in m.chunks}
    called_off = {(name, index) for name, m in messages if isinstance(m, Cancel) for index in m.chunks}
    assert asked & set(range(20))
    assert called_off == {("slow", index) for index in asked & set(range(20))}


def test_a_push_is_not_cancelled_for_a_request_to_a_peer_that_never_answered() -> None:
    bench = relay(("p", ""), ("slow", ""))
    assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
    push(bench, "p", 7, now=1.0)
    bench.have("slow", 0, 1, now=1.0)
    bench.have("p", *range(8), now=1.0)
    bench.have("trainer", *range(8), now=1.0)
    bench.actions()
    bench.swarm.poll(2.0)
    messages = [action.message for action in bench.actions() if isinstance(action, Send)]
    assert any(isinstance(message, Request) for message in messages)
    assert not any(isinstance(message, Cancel) for message in messages)
