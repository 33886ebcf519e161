"""Manifest gossip: a new version's manifest goes down the trees ahead of its chunks."""

from __future__ import annotations

from p2psync.protocol.messages import MAX_GOSSIP_BYTES, ManifestGossip, Subscribe
from p2psync.swarm.exchange.actions import Ban, VerifyManifest
from tests.exchange.exchange_parts import Bench
from tests.exchange.exchange_trees import relay, relay_plan, root
from tests.swarm.swarm_parts import manifest_of

SIGNED = b"a signed manifest"
D1, D2 = (manifest_of(2, version=v, base=v - 1) for v in (1, 2))


def sent_to(bench: Bench) -> list[str]:
    """Returns the peers that were sent the bench's manifest since the last look."""
    return [name for name, gossip in bench.sent(ManifestGossip) if (gossip.id, gossip.signed) == (bench.id, SIGNED)]


def verify(bench: Bench, name: str) -> VerifyManifest:
    """A peer sends the bench's manifest, which is to be verified."""
    bench.say(name, ManifestGossip(bench.id, SIGNED))
    (found,) = bench.done(VerifyManifest)
    assert found == VerifyManifest(name, bench.id, SIGNED)
    return found


# ---- from peer to peer ---------------------------------------------------------------------------------------------


def test_a_manifest_too_large_for_gossip_is_left_to_the_hub() -> None:
    bench = root("a")
    bench.swarm.gossip.publish(bench.id, bytes(MAX_GOSSIP_BYTES + 1))
    assert bench.sent(ManifestGossip) == []


def relaying() -> Bench:
    """A relay with a parent, a second one, and three children, which knows nothing of the version yet."""
    bench = Bench()
    bench.swarm.follow(relay_plan(("p", "a+b"), ("q", "c")), 0.0)
    for name in "pqabcx":
        bench.peer(name)
    bench.actions()
    return bench


def test_a_verified_manifest_is_passed_on_to_children_that_do_not_have_it() -> None:
    bench = relaying()
    found = verify(bench, "p")
    assert sent_to(bench) == [], "no manifest is passed on before it is verified"
    bench.say("b", Subscribe(bench.short, True))
    bench.swarm.gossip.verified(found, taken=True)
    assert sent_to(bench) == ["a", "c"]


def test_a_known_manifest_is_not_passed_on() -> None:
    bench = relaying()
    bench.swarm.gossip.verified(verify(bench, "p"), taken=False)
    assert sent_to(bench) == []


def test_the_same_manifest_of_a_second_parent_is_not_verified_again() -> None:
    bench = relaying()
    found = verify(bench, "p")
    bench.say("q", ManifestGossip(bench.id, SIGNED))
    assert bench.done(VerifyManifest) == []
    bench.swarm.gossip.verified(found, taken=True)
    bench.say("p", ManifestGossip(bench.id, SIGNED))
    assert bench.done(VerifyManifest) == []


def test_a_manifest_that_is_exchanged_already_is_not_verified() -> None:
    bench = relay(("p", "a"))
    bench.actions()
    bench.say("p", ManifestGossip(bench.id, SIGNED))
    assert bench.done(VerifyManifest) == []


def test_manifests_of_parents_alone_are_verified_one_at_a_time() -> None:
    bench = relaying()
    for name in ("x", "a"):
        bench.say(name, ManifestGossip(bench.id, SIGNED))
    assert bench.done(VerifyManifest) == []
    verify(bench, "p")
    bench.say("p", ManifestGossip(bytes(32), SIGNED))
    assert bench.done(VerifyManifest) == []


def test_a_sender_of_an_unsigned_manifest_is_banned_and_that_of_another_parent_is_verified() -> None:
    bench = relaying()
    bench.swarm.gossip.rejected(verify(bench, "p"), 0.0)
    (ban,) = bench.done(Ban)
    assert ban.peer == "p" and "signed" in ban.reason
    verify(bench, "q")


def test_a_child_that_was_away_is_sent_the_manifest_again() -> None:
    bench = relaying()
    bench.swarm.gossip.verified(verify(bench, "p"), taken=True)
    bench.swarm.peer_down("a", 0.0)
    bench.peer("a")
    bench.actions()
    bench.swarm.gossip.publish(bench.id, SIGNED)
    assert sent_to(bench) == [], "only the publisher publishes"
    bench.swarm.gossip.verified(VerifyManifest("q", bench.id, SIGNED), taken=True)
    assert sent_to(bench) == ["a"]


# ---- at the follower -----------------------------------------------------------------------------------------------
