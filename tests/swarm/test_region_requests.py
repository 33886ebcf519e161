"""Nodes of one region without a plan: each requests its part of far peers, and the rest of each other."""

from __future__ import annotations

import pytest
from swarm_parts import Bench, asked

from p2psync.protocol.messages import Have
from p2psync.swarm.asking import MATES_AFTER


def _in_region(me: str, mates: str, chunks: int = 16) -> Bench:
    """A node whose mates fetch, too, and a peer far away who holds everything."""
    bench = Bench(chunks, node=me)
    bench.fetch_all()
    for mate in mates:
        bench.peer(mate, near=True)
        bench.have(mate)
    bench.peer("far")
    return bench


def _from_mate(bench: Bench, index: int, now: float) -> None:
    """The mate has got a chunk, and it comes from there."""
    bench.say("b", Have(bench.short, [index]), now)
    bench.chunk("b", index, now)


def test_nodes_of_a_region_ask_far_peers_for_a_part_each() -> None:
    parts = []
    for me, mates in (("a", "bc"), ("b", "ac"), ("c", "ab")):
        bench = _in_region(me, mates)
        bench.have("far", *range(16))
        parts.append(set(asked(bench)["far"]))
    assert sorted(index for part in parts for index in part) == list(range(16))
    assert all(4 <= len(part) <= 7 for part in parts)


def test_chunks_that_a_region_peer_holds_are_requested_of_it() -> None:
    bench = _in_region("a", "b")
    bench.have("far", *range(16))
    mine = asked(bench)["far"]
    theirs = next(index for index in range(16) if index not in mine)
    bench.say("b", Have(bench.short, [theirs]), 0.1)
    assert asked(bench) == {"b": [theirs]}


@pytest.mark.parametrize("gets_on", [True, False])
def test_a_node_whose_own_part_advances_requests_only_parts_of_stalled_region_peers(gets_on: bool) -> None:
    bench = _in_region("a", "b")
    bench.have("far", *range(16))
    mine = asked(bench)["far"]
    theirs = [index for index in range(16) if index not in mine]
    found: list[int] = []
    for round, (my_next, their_next) in enumerate(zip(mine[:3], theirs, strict=False), start=1):
        now = 0.7 * MATES_AFTER * round
        if gets_on:
            _from_mate(bench, their_next, now)
        bench.chunk("far", my_next, now)
        bench.swarm.poll(now)
        found += asked(bench).get("far", [])
    assert bool(found) is not gets_on
    assert set(found) <= set(theirs)


def test_chunks_that_a_region_peer_never_fetches_are_requested_of_far_peers() -> None:
    bench = _in_region("a", "b")
    bench.have("far", *range(16))
    mine = asked(bench)["far"]
    for index in mine:
        bench.chunk("far", index, 0.1)
    now, found = 0.1, []
    while not found:
        due = bench.swarm.next_wake()
        assert due < float("inf"), "it sleeps, and the mate does, too"
        assert due > now, "it wakes again and again at the same time"
        now = due
        bench.swarm.poll(now)
        found = asked(bench).get("far", [])
    assert now <= 0.1 + MATES_AFTER + 1e-9
    assert not set(found) & set(mine)


def test_overdue_chunks_of_the_own_part_are_requested_of_a_second_far_peer() -> None:
    bench = _in_region("a", "b")
    bench.have("far", *range(16))
    mine = asked(bench)["far"]
    theirs = [index for index in range(16) if index not in mine]
    bench.peer("other", *range(16))
    again: list[int] = []
    now = 0.0
    while not again:
        now += MATES_AFTER / 2
        bench.chunk("far", mine.pop(0), now)
        _from_mate(bench, theirs.pop(0), now)
        bench.swarm.poll(now)
        again = asked(bench).get("other", [])
    assert set(again) <= set(mine)
    assert now >= MATES_AFTER, "that soon would be for those who have no mates"
    assert theirs, "it waited until nothing was open any more"


def test_a_node_with_its_own_part_requests_that_of_a_slow_region_peer() -> None:
    bench = _in_region("a", "b")
    bench.have("far", *range(16))
    mine = asked(bench)["far"]
    for index in mine:
        bench.chunk("far", index, 0.1)
    found: dict[str, list[int]] = {}
    now, theirs = 0.1, [index for index in range(16) if index not in mine]
    while "far" not in found:
        now += MATES_AFTER / 3
        _from_mate(bench, theirs.pop(0), now)
        bench.swarm.poll(now)
        found = asked(bench)
    assert MATES_AFTER <= now - 0.1 <= 1.5 * MATES_AFTER


def test_overdue_chunks_are_requested_of_a_peer_as_soon_as_it_holds_them() -> None:
    bench = Bench()
    bench.fetch_all()
    bench.peer("slow", *range(8))
    bench.peer("b")
    bench.actions()
    bench.swarm.poll(1.0)
    bench.say("b", Have(bench.short, [3]), 1.0)
    assert asked(bench) == {"b": [3]}
