"""Chunks that parents push here: which parent owes which, and when they are requested of others."""

from __future__ import annotations

from p2psync.protocol.messages import Cancel, Chunk, Have, Request
from p2psync.swarm.exchange.actions import Action, Send
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.trees import tag_of
from tests.exchange.exchange_parts import Bench
from tests.exchange.exchange_trees import CONFIG, push, relay, relay_plan
from tests.swarm.swarm_parts import chunk_data

FIRST, LEAST, LOOK = CONFIG.push_first, CONFIG.push_least, CONFIG.poll_interval


def poll_until(bench: Bench, end: float, start: float) -> None:
    """Wakes the node at the start, and whenever it is due."""
    bench.swarm.poll(start)
    while (due := bench.swarm.next_wake()) <= end:
        bench.swarm.poll(due)


def requested(bench: Bench) -> list[tuple[str, list[int]]]:
    """The requests since the last look."""
    return requests_in(bench.actions())


def requests_in(actions: list[Action]) -> list[tuple[str, list[int]]]:
    """The requests among actions: of whom, and which chunks."""
    sends = [action for action in actions if isinstance(action, Send)]
    return [(send.peer, sorted(send.message.chunks)) for send in sends if isinstance(send.message, Request)]


def test_pushed_chunks_are_not_requested_before_they_are_overdue() -> None:
    bench = relay(("p", ""))
    bench.peer("x", 0, 1, now=0.0)
    poll_until(bench, FIRST - 0.01, 0.0)
    assert requested(bench) == []


def test_overdue_pushes_are_requested_of_peers_that_hold_them() -> None:
    bench = relay(("p", ""))
    bench.peer("x", 0, 1, now=0.0)
    poll_until(bench, FIRST + LOOK + 0.01, 0.0)
    assert requested(bench) == [("x", [0, 1])]


def test_overdue_pushes_are_not_requested_of_a_peer_whose_uplink_is_busy() -> None:
    bench = relay(("p", ""))
    bench.peer("x", now=0.0)
    bench.say("x", Have(bench.short, [0, 1], backlog=FIRST + 2.0), 0.0)
    poll_until(bench, FIRST + 1.0, 0.0)
    assert requested(bench) == []
    poll_until(bench, FIRST + 2.1, FIRST + 1.0)
    assert requested(bench) == [("x", [0, 1])]


def test_pushes_that_come_late_as_a_rule_are_waited_for_longer() -> None:
    bench = relay(("p", ""), chunks=64)
    for index in range(60):
        bench.have("x", *range(index + 1), now=4.0 * index) if index else bench.peer("x", 0, now=0.0)
        push(bench, "p", index, now=4.0 * index + 3.0)
    bench.actions()
    bench.have("x", *range(62), now=300.0)
    poll_until(bench, 300.0 + LEAST + 0.1, 300.0)
    assert requested(bench) == []
    poll_until(bench, 306.0, 301.1)
    assert requested(bench)


def test_a_chunk_beyond_the_manifest_does_not_count_as_a_late_push() -> None:
    bench = relay(("p", ""))
    bench.say("p", Chunk(bench.short, 99, b"x", tag_of(1, 0)), 50.0)
    bench.peer("x", 0, now=60.0)
    poll_until(bench, 60.0 + FIRST + LOOK + 0.01, 60.0)
    assert requested(bench) == [("x", [0])]


def owing(*announced: int) -> Bench:
    """A node whose parent "p" owes these chunks, pushed "9" a second ago, and that knows "x", which holds all."""
    bench = Bench(12, config=ExchangeConfig())
    bench.swarm.follow(relay_plan(("p", ""), ("q", "")), 0.0)
    for name in ("p", "q", "x"):
        bench.peer(name)
    bench.fetch_all()
    bench.say("p", Have(bench.short, list(announced), [tag_of(1, 0)] * len(announced)), 1.0)
    bench.have("x", *range(12), now=1.0)
    bench.actions()
    return bench


SILENT = ExchangeConfig().silent_after


def test_what_a_silent_parent_owes_is_requested_of_any_holder_too() -> None:
    bench = owing(*range(12))
    poll_until(bench, 1.0 + SILENT, 1.0)
    assert requested(bench) == []
    poll_until(bench, 2.0 + SILENT, 1.0 + SILENT)
    actions = bench.actions()
    asked_of_x = [chunk for name, chunks in requests_in(actions) if name == "x" for chunk in chunks]
    assert sorted(asked_of_x) == list(range(12))
    assert not any(isinstance(getattr(action, "message", None), Cancel) for action in actions)


def test_the_second_provider_of_a_chunk_is_told_not_to_send_it_once_it_came() -> None:
    bench = owing(*range(12))
    poll_until(bench, 2.0 + SILENT, 1.0)
    bench.actions()
    bench.say("p", Chunk(bench.short, 4, chunk_data(4), tag_of(1, 0)), 2.0 + SILENT)
    assert bench.sent(Cancel) == [("x", Cancel(bench.short, [4]))]


def test_a_parent_is_told_not_to_push_what_came_from_another() -> None:
    bench = owing(*range(12))
    poll_until(bench, 2.0 + SILENT, 1.0)
    bench.actions()
    bench.say("x", Chunk(bench.short, 4, chunk_data(4), 0), 2.0 + SILENT)
    assert bench.sent(Cancel) == [("p", Cancel(bench.short, [4]))]


def test_a_parent_owes_nothing_that_goes_down_a_tree_of_another_parent() -> None:
    bench = owing()
    bench.say("p", Have(bench.short, [3], [tag_of(1, 1)]), 1.0)
    poll_until(bench, 1.0 + FIRST - 0.1, 1.0)
    assert requested(bench) == []


def test_a_parent_that_gets_on_keeps_what_it_owes() -> None:
    bench = owing(*range(12))
    bench.swarm.poll(1.0)
    for index in range(12):
        now = 1.04 + 0.01 * index
        bench.say("p", Chunk(bench.short, index, chunk_data(index), tag_of(1, 0)), now)
        bench.swarm.poll(now)
    assert requested(bench) == []


def test_a_parent_that_never_gets_a_chunk_is_not_waited_for_without_end() -> None:
    bench = relay(("p", ""))
    bench.peer("x", now=0.0)
    bench.say("x", Have(bench.short, [5], [tag_of(1, 0)]), 0.0)
    poll_until(bench, FIRST + LOOK + 0.01, 0.0)
    assert requested(bench) == [("x", [5])]
