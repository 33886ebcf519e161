"""How an actor gets from the version it runs to the newest one. Sans-I/O.

`states` holds the states of an attempt and their transitions. A failure anywhere leads back to IDLE and a pause. The
follower resolves and checks the whole path before it calls the engine.

`p2psync.membership.runs` decides which run the follower follows. Within it the follower never moves to an earlier
(epoch, version), even a validly signed one. It does not use a view of a run that it refuses, and tells people once. It
adopts a version of another run that has the live digest, since the bits are the same, and does not fetch it.

A follower stays on the path that it has begun unless another one needs clearly fewer bytes (`path_chooser`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from p2psync.errors import BaseMismatchError, DigestMismatchError, FormatError, ReplayError
from p2psync.membership.records import Announcement, View
from p2psync.membership.runs import NEWEST
from p2psync.protocol.lineage import VersionKey, target_key
from p2psync.protocol.manifest import Manifest
from p2psync.protocol.versions import PathStep, Position
from p2psync.swarm.exchange.actions import Recheck
from p2psync.swarm.synchronizer.actions import (
    AbandonStage,
    Adopt,
    CommitStage,
    EngineAction,
    FollowerAction,
    GetManifest,
    OpenStage,
    Retire,
    StageChunk,
    StopFetch,
)
from p2psync.swarm.synchronizer.attempt import SyncAttempt
from p2psync.swarm.synchronizer.backoff import Backoff
from p2psync.swarm.synchronizer.config import SWITCH_MIN_BYTES
from p2psync.swarm.synchronizer.known_versions import KnownVersions
from p2psync.swarm.synchronizer.path_chooser import PathChooser
from p2psync.swarm.synchronizer.run_choice import RunChoice
from p2psync.swarm.synchronizer.states import INTERRUPTIBLE, STAGING, TRANSITIONS, SyncEvent, SyncState


class Follower:
    """Keeps one engine at the newest version of the lineage."""

    def __init__(
        self,
        position: Position | None,
        local_digest: str = "",
        switch_bytes: int = SWITCH_MIN_BYTES,
        *,
        follow: str = NEWEST,
    ) -> None:
        """local_digest (hex): of weights at hand that are no known position, such as a base model.

        switch_bytes: that a switch to another path must save. follow: see `p2psync.membership.runs.parse_follow`.
        """
        self.position = position
        self.local_digest = local_digest
        self.state = SyncState.IDLE
        self.last_error = ""
        #: Called when another version, or none, is live.
        self.on_live: Callable[[Position | None, float], None] = lambda position, now: None
        #: Called with the digest (hex) of a version whose bits are others than were signed.
        self.on_rejected: Callable[[str, float], None] = lambda digest, now: None
        #: Called with a chunk (manifest id, index) that the store lost.
        self.on_lost: Callable[[bytes, int, float], None] = lambda id, chunk, now: None
        self._run = RunChoice(position, follow)
        self._versions = KnownVersions()
        self._paths = PathChooser(switch_bytes)
        self._backoff = Backoff()
        self._manifests: dict[str, PathStep] = {}
        self._attempt: SyncAttempt | None = None
        self._attempts = 0
        self._actions: list[FollowerAction] = []

    # ---- versions --------------------------------------------------------------------------------------------------

    def viewed(self, view: View, now: float) -> None:
        """Takes the hub's new view, unless its run or epoch is refused."""
        if not view.run:
            return
        if (reason := self._run.why_not(view)) is not None:
            self._actions += self._run.refuse(view, reason)
            return
        self._run.accept()
        is_other = self._versions.update(view)
        self._backoff.viewed(now)
        if self._attempt is not None and self.state in INTERRUPTIBLE:
            self._review(self._attempt, is_other)
        self._retire()
        self._advance(now)
        if self._attempt is not None and self.state is SyncState.FETCH and self._attempt.step is None:
            self._stage_saved(self._attempt)

    def peer_announced(self, announcement: Announcement, manifest: Manifest, now: float) -> bool:
        """A peer sent the manifest of this version; its signature was checked. Returns whether it is new.

        It is if it comes after all that the hub has announced, in the hub's run and epoch. It is fetched, and not
        committed before the hub announces it.
        """
        if not self._versions.add_gossiped(announcement, manifest.run):
            return False
        self.manifest(announcement.id, manifest, now)
        return True

    def manifest(self, id: str, manifest: Manifest, now: float) -> None:
        """A manifest (id in hex) is here, and its signature was checked."""
        self._manifests[id] = PathStep(bytes.fromhex(id), manifest)
        self._advance(now)

    def no_manifest(self, id: str, message: str, now: float) -> None:
        """A manifest (id in hex) cannot be had, or has no trusted signature."""
        if self.state is not SyncState.GATHER or self._attempt is None or id in self._manifests:
            return
        if id in self._attempt.ids:
            self._fail(message, [id], now)

    # ---- the store -------------------------------------------------------------------------------------------------

    def holds_bytes(self, id: bytes, nbytes: int) -> None:
        """The store holds so many bytes of a manifest's chunks."""
        self._paths.holds(id.hex(), nbytes)

    def saved(self, id: bytes, chunk: int) -> None:
        """The store holds a chunk now."""
        if self._attempt is not None and self.state is SyncState.FETCH:
            size, actions = self._attempt.save(id, chunk)
            if size:
                self._paths.gained(id.hex(), size)
            self._actions += actions

    def chunk_damaged(self, action: StageChunk, now: float) -> None:
        """The store no longer has the chunk (damaged on disk): it will be fetched again."""
        self.on_lost(action.id, action.chunk, now)
        if (attempt := self._answered(action, SyncState.FETCH)) is not None:
            self._paths.gained(action.id.hex(), -attempt.damaged(action.step, action.chunk))

    def store_failed(self, message: str, now: float) -> None:
        """The store cannot keep what the attempt needs (the disk is full): try again after a pause."""
        if self.state in INTERRUPTIBLE:
            self._fail(message, [], now)

    # ---- the engine ------------------------------------------------------------------------------------------------

    def is_current(self, action: EngineAction) -> bool:
        """Returns whether an action belongs to the current attempt."""
        return self._attempt is not None and action.attempt == self._attempt.number

    def adopted(self, action: Adopt, position: Position | None, now: float) -> None:
        """Handles the answer to `Adopt`; None: the engine's weights are others."""
        if self._answered(action, SyncState.ADOPT) is not None:
            self.local_digest = ""
            self._end(SyncEvent.ADOPTED)
            self._went_to(position)
            self._advance(now)
        self.on_live(position, now)

    def opened(self, action: OpenStage, wanted: Sequence[Sequence[int]], held: Sequence[Sequence[int]]) -> None:
        """The stage is open. Per step: the chunks it wants, and those of them that the store holds."""
        if (attempt := self._answered(action, SyncState.OPEN)) is not None:
            self._go(SyncEvent.STAGE_OPENED)
            for fetch, nbytes in attempt.open(wanted, held):
                self._paths.holds(fetch.step.id.hex(), nbytes)
                self._actions.append(fetch)
            self._stage_saved(attempt)

    def chunk_staged(self, action: StageChunk) -> None:
        """The stage took a chunk."""
        attempt = self._answered(action, SyncState.FETCH)
        if attempt is not None and attempt.staged(action.step, action.chunk):
            self._stage_saved(attempt)

    def committed(self, action: CommitStage, position: Position, now: float) -> None:
        """The stage is live."""
        self.last_error = ""
        self._end(SyncEvent.COMMITTED)
        self._went_to(position)
        self._paths.committed()
        self._backoff.committed()
        self._retire()
        self._advance(now)
        self.on_live(position, now)

    def failed(self, action: EngineAction, error: Exception, position: Position | None, now: float) -> None:
        """The engine could not carry out an action; `position` is what is live and verified now.

        Bits other than those signed are reported, and the store hashes again what it gave: it may have rotted there.
        """
        attempt, before = self._attempt, self.position
        if attempt is None or not self.is_current(action):
            return
        if isinstance(error, DigestMismatchError | FormatError):
            self.on_rejected(attempt.path[-1].digest, now)
            if isinstance(action, StageChunk):
                self._actions.append(Recheck(action.id, action.chunk))
            else:
                self._actions += [Recheck(step.id, 0) for step in attempt.steps]
        self.position = position
        self._fail(str(error) or type(error).__name__, attempt.ids, now)
        if position != before:
            self.on_live(position, now)

    def mark_corrupt(self, message: str, position: Position | None, now: float) -> None:
        """The live bits are not those that were committed; `position` is live instead, if anything is.

        The path is resolved again from there: at once the first times, and after a growing pause where it happens again
        and again. Nothing changes during a commit, whose outcome says what is live: call again after it.
        """
        if self.state is SyncState.COMMIT:
            return
        self.last_error = message
        self.position = position
        self._give_up()
        self._backoff.damaged(now)
        self._advance(now)
        self.on_live(position, now)

    # ---- time and output -------------------------------------------------------------------------------------------

    @property
    def waiting_reason(self) -> str:
        """Why what the hub offers is not live here, in one line for people; "" while nothing is amiss."""
        if self._run.refusal is not None:
            return self._run.refusal.text()
        return self.last_error if self.last_error and self._target() is not None else ""

    def poll(self, now: float) -> None:
        """Begins an attempt whose pause has ended."""
        self._advance(now)

    def next_wake(self) -> float:
        """Returns when a pause ends."""
        return self._backoff.retry_at if self.state is SyncState.IDLE and self._target() is not None else float("inf")

    def actions(self) -> list[FollowerAction]:
        """Returns the actions for the driver, in order, and clears them."""
        done, self._actions = self._actions, []
        return done

    # ---- the machine -----------------------------------------------------------------------------------------------

    def _go(self, event: SyncEvent) -> None:
        self.state = TRANSITIONS[self.state, event]

    def _end(self, event: SyncEvent) -> None:
        """Ends the attempt."""
        self._attempt = None
        self._go(event)

    def _give_up(self) -> None:
        if self._attempt is not None:
            if self.state in STAGING:
                self._actions.append(AbandonStage())
            self._end(SyncEvent.GIVEN_UP)

    def _fail(self, message: str, blamed: Iterable[str], now: float, *, awaits_view: bool = False) -> None:
        self.last_error = message
        self._paths.failed(blamed)
        self._give_up()
        self._backoff.failed(now, awaits_view=awaits_view)

    def _answered(self, action: EngineAction, state: SyncState) -> SyncAttempt | None:
        """Returns the current attempt if an answer belongs to it and to this state."""
        return self._attempt if self.state is state and self.is_current(action) else None

    def _advance(self, now: float) -> None:
        if self.state is SyncState.IDLE and now >= self._backoff.retry_at:
            self._start(now)
        if self._attempt is not None and self.state is SyncState.GATHER:
            self._gather(self._attempt, now)

    def _start(self, now: float) -> None:
        target = self._target()
        if target is None:
            return
        at_hand = self._digest_at_hand()
        known = self._versions.find(at_hand) if at_hand else None
        if known is not None:
            self._begin([known[0]], adopt=known[1])
            return
        path = self._paths.path(self._versions.lineage, self._position_key(), target_key(target))
        if not path and self._versions.drop_gossiped(target.id):
            # Nothing to fetch, or no path to it: the hub will announce it.
            self._start(now)
        elif path is None:
            message = "no anchor or chain of deltas leads to the newest version; waiting for one"
            self._fail(message, [], now, awaits_view=True)
        elif path:
            self._begin(path)
        else:
            # The same bits under a later epoch: nothing travels, the position alone moves.
            self._begin([target], adopt=self._versions.position_of(target))

    def _begin(self, path: list[Announcement], adopt: Position | None = None) -> None:
        self._attempts += 1
        self._attempt = SyncAttempt(self._attempts, self._versions.run, path, adopt)
        self._go(SyncEvent.PATH_CHOSEN)
        self._actions += [GetManifest(a.id, a.inline) for a in path if a.id not in self._manifests]

    def _gather(self, attempt: SyncAttempt, now: float) -> None:
        if any(id not in self._manifests for id in attempt.ids):
            return
        attempt.steps = [self._manifests[id] for id in attempt.ids]
        try:
            attempt.check(self._versions.run, self.position)
        except (ReplayError, BaseMismatchError) as error:
            self._fail(str(error), attempt.ids, now)
            return
        if attempt.adopt is not None:
            self._go(SyncEvent.LOCAL_COPY_KNOWN)
            self._actions.append(Adopt(attempt.number, attempt.adopt))
        else:
            self._go(SyncEvent.PATH_CHECKED)
            self._actions.append(OpenStage(attempt.number, tuple(attempt.steps)))

    def _stage_saved(self, attempt: SyncAttempt) -> None:
        """Stages the saved chunks of the current step; commits once all are staged and the hub announced the path."""
        if attempt.step is not None:
            self._actions += attempt.stage_saved()
        elif self._versions.has_announced(attempt.path):
            self._go(SyncEvent.ALL_STAGED)
            self._actions.append(CommitStage(attempt.number))

    def _review(self, attempt: SyncAttempt, is_other: bool) -> None:
        """Gives an attempt up if its path is gone or a cheaper one exists. is_other: the hub's run or epoch changed."""
        versions = self._versions
        announced = {a.id for a in versions.view.lineage} if versions.view is not None else set()
        gone = any(versions.is_gone(a.id, attempt.run, a.epoch, a.version, announced) for a in attempt.path)
        if gone or (is_other and not versions.has_announced(attempt.path)):
            self._give_up()
            return
        target = self._target()
        if attempt.adopt is not None or target is None:
            return
        path = self._paths.switch(versions.lineage, self._position_key(), target_key(target), attempt.path)
        if path is not None:
            if self.state is SyncState.FETCH:
                kept = {a.id for a in path}
                self._actions += [StopFetch(step.id) for step in attempt.steps if step.id.hex() not in kept]
            self._give_up()

    # ---- positions -------------------------------------------------------------------------------------------------

    def _target(self) -> Announcement | None:
        """Returns the newest version, if it is later than the live one by (epoch, version), or of another run."""
        newest, live = self._versions.newest, self.position
        if newest is None or self._versions.view is None:
            return None
        if live is None or live.run != self._versions.run:
            return newest
        return newest if (newest.epoch, newest.version) > (live.epoch, live.version) else None

    def _position_key(self) -> VersionKey | None:
        """Returns the live version as a start of paths; None if it is of another run, or no version is live."""
        live = self.position
        return (live.version, live.digest.hex()) if live is not None and live.run == self._versions.run else None

    def _digest_at_hand(self) -> str:
        """Returns the digest (hex) of local weights that are no known version of the followed run; "": none."""
        if self.position is None:
            return self.local_digest
        return self.position.digest.hex() if self.position.run != self._versions.run else ""

    def _went_to(self, position: Position | None) -> None:
        """Sets the live position; drops the hub's view if its run is older."""
        self.position = position
        if position is None:
            return
        self._actions += self._run.went_to(position)
        view = self._versions.view
        if view is not None and (reason := self._run.why_not(view)) is not None:
            self._versions.drop_view()
            self._actions += self._run.refuse(view, reason)

    def _retire(self) -> None:
        """Retires manifests that neither the hub announces nor the attempt needs."""
        if self._versions.view is None:
            return
        kept = {a.id for a in self._versions.view.lineage} | set(self._attempt.ids if self._attempt else ())
        for id, step in list(self._manifests.items()):
            m = step.manifest
            if self._versions.is_gone(id, m.run, m.epoch, m.version, kept):
                del self._manifests[id]
                self._paths.forget(id)
                self._actions.append(Retire(step.id))
