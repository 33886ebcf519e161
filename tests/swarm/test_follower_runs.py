"""An actor among runs: the newest is followed, what is live counts, and the same bits are not fetched twice."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swarm_parts import announce, digest_of, id_of, manifest_of, view_of

from p2psync.membership.runs import ANY, NEWEST
from p2psync.protocol.manifest import Manifest
from p2psync.protocol.versions import Position
from p2psync.swarm.synchronizer.actions import (
    AbandonStage,
    Adopt,
    ChangedRun,
    CommitStage,
    FollowerAction,
    OpenStage,
    RefuseRun,
    Retire,
    StageChunk,
)
from p2psync.swarm.synchronizer.follower import Follower
from p2psync.swarm.synchronizer.states import SyncState

OLD, MIDDLE, NEW = ("01a221f19048" + "a" * 20, "01a221f1a064" + "b" * 20, "01a221f1b0ff" + "c" * 20)
SALTS = {OLD: 1, MIDDLE: 2, NEW: 3}


def of(run: str, version: int, base: int | None = None, *, epoch: int = 1, salt: int | None = None) -> Manifest:
    """A manifest of a run; bits follow from the salt, by default the run's own."""
    made = manifest_of(
        3 if base is None else 1, version=version, base=base, epoch=epoch, salt=SALTS[run] if salt is None else salt
    )
    return msgspec.structs.replace(made, run=run)


def at(manifest: Manifest) -> Position:
    """Where a manifest leads."""
    m = manifest
    return Position(run=m.run, epoch=m.epoch, version=m.version, digest=m.digest)


class Actor:
    """A follower, and a shell in which everything succeeds at once."""

    def __init__(self, position: Position | None = None, follow: str = NEWEST) -> None:
        self.follower = Follower(position, follow=follow)
        self.known: dict[str, Manifest] = {}
        self.history: list[Position] = [] if position is None else [position]
        self.done: list[FollowerAction] = []
        self.holds_back: type | None = None

    def see(self, *manifests: Manifest, run: str = "", epoch: int = 1) -> None:
        """The hub shows a run with these manifests."""
        self.known |= {id_of(m).hex(): m for m in manifests}
        for m in manifests:
            self.follower.manifest(id_of(m).hex(), m, 0.0)
        shown = run or manifests[0].run
        self.follower.viewed(view_of(*map(announce, manifests), run=shown, epoch=epoch), 0.0)
        self.go_on()

    def go_on(self) -> None:
        """Do what is wanted, but for what is held back."""
        while actions := self.follower.actions():
            for action in actions:
                self.done.append(action)
                if self.holds_back is None or not isinstance(action, self.holds_back):
                    self.do(action)

    def do(self, action: FollowerAction) -> None:
        """One action succeeds."""
        if isinstance(action, OpenStage):
            self.path = action.path
            self.follower.opened(action, [[0]] * len(action.path), [[0]] * len(action.path))
        elif isinstance(action, StageChunk):
            self.follower.chunk_staged(action)
        elif isinstance(action, CommitStage):
            self.went(at(self.path[-1].manifest))
            self.follower.committed(action, self.history[-1], 0.0)
        elif isinstance(action, Adopt):
            self.went(action.position)
            self.follower.adopted(action, action.position, 0.0)

    def went(self, position: Position) -> None:
        self.history.append(position)

    def did(self, kind: type) -> list[FollowerAction]:
        """The actions of a kind so far."""
        return [action for action in self.done if isinstance(action, kind)]

    @property
    def place(self) -> tuple[str, int]:
        """Run and version that are live."""
        live = self.follower.position
        assert live is not None
        return live.run, live.version


def test_a_newer_run_is_followed_from_its_anchor_and_told() -> None:
    actor = Actor(at(of(OLD, 7)))
    actor.see(of(MIDDLE, 0), of(MIDDLE, 1, 0))
    assert actor.place == (MIDDLE, 1)
    assert actor.did(ChangedRun) == [ChangedRun(MIDDLE, OLD)]


