"""What peers tell of a manifest before it is known, and after it was given up."""

from __future__ import annotations

from p2psync.protocol.messages import Bitfield, Cancel, DontHave, Have, Request
from p2psync.swarm.exchange.actions import Send
from p2psync.swarm.exchange.bitmap import pack_bitmap
from tests.exchange.exchange_parts import Bench, asked
from tests.swarm.swarm_parts import flags


def test_what_peers_say_of_a_manifest_before_it_is_known_is_remembered() -> None:
    bench = Bench(9)
    bench.peer("a", 0, 8)
    bench.peer("b")
    bench.say("b", Have(bench.short, [5]), 0.0)
    bench.say("b", Have(bench.short, [8]), 0.0)
    bench.fetch_all()
    found = asked(bench)
    assert 5 in found["b"] and 0 in found["a"]


def test_the_oldest_manifest_of_a_long_lineage_is_still_known_of() -> None:
    bench = Bench(2)
    bench.peer("a", 0, 1)
    for i in range(1000):
        bench.say("a", Have(i.to_bytes(8, "big"), [0, 30]), 0.0)
    bench.fetch_all()
    assert sorted(asked(bench)["a"]) == [0, 1]


def test_early_words_of_one_peer_are_bounded() -> None:
    bench = Bench(1)
    bench.peer("a")
    (peer,) = bench.swarm.peers
    for i in range(200):
        bench.say("a", Have(i.to_bytes(8, "big"), [(1 << 20) - 1]), 0.0)
    assert len(peer.pending._bitmaps) <= 8
    assert sum(len(bitmap) for bitmap in peer.pending._bitmaps.values()) <= 1 << 20


def test_a_manifest_that_is_gone_before_it_was_known_is_forgotten() -> None:
    bench = Bench(1)
    bench.peer("a", 0)
    bench.say("a", DontHave(bench.short), 0.0)
    bench.fetch_all()
    assert asked(bench) == {}


def test_a_manifest_that_is_forgone_is_no_longer_asked_for_and_still_offered() -> None:
    bench = Bench()
    bench.fetch_all()
    bench.peer("a", *range(8))
    asked = [index for _, request in bench.sent(Request) for index in request.chunks]
    bench.chunk("a", asked[0])
    bench.swarm.stop_fetch(bench.id)
    assert sorted(i for _, cancel in bench.sent(Cancel) for i in cancel.chunks)
    bench.peer("b", *range(8), now=1.0)
    bench.swarm.poll(60.0)
    sent = [action.message for action in bench.done(Send)]
    assert not any(isinstance(message, Request) for message in sent)
    assert Bitfield(bench.short, pack_bitmap(flags(8, asked[0]))) in sent, "what came before is offered"
    bench.fetch_all(60.0)
    assert bench.sent(Request), "and may be wanted again"
