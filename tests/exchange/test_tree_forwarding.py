"""Chunks that are forwarded along the plan's trees: who asks whom for pushes, and who passes on what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from p2psync.protocol.messages import Cancel, Chunk, DontHave, Have, Request, Subscribe
from p2psync.swarm.exchange.actions import Ban
from p2psync.swarm.exchange.trees import tag_of
from tests.exchange.exchange_parts import Bench
from tests.exchange.exchange_trees import CONFIG, push, relay, relay_plan, root, root_plan
from tests.swarm.swarm_parts import CHUNK


def test_a_node_asks_its_parents_and_nobody_else_to_push() -> None:
    bench = relay(("p", "c"), ("q", ""))
    assert [name for name, _ in bench.sent(Subscribe)] == ["p", "q"]


def test_a_node_that_stops_fetching_ends_its_subscriptions() -> None:
    bench = relay(("p", ""))
    bench.actions()
    bench.swarm.stop_fetch(bench.id)
    assert [(name, message.wanted) for name, message in bench.sent(Subscribe)] == [("p", False)]


def test_a_parent_that_comes_later_is_asked_then_and_one_of_a_new_plan_too() -> None:
    bench = relay(("p", ""))
    bench.swarm.peer_down("p", 0.1)
    bench.actions()
    bench.peer("p", now=0.2)
    bench.peer("new", now=0.2)
    assert [name for name, _ in bench.sent(Subscribe)] == ["p"]
    bench.swarm.follow(relay_plan(("new", ""), revision=2), 0.3)
    assert [name for name, _ in bench.sent(Subscribe)] == ["new"]


def test_a_chunk_is_passed_on_to_the_children_of_its_tree_once_it_is_verified() -> None:
    bench = relay(("p", "c+d"), ("q", "e"))
    for name in "cde":
        bench.say(name, Subscribe(bench.short, True))
    push(bench, "p", 3)
    assert bench.served() == [("c", 3), ("d", 3)]
    push(bench, "q", 4, tree=1)
    assert bench.served() == [("e", 4)]
    bench.say("p", Chunk(bench.short, 5, b"wrong", tag_of(1, 0)), 0.1)
    done = bench.actions()
    assert any(isinstance(action, Ban) for action in done)
    assert not [action for action in done if getattr(action, "index", None) == 5]


def test_a_chunk_goes_on_by_the_plan_under_which_it_was_sent_and_nowhere_by_an_unknown_one() -> None:
    bench = relay(("p", "c"))
    bench.peer("d")
    for name in "cd":
        bench.say(name, Subscribe(bench.short, True))
    bench.swarm.follow(relay_plan(("p", "d"), revision=2), 0.1)
    push(bench, "p", 0, revision=1)
    assert bench.served() == [("c", 0)]
    push(bench, "p", 1, revision=2)
    assert bench.served() == [("d", 1)]
    push(bench, "p", 2, revision=3)
    push(bench, "p", 3, revision=2, tree=7)
    assert bench.served() == []


def test_a_child_that_comes_later_gets_what_went_down_its_trees_before() -> None:
    bench = relay(("p", "c"), ("q", ""))
    push(bench, "p", 0)
    push(bench, "q", 1, tree=1)
    bench.actions()
    bench.say("c", Subscribe(bench.short, True), 0.2)
    assert bench.served() == [("c", 0)]


def test_a_child_that_got_it_elsewhere_is_not_pushed_what_waits_for_it() -> None:
    bench = relay(("p", "c"))
    bench.say("c", Subscribe(bench.short, True))
    for index in range(4):
        push(bench, "p", index)
    assert bench.served() == [("c", 0), ("c", 1)]
    bench.say("c", Have(bench.short, [2]), 0.1)
    bench.swarm.flushed("c", CHUNK, 0.1)
    assert bench.served() == [("c", 3)]


def test_of_what_an_uplink_is_short_of_no_child_waits_longer_than_another() -> None:
    # Four times what the uplink sends, nine times as much of it for one child as for the other.
    chunks = 8000
    config = replace(CONFIG, flush_limit=1 << 30)
    bench = relay(("p", "c"), ("q", "d"), chunks=chunks, config=config)
    for name in "cd":
        bench.say(name, Subscribe(bench.short, True))
    bench.swarm.set_upload_rate(CHUNK / 0.01)
    waited: dict[str, list[float]] = {"c": [], "d": []}
    came = {}
    for index in range(chunks):
        now = came[index] = index * 0.0025
        tree = int(index % 10 == 0)
        push(bench, "pq"[tree], index, tree=tree, now=now)
        bench.swarm.poll(now)
        for name, served in bench.served():
            waited[name].append(now - came[served])
    longest = {name: max(waits) for name, waits in waited.items()}
    assert longest["c"] > 1, "there was too much"
    assert longest["d"] == pytest.approx(longest["c"], rel=0.2), "in turns, all of it would wait for c"


def test_endless_requests_take_turns_with_pushes() -> None:
    chunks = 6000
    bench = relay(("p", "c+e"), chunks=chunks, config=replace(CONFIG, flush_limit=1 << 30))
    bench.swarm.set_upload_rate(CHUNK / 0.01)
    for index in range(chunks):
        push(bench, "p", index)
    for start in range(0, 2000, 500):
        bench.say("e", Request(bench.short, list(range(start, start + 500))))
    bench.say("c", Subscribe(bench.short, True))
    bench.served()
    bench.swarm.poll(20.0)
    names = [name for name, _ in bench.served()]
    assert len(names) > 100, "as many as the uplink has sent by then"
    assert abs(names.count("c") - names.count("e")) <= 1


def test_a_waiting_push_that_is_requested_leaves_once_and_first() -> None:
    bench = relay(("p", "c"))
    bench.say("c", Subscribe(bench.short, True))
    for index in range(5):
        push(bench, "p", index)
    assert bench.served() == [("c", 0), ("c", 1)]
    bench.say("c", Request(bench.short, [4]), 0.1)
    order = []
    for _ in range(4):
        bench.swarm.flushed("c", CHUNK, 0.2)
        order += [index for _, index in bench.served()]
    assert order == [4, 2, 3]


def test_a_push_is_repeated_for_a_child_that_lost_the_chunk() -> None:
    bench = relay(("p", "c"))
    bench.say("c", Subscribe(bench.short, True))
    push(bench, "p", 0)
    assert bench.served() == [("c", 0)]
    bench.swarm.flushed("c", CHUNK, 0.1)
    bench.say("c", Request(bench.short, [0]), 0.1)
    assert bench.served() == [("c", 0)]


def test_a_push_that_is_called_off_does_not_go_out() -> None:
    bench = relay(("p", "c"))
    bench.say("c", Subscribe(bench.short, True))
    for index in range(4):
        push(bench, "p", index)
    bench.actions()
    bench.say("c", Cancel(bench.short, [2]), 0.1)
    bench.swarm.flushed("c", 2 * CHUNK, 0.1)
    assert bench.served() == [("c", 3)]


def test_without_any_parent_at_hand_everything_is_pulled_at_once() -> None:
    bench = Bench(config=CONFIG)
    bench.swarm.follow(relay_plan(("p", "")), 0.0)
    bench.peer("x", 0, 1)
    bench.fetch_all()
    assert [name for name, _ in bench.sent(Request)] == ["x"]


def test_a_part_of_a_manifest_is_pulled_not_pushed() -> None:
    bench = Bench(config=CONFIG)
    bench.swarm.follow(relay_plan(("p", "")), 0.0)
    bench.peer("p")
    wanted = [index in (1, 2) for index in range(bench.chunks)]
    bench.swarm.begin(bench.id, bench.manifest, np.zeros(bench.chunks, bool), np.array(wanted), 0.0)
    assert bench.sent(Subscribe) == []
    bench.have("p", 1, 2)
    assert bench.sent(Request)


def test_a_manifest_that_is_forgone_is_no_longer_pushed_here() -> None:
    bench = relay(("p", ""))
    bench.actions()
    bench.swarm.stop_fetch(bench.id)
    assert [(name, want.wanted) for name, want in bench.sent(Subscribe)] == [("p", False)]


def test_a_manifest_that_ended_leaves_no_pushes_behind() -> None:
    bench = root("a", chunks=8)
    bench.seed_all()
    bench.actions()
    bench.swarm.end(bench.id)
    assert [name for name, _ in bench.sent(DontHave)] == ["a"]
    bench.swarm.flushed("a", 2 * CHUNK, 0.1)
    bench.swarm.poll(10.0)
    assert bench.actions() == []


def test_a_parent_that_pushes_the_same_again_and_again_is_shut_out() -> None:
    bench = relay(("p", ""), chunks=2)
    push(bench, "p", 0)
    bench.actions()
    for i in range(CONFIG.surplus_most // CHUNK + 2):
        push(bench, "p", 0, now=0.1 * i)
    assert [ban.peer for ban in bench.done(Ban)] == ["p"]


def test_news_of_pushed_chunks_waits_longer_where_there_are_many_peers() -> None:
    for peers, delay in ((10, CONFIG.have_delay_pushed), (80, 80 * CONFIG.have_per_peer)):
        bench = relay(("p", ""))
        for i in range(peers - 1):
            bench.peer(f"peer-{i:02}")
        bench.actions()
        push(bench, "p", 0, now=1.0)
        push(bench, "p", 1, now=1.05)
        bench.swarm.poll(1.0 + 0.99 * delay)
        assert bench.sent(Have) == []
        bench.swarm.poll(1.0 + delay)
        assert len(bench.sent(Have)) == peers


def test_a_plan_of_the_same_revision_and_other_trees_is_followed() -> None:
    # A hub that was started anew counts revisions from the beginning.
    bench = root("a", "b", chunks=30)
    bench.seed_all()
    bench.peer("c")
    bench.say("c", Subscribe(bench.short, True))
    bench.actions()
    bench.swarm.follow(root_plan("a", "b", "c"), 0.1)
    assert "c" in {name for name, _ in bench.served()}
