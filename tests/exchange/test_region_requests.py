"""Nodes of one region without a plan: each requests its part of far peers, and the rest of each other."""

from __future__ import annotations

from p2psync.protocol.messages import Have
from tests.exchange.exchange_parts import CONFIG, Bench, asked


def _in_region(me: str, mates: str, chunks: int = 16) -> Bench:
    """A node whose mates fetch, too, and a peer far away who holds everything."""
    bench = Bench(chunks, node=me)
    bench.fetch_all()
    for mate in mates:
        bench.peer(mate, same_region=True)
        bench.have(mate)
    bench.peer("far")
    return bench


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


def test_chunks_that_a_region_peer_never_fetches_are_requested_of_far_peers() -> None:
    bench = _in_region("a", "b")
    bench.have("far", *range(16))
    mine = asked(bench)["far"]
    for index in mine:
        bench.chunk("far", index, 0.1)
    now, found = 0.1, []
    bench.swarm.poll(now)
    while not found:
        due = bench.swarm.next_wake()
        assert due < float("inf"), "it sleeps, and the mate does, too"
        assert due > now, "it wakes again and again at the same time"
        now = due
        bench.swarm.poll(now)
        found = asked(bench).get("far", [])
    assert now <= 0.1 + CONFIG.others_after + 1e-9
    assert not set(found) & set(mine)
