"""Publishers beside the trainer: each sends the part of the chunks that it holds."""

from __future__ import annotations

from p2psync.protocol.messages import Bitfield, Have, Subscribe
from p2psync.protocol.plan import NodePlan
from p2psync.swarm.exchange.actions import Save
from p2psync.swarm.exchange.bitmap import pack_bitmap
from tests.exchange.exchange_parts import Bench
from tests.exchange.exchange_trees import CONFIG, push, relay_plan, root
from tests.swarm.swarm_parts import flags


def seed(bench: Bench, *held: int) -> None:
    """This node publishes these chunks, and others beside it the rest."""
    held_here, none = flags(bench.manifest.chunks, *held), flags(bench.manifest.chunks)
    bench.swarm.begin(bench.id, bench.manifest, held_here, none, 0.0)


def test_a_root_that_holds_a_part_of_the_chunks_puts_that_part_in_and_then_tells_of_it() -> None:
    bench = root("a", "b")
    seed(bench, 1, 3, 4, 6)
    assert sorted(index for _, index in bench.served()) == [1, 3, 4, 6]
    assert bench.sent(Bitfield) == []
    for name, held in (("a", [1, 3]), ("b", [4, 6])):
        bench.say(name, Have(bench.short, held), 0.5)
    told = [message for _, message in bench.sent(Bitfield)]
    assert told and all(message == Bitfield(bench.short, pack_bitmap(flags(8, 1, 3, 4, 6))) for message in told)


def several_roots() -> Bench:
    """A relay below a trainer, "root", and two that publish beside it."""
    bench = Bench(8, config=CONFIG)
    plan = relay_plan(("root", ""), ("other", "below"))
    plan = NodePlan(1, [*plan.peers, "second", "third"], plan.shares, plan.positions, [3, 4])
    plan.check()
    bench.swarm.follow(plan, 0.0)
    for name in ("root", "second", "third"):
        bench.swarm.peer_up(name, False, 0.0, publishes=True)
    for name in ("other", "below"):
        bench.peer(name)
    bench.fetch_all()
    return bench


def test_who_has_the_trainer_for_a_parent_wants_chunks_of_all_who_publish_beside_it() -> None:
    bench = several_roots()
    assert {name for name, _ in bench.sent(Subscribe)} == {"root", "second", "third", "other"}
    push(bench, "second", 5, tree=1)
    assert bench.done(Save)[-1].index == 5
    bench.say("below", Subscribe(bench.short, True))
    assert ("below", 5) in bench.served()


def test_others_fetch_while_one_of_them_has_some_of_what_is_all_here() -> None:
    bench = Bench(4, config=CONFIG)
    bench.peer("a")
    bench.peer("b")
    bench.seed_all()
    assert not bench.swarm.statistics.others_fetch
    bench.have("a", 0, 1)
    assert bench.swarm.statistics.others_fetch
    bench.have("a", 0, 1, 2, 3)
    assert not bench.swarm.statistics.others_fetch, "one has all, and the other has not begun"


def test_a_node_that_fetches_itself_does_not_wait_for_others() -> None:
    bench = Bench(4, config=CONFIG)
    bench.peer("a", 0, 1)
    bench.fetch_all()
    assert not bench.swarm.statistics.others_fetch
