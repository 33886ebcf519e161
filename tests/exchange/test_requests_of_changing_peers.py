"""Peers that come, go, reject, or lose chunks: what they were asked for is asked of others."""

from __future__ import annotations

import pytest

from p2psync.protocol.messages import DontHave, Reject
from p2psync.swarm.exchange.actions import Save
from tests.exchange.exchange_parts import CONFIG, Bench, asked
from tests.swarm.swarm_parts import flags


def test_requests_to_a_vanished_peer_go_to_another() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    bench.peer("b", 0)
    bench.peer("c", 0, 1)
    bench.actions()
    bench.swarm.peer_down("a", 1.0)
    bench.swarm.peer_down("b", 1.0)
    total = asked(bench).get("c", [])
    assert sorted({*total, *bench.swarm._transfers[bench.short].provider}) == [0, 1]


def test_one_more_connection_to_a_peer_changes_nothing_but_tells_again_what_is_held() -> None:
    bench = Bench(4)
    bench.swarm.begin(bench.id, bench.manifest, flags(4, 0), flags(4, 1, 2, 3), 0.0)
    bench.peer("a", *range(4))
    bench.actions()
    before = next(iter(bench.swarm.peers))
    owed = before.download.nbytes
    assert bench.swarm.peer_up("a", False, 1.0)
    (peer,) = bench.swarm.peers
    assert peer is before and peer.download.nbytes == owed > 0
    assert [type(a.message).__name__ for a in bench.actions() if hasattr(a, "message")] == ["Bitfield"]
    assert list(bench.swarm._transfers[bench.short].rarity) == [1, 1, 1, 1]


def test_a_peer_that_says_gone_is_not_asked_any_more() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    bench.actions()
    bench.say("a", DontHave(bench.short), 1.0)
    bench.peer("b", 0, 1, now=1.0)
    assert sorted(asked(bench)["b"]) == [0, 1]
    assert next(p for p in bench.swarm.peers if p.name == "a").download.nbytes == 0


def test_a_rejected_chunk_is_asked_of_another_peer_and_not_of_this_one_again() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.actions()
    bench.say("a", Reject(bench.short, [0, 7]), 1.0)
    assert asked(bench) == {}
    bench.peer("b", 0, now=1.0)
    assert asked(bench) == {"b": [0]}


def test_ending_a_manifest_cancels_every_request_and_tells_everyone() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.peer("b", 0)
    bench.actions()
    bench.swarm.end(bench.id)
    sent = [(a.peer, type(a.message).__name__) for a in bench.actions() if hasattr(a, "message")]
    assert sorted(sent) == [("a", "Cancel"), ("a", "DontHave"), ("b", "DontHave")]
    assert all(peer.download.nbytes == 0 for peer in bench.swarm.peers)
    bench.swarm.poll(CONFIG.request_timeout)
    assert bench.swarm.next_wake() == float("inf")
    bench.chunk("a", 0, 1.0)
    assert bench.done(Save) == []


def test_a_manifest_that_is_begun_again_knows_who_holds_it() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    bench.swarm.end(bench.id)
    bench.actions()
    bench.fetch_all(1.0)
    assert sorted(asked(bench)["a"]) == [0, 1]


def test_beginning_again_takes_the_stores_word_on_what_is_held() -> None:
    bench = Bench(3)
    bench.peer("a", 0, 1, 2)
    bench.seed_all()
    bench.actions()
    bench.swarm.begin(bench.id, bench.manifest, flags(3, 0), flags(3, 1, 2), 1.0)
    assert sorted(asked(bench)["a"]) == [1, 2]


def test_a_lost_chunk_is_fetched_again_at_once_then_after_growing_pauses() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.chunk("a", 0, 0.0)
    bench.actions()
    bench.swarm.lost(bench.id, 0, 0.0)
    assert asked(bench) == {"a": [0]}
    pauses = []
    now = 0.0
    for _ in range(4):
        bench.chunk("a", 0, now)
        bench.swarm.poll(now + 0.02)
        bench.actions()
        began = now
        bench.swarm.lost(bench.id, 0, now)
        while not (found := asked(bench)):
            wake = bench.swarm.next_wake()
            assert now < wake < float("inf")
            now = wake
            bench.swarm.poll(now)
        assert found == {"a": [0]}
        pauses.append(now - began)
    first = CONFIG.refetch_pause_first
    assert pauses == pytest.approx([first, 2 * first, 4 * first, 8 * first])
