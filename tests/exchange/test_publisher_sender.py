"""Which chunk a publisher sends down which tree, and when it says what it holds."""

from __future__ import annotations

import pytest

from p2psync.net.stream import MAX_BACKLOG
from p2psync.protocol.messages import Bitfield, Have, Subscribe
from p2psync.swarm.exchange.actions import Send
from p2psync.swarm.exchange.config import ExchangeConfig
from tests.exchange.exchange_parts import Bench
from tests.exchange.exchange_trees import CONFIG, root, root_plan
from tests.swarm.swarm_parts import CHUNK, flags


def test_a_publisher_pushes_each_chunk_to_one_first_hop_as_far_as_there_is_room() -> None:
    bench = root("a", "b", "c")
    bench.seed_all()
    served = bench.served()
    assert sorted(index for _, index in served) == [0, 1, 2, 3, 4, 5]
    assert sorted(name for name, _ in served) == ["a", "a", "b", "b", "c", "c"]


def test_publisher_uses_freed_room_at_once_for_the_next_chunk() -> None:
    bench = root("a", "b")
    bench.seed_all()
    bench.actions()
    bench.swarm.flushed("b", CHUNK, 0.1)
    assert [name for name, _ in bench.served()] == ["b"]


def test_a_tree_of_two_children_does_not_wait_until_both_have_nothing_left_to_do() -> None:
    bench = Bench(40, config=ExchangeConfig(flush_limit=2 * CHUNK, push_room=6 * CHUNK))
    for name in "ab":
        bench.peer(name)
        bench.say(name, Subscribe(bench.short, True))
    bench.swarm.follow(root_plan("a+b"), 0.0)
    bench.seed_all()
    assert [index for name, index in bench.served() if name == "a"] == [0, 1]
    bench.swarm.flushed("a", 2 * CHUNK, 0.1)
    assert bench.served() == [("a", 2), ("a", 3)], "b has sent nothing yet"


@pytest.mark.parametrize(("connections", "chunks"), [(1, 2), (6, 6), (32, 10)])
def test_a_peer_is_handed_a_chunk_for_each_connection_up_to_a_limit(connections: int, chunks: int) -> None:
    bench = Bench(40, config=ExchangeConfig(flush_limit=2 * CHUNK, push_room=1, flush_most=10 * CHUNK))
    bench.peer("a")
    bench.say("a", Subscribe(bench.short, True))
    bench.swarm.follow(root_plan("a"), 0.0)
    bench.swarm.set_connections("a", connections)
    bench.seed_all()
    assert [index for _, index in bench.served()] == list(range(chunks))
    bench.swarm.flushed("a", CHUNK, 0.1)
    assert bench.served() == [("a", chunks)]


def test_bytes_handed_to_a_connection_stay_below_the_backlog_that_ends_it() -> None:
    assert ExchangeConfig().flush_most < MAX_BACKLOG


def test_trees_get_chunks_by_their_shares() -> None:
    bench = root("a", "b", chunks=400, shares=(3, 1))
    bench.seed_all()
    given = {"a": 0, "b": 0}
    for turn in range(1600):  # as much room is made at each as was planned
        for name, _ in bench.served():
            given[name] += 1
        bench.swarm.flushed("b" if turn % 4 == 3 else "a", CHUNK, 0.1)
    assert 285 <= given["a"] <= 315
    assert given["a"] + given["b"] == 400


def test_a_tree_that_is_faster_than_was_planned_gets_a_fifth_more_than_its_share_at_most() -> None:
    bench = root("a", "b", chunks=400, shares=(3, 1))
    bench.seed_all()
    given = {"a": 0, "b": 0}
    for _ in range(400):  # both make room at once
        for name, _ in bench.served():
            given[name] += 1
            bench.swarm.flushed(name, CHUNK, 0.0)
    assert 110 <= given["b"] <= 121
    assert given["a"] + given["b"] == 400


def test_a_tree_of_two_children_gives_each_chunk_to_both() -> None:
    bench = root("a+b")
    bench.seed_all()
    assert bench.served() == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_a_first_hop_without_room_holds_the_others_back_only_for_a_moment() -> None:
    bench = root("a", "b", chunks=40)
    bench.seed_all()
    count = len(bench.served())
    now = 0.0
    while now < CONFIG.stalled_after + 0.2:
        now += 0.05
        bench.swarm.flushed("b", CHUNK, now)
        bench.swarm.poll(now)
        count += sum(name == "b" for name, _ in bench.served())
    assert count >= 8


