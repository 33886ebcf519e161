"""Wrong chunks: their sender is shut out, longer each time, is told of it, and looks at what it holds."""

from __future__ import annotations

from p2psync.protocol.messages import BadChunk
from p2psync.swarm.exchange.actions import Ban, Recheck
from tests.exchange.exchange_parts import CONFIG, Bench
from tests.swarm.swarm_parts import CHUNK


def test_each_further_wrong_chunk_shuts_its_sender_out_ten_times_as_long() -> None:
    bench, now, bans = Bench(8), 1.0, []
    bench.fetch_all()
    for _ in range(5):
        bench.swarm.peer_up("liar", False, now)
        bench.chunk("liar", 0, now, data=b"\1" * CHUNK)
        (ban,) = bench.done(Ban)
        bans.append(ban.until - now)
        now = ban.until
    assert bans == [2.0, 20.0, 200.0, CONFIG.ban, CONFIG.ban]


def test_who_sent_a_wrong_chunk_is_told_which_when_it_comes_back() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.swarm.peer_up("rotten", False, 0.0)
    bench.chunk("rotten", 1, 1.0, data=b"\1" * CHUNK)
    bench.actions()
    for at, told in ((5.0, [BadChunk(bench.short, [1])]), (6.0, [])):
        bench.swarm.peer_up("rotten", False, at)
        assert [message for _, message in bench.sent(BadChunk)] == told


def test_an_accused_node_looks_at_what_it_holds_and_not_more_often_than_it_may_be_made_to() -> None:
    bench = Bench(3)
    bench.seed_all()
    bench.peer("a")
    bench.peer("b")
    bench.actions()
    for at in (1.0, 2.0, 1.0 + CONFIG.recheck_after):
        bench.swarm.receive("a", BadChunk(bench.short, [0, 2, 77]), at)
    assert [action.index for action in bench.done(Recheck)] == [0, 2, 0, 2]
    bench.swarm.receive("b", BadChunk(bench.short, [1]), 1.0)
    assert [action.index for action in bench.done(Recheck)] == [1]
    bench.swarm.receive("b", BadChunk(bytes(8), [1]), 100.0)
    assert bench.done(Recheck) == []
