"""Offers: a new version's manifest goes down the trees, is begun at once, and committed when the hub confirms it."""

from __future__ import annotations

import random

from p2psync.membership.lineage import to_announcement
from p2psync.protocol.manifest import Manifest
from p2psync.protocol.messages import MAX_GOSSIP_BYTES, AcceptNext, ManifestGossip, Subscribe
from p2psync.protocol.versions import Position
from p2psync.swarm.actions import Ban, Send, SendChunk, Vet
from p2psync.swarm.follower import MAX_HEARD, AbandonStage, CommitStage, Follower, GetManifest, OpenStage, Phase, Put
from p2psync.swarm.node import NodeConfig, NodeCore
from tests.swarm.swarm_parts import RUN, Bench, announce, digest_of, flags, id_of, manifest_of, view_of
from tests.swarm.test_node import info
from tests.swarm.tree_parts import relay, relay_plan, root, root_plan

SIGNED = b"a signed manifest"
D1, D2 = (manifest_of(2, version=v, base=v - 1) for v in (1, 2))


def at(version: int, epoch: int = 1) -> Position:
    """A position of the run."""
    return Position(run=RUN, epoch=epoch, version=version, digest=digest_of(version))


def offered(bench: Bench) -> list[str]:
    """To whom the bench's manifest was offered since the last look."""
    return [name for name, offer in bench.sent(ManifestGossip) if (offer.id, offer.signed) == (bench.id, SIGNED)]


def vet(bench: Bench, name: str) -> Vet:
    """A peer offers the bench's manifest, which is to be looked at."""
    bench.say(name, ManifestGossip(bench.id, SIGNED))
    (found,) = bench.done(Vet)
    assert found == Vet(name, bench.id, SIGNED)
    return found


# ---- from peer to peer ---------------------------------------------------------------------------------------------


def test_a_publisher_offers_a_new_version_to_its_first_hops_before_any_chunk() -> None:
    core = NodeCore(info("m", role="trainer"), NodeConfig(), random.Random(1))
    for name in "abx":
        core.peer_up(name, "", 0.0)
        core.receive(name, AcceptNext(D1.base_digest), 0.0)
    core.swarm.follow(root_plan("a", "b"), 0.0)
    core.actions()
    core.offer(id_of(D1), D1, flags(2, 0, 1), 0.0, SIGNED)
    done = core.actions()
    offers = [i for i, a in enumerate(done) if isinstance(a, Send) and isinstance(a.message, ManifestGossip)]
    chunks = [i for i, a in enumerate(done) if isinstance(a, SendChunk)]
    assert [action.peer for action in done if isinstance(action, Send)] == ["a", "b"]
    assert len(chunks) == 2 and max(offers) < min(chunks)
    core.offer(id_of(D2), D2, flags(2, 0, 1), 0.0)
    core.offer(id_of(D1), D1, flags(2, 0, 1), 0.0, SIGNED)
    assert not any(isinstance(a, Send) and isinstance(a.message, ManifestGossip) for a in core.actions()), (
        "that is no news"
    )


def test_a_manifest_too_large_for_an_offer_is_left_to_the_hub() -> None:
    bench = root("a")
    bench.swarm.publish(bench.id, bytes(MAX_GOSSIP_BYTES + 1))
    assert bench.sent(ManifestGossip) == []


def relaying() -> Bench:
    """A relay with a parent, a second one, and three children, which knows nothing of the version yet."""
    bench = Bench()
    bench.swarm.follow(relay_plan(("p", "a+b"), ("q", "c")), 0.0)
    for name in "pqabcx":
        bench.peer(name)
    bench.actions()
    return bench


def test_an_offer_is_passed_on_once_it_was_looked_at_to_children_that_do_not_have_it() -> None:
    bench = relaying()
    found = vet(bench, "p")
    assert offered(bench) == [], "nobody's word is passed on unseen"
    bench.say("b", Subscribe(bench.short, True))
    bench.swarm.vetted(found, taken=True)
    assert offered(bench) == ["a", "c"]


def test_an_offer_that_is_no_news_is_not_passed_on() -> None:
    bench = relaying()
    bench.swarm.vetted(vet(bench, "p"), taken=False)
    assert offered(bench) == []


def test_the_same_offer_of_a_second_parent_is_not_looked_at_again() -> None:
    bench = relaying()
    found = vet(bench, "p")
    bench.say("q", ManifestGossip(bench.id, SIGNED))
    assert bench.done(Vet) == []
    bench.swarm.vetted(found, taken=True)
    bench.say("p", ManifestGossip(bench.id, SIGNED))
    assert bench.done(Vet) == []


def test_a_manifest_that_is_exchanged_already_needs_no_offer() -> None:
    bench = relay(("p", "a"))
    bench.actions()
    bench.say("p", ManifestGossip(bench.id, SIGNED))
    assert bench.done(Vet) == []


def test_only_parents_are_listened_to_and_one_offer_at_a_time() -> None:
    bench = relaying()
    for name in ("x", "a"):
        bench.say(name, ManifestGossip(bench.id, SIGNED))
    assert bench.done(Vet) == []
    vet(bench, "p")
    bench.say("p", ManifestGossip(bytes(32), SIGNED))
    assert bench.done(Vet) == []


