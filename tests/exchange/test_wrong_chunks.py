"""Wrong chunks, floods and boasts: who is banned, and what is only waste."""

from __future__ import annotations

from p2psync.protocol.messages import Chunk, Have
from p2psync.swarm.exchange.actions import Ban, Save
from tests.exchange.exchange_parts import CONFIG, Bench, asked
from tests.swarm.swarm_parts import CHUNK


def test_the_liar_alone_is_banned_and_its_chunks_are_asked_of_others() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("honest", 0, 1)
    bench.actions()
    bench.peer("liar", 0, 1)
    bench.actions()
    bench.chunk("liar", 0, 1.0, data=b"\1" * CHUNK)
    (ban,) = bench.done(Ban)
    assert ban.peer == "liar" and ban.until == 1.0 + CONFIG.first_ban
    assert [peer.name for peer in bench.swarm.peers] == ["honest"]
    assert bench.swarm.trust.is_banned("liar", 2.0) and not bench.swarm.trust.is_banned("honest", 2.0)
    assert not bench.swarm.peer_up("liar", False, 2.0)
    assert bench.swarm.peer_up("liar", False, 1.0 + CONFIG.first_ban)


def test_a_chunk_of_the_wrong_size_is_a_lie() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("liar", 0)
    bench.chunk("liar", 0, 1.0, data=b"")
    assert [ban.peer for ban in bench.done(Ban)] == ["liar"]


def test_a_wrong_chunk_that_nobody_waits_for_is_only_waste() -> None:
    bench = Bench(1)
    bench.seed_all()
    bench.peer("a")
    bench.chunk("a", 0, 1.0, data=b"\1" * CHUNK)
    assert bench.done(Ban) == []
    assert bench.swarm.statistics.wasted_bytes == CHUNK


def test_a_peer_that_floods_is_banned_once_it_has_sent_two_windows_for_nothing() -> None:
    bench = Bench(1)
    bench.seed_all()
    bench.peer("flooder")
    bench.actions()
    for _ in range(CONFIG.surplus_most // CHUNK):
        bench.chunk("flooder", 0, 1.0)
    assert bench.done(Ban) == []
    bench.chunk("flooder", 0, 1.0)
    assert [ban.peer for ban in bench.done(Ban)] == ["flooder"]


def test_cancelled_requests_that_are_answered_do_not_count_as_a_flood() -> None:
    bench = Bench(600)
    bench.fetch_all()
    bench.peer("slow", *range(600))
    requested = asked(bench)["slow"]
    bench.peer("fast", *range(600))
    for index in range(600):
        bench.chunk("fast", index, 1.0)
    for index in requested:
        bench.chunk("slow", index, 2.0)
    assert bench.done(Ban) == []
    assert next(p for p in bench.swarm.peers if p.name == "slow").surplus == 0


def test_a_flooder_that_comes_back_finds_its_account_as_it_was() -> None:
    bench = Bench(1)
    bench.seed_all()
    for visit in range(3):
        bench.peer("flooder", now=float(visit))
        for _ in range(CONFIG.window_most // CHUNK):
            bench.chunk("flooder", 0, float(visit))
        if visit < 2:
            assert bench.done(Ban) == []
            bench.swarm.peer_down("flooder", float(visit))
    assert [ban.peer for ban in bench.done(Ban)] == ["flooder"]


def test_useful_chunks_make_up_for_useless_ones() -> None:
    bench = Bench(200)
    bench.fetch_all()
    bench.peer("a", 0)
    (peer,) = bench.swarm.peers
    peer.surplus = 5 * CHUNK
    bench.chunk("a", 0, 1.0)
    assert peer.surplus == 4 * CHUNK


def test_a_boast_beyond_the_manifests_chunks_is_ignored() -> None:
    bench = Bench(3)
    bench.fetch_all()
    bench.peer("a")
    bench.say("a", Have(bench.short, [0, 2, 3, 1 << 19]), 0.0)
    assert sorted(asked(bench)["a"]) == [0, 2]


def test_chunks_of_unknown_manifests_and_of_strangers_are_ignored() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.chunk("stranger", 0, 0.0)
    assert bench.actions() == [] and bench.swarm.statistics.received_bytes == 0
    bench.peer("a")
    bench.say("a", Chunk(b"unknown!", 0, b"x"), 0.0)
    bench.say("a", Chunk(bench.short, 99, b"x"), 0.0)
    assert bench.done(Save) == []
