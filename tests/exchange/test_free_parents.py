"""Free parents: they have pushed their own part, and are asked for what others were to bring."""

from __future__ import annotations

import msgspec

from p2psync.protocol.messages import Chunk, Have
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.providers import BYTES_PER_MBIT
from p2psync.swarm.exchange.trees import tag_of
from tests.exchange.exchange_parts import Bench
from tests.exchange.exchange_trees import relay_plan
from tests.exchange.test_overdue_pushes import FIRST, poll_until, requested
from tests.swarm.swarm_parts import CHUNK, chunk_data

CONFIG = ExchangeConfig()
HELD = CONFIG.held_for
CHUNKS = 12


def child(*, owed_by_free: tuple[int, ...] = ()) -> Bench:
    """A node with the parents "free", which says at 1.0 to hold everything, and "slow", planned to send two chunks a
    second each; and "stranger", which holds everything and is no parent. owed_by_free: chunks that the free one says
    to be about to push."""
    bench = Bench(CHUNKS, config=CONFIG)
    plan = relay_plan(("free", ""), ("slow", ""))
    slow_paths = [msgspec.structs.replace(position, rate=2 * CHUNK / BYTES_PER_MBIT) for position in plan.positions]
    bench.swarm.follow(msgspec.structs.replace(plan, positions=slow_paths), 0.0)
    for name in ("free", "slow", "stranger"):
        bench.peer(name)
    bench.fetch_all()
    bench.say("free", Have(bench.short, list(owed_by_free), [tag_of(1, 0)] * len(owed_by_free)), 1.0)
    bench.have("free", *range(CHUNKS), now=1.0)
    bench.have("stranger", *range(CHUNKS), now=1.0)
    bench.actions()
    return bench


def test_a_free_parent_is_asked_for_chunks_that_nobody_owes_once_they_were_held_for_a_while() -> None:
    bench = child()
    poll_until(bench, 1.0 + HELD - 0.01, 1.0)
    assert requested(bench) == []
    poll_until(bench, 1.0 + HELD + 0.1, 1.0 + HELD - 0.01)
    ((name, chunks),) = requested(bench)
    assert name == "free"
    assert len(chunks) == 2, "no more than it was planned to send in a moment"


def test_a_parent_that_has_chunks_left_to_push_is_not_asked_for_others() -> None:
    bench = child(owed_by_free=(0,))
    poll_until(bench, 1.0 + FIRST - 0.1, 1.0)
    assert requested(bench) == []


def test_a_peer_in_another_region_is_asked_for_nothing_while_a_parent_is_free() -> None:
    bench = child()
    poll_until(bench, 1.0 + FIRST + HELD, 1.0)
    assert {name for name, _ in requested(bench)} == {"free"}


def test_what_a_slow_parent_owes_is_requested_of_a_free_one_too_from_the_end_of_its_queue() -> None:
    bench = child()
    bench.say("slow", Have(bench.short, list(range(CHUNKS)), [tag_of(1, 1)] * CHUNKS), 1.0)
    for index in range(3):
        bench.say("slow", Chunk(bench.short, index, chunk_data(index), tag_of(1, 1)), 2.0 + index)
        bench.swarm.poll(2.0 + index)
    taken = [index for name, chunks in requested(bench) if name == "free" for index in chunks]
    assert set(taken) == {CHUNKS - 1, CHUNKS - 2}
