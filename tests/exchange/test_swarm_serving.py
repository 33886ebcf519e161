"""What a node serves: only what it holds, where there is room, each chunk once before any twice; and what it tells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2psync.protocol.messages import Bitfield, Cancel, Have, Ping, Pong, Reject, Request
from p2psync.swarm.exchange.actions import Send, SendChunk
from p2psync.swarm.exchange.config import ExchangeConfig
from tests.exchange.exchange_parts import CONFIG, Bench
from tests.swarm.swarm_parts import CHUNK, flags


def test_a_new_peer_is_told_what_is_held() -> None:
    bench = Bench(9)
    bench.swarm.begin(bench.id, bench.manifest, flags(9, 0, 8), flags(9), 0.0)
    bench.actions()
    bench.peer("a")
    assert bench.actions() == [Send("a", Bitfield(bench.short, b"\x01\x01"))]


def test_a_node_that_holds_nothing_says_nothing() -> None:
    bench = Bench()
    bench.fetch_all()
    bench.actions()
    bench.peer("a")
    assert bench.actions() == []


def test_news_of_chunks_waits_a_moment_for_company() -> None:
    bench = Bench(8)
    bench.fetch_all()
    bench.peer("a", *range(8))
    bench.peer("b")
    bench.actions()
    bench.chunk("a", 0, 1.0)
    bench.chunk("a", 1, 1.005)
    assert bench.sent(Have) == []
    assert bench.swarm.next_wake() <= 1.0 + CONFIG.have_delay
    bench.swarm.poll(1.0 + CONFIG.have_delay)
    assert sorted(bench.sent(Have), key=lambda m: m[0]) == [
        ("a", Have(bench.short, [0, 1])),
        ("b", Have(bench.short, [0, 1])),
    ]


def test_the_last_chunk_is_told_at_once() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.actions()
    bench.chunk("a", 0, 1.0)
    assert [name for name, _ in bench.sent(Have)] == ["a"]


def test_a_chunk_that_was_lost_before_it_was_told_is_not_told() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    bench.chunk("a", 0, 1.0)
    bench.actions()
    bench.swarm.lost(bench.id, 0, 1.0)
    bench.actions()
    bench.swarm.poll(2.0)
    assert bench.sent(Have) == []


def test_requests_for_held_chunks_are_served_and_others_rejected() -> None:
    bench = Bench(4)
    bench.swarm.begin(bench.id, bench.manifest, flags(4, 0, 2), flags(4), 0.0)
    bench.peer("a")
    bench.actions()
    bench.say("a", Request(bench.short, [0, 1, 2, 99]))
    actions = bench.actions()
    assert Send("a", Reject(bench.short, [1, 99])) in actions
    bench.say("a", Request(b"unknown!", [0]))
    assert Send("a", Reject(b"unknown!", [0])) in bench.actions()


def test_no_more_is_handed_out_than_the_connection_has_room_for() -> None:
    bench = Bench(8)
    bench.seed_all()
    bench.peer("a")
    bench.actions()
    bench.say("a", Request(bench.short, list(range(8))))
    assert len(bench.served()) == 3  # the third passes the limit of 250 bytes
    bench.swarm.flushed("a", CHUNK, 1.0)
    assert len(bench.served()) == 1
    bench.swarm.flushed("a", 3 * CHUNK, 1.0)
    assert len(bench.served()) == 3


def test_each_chunk_is_sent_once_before_any_is_sent_twice() -> None:
    bench = Bench(6)
    bench.seed_all()
    for name in "abc":
        bench.peer(name)
    bench.actions()
    for name in "abc":
        bench.say(name, Request(bench.short, list(range(6))))
    first = [index for _, index in bench.served()]
    for _ in range(20):
        for name in "abc":
            bench.swarm.flushed(name, CHUNK, 1.0)
    rest = [index for _, index in bench.served()]
    everything = first + rest
    assert sorted(everything[:6]) == list(range(6))
    assert sorted(everything) == sorted(list(range(6)) * 3)


def test_the_same_request_twice_is_served_once() -> None:
    bench = Bench(8)
    bench.seed_all()
    bench.peer("a")
    bench.actions()
    bench.say("a", Request(bench.short, [0, 1, 2, 3, 4, 5]))
    bench.say("a", Request(bench.short, [4, 5]))
    served = bench.served()
    for _ in range(10):
        bench.swarm.flushed("a", CHUNK, 1.0)
        served += bench.served()
    assert sorted(index for _, index in served) == [0, 1, 2, 3, 4, 5]


def test_a_cancelled_request_is_not_served() -> None:
    bench = Bench(8)
    bench.seed_all()
    bench.peer("a")
    bench.actions()
    bench.say("a", Request(bench.short, list(range(8))))
    handed = {index for _, index in bench.served()}
    waiting = sorted(set(range(8)) - handed)
    bench.say("a", Cancel(bench.short, waiting))
    bench.swarm.flushed("a", 10 * CHUNK, 1.0)
    assert bench.served() == []


def test_the_queue_of_a_peer_is_bounded() -> None:
    chunks = ExchangeConfig().queued_most + 600
    bench = Bench(chunks)
    bench.seed_all()
    bench.peer("a")
    bench.actions()
    refused = 0
    for start in range(0, chunks, 1024):
        bench.say("a", Request(bench.short, list(range(start, min(chunks, start + 1024)))))
        refused += sum(len(reject.chunks) for _, reject in bench.sent(Reject))
    (peer,) = bench.swarm.peers
    assert len(peer.upload.requested) <= ExchangeConfig().queued_most and refused >= 500


def test_a_chunk_that_is_lost_is_taken_back_from_everyone() -> None:
    bench = Bench(8)
    bench.seed_all()
    bench.peer("a")
    bench.peer("b")
    bench.say("a", Request(bench.short, list(range(8))))
    waiting = sorted(set(range(8)) - {index for _, index in bench.served()})[0]
    bench.swarm.lost(bench.id, waiting, 1.0)
    assert sorted(name for name, _ in bench.sent(Reject)) == ["a", "b"]
    bench.swarm.flushed("a", 100 * CHUNK, 1.0)
    bench.swarm.flushed("a", 100 * CHUNK, 1.0)
    bench.swarm.flushed("a", 100 * CHUNK, 1.0)
    assert waiting not in [index for _, index in bench.served()]


def test_a_manifest_that_ends_leaves_no_requests_behind() -> None:
    bench = Bench(8)
    bench.seed_all()
    bench.peer("a")
    bench.say("a", Request(bench.short, list(range(8))))
    bench.actions()
    bench.swarm.end(bench.id)
    bench.actions()
    bench.swarm.flushed("a", 10 * CHUNK, 1.0)
    assert bench.actions() == []


def test_a_ping_is_answered() -> None:
    bench = Bench()
    bench.peer("a")
    bench.say("a", Ping(77))
    assert bench.actions() == [Send("a", Pong(77))]


def test_chunks_of_an_ended_manifest_give_their_room_back() -> None:
    bench = Bench()
    bench.seed_all()
    bench.peer("a")
    bench.say("a", Request(bench.short, [0, 1, 2, 3, 4, 5]))
    handed = bench.done(SendChunk)
    assert handed
    bench.swarm.end(bench.id)
    for chunk in handed:
        bench.swarm.flushed("a", chunk.size, 0.1)
    bench.seed_all(0.2)
    bench.say("a", Request(bench.short, [7]), 0.2)
    assert [chunk.index for chunk in bench.done(SendChunk)] == [7]


def paced(rate: float, chunks: int = 12) -> Bench:
    """A node that holds everything, is asked for all by two peers, and may hand out so many bytes a second."""
    bench = Bench(chunks, config=replace(CONFIG, flush_limit=1 << 30))
    bench.swarm.begin(bench.id, bench.manifest, flags(chunks, *range(chunks)), flags(chunks), 0.0)
    bench.swarm.set_upload_rate(rate)
    bench.peer("a")
    bench.peer("b")
    bench.actions()
    return bench


def test_where_the_uplink_holds_a_node_up_peers_take_turns_and_nothing_stays_behind() -> None:
    bench = paced(CHUNK / 0.01, chunks=4000)
    for name in "ab":
        for start in range(0, 4000, 1000):
            bench.say(name, Request(bench.short, list(range(start, start + 1000))))
    first = handed_out(bench)
    assert len(first) < 2000, "a burst"
    assert bench.swarm.set_upload_rate(CHUNK / 0.01), "something had to wait"
    due, now = [], 0.0
    while (wake := bench.swarm.next_wake()) < float("inf") and len(due) + len(first) < 8000:
        now = wake
        bench.swarm.poll(now)
        due += handed_out(bench)
    assert len(due) + len(first) == 8000
    assert now == pytest.approx(0.01 * 8000, rel=0.2)
    middle = due[1000:3000]
    assert {name: middle.count(name) for name in "ab"} == {"a": 1000, "b": 1000}


def test_a_peer_that_requests_without_end_keeps_nobody_waiting_for_long() -> None:
    bench = paced(CHUNK / 0.01, chunks=4000)
    for start in range(0, 3000, 1000):
        bench.say("b", Request(bench.short, list(range(start, start + 1000))), 0.0)
    handed_out(bench)
    bench.say("a", Request(bench.short, [3998, 3999]), 0.5)
    bench.swarm.poll(10.0)
    assert handed_out(bench)[:4].count("a") == 2


def test_a_peer_that_goes_while_it_waits_for_its_turn_is_forgotten() -> None:
    bench = paced(1.0, chunks=4000)
    for name in "ab":
        bench.say(name, Request(bench.short, list(range(4000))))
    handed_out(bench)
    bench.swarm.peer_down("a", 1.0)
    bench.swarm.set_upload_rate(0.0)
    bench.swarm.poll(10_000.0)
    assert set(handed_out(bench)) <= {"b"}


def handed_out(bench: Bench) -> list[str]:
    """To whom chunks were handed out since this was asked last."""
    return [action.peer for action in bench.actions() if isinstance(action, SendChunk)]