def test_an_older_run_is_refused_once_whatever_its_epoch_and_version() -> None:
    actor = Actor(at(of(MIDDLE, 0)))
    for version in (7, 8, 9):
        actor.see(of(OLD, version, epoch=9), epoch=9)
    assert actor.place == (MIDDLE, 0) and len(actor.did(RefuseRun)) == 1
    assert "older" in actor.follower.waiting_reason
    actor.see(of(MIDDLE, 1))
    assert actor.place == (MIDDLE, 1) and actor.follower.waiting_reason == ""
    actor.see(of(OLD, 10))
    assert len(actor.did(RefuseRun)) == 2, "another situation"


def test_an_older_run_is_refused_after_a_restart_too() -> None:
    actor = Actor(at(of(MIDDLE, 0)))
    actor.see(of(OLD, 7))
    again = Actor(actor.follower.position)
    again.see(of(OLD, 8))
    assert again.place == (MIDDLE, 0) and len(again.did(RefuseRun)) == 1


def test_a_newer_run_of_which_nothing_is_live_binds_nobody() -> None:
    actor = Actor(at(of(OLD, 0)))
    actor.see(run=NEW)
    actor.see(of(OLD, 1, 0), of(OLD, 0))
    assert actor.place == (OLD, 1)


def test_an_epoch_that_a_hub_made_up_binds_nobody_either() -> None:
    actor = Actor(at(of(OLD, 0, epoch=3)))
    actor.see(run=OLD, epoch=1 << 50)
    actor.see(of(OLD, 1, 0, epoch=3), of(OLD, 0, epoch=3), epoch=3)
    assert actor.place == (OLD, 1)


def test_a_run_that_is_being_fetched_as_the_hub_changes_hands_is_left() -> None:
    actor = Actor(at(of(OLD, 0)))
    actor.holds_back = StageChunk
    actor.see(of(MIDDLE, 5))
    assert actor.follower.state is SyncState.FETCH
    actor.holds_back = None
    actor.see(of(OLD, 1, 0), of(OLD, 0))
    assert actor.did(AbandonStage) and actor.place == (OLD, 1)


def test_a_commit_under_way_as_the_hub_goes_back_is_not_undone() -> None:
    actor = Actor(at(of(OLD, 0)))
    actor.holds_back = CommitStage
    actor.see(of(MIDDLE, 5))
    actor.see(of(OLD, 1, 0), of(OLD, 0))
    (commit,) = actor.did(CommitStage)
    actor.holds_back = None
    actor.do(commit)
    actor.go_on()
    assert actor.place == (MIDDLE, 5) and actor.did(RefuseRun)


def test_an_epoch_of_the_run_that_is_over_is_refused_and_those_of_two_runs_are_not_compared() -> None:
    actor = Actor(at(of(OLD, 3, epoch=5)))
    actor.see(of(OLD, 4, epoch=4), epoch=4)
    assert actor.place == (OLD, 3) and "is over" in actor.follower.waiting_reason
    actor.see(of(MIDDLE, 0, epoch=1), epoch=1)
    assert actor.place == (MIDDLE, 0)


def test_the_same_bits_under_another_run_are_adopted_and_deltas_go_on_from_there() -> None:
    """What superseding a run does: its newest version is the first of the new run."""
    actor = Actor(at(of(OLD, 7)))
    same = SALTS[OLD]
    actor.see(of(NEW, 7, salt=same), of(NEW, 8, 7, salt=same), of(NEW, 9, 8, salt=same))
    assert actor.place == (NEW, 9)
    (stage,) = actor.did(OpenStage)
    assert [(s.manifest.base, s.manifest.version) for s in stage.path] == [(7, 8), (8, 9)]  # type: ignore[attr-defined]


def test_who_was_away_and_is_behind_what_a_new_run_begins_with_takes_its_anchor_or_a_squash_from_there() -> None:
    actor = Actor(at(of(OLD, 5)))
    anchor = of(NEW, 7, salt=SALTS[OLD])
    actor.see(anchor)
    assert actor.place == (NEW, 7)
    other = Actor(at(of(OLD, 5)))
    other.see(anchor, of(NEW, 7, 5, salt=SALTS[OLD]))
    assert other.place == (NEW, 7) and other.did(Adopt)
    (stage,) = other.did(OpenStage)
    assert [(s.manifest.base, s.manifest.version) for s in stage.path] == [(5, 7)]  # type: ignore[attr-defined]


