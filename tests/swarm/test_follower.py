"""How an actor gets from the version it runs to the newest one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from swarm_parts import RUN, announce, digest_of, id_of, manifest_of, view_of

from p2psync.errors import EngineError
from p2psync.membership.records import View
from p2psync.protocol.manifest import Manifest
from p2psync.protocol.versions import Position
from p2psync.swarm.synchronizer.actions import (
    AbandonStage,
    Adopt,
    CommitStage,
    Fetch,
    FollowerAction,
    GetManifest,
    OpenStage,
    RefuseRun,
    Retire,
    StageChunk,
)
from p2psync.swarm.synchronizer.config import (
    IMMEDIATE_REPAIRS,
    QUIET_SECONDS,
    REPAIR_MAX_SECONDS,
    RETRY_MAX_SECONDS,
    RETRY_MIN_SECONDS,
)
from p2psync.swarm.synchronizer.follower import Follower
from p2psync.swarm.synchronizer.states import SyncState

T = TypeVar("T")

ANCHOR = manifest_of(2, version=0, base=None)
D1, D2, D3 = (manifest_of(2, version=v, base=v - 1) for v in (1, 2, 3))
#: A manifest of version 1 that another trainer, of a later epoch, forked from version 0.
FORK = manifest_of(2, version=1, base=0, epoch=2, salt=0)


def at(version: int, *, epoch: int = 1, salt: int = 0) -> Position:
    """A position of the run."""
    return Position(run=RUN, epoch=epoch, version=version, digest=digest_of(version, salt))


class Actor:
    """A follower, and a shell that knows some manifests."""

    def __init__(self, position: Position | None = None, local_digest: str = "") -> None:
        self.follower = Follower(position, local_digest)
        self.now = 0.0

    def see(self, *manifests: Manifest, epoch: int = 1, payload: int | None = None, run: str = RUN) -> None:
        """The hub shows this lineage."""
        self.view(view_of(*(announce(m, payload=payload) for m in manifests), epoch=epoch, run=run))

    def view(self, view: View) -> None:
        """The hub shows a view."""
        self.follower.viewed(view, self.now)

    def actions(self) -> list[FollowerAction]:
        """What is wanted since the last look."""
        return self.follower.actions()

    def one(self, kind: type[T]) -> T:
        """The one action of its kind since the last look."""
        (found,) = [action for action in self.actions() if isinstance(action, kind)]
        return found

    def have(self, *manifests: Manifest) -> None:
        """The shell got these manifests."""
        for m in manifests:
            self.follower.manifest(id_of(m).hex(), m, self.now)

    def open(self, *manifests: Manifest, held: Sequence[Sequence[int]] | None = None) -> OpenStage:
        """See a lineage, get its manifests, and open the stage."""
        self.see(*manifests, epoch=max(m.epoch for m in manifests))
        self.have(*manifests)
        action = self.one(OpenStage)
        wanted = [range(step.manifest.chunks) for step in action.path]
        self.follower.opened(action, wanted, held or [[] for _ in wanted])
        return action

    def put_all(self, action: OpenStage) -> None:
        """Every chunk comes and is put."""
        for step in action.path:
            for chunk in range(step.manifest.chunks):
                self.follower.saved(step.id, chunk)
            for put in [a for a in self.actions() if isinstance(a, StageChunk)]:
                self.follower.chunk_staged(put)

    def commit(self, action: OpenStage) -> None:
        """Put everything and commit."""
        self.put_all(action)
        last = action.path[-1].manifest
        position = Position(run=last.run, epoch=last.epoch, version=last.version, digest=last.digest)
        self.follower.committed(self.one(CommitStage), position, self.now)


def path_of(action: OpenStage) -> list[tuple[int | None, int]]:
    """The steps, as (base, version)."""
    return [(step.manifest.base, step.manifest.version) for step in action.path]


# ---- paths ------------------------------------------------------------------------------------------------------


def test_a_node_with_nothing_takes_an_anchor_and_the_deltas_after_it() -> None:
    actor = Actor()
    assert path_of(actor.open(ANCHOR, D1, D2)) == [(None, 0), (0, 1), (1, 2)]


def test_a_node_at_a_version_takes_only_the_deltas_from_there() -> None:
    actor = Actor(at(1))
    assert path_of(actor.open(ANCHOR, D1, D2)) == [(1, 2)]


def test_manifests_are_asked_for_unless_they_are_at_hand() -> None:
    actor = Actor()
    actor.have(ANCHOR)
    actor.see(ANCHOR, D1)
    assert [a.id for a in actor.actions() if isinstance(a, GetManifest)] == [id_of(D1).hex()]
    assert actor.follower.state is SyncState.GATHER


def test_follower_opens_fetches_stages_and_commits_in_order() -> None:
    actor = Actor(at(0))
    action = actor.open(D1)
    assert actor.one(Fetch).wanted == (0, 1)
    actor.commit(action)
    assert actor.follower.position == at(1)
    assert actor.follower.state is SyncState.IDLE
    assert actor.follower.next_wake() == float("inf")


def test_chunks_are_put_in_the_order_of_the_steps_whatever_comes_first() -> None:
    actor = Actor(at(0))
    action = actor.open(D1, D2)
    actor.actions()
    for chunk in (0, 1):
        actor.follower.saved(action.path[1].id, chunk)
    assert actor.actions() == []
    for chunk in (1, 0):
        actor.follower.saved(action.path[0].id, chunk)
    puts = [a for a in actor.actions() if isinstance(a, StageChunk)]
    assert [(p.step, p.chunk) for p in puts] == [(0, 1), (0, 0)]
    for put in puts:
        actor.follower.chunk_staged(put)
    assert [(p.step, p.chunk) for p in actor.actions() if isinstance(p, StageChunk)] == [(1, 0), (1, 1)]


def test_chunks_that_the_store_holds_are_put_without_being_fetched() -> None:
    actor = Actor(at(0))
    actor.open(D1, held=[[1]])
    assert [p.chunk for p in actor.actions() if isinstance(p, StageChunk)] == [1]


def test_a_delta_of_no_chunks_is_committed_at_once() -> None:
    actor = Actor(at(0))
    empty = manifest_of(0, version=1, base=0)
    actor.see(empty)
    actor.have(empty)
    actor.follower.opened(actor.one(OpenStage), [[]], [[]])
    assert actor.follower.state is SyncState.COMMIT


def test_a_chunk_damaged_on_disk_is_put_again_when_it_has_come_again() -> None:
    actor = Actor(at(0))
    action = actor.open(D1, held=[[0, 1]])
    puts = [a for a in actor.actions() if isinstance(a, StageChunk)]
    actor.follower.chunk_staged(puts[0])
    actor.follower.chunk_damaged(puts[1], actor.now)
    assert actor.actions() == []
    actor.follower.saved(action.path[0].id, puts[1].chunk)
    assert actor.one(StageChunk).chunk == puts[1].chunk


def test_after_a_commit_the_next_version_is_begun() -> None:
    actor = Actor(at(0))
    action = actor.open(D1)
    actor.see(D1, D2)
    actor.commit(action)
    actor.have(D2)
    assert path_of(actor.one(OpenStage)) == [(1, 2)]


# ---- answers that come late ----------------------------------------------------------------------------------------


def test_late_answers_to_an_attempt_given_up_are_ignored() -> None:
    actor = Actor(at(0))
    old = actor.open(D1)
    old_put = StageChunk(old.attempt, 0, old.path[0].id, 0)
    actor.follower.failed(old_put, EngineError("broken"), at(0), actor.now)
    actor.now += RETRY_MIN_SECONDS
    actor.actions()
    actor.follower.poll(actor.now)
    new = actor.one(OpenStage)
    assert new.attempt != old.attempt
    actor.follower.opened(old, [[0]], [[0]])
    assert actor.follower.state is SyncState.OPEN and actor.actions() == []
    actor.follower.opened(new, [[0, 1]], [[]])
    actor.follower.chunk_staged(old_put)
    actor.follower.chunk_damaged(old_put, actor.now)
    actor.follower.failed(old_put, EngineError("broken again"), None, actor.now)
    assert actor.follower.state is SyncState.FETCH and actor.follower.position == at(0)


def test_a_manifest_of_an_attempt_given_up_that_cannot_be_had_fails_nobody() -> None:
    actor = Actor(at(0))
    actor.see(D1)
    actor.see(D1, D2)
    actor.actions()
    actor.follower.no_manifest(id_of(D3).hex(), "gone", actor.now)
    assert actor.follower.state is SyncState.GATHER and actor.follower.last_error == ""


def test_a_attempt_whose_manifest_is_taken_back_is_abandoned() -> None:
    actor = Actor(at(0))
    actor.open(D1, D2)
    actor.actions()
    actor.see(ANCHOR, manifest_of(2, version=2, base=0))
    actions = actor.actions()
    assert AbandonStage() in actions
    assert any(isinstance(a, GetManifest) for a in actions)


def test_a_attempt_is_not_abandoned_while_a_trainer_announces_again_in_rising_order() -> None:
    actor = Actor(at(0))
    actor.open(D1, D2, D3)
    actor.actions()
    for lineage in ((), (ANCHOR,), (ANCHOR, D1), (ANCHOR, D1, D2), (ANCHOR, D1, D2, D3)):
        actor.see(*lineage)
    assert actor.follower.state is SyncState.FETCH
    assert actor.actions() == []


def test_a_attempt_to_a_version_of_a_fenced_trainer_is_abandoned_though_its_number_is_higher() -> None:
    actor = Actor(at(2))
    assert path_of(actor.open(D1, D2, D3)) == [(2, 3)]
    actor.actions()
    actor.see(ANCHOR, FORK, epoch=2)
    assert AbandonStage() in actor.actions()


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_a_hub_of_an_earlier_epoch_or_run_is_not_believed() -> None:
    for view in (view_of(announce(D2), epoch=1), view_of(announce(D2), epoch=9, run="0" * 32)):
        actor = Actor(at(1, epoch=2))
        actor.view(view)
        assert [type(action) for action in actor.actions()] == [RefuseRun] and actor.follower.next_wake() == float(
            "inf"
        )
        assert "not followed" in actor.follower.waiting_reason


def test_a_hub_that_knows_no_run_yet_changes_nothing() -> None:
    actor = Actor(at(0))
    actor.open(D1)
    actor.actions()
    actor.view(view_of(run="", epoch=0))
    assert actor.follower.state is SyncState.FETCH and actor.actions() == []


def test_a_version_of_the_past_is_no_target() -> None:
    actor = Actor(at(2))
    actor.see(ANCHOR, D1, D2)
    assert actor.follower.next_wake() == float("inf") and actor.actions() == []


def test_a_manifest_that_is_not_what_the_hub_announced_is_refused() -> None:
    actor = Actor(at(0))
    actor.see(D1)
    other = manifest_of(2, version=1, base=0, salt=9)
    actor.follower.manifest(id_of(D1).hex(), other, actor.now)
    assert actor.follower.state is SyncState.IDLE
    assert "another version's manifest" in actor.follower.last_error
    assert not [a for a in actor.actions() if isinstance(a, OpenStage)]


def test_a_manifest_of_another_run_is_refused() -> None:
    actor = Actor()
    actor.see(ANCHOR, run="f" * 32)
    actor.have(ANCHOR)
    assert actor.follower.state is SyncState.IDLE and actor.follower.last_error


def test_a_later_epoch_wins_over_a_higher_version() -> None:
    actor = Actor(at(3))
    action = actor.open(ANCHOR, FORK)
    assert path_of(action) == [(None, 0), (0, 1)]
    actor.commit(action)
    assert actor.follower.position == at(1, epoch=2)


# ---- failures ------------------------------------------------------------------------------------------------------


def fail_once(actor: Actor) -> float:
    """The manifest cannot be had; returns the pause."""
    (get,) = {a.id for a in actor.actions() if isinstance(a, GetManifest)}
    actor.follower.no_manifest(get, "gone", actor.now)
    assert actor.follower.next_wake() > actor.now
    pause = actor.follower.next_wake() - actor.now
    actor.now = actor.follower.next_wake()
    actor.follower.poll(actor.now)
    return pause


def test_pauses_after_failures_grow_up_to_a_limit() -> None:
    actor = Actor(at(0))
    actor.see(D1)
    pauses = [fail_once(actor) for _ in range(10)]
    assert pauses[0] == RETRY_MIN_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[-1] == RETRY_MAX_SECONDS


def test_a_manifest_that_failed_twice_is_avoided_while_there_is_another_path() -> None:
    shortcut = manifest_of(1, version=2, base=0)
    actor = Actor(at(0))
    actor.see(ANCHOR, D1, D2, shortcut)
    for _ in range(2):
        assert [a.id for a in actor.actions() if isinstance(a, GetManifest)] == [id_of(shortcut).hex()]
        actor.follower.no_manifest(id_of(shortcut).hex(), "gone", actor.now)
        actor.now = actor.follower.next_wake()
        actor.follower.poll(actor.now)
    assert {a.id for a in actor.actions() if isinstance(a, GetManifest)} == {id_of(D1).hex(), id_of(D2).hex()}


def test_a_failed_commit_is_tried_again_from_what_is_live_then() -> None:
    actor = Actor(at(1))
    actor.put_all(actor.open(ANCHOR, D1, D2))
    actor.follower.failed(actor.one(CommitStage), EngineError("digest"), None, actor.now)
    actor.now = actor.follower.next_wake()
    actor.follower.poll(actor.now)
    actor.have(ANCHOR, D1)
    assert path_of(actor.one(OpenStage)) == [(None, 0), (0, 1), (1, 2)]


def test_follower_without_a_path_waits_and_goes_on_once_there_is_one() -> None:
    actor = Actor()
    actor.see(D1)
    assert "no anchor" in actor.follower.last_error
    assert actor.follower.next_wake() > actor.now
    for _ in range(8):
        actor.now = actor.follower.next_wake()
        actor.follower.poll(actor.now)
    actor.see(ANCHOR, D1)
    assert [a for a in actor.actions() if isinstance(a, GetManifest)]


# ---- a local copy --------------------------------------------------------------------------------------------------


def test_a_local_copy_of_a_known_version_is_adopted_and_only_deltas_travel() -> None:
    actor = Actor(local_digest=digest_of(1).hex())
    actor.see(ANCHOR, D1, D2)
    actor.have(ANCHOR, D1, D2)
    adopt = actor.one(Adopt)
    assert adopt.position == at(1)
    actor.follower.adopted(adopt, adopt.position, actor.now)
    actions = actor.actions()
    assert AbandonStage() not in actions
    (action,) = [a for a in actions if isinstance(a, OpenStage)]
    assert path_of(action) == [(1, 2)]


def test_a_local_copy_of_a_base_whose_anchor_is_gone_is_adopted() -> None:
    actor = Actor(local_digest=digest_of(0).hex())
    actor.see(D1)
    actor.have(D1)
    assert actor.one(Adopt).position == at(0)


def test_a_local_copy_that_is_something_else_after_all_is_forgotten() -> None:
    actor = Actor(local_digest=digest_of(1).hex())
    actor.see(ANCHOR, D1)
    actor.have(ANCHOR, D1)
    actor.follower.adopted(actor.one(Adopt), None, actor.now)
    assert path_of(actor.one(OpenStage)) == [(None, 0), (0, 1)]


def test_the_same_bits_under_a_later_epoch_are_adopted_without_a_byte() -> None:
    again = manifest_of(2, version=1, base=None, epoch=2)
    actor = Actor(at(1))
    actor.see(again, epoch=2)
    actor.have(again)
    adopt = actor.one(Adopt)
    assert adopt.position == at(1, epoch=2)
    actor.follower.adopted(adopt, adopt.position, actor.now)
    assert actor.follower.next_wake() == float("inf")


# ---- what is retired -----------------------------------------------------------------------------------------------


def test_manifests_that_are_no_longer_announced_are_retired_but_not_those_of_the_attempt() -> None:
    actor = Actor(at(0))
    actor.have(ANCHOR, D1)
    actor.see(D1)
    actions = actor.actions()
    assert [a.id for a in actions if isinstance(a, Retire)] == [id_of(ANCHOR)]
    (stage,) = [a for a in actions if isinstance(a, OpenStage)]
    actor.follower.opened(stage, [[0, 1]], [[]])
    actor.put_all(stage)
    actor.see(D2)
    actions = actor.actions()
    assert not [a for a in actions if isinstance(a, Retire)]
    (commit,) = [a for a in actions if isinstance(a, CommitStage)]
    actor.follower.committed(commit, at(1), actor.now)
    assert [a.id for a in actor.actions() if isinstance(a, Retire)] == [id_of(D1)]


def test_nothing_is_retired_while_a_trainer_announces_again() -> None:
    actor = Actor(at(2))
    actor.have(ANCHOR, D1, D2)
    actor.see(ANCHOR, D1, D2)
    for lineage in ((), (ANCHOR,), (ANCHOR, D1), (ANCHOR, D1, D2)):
        actor.see(*lineage)
    assert not [a for a in actor.actions() if isinstance(a, Retire)]


def test_versions_of_a_fenced_trainer_are_retired_though_their_numbers_are_higher() -> None:
    actor = Actor(at(3))
    actor.have(ANCHOR, D1, D2, D3)
    actor.see(ANCHOR, FORK, epoch=2)
    assert {a.id for a in actor.actions() if isinstance(a, Retire)} == {id_of(D1), id_of(D2), id_of(D3)}


# ---- damage to what is live ----------------------------------------------------------------------------------------


def test_follower_repairs_damage_from_the_version_that_is_live_instead() -> None:
    actor = Actor(at(2))
    actor.see(ANCHOR, D1, D2)
    actor.have(ANCHOR, D1, D2)
    actor.follower.mark_corrupt("damaged", at(1), actor.now)
    assert path_of(actor.one(OpenStage)) == [(1, 2)]
    actor.follower.mark_corrupt("damaged", None, actor.now)
    assert path_of(actor.one(OpenStage)) == [(None, 0), (0, 1), (1, 2)]


def test_follower_leaves_damage_during_a_commit_to_the_outcome() -> None:
    actor = Actor(at(0))
    actor.put_all(actor.open(D1))
    assert actor.follower.state is SyncState.COMMIT
    actor.follower.mark_corrupt("damaged", None, actor.now)
    assert actor.follower.position == at(0)


def test_a_disk_that_damages_everything_makes_a_node_fetch_less_and_less_often() -> None:
    actor = Actor(at(1))
    actor.see(ANCHOR, D1)
    actor.have(ANCHOR, D1)
    begun, pauses = [], []
    for _ in range(20):
        actor.follower.mark_corrupt("damaged", None, actor.now)
        if actor.follower.next_wake() < float("inf"):
            pauses.append(actor.follower.next_wake() - actor.now)
            actor.now = actor.follower.next_wake()
            actor.follower.poll(actor.now)
        begun.append(actor.now)
        actor.one(OpenStage)
    assert begun[:IMMEDIATE_REPAIRS] == [0.0] * IMMEDIATE_REPAIRS, "the first are mended at once"
    assert pauses == sorted(pauses)
    assert pauses[-1] == REPAIR_MAX_SECONDS
    actor.now += 2 * QUIET_SECONDS
    actor.follower.mark_corrupt("damaged", None, actor.now)
    assert path_of(actor.one(OpenStage)) == [(None, 0), (0, 1)], "after a quiet time it is mended at once again"
