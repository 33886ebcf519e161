"""Chunks of the next version that are pushed before anybody asks, and chunks that come before their manifest."""

from __future__ import annotations

from p2psync.protocol.messages import NO_VERSION, AcceptNext, Chunk, Subscribe
from p2psync.swarm.exchange.actions import Ban, Save, SendChunk
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.pending_chunks import MAX_PENDING_CHUNK_BYTES
from p2psync.swarm.exchange.trees import tag_of
from tests.exchange.exchange_parts import Bench
from tests.exchange.exchange_trees import CONFIG, push, relay, relay_plan, root_plan
from tests.swarm.swarm_parts import CHUNK


def test_a_node_tells_its_parents_and_later_ones_too_what_it_runs() -> None:
    bench = relay(("p", "c"))
    bench.actions()
    bench.swarm.accept_next(bytes(16))
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
    bench.swarm.accept_next(NO_VERSION)
    assert [(name, ready.digest) for name, ready in bench.sent(AcceptNext)] == [("p", NO_VERSION)]
    bench.fetch_all(1.0)
    assert [(name, ready.digest) for name, ready in bench.sent(AcceptNext)] == [("p", b"")]
    bench.swarm.follow(relay_plan(("new", ""), revision=2), 2.0)
    bench.peer("new", now=2.0)
    assert not bench.sent(AcceptNext)


def test_only_little_is_pushed_to_one_who_has_not_asked_and_the_rest_once_it_asks() -> None:
    config = ExchangeConfig(flush_limit=1 << 30)
    chunks = 3 * config.unsolicited_bytes // CHUNK
    bench = Bench(chunks, config=config)
    bench.peer("a")
    bench.say("a", AcceptNext(bench.manifest.base_digest))
    bench.swarm.follow(root_plan("a"), 0.0)
    bench.seed_all()
    served = len(bench.served())
    assert config.unsolicited_bytes <= served * CHUNK <= config.unsolicited_bytes + CHUNK
    bench.say("a", Subscribe(bench.short, True), 0.1)
    assert len(bench.served()) == chunks - served


def test_without_unasked_pushes_all_chunks_leave_once_subscribed_to() -> None:
    bench = Bench(8, config=ExchangeConfig(flush_limit=100 * CHUNK, unsolicited_bytes=0))
    bench.peer("a")
    bench.say("a", AcceptNext(bench.manifest.base_digest))
    bench.swarm.follow(root_plan("a"), 0.0)
    bench.seed_all()
    assert not bench.served()
    bench.say("a", Subscribe(bench.short, True), 0.1)
    assert len(bench.served()) == 8


def test_chunks_for_a_child_that_never_subscribes_go_to_the_others() -> None:
    bench = Bench(40, config=ExchangeConfig(flush_limit=100 * CHUNK, unsolicited_bytes=3 * CHUNK))
    for name in "ab":
        bench.peer(name)
    bench.swarm.follow(root_plan("a", "b"), 0.0)
    bench.say("a", Subscribe(bench.short, True))
    bench.say("b", AcceptNext(bench.manifest.base_digest))
    bench.seed_all()
    early = bench.served()
    assert sum(name == "b" for name, _ in early) == 3
    bench.swarm.poll(ExchangeConfig().stalled_after + 0.01)
    assert {index for _, index in [*early, *bench.served()]} == set(range(40))


def test_a_root_looks_again_soon_once_one_asks_to_whom_it_could_push_no_more_before() -> None:
    def begun(unsolicited_bytes: int) -> tuple[Bench, int]:
        config = ExchangeConfig(flush_limit=1 << 16, push_room=CHUNK, unsolicited_bytes=unsolicited_bytes)
        bench = Bench(2000, config=config)
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
    bench.swarm.poll(0.05 + ExchangeConfig().poll_interval)
    bench.say("a", Subscribe(bench.short, True), 0.2)
    wake = bench.swarm.next_wake()
    assert wake <= 0.2 + ExchangeConfig().poll_interval


def test_a_publisher_whose_manifests_nobody_wants_rests() -> None:
    bench = Bench(config=CONFIG)
    bench.peer("a")
    bench.swarm.follow(root_plan("a"), 0.0)
    bench.seed_all()
    bench.swarm.poll(ExchangeConfig().announce_after + 0.01)
    assert bench.swarm.next_wake() == float("inf")


def test_children_that_have_not_asked_yet_keep_their_part_for_a_moment() -> None:
    bench = Bench(40, config=ExchangeConfig(flush_limit=100 * CHUNK))
    for name in "abcd":
        bench.peer(name)
    bench.swarm.follow(root_plan("a", "b", "c", "d"), 0.0)
    bench.say("a", Subscribe(bench.short, True))
    bench.seed_all()
    assert len(bench.served()) <= 4
    bench.swarm.poll(ExchangeConfig().stalled_after + 0.01)
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


def test_chunks_before_their_manifest_are_bounded_and_taken_from_parents_only() -> None:
    bench = Bench(8, config=ExchangeConfig())
    bench.swarm.follow(relay_plan(("p", "")), 0.0)
    bench.peer("p")
    bench.peer("x")
    early = bench.swarm._intake.pending
    bench.say("x", Chunk(b"unknown0", 0, bytes(1 << 20), tag_of(1, 0)))
    assert early.nbytes == 0
    for i in range(20):
        bench.say("p", Chunk(b"%08d" % i, 0, bytes(1 << 20), tag_of(1, 0)))
        assert early.nbytes <= MAX_PENDING_CHUNK_BYTES
    assert early.nbytes == MAX_PENDING_CHUNK_BYTES
    for i in range(20):
        bench.say("p", Chunk(b"%08d" % i, 0, bytes(1 << 20), tag_of(1, 0)))
    assert [ban.peer for ban in bench.done(Ban)] == ["p"]
