"""How an actor gets from the version it runs to the newest one. Sans-I/O.

States: IDLE → GATHER (the path's manifests are being had) → OPEN (the engine opens a stage) → FETCH (chunks come, and
are put into the stage as they come, in the order of the path's steps) → COMMIT → IDLE …. A failure anywhere leads back
to IDLE and a pause; a manifest that failed twice is avoided, so that another path (in the end an anchor) is taken.

`p2psync.membership.runs` says which run is followed. Within it a target must be later than what is live, by (epoch,
version): nothing that was rightly signed in the past, and nothing of an epoch that was fenced off, leads back. What the
hub offers and is refused stays out of use, and people are told once. A version of another run that has the digest of
what is live is the same bits: it is adopted, not fetched. The whole path is resolved before the engine is touched.

Paths are compared by the bytes that are still missing here. A node stays on the path that it has begun, also when a
cheaper one is announced, a squash for one; unless that way to the newest version needs clearly fewer bytes than the
rest of its own and what would come after it. It turns so at most `MAX_SWITCHES` times before it commits something, so
new versions, however fast they come, cannot keep it from ever getting anywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from p2psync.errors import BaseMismatchError, ReplayError
from p2psync.membership.records import Announcement, View
from p2psync.membership.runs import NEWEST
from p2psync.protocol.lineage import VersionKey, missing_bytes, newest_announcement, resolve, target_key
from p2psync.protocol.manifest import Manifest, check_consecutive
from p2psync.protocol.versions import PathStep, Position
from p2psync.swarm.synchronizer.actions import (
    AbandonStage,
    Adopt,
    CommitStage,
    EngineAction,
    Fetch,
    FollowerAction,
    GetManifest,
    OpenStage,
    Retire,
    StageChunk,
    StopFetch,
)
from p2psync.swarm.synchronizer.run_choice import RunChoice

RETRY_MIN_SECONDS = 0.5
RETRY_MAX_SECONDS = 30.0
#: After this many failures a manifest is avoided as long as another path exists.
FAILURES_TO_AVOID = 2
#: Another path is turned to if it needs at most this share of the bytes that are missing of the one begun and of what
#: comes after that, and saves so many: beginning anew costs the engine time. So often between two commits.
SWITCH_MAX_SHARE = 0.75
SWITCH_MIN_BYTES = 256 << 10
MAX_SWITCHES = 2
#: Damages of the live version that are mended at once; each further one within `QUIET_SECONDS` seconds of the one
#: before waits twice as long, at most `REPAIR_MAX_SECONDS` (seconds): fetching a whole model is what each may cost.
IMMEDIATE_REPAIRS = 4
QUIET_SECONDS = 600.0
REPAIR_MAX_SECONDS = 300.0
#: Versions that only peers told of; beyond it, the oldest is forgotten.
MAX_GOSSIPED = 8


class SyncState(Enum):
    """Where the follower stands."""

    IDLE = "idle"
    GATHER = "gather"
    OPEN = "open"
    FETCH = "fetch"
    COMMIT = "commit"


@dataclass(slots=True)
class SyncAttempt:
    """The path under way; or, if `adopt` is given, the manifest that vouches for weights at hand.

    run: that the path leads in. todo: per step, chunks not yet put. saved: chunks that the store holds and that wait
    for their step.
    """

    number: int
    run: str
    announced: list[Announcement]
    adopt: Position | None = None
    steps: list[PathStep] = field(default_factory=list)
    todo: list[set[int]] = field(default_factory=list)
    saved: list[set[int]] = field(default_factory=list)
    putting: set[tuple[int, int]] = field(default_factory=set)

    @property
    def current(self) -> int | None:
        """The first step with chunks to put; None when all are in."""
        for i, todo in enumerate(self.todo):
            if todo:
                return i
        return None


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
        """`local_digest` (hex): the digest of weights at hand that are no known position, such as a base model.

        follow: see `p2psync.membership.runs.parse_follow`.
        """
        self.position = position
        self._run = RunChoice(position, follow)
        self.state = SyncState.IDLE
        self.last_error = ""
        self._local_digest = local_digest
        self._switch_bytes = switch_bytes
        #: Bytes at hand of each manifest, by id (hex).
        self._held: dict[str, int] = {}
        self._view: View | None = None
        self._head: Announcement | None = None
        self._stranded = False
        self._attempt: SyncAttempt | None = None
        self._attempts = 0
        self._switches = 0
        self._manifests: dict[str, PathStep] = {}
        #: Later versions than the hub's newest, of which peers told: fetched, and not committed before the hub says so.
        self._gossiped: dict[str, Announcement] = {}
        self._failures: dict[str, int] = {}
        self._pause = RETRY_MIN_SECONDS
        self._retry_at = 0.0
        self._corruptions, self._corrupt_at = 0, float("-inf")
        self._actions: list[FollowerAction] = []

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def viewed(self, view: View, now: float) -> None:
        """The hub's view changed. One of a run or epoch that is not to be followed is not used.

        A trainer that comes back announces its lineage in rising order of epochs and versions; so a manifest counts as
        gone only if it is not announced and the head is not before it.
        """
        if not view.run:
            return
        if (reason := self._run.why_not(view)) is not None:
            self._actions += self._run.refuse(view, reason)
            return
        self._run.accept()
        before = self._view
        over = before is None or (view.run, view.epoch) != (before.run, before.epoch)
        self._view = view
        self._head = newest_announcement(view.lineage)
        self._gossiped = {id: a for id, a in self._gossiped.items() if not over and self._is_ahead(a)}
        if self._stranded:
            self._stranded, self._retry_at = False, now
        if self._attempt and self.state in (SyncState.GATHER, SyncState.OPEN, SyncState.FETCH):
            lineage = {a.id for a in view.lineage}
            run = self._attempt.run
            gone = any(self._is_gone(a.id, run, a.epoch, a.version, lineage) for a in self._attempt.announced)
            if gone or (over and not self._is_confirmed(self._attempt)):
                self._drop_attempt()
            else:
                self._switch_if_cheaper()
        self._retire()
        self._advance(now)
        if self._attempt is not None and self.state is SyncState.FETCH and self._attempt.current is None:
            self._put_saved()

    def peer_announced(self, announcement: Announcement, manifest: Manifest, now: float) -> bool:
        """A peer offered the manifest of this version; its signature was checked. Whether it is news.

        It is if it comes after all that the hub has announced, in the hub's run and epoch.
        """
        view = self._view
        if (
            view is None
            or (manifest.run, manifest.epoch) != (view.run, view.epoch)
            or announcement.id in self._gossiped
        ):
            return False
        if not self._is_ahead(announcement):
            return False
        if len(self._gossiped) >= MAX_GOSSIPED:
            del self._gossiped[next(iter(self._gossiped))]
        self._gossiped[announcement.id] = announcement
        self.manifest(announcement.id, manifest, now)
        return True

    def holds_bytes(self, id: bytes, nbytes: int) -> None:
        """The store holds so many bytes of a manifest's chunks."""
        self._held[id.hex()] = nbytes

    def manifest(self, id: str, manifest: Manifest, now: float) -> None:
        """A manifest was had and its signature checked."""
        self._manifests[id] = PathStep(bytes.fromhex(id), manifest)
        self._advance(now)

    def no_manifest(self, id: str, message: str, now: float) -> None:
        """A manifest could not be had, or was forged."""
        if self.state is not SyncState.GATHER or self._attempt is None or id in self._manifests:
            return
        if any(a.id == id for a in self._attempt.announced):
            self._fail(message, [id], now)

    def adopted(self, action: Adopt, position: Position | None, now: float) -> None:
        """The outcome of `Adopt`: None if the local copy is something else."""
        if not self._is_current(action, SyncState.OPEN):
            return
        self._local_digest = ""
        self._drop_attempt()
        self._went_to(position)
        self._advance(now)

    def opened(self, action: OpenStage, wanted: Sequence[Sequence[int]], held: Sequence[Sequence[int]]) -> None:
        """The stage is open: per step, the chunks it wants, and those of them that the store holds already."""
        if not self._is_current(action, SyncState.OPEN) or self._attempt is None:
            return
        self.state = SyncState.FETCH
        attempt = self._attempt
        attempt.todo = [set(chunks) for chunks in wanted]
        attempt.saved = [set(chunks) & todo for chunks, todo in zip(held, attempt.todo, strict=True)]
        for step, chunks, at_hand in zip(attempt.steps, wanted, attempt.saved, strict=True):
            # What the engine does not want counts as held.
            missing = set(chunks) - at_hand
            self._held[step.id.hex()] = step.manifest.payload_bytes - sum(step.manifest.sizes[i] for i in missing)
            self._actions.append(Fetch(step, tuple(chunks)))
        self._put_saved()

    def saved(self, id: bytes, chunk: int) -> None:
        """The store holds a chunk now."""
        attempt = self._attempt
        if attempt is None or self.state is not SyncState.FETCH:
            return
        for i, step in enumerate(attempt.steps):
            if step.id == id and chunk in attempt.todo[i]:
                if chunk not in attempt.saved[i]:
                    self._held[id.hex()] = self._held.get(id.hex(), 0) + step.manifest.sizes[chunk]
                attempt.saved[i].add(chunk)
                if i == attempt.current:
                    self._put(attempt, i, chunk)

    def chunk_staged(self, action: StageChunk) -> None:
        """The stage took a chunk."""
        if self._is_current(action, SyncState.FETCH) and self._attempt is not None:
            self._attempt.putting.discard((action.step, action.chunk))
            self._attempt.todo[action.step].discard(action.chunk)
            self._attempt.saved[action.step].discard(action.chunk)
            if not self._attempt.todo[action.step]:
                self._put_saved()

    def chunk_damaged(self, action: StageChunk) -> None:
        """The store no longer has the chunk (damaged on disk): it will be fetched again."""
        if self._is_current(action, SyncState.FETCH) and self._attempt is not None:
            self._attempt.putting.discard((action.step, action.chunk))
            self._attempt.saved[action.step].discard(action.chunk)
            size = self._attempt.steps[action.step].manifest.sizes[action.chunk]
            self._held[action.id.hex()] = self._held.get(action.id.hex(), size) - size

    def committed(self, action: CommitStage, position: Position, now: float) -> None:
        """The stage is live."""
        self.last_error = ""
        self._attempt = None
        self.state = SyncState.IDLE
        self._went_to(position)
        self._switches = 0
        self._pause = RETRY_MIN_SECONDS
        self._failures.clear()
        self._retire()
        self._advance(now)

    def failed(self, action: EngineAction, message: str, position: Position | None, now: float) -> None:
        """Opening, putting or committing failed; `position` is what is live and vouched for now."""
        if self._attempt is not None and action.attempt == self._attempt.number:
            self.position = position
            self._fail(message, [a.id for a in self._attempt.announced], now)

    def mark_corrupt(self, message: str, position: Position | None, now: float) -> bool:
        """What was live turned out to be other bits than were committed; `position` is live instead, if anything is.

        From there the way is resolved anew: at once the first times, and after a pause that doubles where it happens
        again within `QUIET_SECONDS`, so that a disk that damages whatever it is given costs others little.

        False during a commit, which takes its outcome from elsewhere; ask again after it.
        """
        if self.state is SyncState.COMMIT:
            return False
        self.last_error = message
        self.position = position
        self._drop_attempt()
        self._corruptions = self._corruptions + 1 if now - self._corrupt_at < QUIET_SECONDS else 1
        self._corrupt_at = now
        if self._corruptions > IMMEDIATE_REPAIRS:
            self._retry_at = now + min(
                REPAIR_MAX_SECONDS, RETRY_MIN_SECONDS * 2 ** (self._corruptions - IMMEDIATE_REPAIRS)
            )
        self._advance(now)
        return True

    def store_failed(self, message: str, now: float) -> None:
        """Something that the attempt under way needs is not to be had (the disk is full): give up for a while."""
        if self._attempt is not None and self.state in (SyncState.GATHER, SyncState.OPEN, SyncState.FETCH):
            self._fail(message, [], now)

    @property
    def waiting_reason(self) -> str:
        """Why what the hub offers is not live here, in one line for people; "" while nothing is amiss."""
        if self._run.refusal is not None:
            return self._run.refusal.text()
        return self.last_error if self.last_error and self._behind() else ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing here that a delta could lead on from."""
        return self.position is None and not self._local_digest

    @property
    def target_digest(self) -> str:
        """The digest (hex) of the version that the attempt under way leads to; "" without one."""
        return self._attempt.announced[-1].digest if self._attempt is not None else ""

    @property
    def manifest_ids(self) -> list[bytes]:
        """The ids of the manifests of the attempt under way."""
        return [step.id for step in self._attempt.steps] if self._attempt is not None else []

    def is_current(self, action: EngineAction) -> bool:
        """Whether the action belongs to the attempt under way."""
        return self._attempt is not None and action.attempt == self._attempt.number

    def poll(self, now: float) -> None:
        """Try again what was put off."""
        self._advance(now)

    def next_wake(self) -> float:
        """When a pause ends."""
        return self._retry_at if self.state is SyncState.IDLE and self._behind() else float("inf")

    def actions(self) -> list[FollowerAction]:
        """What is to be done now, in order; empties the list."""
        done, self._actions = self._actions, []
        return done

    # ---- the way ---------------------------------------------------------------------------------------------------

    def target(self) -> Announcement | None:
        """The newest announced version, if it is later than what is live."""
        newest = newest_announcement(self._lineage)
        if newest is None or self._view is None:
            return None
        live = self.position
        if live is None or live.run != self._view.run:
            return newest
        return newest if (newest.epoch, newest.version) > (live.epoch, live.version) else None

    @property
    def _lineage(self) -> list[Announcement]:
        """What the hub announced, and what peers told of since."""
        return [*(self._view.lineage if self._view is not None else ()), *self._gossiped.values()]

    def _is_ahead(self, announcement: Announcement) -> bool:
        """Whether it comes after the hub's newest version."""
        newest = self._head
        return newest is None or (announcement.epoch, announcement.version) > (newest.epoch, newest.version)

    def _is_confirmed(self, attempt: SyncAttempt) -> bool:
        """Whether the hub has announced every manifest of the path."""
        assert self._view is not None
        return {a.id for a in attempt.announced} <= {a.id for a in self._view.lineage}

    def _behind(self) -> bool:
        return self.target() is not None

    def _advance(self, now: float) -> None:
        if self.state is SyncState.IDLE and now >= self._retry_at:
            self._start(now)
        if self.state is SyncState.GATHER:
            self._gather(now)

    def _start(self, now: float) -> None:
        target = self.target()
        if target is None or self._view is None:
            return
        if at_hand := self._digest_at_hand():
            known = self._find(at_hand)
            if known is not None:
                self._begin_attempt([known[0]], adopt=known[1])
                return
        path = self._resolve((target.version, target.digest))
        if not path and target.id in self._gossiped:
            # Nothing to fetch, or no way there: the hub will tell of it again.
            del self._gossiped[target.id]
            self._start(now)
        elif path is None:
            self._fail("no anchor or chain of deltas leads to the newest version; waiting for one", [], now)
            self._stranded = True
        elif path:
            self._begin_attempt(path)
        else:
            # The same bits under a later epoch: nothing travels, the position alone moves.
            self._begin_attempt([target], adopt=_position(self._view.run, target, target.version, target.digest))

    def _begin_attempt(self, path: list[Announcement], adopt: Position | None = None) -> None:
        assert self._view is not None
        self._attempts += 1
        self._attempt = SyncAttempt(self._attempts, self._view.run, path, adopt)
        self.state = SyncState.GATHER
        for announcement in path:
            if announcement.id not in self._manifests:
                self._actions.append(GetManifest(announcement.id, announcement.inline))

    def _resolve(self, target: VersionKey) -> list[Announcement] | None:
        assert self._view is not None
        start = None
        if self.position is not None and self.position.run == self._view.run:
            start = (self.position.version, self.position.digest.hex())
        trusted = [a for a in self._lineage if self._failures.get(a.id, 0) < FAILURES_TO_AVOID]
        path = resolve(trusted, start, target, self._held)
        return path if path is not None else resolve(self._lineage, start, target, self._held)

    def _switch_if_cheaper(self) -> None:
        """Leave the path that was begun for one that needs clearly fewer bytes from here."""
        attempt, target = self._attempt, self.target()
        if attempt is None or attempt.adopt is not None or target is None or self._switches >= MAX_SWITCHES:
            return
        assert self._view is not None
        end = target_key(target)
        path = self._resolve(end)
        after = resolve(self._lineage, target_key(attempt.announced[-1]), end, self._held)
        if not path or after is None or path == attempt.announced:
            return
        stay = missing_bytes(attempt.announced, self._held) + missing_bytes(after, self._held)
        if missing_bytes(path, self._held) > min(SWITCH_MAX_SHARE * stay, stay - self._switch_bytes):
            return
        self._switches += 1
        kept = {a.id for a in path}
        for step in attempt.steps:
            if self.state is SyncState.FETCH and step.id.hex() not in kept:
                self._actions.append(StopFetch(step.id))
        self._drop_attempt()

    def _digest_at_hand(self) -> str:
        """The digest (hex) of weights here that are of no known place in the run that is followed; "": of none such."""
        assert self._view is not None
        if self.position is None:
            return self._local_digest
        return self.position.digest.hex() if self.position.run != self._view.run else ""

    def _find(self, digest: str) -> tuple[Announcement, Position] | None:
        """The version with this digest, if the lineage knows it as an end or as a base; as an end, the newest."""
        assert self._view is not None
        for a in sorted(self._view.lineage, key=lambda a: (a.epoch, a.version), reverse=True):
            if a.digest == digest:
                return a, _position(self._view.run, a, a.version, a.digest)
        for a in self._view.lineage:
            if a.base is not None and a.base_digest == digest:
                return a, _position(self._view.run, a, a.base, a.base_digest)
        return None

    def _gather(self, now: float) -> None:
        attempt = self._attempt
        assert attempt is not None
        if any(a.id not in self._manifests for a in attempt.announced):
            return
        attempt.steps = [self._manifests[a.id] for a in attempt.announced]
        try:
            self._check(attempt)
        except (ReplayError, BaseMismatchError) as error:
            self._fail(str(error), [a.id for a in attempt.announced], now)
            return
        self.state = SyncState.OPEN
        if attempt.adopt is not None:
            self._actions.append(Adopt(attempt.number, attempt.adopt))
        else:
            self._actions.append(OpenStage(attempt.number, tuple(attempt.steps)))

    def _check(self, attempt: SyncAttempt) -> None:
        """What the hub announced must be what the manifests say; they must meet, and lead forward."""
        assert self._view is not None
        for announced, step in zip(attempt.announced, attempt.steps, strict=True):
            m = step.manifest
            said = (announced.version, announced.base, announced.digest, announced.base_digest)
            if said != (m.version, m.base, m.digest.hex(), m.base_digest.hex()) or m.run != self._view.run:
                raise ReplayError(f"the hub announced version {announced.version} with another version's manifest")
        for first, then in itertools.pairwise(attempt.steps):
            check_consecutive(first.manifest, then.manifest)
            if then.manifest.epoch < first.manifest.epoch:
                raise ReplayError(f"version {then.manifest.version} was published by a trainer that was fenced off")
        last = attempt.steps[-1].manifest
        live = self.position
        if live is None or live.run != last.run:
            return
        if (last.epoch, last.version) <= (live.epoch, live.version):
            raise ReplayError(f"version {last.version} of epoch {last.epoch} is not later than what is live")

    def _put_saved(self) -> None:
        attempt = self._attempt
        assert attempt is not None
        step = attempt.current
        if step is None:
            if self._is_confirmed(attempt):
                self.state = SyncState.COMMIT
                self._actions.append(CommitStage(attempt.number))
            return
        for chunk in sorted(attempt.saved[step]):
            self._put(attempt, step, chunk)

    def _put(self, attempt: SyncAttempt, step: int, chunk: int) -> None:
        if (step, chunk) not in attempt.putting:
            attempt.putting.add((step, chunk))
            self._actions.append(StageChunk(attempt.number, step, attempt.steps[step].id, chunk))

    def _drop_attempt(self) -> None:
        if (
            self._attempt is not None
            and self._attempt.adopt is None
            and self.state in (SyncState.OPEN, SyncState.FETCH)
        ):
            self._actions.append(AbandonStage())
        self._attempt = None
        self.state = SyncState.IDLE

    def _fail(self, message: str, blamed: Sequence[str], now: float) -> None:
        self.last_error = message
        for id in blamed:
            self._failures[id] = self._failures.get(id, 0) + 1
        self._drop_attempt()
        self._retry_at = now + self._pause
        self._pause = min(RETRY_MAX_SECONDS, self._pause * 2)

    def _retire(self) -> None:
        if self._view is None:
            return
        keep = {a.id for a in self._view.lineage} | (
            {a.id for a in self._attempt.announced} if self._attempt else set()
        )
        for id, step in list(self._manifests.items()):
            m = step.manifest
            if self._is_gone(id, m.run, m.epoch, m.version, keep):
                del self._manifests[id]
                self._held.pop(id, None)
                self._actions.append(Retire(step.id))

    def _is_gone(self, id: str, run: str, epoch: int, version: int, lineage: set[str]) -> bool:
        """Whether a manifest was taken back: a fork's lost versions count as before its head, whatever their number,
        and so does all of another run."""
        newest = self._head
        if newest is None or self._view is None or id in lineage:
            return False
        return run != self._view.run or (epoch, version) <= (newest.epoch, newest.version)

    def _went_to(self, position: Position | None) -> None:
        """This is live now. What the hub offers may be of an older run than that: it changed hands meanwhile."""
        self.position = position
        if position is None:
            return
        self._actions += self._run.went_to(position)
        view = self._view
        if view is not None and (reason := self._run.why_not(view)) is not None:
            self._view = self._head = None
            self._actions += self._run.refuse(view, reason)

    def _is_current(self, action: EngineAction, state: SyncState) -> bool:
        return self._attempt is not None and self.state is state and action.attempt == self._attempt.number


def _position(run: str, a: Announcement, version: int, digest: str) -> Position:
    return Position(run=run, epoch=a.epoch, version=version, digest=bytes.fromhex(digest))
