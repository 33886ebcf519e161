"""Chain, squash or anchor: which path a follower begins, and when it leaves it for a cheaper one."""

from __future__ import annotations

from swarm_parts import RUN, announce, digest_of, id_of, manifest_of, view_of

from p2psync.membership.records import View
from p2psync.protocol.manifest import Manifest
from p2psync.protocol.versions import Position
from p2psync.swarm.synchronizer.actions import (
    AbandonStage,
    CommitStage,
    Fetch,
    FollowerAction,
    OpenStage,
    StageChunk,
    StopFetch,
)
from p2psync.swarm.synchronizer.config import MAX_SWITCHES
from p2psync.swarm.synchronizer.follower import Follower

ANCHOR = manifest_of(40, version=0, base=None)
#: Deltas of 10 chunks each.
DELTAS = {v: manifest_of(10, version=v, base=v - 1) for v in range(1, 12)}
#: Weighs as much as two deltas.
SQUASH = manifest_of(20, version=6, base=0)


def at(version: int) -> Position:
    return Position(run=RUN, epoch=1, version=version, digest=digest_of(version))


class Actor:
    """A follower at a version, whose shell gets every manifest at once."""

    def __init__(self, version: int | None = 0, switch_bytes: int = 0) -> None:
        self.follower = Follower(None if version is None else at(version), switch_bytes=switch_bytes)

    def see(self, *manifests: Manifest) -> list[FollowerAction]:
        """The hub shows this lineage; returns what is wanted then."""
        view: View = view_of(*(announce(m) for m in manifests))
        self.follower.viewed(view, 0.0)
        for m in manifests:
            self.follower.manifest(id_of(m).hex(), m, 0.0)
        return self.follower.actions()

    def opened(self, actions: list[FollowerAction]) -> OpenStage:
        """The engine opens the stage, and wants all."""
        (action,) = [a for a in actions if isinstance(a, OpenStage)]
        self.follower.opened(action, [range(s.manifest.chunks) for s in action.path], [[] for _ in action.path])
        return action

    def saved(self, manifest: Manifest, count: int) -> None:
        """So many chunks of a manifest came."""
        for chunk in range(count):
            self.follower.saved(id_of(manifest), chunk)

    def commit(self, action: OpenStage) -> None:
        """Everything comes, and is committed."""
        for step in action.path:
            for chunk in range(step.manifest.chunks):
                self.follower.saved(step.id, chunk)
            for put in [a for a in self.follower.actions() if isinstance(a, StageChunk)]:
                self.follower.chunk_staged(put)
        (done,) = [a for a in self.follower.actions() if isinstance(a, CommitStage)]
        self.follower.committed(done, at(action.path[-1].manifest.version), 0.0)


def paths(actions: list[FollowerAction]) -> list[list[tuple[int | None, int]]]:
    """The paths of the stages that are to be opened."""
    opens = [a for a in actions if isinstance(a, OpenStage)]
    return [[(s.manifest.base, s.manifest.version) for s in action.path] for action in opens]


def chain(last: int) -> list[Manifest]:
    return [ANCHOR, *(DELTAS[v] for v in range(1, last + 1))]


def test_follower_begins_the_path_of_fewest_bytes() -> None:
    assert paths(Actor(0).see(*chain(2))) == [[(0, 1), (1, 2)]]
    assert paths(Actor(0).see(*chain(7), SQUASH)) == [[(0, 6), (6, 7)]]
    newer = manifest_of(15, version=6, base=None)
    assert paths(Actor(0).see(*chain(7), SQUASH, newer)) == [[(None, 6), (6, 7)]]
    assert paths(Actor(3).see(*chain(7), SQUASH)) == [[(v, v + 1) for v in range(3, 7)]]


def test_what_is_at_hand_already_costs_nothing() -> None:
    actor = Actor(0)
    for version in range(1, 6):
        actor.follower.holds_bytes(id_of(DELTAS[version]), DELTAS[version].payload_bytes)
    assert paths(actor.see(*chain(6), SQUASH)) == [[(v, v + 1) for v in range(6)]]


def test_follower_switches_to_an_early_squash_and_stops_fetching_the_chain() -> None:
    actor = Actor(0)
    actor.opened(actor.see(*chain(6)))
    actor.follower.actions()
    actor.saved(DELTAS[1], 5)
    actor.follower.actions()
    actions = actor.see(*chain(6), SQUASH)
    assert AbandonStage() in actions
    assert [a.id for a in actions if isinstance(a, StopFetch)] == [id_of(DELTAS[v]) for v in range(1, 7)]
    assert paths(actions) == [[(0, 6)]]


def test_follower_far_along_its_chain_does_not_switch() -> None:
    actor = Actor(0)
    action = actor.opened(actor.see(*chain(6)))
    for version in (1, 2, 3, 4):
        actor.saved(DELTAS[version], 10)
    actor.follower.actions()
    assert actor.see(*chain(6), SQUASH) == []
    assert actor.follower.is_current(action)


def test_follower_keeps_its_path_if_another_saves_little() -> None:
    actor = Actor(0, switch_bytes=5000)
    actor.opened(actor.see(*chain(6)))
    actor.follower.actions()
    assert actor.see(*chain(6), SQUASH) == []


def test_follower_counts_the_path_beyond_the_one_begun() -> None:
    actor = Actor(0)
    actor.opened(actor.see(*chain(1)))
    actor.follower.actions()
    # It goes to version 1, from where 6 is far; the squash leads there from where it still is.
    assert paths(actor.see(*chain(6), SQUASH)) == [[(0, 6)]]


def test_follower_keeps_fetching_steps_that_both_paths_share() -> None:
    actor = Actor(0)
    actor.opened(actor.see(*chain(8)))
    actor.follower.actions()
    later = manifest_of(20, version=8, base=1)
    actions = actor.see(*chain(8), later)
    assert paths(actions) == [[(0, 1), (1, 8)]]
    assert id_of(DELTAS[1]) not in [a.id for a in actions if isinstance(a, StopFetch)]


def test_follower_changes_its_path_a_few_times_at_most_before_a_commit() -> None:
    actor = Actor(0)
    actor.opened(actor.see(*chain(1)))
    lineage, switches = chain(1), 0
    for version, size in ((3, 12), (5, 11), (7, 10), (9, 9), (11, 8)):
        lineage = [*lineage, DELTAS[version - 1], DELTAS[version], manifest_of(size, version=version, base=0)]
        actions = actor.see(*lineage)
        switches += len(paths(actions))
        if paths(actions):
            actor.opened(actions)
            actor.follower.actions()
    assert switches == MAX_SWITCHES


def test_follower_may_change_its_path_again_after_a_commit() -> None:
    actor = Actor(0)
    actor.opened(actor.see(*chain(1)))
    action = actor.opened(actor.see(*chain(6), SQUASH))
    actor.follower.actions()
    actor.commit(action)
    assert actor.follower.position == at(6)
    actor.opened(actor.see(*chain(7), SQUASH))
    actor.follower.actions()
    assert paths(actor.see(*chain(11), SQUASH, manifest_of(12, version=11, base=6))) == [[(6, 11)]]


def test_follower_fetches_what_the_new_path_wants() -> None:
    actor = Actor(0)
    actor.opened(actor.see(*chain(6)))
    actor.follower.actions()
    actor.opened(actor.see(*chain(6), SQUASH))
    fetches = [a for a in actor.follower.actions() if isinstance(a, Fetch)]
    assert [(f.step.id, len(f.wanted)) for f in fetches] == [(id_of(SQUASH), 20)]
