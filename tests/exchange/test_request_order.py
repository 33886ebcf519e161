"""Which chunks are requested of whom: rarest first, peers of this region first, within each peer's window."""

from __future__ import annotations

from dataclasses import replace

from p2psync.protocol.messages import DontHave
from p2psync.swarm.exchange.actions import Complete, Save
from tests.exchange.exchange_parts import CONFIG, Bench, asked
from tests.swarm.swarm_parts import CHUNK, flags


def test_nothing_is_asked_of_a_peer_that_does_not_hold_it() -> None:
    bench = Bench()
    bench.fetch_all()
    bench.peer("a", 1, 3)
    bench.peer("b")
    found = asked(bench)
    assert sorted(found["a"]) == [1, 3]
    assert "b" not in found


def test_nothing_is_asked_that_is_held_or_not_wanted() -> None:
    bench = Bench()
    bench.swarm.begin(bench.id, bench.manifest, flags(8, 0, 1), flags(8, 0, 1, 2, 3), 0.0)
    bench.peer("a", *range(8))
    assert sorted(asked(bench)["a"]) == [2, 3]


def test_the_rarest_chunks_are_asked_for_first() -> None:
    bench = Bench(config=replace(CONFIG, window_least=2 * CHUNK, window_most=2 * CHUNK))
    for name in "bcd":
        bench.peer(name, *range(6))
    bench.peer("a", *range(8))
    for name in "bcd":
        bench.swarm.receive(name, DontHave(b"x" * 8), 0.0)
    bench.fetch_all()
    assert sorted(asked(bench)["a"]) == [6, 7]


def test_ties_are_broken_differently_at_different_nodes_and_equally_with_equal_generators() -> None:
    def order(seed: int) -> list[int]:
        bench = Bench(16, seed=seed)
        bench.fetch_all()
        bench.peer("a", *range(16))
        return asked(bench)["a"]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) == 8


def test_peers_of_this_region_are_asked_first() -> None:
    bench = Bench()
    bench.peer("far", *range(8))
    bench.peer("same", *range(8), same_region=True)
    bench.fetch_all()
    found = asked(bench)
    assert sorted(found["same"]) == list(range(8))


def test_no_more_is_asked_of_a_peer_than_its_window() -> None:
    bench = Bench(40)
    bench.fetch_all()
    bench.peer("a", *range(40))
    assert len(asked(bench)["a"]) == CONFIG.window_least // CHUNK


def test_a_chunk_that_comes_makes_room_for_another() -> None:
    bench = Bench(40)
    bench.fetch_all()
    bench.peer("a", *range(40))
    first = asked(bench)["a"]
    bench.chunk("a", first[0], 0.5)
    assert len(asked(bench)["a"]) >= 1


def test_a_fast_peer_gets_a_wider_window_up_to_the_limit() -> None:
    bench = Bench(400)
    bench.fetch_all()
    bench.peer("a", *range(400))
    out = asked(bench)["a"]
    now = 0.0
    while len(out) < CONFIG.window_most // CHUNK and now < 2.0:
        now += 0.005
        bench.chunk("a", out.pop(0), now)
        out += asked(bench).get("a", [])
    assert len(out) == CONFIG.window_most // CHUNK


def test_every_chunk_is_saved_once_and_completion_is_told() -> None:
    bench = Bench(3)
    bench.fetch_all()
    bench.peer("a", 0, 1, 2)
    for index in range(3):
        bench.chunk("a", index, 1.0)
    actions = bench.actions()
    assert [a.index for a in actions if isinstance(a, Save)] == [0, 1, 2]
    assert [a.id for a in actions if isinstance(a, Complete)] == [bench.id]
    assert not any(bench.swarm.needs(bench.short, index) for index in range(3))


def test_beginning_with_everything_held_completes_at_once() -> None:
    bench = Bench(3)
    bench.seed_all()
    assert bench.done(Complete) == [Complete(bench.id)]


#: By then a first request is overdue, and not yet late (seconds).
