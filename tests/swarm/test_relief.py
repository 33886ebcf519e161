"""What a parent that is through does for its children: it brings what others still owe them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from p2psync.protocol.messages import Have, Request, Subscribe
from p2psync.swarm.actions import Widen
from p2psync.swarm.arrivals import Arrivals
from p2psync.swarm.core import SendChunk
from p2psync.swarm.flight import SOON
from p2psync.swarm.relief import HELD, LATER, LATER_OF_MANY, TRIED_SECONDS, WAY_SECONDS
from p2psync.swarm.trees import tag_of
from tests.swarm.swarm_parts import CHUNK, Bench
from tests.swarm.tree_parts import CONFIG, push, relay, root, root_plan

#: No manifest is small.
LARGE = replace(CONFIG, flight_least=0)


def through() -> Bench:
    """A relay that has pushed `c` chunks 0 to 3, and holds 4 to 15 as well, which another parent owes `c`."""
    bench = relay(("p", "c"), ("q", ""), chunks=16, config=LARGE)
    bench.say("c", Subscribe(bench.short, True))
    for index in range(4, 16):
        bench.say("q", Have(bench.short, [index]), index / 1000)
    for index in range(16):
        push(bench, "p" if index < 4 else "q", index, tree=int(index >= 4), now=0.1)
    assert bench.served() == [("c", 0), ("c", 1)]
    bench.swarm.flushed("c", 2 * CHUNK, 0.2)
    assert bench.served() == [("c", 2), ("c", 3)]
    return bench


def brought(bench: Bench, now: float) -> list[int]:
    """What is handed out for `c` once all before has left."""
    bench.swarm.flushed("c", 2 * CHUNK, now)
    bench.swarm.poll(now)
    served = bench.served()
    assert all(name == "c" for name, _ in served)
    return [index for _, index in served]


def test_what_another_owes_a_child_is_brought_from_the_far_end_and_each_parent_brings_something_else() -> None:
    drawn = set()
    for seed in range(8):
        bench = through()
        bench.swarm._ground.rng.seed(seed)
        first = brought(bench, HELD + 0.1)
        assert len(set(first)) == 2, "as many as there is room for"
        assert min(first) >= 9, "of what is lacked, the half that was heard of last"
        drawn.add(tuple(first))
    assert len(drawn) > 4


def test_a_hedged_push_goes_on_down_the_tree_below_the_child() -> None:
    bench = through()
    bench.swarm.flushed("c", 2 * CHUNK, HELD + 0.1)
    bench.swarm.poll(HELD + 0.1)
    assert {action.tag for action in bench.done(SendChunk)} == {tag_of(1, 0)}


def test_recent_chunks_are_not_pushed_by_others_than_their_parent() -> None:
    bench = through()
    assert brought(bench, HELD - 0.1) == []
    bench.swarm.poll(bench.swarm.next_wake())
    bench.swarm.poll(HELD + 0.1)
    assert len(bench.served()) == 2, "it is looked again, though nothing else happens"


def test_hedged_pushes_skip_chunks_that_the_child_holds_or_was_pushed() -> None:
    bench = through()
    bench.say("c", Have(bench.short, [5, 9, 13, 15]), 0.3)
    rest = []
    for i in range(8):
        rest += brought(bench, HELD + 0.1 + i / 10)
    assert sorted(rest) == [4, 6, 7, 8, 10, 11, 12, 14]


def test_an_incomplete_node_makes_no_hedged_pushes() -> None:
    bench = relay(("p", "c"), ("q", ""), chunks=8, config=LARGE)
    bench.say("c", Subscribe(bench.short, True))
    bench.say("q", Have(bench.short, [4, 5, 6]), 0.0)
    for index in (4, 5, 6):
        push(bench, "q", index, tree=1, now=0.1)
    assert brought(bench, HELD + 0.2) == []


def test_where_the_uplink_is_full_all_pushes_go_first() -> None:
    bench = relay(("p", "c+d"), ("q", ""), chunks=16, config=LARGE)
    bench.say("c", Subscribe(bench.short, True))
    bench.say("d", Subscribe(bench.short, True))
    bench.swarm.pace(1e6)
    for index in range(16):
        bench.say("q", Have(bench.short, [index]), 0.0)
        push(bench, "p" if index < 8 else "q", index, tree=int(index >= 8), now=0.1)
    # All that is due to c has left, and d's connection takes no more.
    bench.actions()
    for i in range(4):
        bench.swarm.flushed("c", 2 * CHUNK, 0.2 + i / 10)
    assert [name for name, _ in bench.served()] == ["c"] * 6
    bench.swarm.flushed("c", 2 * CHUNK, 2.0)
    assert bench.served() == []
    for i in range(4):
        bench.swarm.flushed("d", 2 * CHUNK, 2.1 + i / 10)
    bench.swarm.poll(3.0)
    assert {index >= 8 for name, index in bench.served() if name == "c"} == {True}


def test_a_publisher_makes_hedged_pushes_once_every_chunk_is_sent() -> None:
    bench = root("a", "b", chunks=8, config=LARGE)
    bench.seed_all()
    served = bench.served()
    for i in range(1, 4):
        for name in "ab":
            bench.swarm.flushed(name, 2 * CHUNK, i / 10)
        served += bench.served()
    first = {name: sorted(index for to, index in served if to == name) for name in "ab"}
    assert sorted(first["a"] + first["b"]) == list(range(8)), "each chunk once"
    bench.say("a", Have(bench.short, list(range(8))), 0.5)
    bench.say("b", Have(bench.short, first["b"]), 0.5)
    bench.swarm.poll(0.5 + HELD)
    bench.swarm.poll(0.6 + HELD)
    again = bench.served()
    assert len(again) == 2
    assert {name for name, _ in again} == {"b"}
    assert {index for _, index in again} < set(first["a"])


def test_small_manifests_get_no_hedged_pushes() -> None:
    bench = relay(("p", "c"), ("q", ""), chunks=8, config=replace(CONFIG, flight_least=1 << 20))
    bench.say("c", Subscribe(bench.short, True))
    for index in range(8):
        bench.say("q", Have(bench.short, [index]), 0.0)
        push(bench, "q", index, tree=1, now=0.1)
    assert brought(bench, HELD + 0.2) == []


def test_what_is_brought_although_it_was_asked_for_does_not_make_the_child_wait_longer_another_time() -> None:
    bench = relay(("p", ""), ("q", ""), chunks=4)
    lag = bench.swarm._ground.lag
    bench.swarm.peer_up("root", near=False, now=0.0, source=True)
    bench.have("root", 0, 1, 2, 3)
    push(bench, "p", 0, now=2.0)
    push(bench, "q", 0, tree=1, now=2.1)
    assert lag.spurious == 0


def brought_at_the_end(took: float) -> tuple[Bench, list[int]]:
    """A root has put eight chunks into two trees, via `a` and via `b`, and `a` has the first that went to `b`, so many
    seconds after it was put in. Returns what else went to `b`, in order; what `a` is brought is handed out at 0.5."""
    bench = root("a", "b", chunks=8, config=LARGE)
    bench.seed_all()
    first: dict[str, list[int]] = {"a": [], "b": []}
    for i in range(1, 5):
        for name, index in bench.served():
            first[name].append(index)
        for name in "ab":
            bench.swarm.flushed(name, 2 * CHUNK, i / 10)
    assert sorted(first["a"] + first["b"]) == list(range(8))
    transfer = bench.swarm._ground.transfers[bench.short]
    transfer.arrivals = Arrivals(8)
    transfer.arrivals.planned(2)
    for i, index in enumerate(first["b"]):
        transfer.arrivals.put(index, 1, i / 10)
    transfer.arrivals.seen({"a": np.isin(np.arange(8), first["b"][:1])}, took)
    bench.say("a", Have(bench.short, [*first["a"], first["b"][0]]), 0.4)
    bench.actions()
    bench.swarm.poll(0.5)
    return bench, first["b"][1:]


def test_the_publisher_pushes_the_chunks_that_would_come_last_as_soon_as_every_chunk_is_sent() -> None:
    bench, owed = brought_at_the_end(took=0.7)
    sends = bench.done(SendChunk)
    assert [(send.peer, send.index) for send in sends] == [("a", owed[-1]), ("a", owed[-2])], "what there is room for"
    assert {send.tag for send in sends} == {tag_of(1, 1)}, "it goes on in its own tree"


def test_an_earlier_manifest_that_is_still_there_does_not_keep_the_root_from_that() -> None:
    bench, owed = brought_at_the_end(took=0.1)
    transfers = bench.swarm._ground.transfers
    arrivals = Arrivals(8)
    arrivals.planned(2)
    for index in range(8):
        arrivals.put(index, int(index in owed), 0.5)
    arrivals.seen({"a": np.isin(np.arange(8), owed[:1])}, 1.5)
    newest = transfers.pop(bench.short)
    transfers[b"earlier!"] = replace(newest)
    transfers[bench.short] = replace(newest, arrivals=arrivals)
    bench.swarm.poll(0.6)
    assert {name for name, _ in bench.served()} == {"a"}


def test_the_publisher_leaves_chunks_that_are_due_soon_to_their_parents() -> None:
    bench, _ = brought_at_the_end(took=0.4)
    assert bench.served() == []


def test_of_two_who_wait_the_one_who_would_wait_longer_comes_first_where_the_uplink_is_full() -> None:
    bench, owed = brought_at_the_end(took=0.1)
    bench.swarm.pace(1.0)
    arrivals = bench.swarm._ground.transfers[bench.short].arrivals
    assert arrivals is not None
    arrivals.planned(2)
    for index in range(8):
        arrivals.put(index, int(index in owed), 0.5)
    went_to_a = sorted(set(range(8)).difference(owed))[:1]
    arrivals.seen({"a": np.isin(np.arange(8), owed[:1])}, 1.0)
    arrivals.seen({"b": np.isin(np.arange(8), went_to_a)}, 2.0)
    bench.swarm.poll(0.6)
    assert [name for name, _ in bench.served()][:1] == ["b"]


def late_for_a_stranger() -> Bench:
    """A root that has put all in, of which `x`, no child of it, should have one chunk of tree 1 half a second later
    than now, 0.6; nothing waits for anybody."""
    bench, owed = brought_at_the_end(took=0.1)
    bench.say("a", Have(bench.short, owed), 0.5)
    bench.peer("x")
    bench.say("x", Subscribe(bench.short, True), 0.5)
    bench.say("x", Have(bench.short, [index for index in range(8) if index != owed[-1]]), 0.5)
    arrivals = bench.swarm._ground.transfers[bench.short].arrivals
    assert arrivals is not None
    arrivals.planned(2)
    for index in range(8):
        arrivals.put(index, int(index in owed), 0.5)
    arrivals.seen({"x": np.isin(np.arange(8), owed[:1])}, 1.1)
    bench.actions()
    return bench


def test_where_its_uplink_binds_the_root_brings_it_to_those_who_are_not_its_children_too() -> None:
    bench = late_for_a_stranger()
    bench.swarm.pace(1e6)
    bench.swarm.poll(0.6)
    assert [name for name, _ in bench.served()] == ["x"]


def test_where_it_may_be_the_ways_that_bind_the_root_leaves_those_to_their_parents() -> None:
    bench = late_for_a_stranger()
    bench.swarm.poll(0.6)
    assert bench.served() == []


def test_what_waits_for_a_connection_that_takes_no_more_does_not_keep_the_root_from_that() -> None:
    bench = late_for_a_stranger()
    bench.swarm.pace(1e6)
    bench.say("b", Request(bench.short, list(range(8))), 0.55)
    assert [name for name, _ in bench.served()] == ["b", "b"]
    bench.swarm.poll(0.6)
    assert [name for name, _ in bench.served()] == ["x"]


def test_one_who_alone_lacks_something_may_have_all_that_a_full_uplink_sends_on_the_way() -> None:
    chunks, room = 1000, 1000 * CHUNK
    bench = root("a", "b", chunks=chunks, config=replace(LARGE, flush_limit=room, push_room=room))
    bench.seed_all()
    first = [index for name, index in bench.served() if name == "a"]
    for name, lacked in (("a", set()), ("b", set(first))):
        bench.swarm.flushed(name, room, 0.4)
        bench.say(name, Have(bench.short, [index for index in range(chunks) if index not in lacked]), 0.4)
    bench.actions()
    arrivals = bench.swarm._ground.transfers[bench.short].arrivals
    assert arrivals is not None
    arrivals.planned(2)
    for index in range(chunks):
        arrivals.put(index, 0, 0.5)
    arrivals.seen({"b": np.isin(np.arange(chunks), first[:1])}, 2.0)
    # More than the plan has for one child, 1 Mbit/s, and less than that for two.
    bench.swarm.pace(160_000)
    bench.swarm.poll(0.6)
    assert [name for name, _ in bench.served()] == ["b"] * round(160_000 * WAY_SECONDS / CHUNK)


def test_the_way_to_one_for_whom_nothing_was_planned_is_made_ready_for_his_part_of_the_uplink_and_but_once() -> None:
    bench = late_for_a_stranger()
    bench.swarm.pace(1e6)
    bench.swarm.poll(0.6)
    ready, brought = bench.actions()
    assert ready == Widen("x", 1e6)
    assert isinstance(brought, SendChunk)
    bench.swarm.poll(0.62)
    assert bench.actions() == []


def test_an_uplink_that_is_not_full_prepares_no_path() -> None:
    bench, _ = brought_at_the_end(took=0.7)
    assert all(isinstance(action, SendChunk) for action in bench.actions())


def test_a_way_that_carries_hardly_anything_is_tried_once_before_all_is_put_in() -> None:
    bench = late_for_a_stranger()
    transfer = bench.swarm._ground.transfers[bench.short]
    transfer.relieves, transfer.ends = False, True
    bench.swarm.pace(1e6)
    bench.swarm.flushed("b", 0, 0.45)
    assert bench.actions() == [], "not where each chunk goes out but once or twice"
    bench.swarm.follow(root_plan("a+b+c", revision=2), 0.55)
    bench.swarm.flushed("b", 0, 0.6)
    ready, tried = bench.actions()
    assert ready == Widen("x", 1e6)
    assert isinstance(tried, SendChunk) and tried.peer == "x"
    bench.say("x", Have(bench.short, [tried.index]), 0.61)
    bench.swarm.flushed("b", 0, 0.62)
    assert bench.actions() == []


def test_too_many_slow_paths_for_the_uplink_are_not_tried() -> None:
    bench = late_for_a_stranger()
    transfer = bench.swarm._ground.transfers[bench.short]
    transfer.relieves, transfer.ends = False, True
    bench.swarm.follow(root_plan("a+b+c", revision=2), 0.55)
    bench.swarm.pace(CHUNK / TRIED_SECONDS / 2)
    bench.swarm.flushed("b", 0, 0.6)
    assert bench.served() == []


def test_a_manifest_is_near_its_end_once_the_rest_leaves_in_a_moment() -> None:
    bench = root("a", "b", chunks=1000, config=LARGE)
    bench.seed_all()
    transfer = bench.swarm._ground.transfers[bench.short]
    rest = round(SOON * 2 * 125_000 / CHUNK)
    ends = []
    for i in range(1000 - rest):
        ends.append(transfer.ends)
        for name, _ in bench.served():
            bench.swarm.flushed(name, CHUNK, i / 250)
        given = [index for index in range(1000) if index in transfer.tags]
        bench.say("a", Have(bench.short, given), i / 250)
        bench.say("b", Have(bench.short, given), i / 250)
        if len(given) > 1000 - rest:
            break
    assert not any(ends[: len(ends) // 2])
    bench.swarm.poll(5.0)
    assert transfer.ends


def test_a_root_that_sends_every_chunk_several_times_waits_for_others_no_more_than_a_moment() -> None:
    assert root("a", "b").swarm._relief._later() == LATER
    assert root("a+b+c").swarm._relief._later() == LATER_OF_MANY < LATER