def test_a_publisher_says_nothing_of_what_it_holds_until_others_hold_it_all() -> None:
    bench = root("a", chunks=2)
    bench.peer("stranger")
    bench.actions()
    bench.seed_all()
    assert bench.sent(Bitfield) == []
    bench.say("a", Have(bench.short, [0, 1]), 0.1)
    assert {name for name, _ in bench.sent(Bitfield)} == {"a", "stranger"}


def test_a_publisher_whom_nobody_asks_to_push_tells_what_it_holds_after_a_moment() -> None:
    bench = Bench(config=CONFIG)
    bench.peer("a")
    bench.swarm.follow(root_plan("a"), 0.0)
    bench.seed_all()
    assert bench.sent(Bitfield) == []
    bench.swarm.poll(CONFIG.announce_after + 0.01)
    assert [name for name, _ in bench.sent(Bitfield)] == ["a"]


def test_a_publisher_does_not_keep_silent_for_one_who_says_over_and_over_to_hold_what_nobody_was_given() -> None:
    bench = root("a")
    bench.peer("liar")
    bench.seed_all()
    bench.actions()
    last = max(bench.swarm._transfers[bench.short].tags)
    claims = [Bitfield(bench.short, flags(8, *range(8))), Have(bench.short, list(range(last + 1, 8)))]
    for turn in range(12):
        bench.say("liar", claims[turn % 2], turn * CONFIG.announce_after / 4)
        bench.swarm.poll(turn * CONFIG.announce_after / 4)
    told = [a for a in bench.actions() if isinstance(a, Send) and a.peer == "a" and isinstance(a.message, Bitfield)]
    assert told


def test_a_chunk_that_nobody_holds_after_long_goes_down_another_tree() -> None:
    bench = root("a", "b", chunks=2)
    bench.seed_all()
    first = {index: name for name, index in bench.served()}
    lost = next(index for index, name in first.items() if name == "a")
    kept = next(index for index, name in first.items() if name == "b")
    bench.swarm.flushed("b", CHUNK, 0.1)
    bench.say("b", Have(bench.short, [kept]), 0.1)
    bench.actions()
    bench.swarm.poll(CONFIG.resend_after + 0.2)
    assert ("b", lost) in bench.served()


def test_a_first_hop_that_is_only_slow_is_not_pushed_the_same_chunk_twice_where_there_is_no_other() -> None:
    bench = root("a", "a", chunks=2)
    bench.seed_all()
    assert len(bench.served()) == 2
    bench.swarm.flushed("a", 2 * CHUNK, 0.1)
    for turn in range(1, 4):
        bench.swarm.poll(turn * (CONFIG.resend_after + 0.2))
    assert bench.served() == []
    assert 3 * (CONFIG.resend_after + 0.2) + 0.1 < bench.swarm.next_wake() < float("inf")


def test_chunks_that_only_a_vanished_child_had_go_down_another_tree_at_once() -> None:
    bench = root("a", "b", chunks=2)
    bench.seed_all()
    lost = next(index for name, index in bench.served() if name == "a")
    bench.swarm.peer_down("a", 0.1)
    assert bench.served() == [("b", lost)]


def test_nothing_is_pushed_to_one_who_does_not_want_it_or_has_it_or_wants_it_no_more() -> None:
    bench = root("a", "b", "c", chunks=6)
    bench.say("a", Subscribe(bench.short, False))
    bench.have("b", 0, 1, 2, 3, 4, 5)
    bench.seed_all()
    assert {name for name, _ in bench.served()} == {"c"}


def test_a_subscription_that_comes_after_the_chunks_is_served_too() -> None:
    bench = Bench(2, config=CONFIG)
    bench.peer("a")
    bench.swarm.follow(root_plan("a"), 0.0)
    bench.seed_all()
    assert bench.served() == []
    bench.say("a", Subscribe(bench.short, True), 0.2)
    assert bench.served() == [("a", 0), ("a", 1)]