def test_who_offers_what_nobody_trusted_signed_is_banned_and_another_is_listened_to() -> None:
    bench = relaying()
    bench.swarm.forged(vet(bench, "p"), 0.0)
    (ban,) = bench.done(Ban)
    assert ban.peer == "p" and "signed" in ban.reason
    vet(bench, "q")


def test_a_child_that_was_away_is_offered_it_again() -> None:
    bench = relaying()
    bench.swarm.vetted(vet(bench, "p"), taken=True)
    bench.swarm.peer_down("a", 0.0)
    bench.peer("a")
    bench.actions()
    bench.swarm.publish(bench.id, SIGNED)
    assert offered(bench) == [], "only a root publishes"
    bench.swarm.vetted(Vet("q", bench.id, SIGNED), taken=True)
    assert offered(bench) == ["a"]


# ---- at the follower -----------------------------------------------------------------------------------------------


class Actor:
    """A follower whom the hub has told of a lineage."""

    def __init__(self, *lineage: Manifest, position: Position | None, epoch: int = 1) -> None:
        self.follower = Follower(position)
        self.follower.viewed(view_of(*map(announce, lineage), epoch=epoch), 0.0)
        self.follower.actions()

    def hear(self, manifest: Manifest) -> bool:
        """A peer's offer was looked at."""
        return self.follower.heard(to_announcement(manifest, id_of(manifest), 1), manifest, 0.0)

    def fetch(self, manifest: Manifest) -> None:
        """Open the stage of the version that was heard of, and put everything into it."""
        (action,) = [a for a in self.follower.actions() if isinstance(a, OpenStage)]
        self.follower.opened(action, [[0, 1]], [[]])
        for chunk in (0, 1):
            self.follower.saved(id_of(manifest), chunk)
        for put in [a for a in self.follower.actions() if isinstance(a, Put)]:
            self.follower.was_put(put)

    def commits(self) -> bool:
        """Whether a commit is wanted since the last look."""
        return any(isinstance(a, CommitStage) for a in self.follower.actions())


def test_what_peers_offer_is_fetched_at_once_and_committed_when_the_hub_announces_it() -> None:
    actor = Actor(position=at(0))
    assert actor.hear(D1)
    actor.fetch(D1)
    assert not actor.commits(), "the hub has not announced it"
    actor.follower.viewed(view_of(announce(D1)), 1.0)
    assert actor.commits()


def test_a_view_that_says_nothing_of_it_confirms_nothing() -> None:
    actor = Actor(position=at(0))
    actor.hear(D1)
    actor.fetch(D1)
    actor.follower.viewed(view_of(revision=2), 1.0)
    assert not actor.commits() and actor.follower.phase is Phase.FETCH


def test_what_was_announced_meanwhile_is_committed_without_waiting() -> None:
    actor = Actor(position=at(0))
    actor.hear(D1)
    actor.follower.viewed(view_of(announce(D1)), 1.0)
    actor.fetch(D1)
    assert actor.commits()


def test_only_later_versions_of_the_hubs_run_and_epoch_are_news() -> None:
    actor = Actor(D1, position=at(1), epoch=2)
    assert not actor.hear(D2), "of an epoch that is over"
    later = manifest_of(2, version=2, base=1, epoch=2)
    assert actor.hear(later) and not actor.hear(later), "once"
    assert not Actor(D1, D2, position=at(1)).hear(D2), "announced"
    assert not Follower(at(1)).heard(to_announcement(D2, id_of(D2), 1), D2, 0.0), "no hub has said what the run is"


def test_a_version_of_a_trainer_that_is_fenced_off_before_it_announced_it_is_given_up() -> None:
    actor = Actor(D1, position=at(1))
    actor.hear(D2)
    actor.fetch(D2)
    actor.follower.viewed(view_of(announce(D1), epoch=2), 1.0)
    assert any(isinstance(a, AbandonStage) for a in actor.follower.actions())
    assert actor.follower.phase is Phase.IDLE and actor.follower.target() is None


def test_a_manifest_that_was_offered_is_not_asked_for_when_the_hub_announces_it() -> None:
    actor = Actor(position=at(0))
    actor.hear(D1)
    actor.follower.viewed(view_of(announce(D1)), 1.0)
    assert not any(isinstance(a, GetManifest) for a in actor.follower.actions())


def test_what_nothing_known_leads_to_does_not_keep_from_what_the_hub_announced() -> None:
    actor = Actor(position=at(0))
    assert actor.hear(manifest_of(2, version=3, base=2))
    actor.follower.viewed(view_of(announce(D1)), 1.0)
    assert [a.id for a in actor.follower.actions() if isinstance(a, GetManifest)] == [id_of(D1).hex()]
    assert not actor.follower.last_error


def test_few_versions_are_remembered_that_only_peers_told_of() -> None:
    actor = Actor(position=at(0))
    actor.hear(D1)
    for version in range(2, MAX_HEARD + 3):
        assert actor.hear(manifest_of(1, version=version, base=version - 1))
    target = actor.follower.target()
    assert target is not None and target.version == MAX_HEARD + 2
    assert actor.hear(D1), "forgotten"


def test_the_same_bits_under_a_later_number_wait_for_the_hub() -> None:
    same = manifest_of(0, version=1, base=0)
    actor = Actor(position=Position(run=RUN, epoch=0, version=1, digest=same.digest))
    assert actor.hear(same)
    assert actor.follower.actions() == [] and actor.follower.phase is Phase.IDLE
    assert actor.follower.next_wake() == float("inf"), "nothing is tried over and over meanwhile"
