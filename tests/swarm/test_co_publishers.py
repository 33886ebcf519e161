"""Publishers beside the trainer: each sends the part of the chunks that it holds."""

from __future__ import annotations

from p2psync.protocol.messages import Bitfield, Have, Request, Subscribe
from p2psync.protocol.plan import NodePlan
from p2psync.swarm.asking import ENDGAME_HELD
from p2psync.swarm.core import Save
from p2psync.swarm.transfer import pack_bitmap
from tests.swarm.swarm_parts import Bench, flags
from tests.swarm.tree_parts import CONFIG, push, relay_plan, root


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
        bench.swarm.peer_up(name, False, 0.0, source=True)
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


def test_only_once_the_sources_together_have_told_of_all_chunks_near_peers_are_asked_for_what_they_have_got() -> None:
    bench = several_roots()
    bench.peer("near", now=0.0, near=True)
    bench.have("near", 0, 5, now=1.0)
    for name, held in (("root", (0, 1)), ("second", (2, 3, 4))):
        bench.have(name, *held, now=1.0)
    bench.actions()
    bench.swarm.poll(1.0 + ENDGAME_HELD + 0.05)
    assert bench.sent(Request) == []  # one of them still puts its part in
    bench.have("third", 5, 6, 7, now=1.4)
    bench.swarm.poll(1.4 + ENDGAME_HELD)
    assert "near" in {name for name, _ in bench.sent(Request)}


def test_others_fetch_while_one_of_them_has_some_of_what_is_all_here() -> None:
    bench = Bench(4, config=CONFIG)
    bench.peer("a")
    bench.peer("b")
    bench.seed_all()
    assert not bench.swarm.others_fetch
    bench.have("a", 0, 1)
    assert bench.swarm.others_fetch
    bench.have("a", 0, 1, 2, 3)
    assert not bench.swarm.others_fetch, "one has all, and the other has not begun"


def test_a_node_that_fetches_itself_does_not_wait_for_others() -> None:
    bench = Bench(4, config=CONFIG)
    bench.peer("a", 0, 1)
    bench.fetch_all()
    assert not bench.swarm.others_fetch