def test_weights_that_turn_out_to_be_other_bits_are_fetched_whole() -> None:
    actor = Actor(at(of(OLD, 7)))
    actor.holds_back = Adopt
    actor.see(of(NEW, 7, salt=SALTS[OLD]))
    (adopt,) = actor.did(Adopt)
    actor.holds_back = None
    actor.follower.adopted(adopt, None, 0.0)  # type: ignore[arg-type]
    actor.go_on()
    (stage,) = actor.did(OpenStage)
    assert stage.path[0].manifest.base is None and actor.place == (NEW, 7)  # type: ignore[attr-defined]


def test_packs_of_the_run_before_are_retired_once_the_new_one_has_a_version() -> None:
    actor = Actor()
    actor.see(of(OLD, 0, epoch=9), of(OLD, 1, 0, epoch=9), epoch=9)
    actor.see(run=NEW)
    assert actor.did(Retire) == [], "nothing of the new run is to be had yet"
    actor.see(of(NEW, 0))
    assert len(actor.did(Retire)) == 2


def test_a_node_that_is_told_its_run_goes_back_to_it_and_follows_no_other() -> None:
    actor = Actor(at(of(MIDDLE, 4)), follow=OLD[:12])
    actor.see(of(MIDDLE, 5))
    assert actor.place == (MIDDLE, 4)
    actor.see(of(OLD, 2))
    assert actor.place == (OLD, 2)
    actor.see(of(NEW, 0))
    assert actor.place == (OLD, 2) and "--follow-run" in actor.follower.waiting_reason
    again = Actor(actor.follower.position)
    again.see(of(NEW, 0))
    assert again.place == (NEW, 0), "told nothing, it follows the newest from where it is"


def test_a_node_that_follows_any_run_goes_where_the_hub_goes() -> None:
    actor = Actor(at(of(NEW, 4)), follow=ANY)
    for manifest in (of(OLD, 2), of(MIDDLE, 0), of(OLD, 3)):
        actor.see(manifest)
        assert actor.place == (manifest.run, manifest.version)


#: Run, epoch and version that a hub shows, and what the engine does not answer meanwhile.
Shown = tuple[str, int, int, type | None]
VIEWS = st.lists(
    st.tuples(
        st.sampled_from([OLD, MIDDLE, NEW]), st.integers(1, 3), st.integers(0, 3), st.sampled_from([None, StageChunk])
    ),
    max_size=10,
)


@settings(max_examples=150, deadline=None)
@given(VIEWS, st.sampled_from([NEWEST, ANY, MIDDLE[:12]]))
def test_follower_never_goes_back_whatever_hubs_show_and_when(
    views: list[tuple[str, int, int, type | None]], follow: str
) -> None:
    actor = Actor(follow=follow)
    for run, epoch, version, held in views:
        actor.holds_back = held
        actor.see(of(run, version, epoch=epoch), epoch=epoch)
    places = [(p.run, p.epoch, p.version) for p in actor.history]
    if follow == NEWEST:
        assert places == sorted(set(places)), "never back, and nothing twice"
    if follow == MIDDLE[:12]:
        assert {run for run, _, _ in places} <= {MIDDLE}
    for before, after in itertools.pairwise(places):
        assert before[0] != after[0] or before < after, "within a run never back"
    runs = [run for run, _, _ in places]
    changes = [(after, before) for before, after in itertools.pairwise(runs) if before != after]
    told = [(a.run, a.before) for a in actor.did(ChangedRun)]  # type: ignore[attr-defined]
    assert told == changes


@pytest.mark.parametrize("digest", [digest_of(7, SALTS[OLD])])
def test_a_local_copy_is_found_in_whichever_run_it_is(digest: bytes) -> None:
    follower = Follower(None, digest.hex())
    manifest = of(NEW, 3, salt=SALTS[OLD])
    manifest = msgspec.structs.replace(manifest, digest=digest)
    follower.manifest(id_of(manifest).hex(), manifest, 0.0)
    follower.viewed(view_of(announce(manifest), run=NEW), 0.0)
    assert [a.position for a in follower.actions() if isinstance(a, Adopt)] == [at(manifest)]
