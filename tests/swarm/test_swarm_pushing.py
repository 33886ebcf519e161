"""Pushing along trees: who is given what unasked, and what happens when it does not come."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from p2psync.net.stream import MAX_BACKLOG
from p2psync.protocol.messages import (
    NO_VERSION,
    AcceptNext,
    Bitfield,
    Cancel,
    Chunk,
    DontHave,
    Have,
    Request,
    Subscribe,
)
from p2psync.protocol.plan import NodePlan
from p2psync.swarm.asking import ENDGAME_HELD, IDLE_AFTER, OTHERS_PART, SPENT_AFTER, STRANGERS
from p2psync.swarm.core import Ban, Save, Send, SendChunk, SwarmConfig
from p2psync.swarm.early import MAX_EARLY_CHUNK_BYTES
from p2psync.swarm.flight import DEEPER, EACH_WAY, FIRST_LAG, LOOK_EVERY, NEAR_LAG
from p2psync.swarm.lag import FIRST, LEAST
from p2psync.swarm.pushing import AGAIN_AFTER, EXPECTED_FOR, STALLED_AFTER, TELL_AFTER
from p2psync.swarm.transfer import STALL_LEAST, pack_bitmap
from p2psync.swarm.trees import tag_of
from tests.swarm.swarm_parts import CHUNK, Bench, flags
from tests.swarm.tree_parts import CONFIG, push, relay, relay_plan, root, root_plan

# ---- the root ------------------------------------------------------------------------------------------------------


def test_a_publisher_pushes_each_chunk_to_one_first_hop_as_far_as_there_is_room() -> None:
    bench = root("a", "b", "c")
    bench.seed_all()
    served = bench.served()
    assert sorted(index for _, index in served) == [0, 1, 2, 3, 4, 5]
    assert sorted(name for name, _ in served) == ["a", "a", "b", "b", "c", "c"]


def test_room_that_is_made_is_used_at_once_for_the_next_chunk() -> None:
    bench = root("a", "b")
    bench.seed_all()
    bench.actions()
    bench.swarm.flushed("b", CHUNK, 0.1)
    assert bench.served() == [("b", 4)]


def test_a_tree_of_two_first_hops_does_not_wait_until_both_have_nothing_left_to_do() -> None:
    bench = Bench(40, config=SwarmConfig(flush_limit=2 * CHUNK, push_room=6 * CHUNK))
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
    bench = Bench(40, config=SwarmConfig(flush_limit=2 * CHUNK, push_room=2 * CHUNK, flush_most=10 * CHUNK))
    bench.peer("a")
    bench.say("a", Subscribe(bench.short, True))
    bench.swarm.follow(root_plan("a"), 0.0)
    bench.swarm.connections("a", connections)
    bench.seed_all()
    assert [index for _, index in bench.served()] == list(range(chunks))
    bench.swarm.flushed("a", CHUNK, 0.1)
    assert bench.served() == [("a", chunks)]


def test_what_is_handed_out_is_less_than_a_reader_is_hung_up_on_for() -> None:
    assert SwarmConfig().flush_most < MAX_BACKLOG


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


def test_one_way_that_gives_little_does_not_hold_the_others_below_what_was_planned() -> None:
    # Of either way 1 Mbit/s was planned: 1250 chunks a second. One brings ten.
    bench = root("a", "b", chunks=4000)
    bench.seed_all()
    given = {"a": 0, "b": 0}
    waiting = {"a": 0, "b": 0}
    for tick in range(1, 101):
        now = tick / 100
        while served := bench.served():
            for name, index in served:
                given[name] += 1
                waiting[name] += 1
                bench.say(name, Have(bench.short, [index]), now)
            bench.swarm.flushed("b", waiting["b"] * CHUNK, now)
            waiting["b"] = 0
        if tick % 10 == 0 and waiting["a"]:  # it gets on, so that it is not given up
            bench.swarm.flushed("a", CHUNK, now)
            waiting["a"] -= 1
        bench.swarm.poll(now)
    assert given["b"] > 0.8 * 1250, given


@pytest.mark.parametrize(("far_behind", "lag"), [(False, NEAR_LAG), (True, FIRST_LAG)])
def test_a_publisher_begins_with_less_on_its_way_only_where_everybody_is_near(far_behind: bool, lag: float) -> None:
    bench = Bench(2000, config=SwarmConfig(flight_least=0))
    for name in "ab":
        bench.peer(name, near=True)
        bench.say(name, Subscribe(bench.short, True))
    if far_behind:
        bench.peer("c", near=False)
    bench.swarm.follow(root_plan("a", "b"), 0.0)
    bench.seed_all()
    carried = lag * 2 * 125_000 / CHUNK  # two trees of a Mbit/s each
    assert len(bench.served()) == pytest.approx(carried * (1 + DEEPER), abs=2)


def test_a_publisher_lets_out_what_trees_carry_until_it_hears_of_it_even_where_everybody_is_near() -> None:
    news = 5 * NEAR_LAG
    bench = Bench(2000, config=SwarmConfig(flight_least=0, have_delay_pushed=news))
    for name in "ab":
        bench.peer(name, near=True)
        bench.say(name, Subscribe(bench.short, True))
    bench.swarm.follow(root_plan("a", "b"), 0.0)
    bench.seed_all()
    carried = (news + 2 * LOOK_EVERY) * 2 * 125_000 / CHUNK
    assert len(bench.served()) == pytest.approx(carried + 2 * EACH_WAY, abs=2)


def test_a_publisher_who_knows_nobody_yet_does_not_take_everybody_for_near() -> None:
    bench = Bench(2000, config=SwarmConfig(flight_least=0))
    bench.swarm.follow(root_plan("a"), 0.0)
    bench.seed_all()
    bench.peer("a")
    bench.say("a", Subscribe(bench.short, True))
    assert len(bench.served()) == pytest.approx(FIRST_LAG * 125_000 / CHUNK * (1 + DEEPER), abs=2)


def test_a_tree_of_two_first_hops_gives_each_chunk_to_both() -> None:
    bench = root("a+b")
    bench.seed_all()
    assert bench.served() == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_a_first_hop_without_room_holds_the_others_back_only_for_a_moment() -> None:
    bench = root("a", "b", chunks=40)
    bench.seed_all()
    count = len(bench.served())
    now = 0.0
    while now < STALLED_AFTER + 0.2:
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
    bench.swarm.poll(TELL_AFTER + 0.01)
    assert [name for name, _ in bench.sent(Bitfield)] == ["a"]


def test_a_publisher_does_not_keep_silent_for_one_who_says_over_and_over_to_hold_what_nobody_was_given() -> None:
    bench = root("a")
    bench.peer("liar")
    bench.seed_all()
    bench.actions()
    last = max(bench.swarm._ground.transfers[bench.short].tags)
    claims = [Bitfield(bench.short, flags(8, *range(8))), Have(bench.short, list(range(last + 1, 8)))]
    for turn in range(12):
        bench.say("liar", claims[turn % 2], turn * TELL_AFTER / 4)
        bench.swarm.poll(turn * TELL_AFTER / 4)
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
    bench.swarm.poll(AGAIN_AFTER + 0.2)
    assert ("b", lost) in bench.served()


def test_a_first_hop_that_is_only_slow_is_not_pushed_the_same_chunk_twice_where_there_is_no_other() -> None:
    bench = root("a", "a", chunks=2)
    bench.seed_all()
    assert len(bench.served()) == 2
    bench.swarm.flushed("a", 2 * CHUNK, 0.1)
    for turn in range(1, 4):
        bench.swarm.poll(turn * (AGAIN_AFTER + 0.2))
    assert bench.served() == []
    assert 3 * (AGAIN_AFTER + 0.2) + 0.1 < bench.swarm.next_wake() < float("inf")


def test_what_only_a_first_hop_had_that_went_is_pushed_elsewhere_at_once() -> None:
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


def test_a_wish_that_comes_after_the_chunks_is_met_too() -> None:
    bench = Bench(2, config=CONFIG)
    bench.peer("a")
    bench.swarm.follow(root_plan("a"), 0.0)
    bench.seed_all()
    assert bench.served() == []
    bench.say("a", Subscribe(bench.short, True), 0.2)
    assert bench.served() == [("a", 0), ("a", 1)]


# ---- relays --------------------------------------------------------------------------------------------------------


def test_a_node_asks_its_parents_and_nobody_else_to_push() -> None:
    bench = relay(("p", "c"), ("q", ""))
    assert [name for name, _ in bench.sent(Subscribe)] == ["p", "q"]


def test_it_asks_whoever_publishes_too_who_brings_at_the_end_what_parents_owe_and_tells_it_when_it_wants_no_more() -> (
    None
):
    bench = Bench(8, config=CONFIG)
    bench.swarm.follow(relay_plan(("p", "")), 0.0)
    bench.peer("p")
    bench.peer("stranger")
    assert bench.swarm.peer_up("trainer", False, 0.0, source=True)
    bench.fetch_all()
    assert [(name, want.wanted) for name, want in bench.sent(Subscribe)] == [("p", True), ("trainer", True)]
    bench.swarm.forgo(bench.id)
    assert [(name, want.wanted) for name, want in bench.sent(Subscribe)] == [("p", False), ("trainer", False)]


def test_whoever_publishes_and_comes_later_is_asked_then() -> None:
    bench = relay(("p", ""))
    bench.actions()
    assert bench.swarm.peer_up("trainer", False, 0.2, source=True)
    assert [name for name, _ in bench.sent(Subscribe)] == ["trainer"]


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
    config = replace(CONFIG, flush_limit=1 << 30, flight_least=0)
    bench = relay(("p", "c"), ("q", "d"), chunks=chunks, config=config)
    for name in "cd":
        bench.say(name, Subscribe(bench.short, True))
    bench.swarm.pace(CHUNK / 0.01)
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


def test_who_asks_without_end_takes_turns_with_what_is_pushed() -> None:
    chunks = 6000
    bench = relay(("p", "c+e"), chunks=chunks, config=replace(CONFIG, flush_limit=1 << 30, flight_least=0))
    bench.swarm.pace(CHUNK / 0.01)
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


def test_what_waits_to_be_pushed_to_one_who_asks_for_it_goes_out_once_and_before_the_rest() -> None:
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


def test_what_was_pushed_is_sent_again_to_one_who_lost_it() -> None:
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


# ---- the next delta ------------------------------------------------------------------------------------------------


def test_a_node_tells_its_parents_and_later_ones_too_what_it_runs() -> None:
    bench = relay(("p", "c"))
    bench.actions()
    bench.swarm.running(bytes(16))
    assert [(name, ready.digest) for name, ready in bench.sent(AcceptNext)] == [("p", bytes(16))]
    bench.peer("new")
    bench.swarm.follow(relay_plan(("new", ""), revision=2), 0.1)
    assert [name for name, _ in bench.sent(AcceptNext)] == ["new"]
    bench.swarm.peer_down("new", 0.2)
    bench.peer("new", now=0.3)
    assert [name for name, _ in bench.sent(AcceptNext)] == ["new"]


def test_a_delta_is_pushed_without_a_word_to_those_who_run_its_base_and_to_nobody_else() -> None:
    bench = Bench(8, config=CONFIG)
    for name, digest in (("a", bench.manifest.base_digest), ("b", bytes([9]) * 16), ("c", b"")):
        bench.peer(name)
        bench.say(name, AcceptNext(digest))
    bench.swarm.follow(root_plan("a", "b", "c"), 0.0)
    bench.seed_all()
    assert {name for name, _ in bench.served()} == {"a"}


def test_an_anchor_is_pushed_without_a_word_to_those_who_run_nothing_and_to_nobody_else() -> None:
    bench = Bench(8, config=CONFIG, base=None)
    for name in "abcd":
        bench.peer(name)
    for name, digest in (("a", NO_VERSION), ("b", bytes([9]) * 16), ("c", b"")):
        bench.say(name, AcceptNext(digest))
    bench.swarm.follow(root_plan("a", "b", "c", "d"), 0.0)
    bench.seed_all()
    assert {name for name, _ in bench.served()} == {"a"}


def test_a_node_that_runs_nothing_says_so_until_it_fetches_something() -> None:
    bench = Bench(config=CONFIG)
    bench.swarm.follow(relay_plan(("p", "c")), 0.0)
    for name in "pc":
        bench.peer(name)
    bench.swarm.running(NO_VERSION)
    assert [(name, ready.digest) for name, ready in bench.sent(AcceptNext)] == [("p", NO_VERSION)]
    bench.fetch_all(1.0)
    assert [(name, ready.digest) for name, ready in bench.sent(AcceptNext)] == [("p", b"")]
    bench.swarm.follow(relay_plan(("new", ""), revision=2), 2.0)
    bench.peer("new", now=2.0)
    assert not bench.sent(AcceptNext)


def test_only_little_is_pushed_to_one_who_has_not_asked_and_the_rest_once_it_asks() -> None:
    config = SwarmConfig(flush_limit=1 << 30)
    chunks = 3 * config.unasked // CHUNK
    bench = Bench(chunks, config=config)
    bench.peer("a")
    bench.say("a", AcceptNext(bench.manifest.base_digest))
    bench.swarm.follow(root_plan("a"), 0.0)
    bench.seed_all()
    served = len(bench.served())
    assert config.unasked <= served * CHUNK <= config.unasked + CHUNK
    bench.say("a", Subscribe(bench.short, True), 0.1)
    assert len(bench.served()) == chunks - served


def test_where_nothing_is_to_be_pushed_unasked_all_is_once_it_is_asked_for() -> None:
    bench = Bench(8, config=SwarmConfig(flush_limit=100 * CHUNK, unasked=0))
    bench.peer("a")
    bench.say("a", AcceptNext(bench.manifest.base_digest))
    bench.swarm.follow(root_plan("a"), 0.0)
    bench.seed_all()
    assert not bench.served()
    bench.say("a", Subscribe(bench.short, True), 0.1)
    assert len(bench.served()) == 8


def test_what_one_who_never_asks_was_not_pushed_goes_to_the_others() -> None:
    bench = Bench(40, config=SwarmConfig(flush_limit=100 * CHUNK, unasked=3 * CHUNK))
    for name in "ab":
        bench.peer(name)
    bench.swarm.follow(root_plan("a", "b"), 0.0)
    bench.say("a", Subscribe(bench.short, True))
    bench.say("b", AcceptNext(bench.manifest.base_digest))
    bench.seed_all()
    early = bench.served()
    assert sum(name == "b" for name, _ in early) == 3
    bench.swarm.poll(EXPECTED_FOR + 0.01)
    assert {index for _, index in [*early, *bench.served()]} == set(range(40))


def test_a_root_looks_again_soon_once_one_asks_to_whom_it_could_push_no_more_before() -> None:
    def begun(unasked: int) -> tuple[Bench, int]:
        bench = Bench(2000, config=SwarmConfig(flush_limit=1 << 20, flight_least=0, unasked=unasked))
        bench.peer("a")
        bench.say("a", AcceptNext(bench.manifest.base_digest))
        bench.swarm.follow(root_plan("a"), 0.0)
        bench.seed_all()
        return bench, len(bench.served())

    full = begun(1 << 20)[1]
    assert 0 < full < 2000
    bench, served = begun(full * CHUNK)
    assert served == full
    bench.swarm.poll(0.05)
    bench.swarm.poll(0.05 + LOOK_EVERY)
    bench.say("a", Subscribe(bench.short, True), 0.2)
    wake = bench.swarm.next_wake()
    assert wake <= 0.2 + LOOK_EVERY


def test_a_publisher_whose_manifests_nobody_wants_rests() -> None:
    bench = Bench(config=CONFIG)
    bench.peer("a")
    bench.swarm.follow(root_plan("a"), 0.0)
    bench.seed_all()
    bench.swarm.poll(TELL_AFTER + 0.01)
    assert bench.swarm.next_wake() == float("inf")


def test_first_hops_that_have_not_asked_yet_keep_their_part_for_a_moment() -> None:
    bench = Bench(40, config=SwarmConfig(flush_limit=100 * CHUNK))
    for name in "abcd":
        bench.peer(name)
    bench.swarm.follow(root_plan("a", "b", "c", "d"), 0.0)
    bench.say("a", Subscribe(bench.short, True))
    bench.seed_all()
    assert len(bench.served()) <= 4
    bench.swarm.poll(EXPECTED_FOR + 0.01)
    assert len(bench.served()) >= 36


def test_chunks_pushed_before_their_manifest_came_are_kept_and_used_and_passed_on() -> None:
    bench = Bench(8, config=CONFIG)
    bench.swarm.follow(relay_plan(("p", "c")), 0.0)
    for name in "pc":
        bench.peer(name)
    bench.say("c", Subscribe(bench.short, True))
    push(bench, "p", 3)
    push(bench, "p", 5)
    assert bench.done(Save) == []
    bench.fetch_all(0.1)
    done = bench.actions()
    assert [action.index for action in done if isinstance(action, Save)] == [3, 5]
    assert [(a.peer, a.index) for a in done if isinstance(a, SendChunk)] == [("c", 3), ("c", 5)]


def test_a_wrong_chunk_that_came_before_its_manifest_is_blamed_on_its_sender() -> None:
    bench = Bench(8, config=CONFIG)
    bench.swarm.follow(relay_plan(("p", ""), ("q", "")), 0.0)
    bench.peer("p")
    bench.peer("q")
    bench.say("p", Chunk(bench.short, 2, b"wrong", tag_of(1, 0)))
    push(bench, "q", 4, tree=1)
    bench.fetch_all(0.1)
    done = bench.actions()
    assert [ban.peer for ban in done if isinstance(ban, Ban)] == ["p"]
    assert [save.index for save in done if isinstance(save, Save)] == [4]


def test_what_comes_before_its_manifest_is_bounded_and_only_taken_from_parents() -> None:
    bench = Bench(8, config=SwarmConfig())
    bench.swarm.follow(relay_plan(("p", "")), 0.0)
    bench.peer("p")
    bench.peer("x")
    early = bench.swarm._early
    bench.say("x", Chunk(b"unknown0", 0, bytes(1 << 20), tag_of(1, 0)))
    assert early.nbytes == 0
    for i in range(20):
        bench.say("p", Chunk(b"%08d" % i, 0, bytes(1 << 20), tag_of(1, 0)))
        assert early.nbytes <= MAX_EARLY_CHUNK_BYTES
    assert early.nbytes == MAX_EARLY_CHUNK_BYTES
    for i in range(20):
        bench.say("p", Chunk(b"%08d" % i, 0, bytes(1 << 20), tag_of(1, 0)))
    assert [ban.peer for ban in bench.done(Ban)] == ["p"]


# ---- repair --------------------------------------------------------------------------------------------------------


def test_what_is_pushed_here_is_not_asked_for_before_its_time() -> None:
    bench = relay(("p", ""))
    bench.peer("x", 0, 1, now=0.0)
    bench.swarm.poll(FIRST - 0.01)
    assert bench.sent(Request) == []


def test_what_others_hold_and_was_not_pushed_in_time_is_pulled_from_them() -> None:
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
def test_what_was_pulled_too_soon_and_is_pushed_after_all_is_waited_for_longer_next_time(pushed_first: bool) -> None:
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


def test_a_chunk_that_there_is_not_is_no_late_push() -> None:
    bench = relay(("p", ""))
    bench.say("p", Chunk(bench.short, 99, b"x", tag_of(1, 0)), 50.0)
    bench.peer("x", 0, now=60.0)
    bench.swarm.poll(60.0 + FIRST + 0.01)
    assert [request.chunks for _, request in bench.sent(Request)] == [[0]]


def test_of_a_small_manifest_what_is_held_up_is_asked_of_others_at_once() -> None:
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


def test_what_comes_slowly_as_a_rule_or_has_hardly_begun_is_not_held_up() -> None:
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


def test_nothing_is_called_off_for_one_who_has_never_answered() -> None:
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


def test_what_is_late_is_fetched_into_a_region_by_one_node_and_by_others_only_later() -> None:
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


def test_who_has_its_part_takes_from_the_mates_where_it_would_end() -> None:
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


def test_what_a_mate_does_not_fetch_is_fetched_all_the_same_though_nobody_says_a_word() -> None:
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


def test_without_a_parent_at_hand_nobody_is_a_stranger() -> None:
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
def test_who_would_wait_for_seconds_more_once_everything_is_on_its_way_asks_far_peers_for_the_last_of_it(
    every: float, asked: bool
) -> None:
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


def test_how_long_the_rest_takes_is_told_by_what_came_last_and_not_by_what_came_before_a_link_fell() -> None:
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
    bench.swarm.forgo(bench.id)
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
    assert ("c", 4) in bench.served()


# ---- several roots -------------------------------------------------------------------------------------------------


def seed(bench: Bench, *held: int) -> None:
    """This node publishes these chunks, and others beside it the rest."""
    held_here, none = flags(bench.manifest.chunks, *held), flags(bench.manifest.chunks)
    bench.swarm.begin(bench.id, bench.manifest, held_here, none, 0.0)


def test_a_root_that_holds_a_part_of_the_chunks_puts_that_part_in_and_then_tells_of_it() -> None:
    bench = root("a", "b")
    seed(bench, 1, 3, 4, 6)
    assert sorted(index for _, index in bench.served()) == [1, 3, 4, 6]
    assert bench.sent(Bitfield) == []
    for name, held in (("a", [1, 3]), ("b", [4, 6])):
        bench.say(name, Have(bench.short, held), 0.5)
    told = [message for _, message in bench.sent(Bitfield)]
    assert told and all(message == Bitfield(bench.short, pack_bitmap(flags(8, 1, 3, 4, 6))) for message in told)


def several_roots() -> Bench:
    """A relay below a trainer, "root", and two that publish beside it."""
    bench = Bench(8, config=CONFIG)
    plan = relay_plan(("root", ""), ("other", "below"))
    plan = NodePlan(1, [*plan.peers, "second", "third"], plan.shares, plan.positions, [3, 4])
    plan.check()
    bench.swarm.follow(plan, 0.0)
    for name in ("root", "second", "third"):
        bench.swarm.peer_up(name, False, 0.0, source=True)
    for name in ("other", "below"):
        bench.peer(name)
    bench.fetch_all()
    return bench


def test_who_has_the_trainer_for_a_parent_wants_chunks_of_all_who_publish_beside_it() -> None:
    bench = several_roots()
    assert {name for name, _ in bench.sent(Subscribe)} == {"root", "second", "third", "other"}
    push(bench, "second", 5, tree=1)
    assert bench.done(Save)[-1].index == 5
    bench.say("below", Subscribe(bench.short, True))
    assert ("below", 5) in bench.served()


def test_only_once_the_sources_together_have_told_of_all_chunks_near_peers_are_asked_for_what_they_have_got() -> None:
    bench = several_roots()
    bench.peer("near", now=0.0, near=True)
    bench.have("near", 0, 5, now=1.0)
    for name, held in (("root", (0, 1)), ("second", (2, 3, 4))):
        bench.have(name, *held, now=1.0)
    bench.actions()
    bench.swarm.poll(1.0 + ENDGAME_HELD + 0.05)
    assert bench.sent(Request) == []  # one of them still puts its part in
    bench.have("third", 5, 6, 7, now=1.4)
    bench.swarm.poll(1.4 + ENDGAME_HELD)
    assert "near" in {name for name, _ in bench.sent(Request)}


def test_others_fetch_while_one_of_them_has_some_of_what_is_all_here() -> None:
    bench = Bench(4, config=CONFIG)
    bench.peer("a")
    bench.peer("b")
    bench.seed_all()
    assert not bench.swarm.others_fetch
    bench.have("a", 0, 1)
    assert bench.swarm.others_fetch
    bench.have("a", 0, 1, 2, 3)
    assert not bench.swarm.others_fetch, "one has all, and the other has not begun"


def test_a_node_that_fetches_itself_does_not_wait_for_others() -> None:
    bench = Bench(4, config=CONFIG)
    bench.peer("a", 0, 1)
    bench.fetch_all()
    assert not bench.swarm.others_fetch
