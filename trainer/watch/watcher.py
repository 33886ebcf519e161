"""Decides which checkpoint of a watched directory is to be published next: the newest whole policy, never an older one.

A pure core over listings: the caller scans the directory (`p2psync.trainer.watch.scanner`), passes the listing and the
time in, and publishes the checkpoint that `next` returns. A policy is told by its bits: its *fingerprint* is a hash
over a sample of its weights. Checkpoints that were published, or overtaken by newer ones, are remembered by path and by
fingerprint, durably, so that no touch, copy, rename or restart brings them back. docs/guides/checkpoints.md has every
rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from p2psync.engines.checkpoint.framework_names import is_text, printable
from p2psync.trainer.watch.candidates import (
    Candidate,
    CheckpointFault,
    FileStates,
    FoundCandidates,
    WeightStamps,
    find_candidates,
)
from p2psync.trainer.watch.listing import Listing
from p2psync.trainer.watch.locations import CheckpointRules
from p2psync.trainer.watch.memory import LiveCheckpoint, PendingPublish, SeenCheckpoint, WatchMemory
from p2psync.trainer.watch.notices import Notice, NoticeLog

#: Pauses before a checkpoint that could not be read is tried again (seconds): doubled from the first to the last.
RETRY_FIRST, RETRY_LAST = 0.5, 10.0


@dataclass(slots=True)
class _Stability:
    state: FileStates
    fault: CheckpointFault | None
    since: float


@dataclass(slots=True)
class _Backoff:
    attempts: int
    until: float


@dataclass
class CheckpointWatcher:
    """Watches the checkpoints of one directory.

    settle: seconds without a change after which a checkpoint is complete, where there is no marker. backlog: publish
    every checkpoint, oldest first, instead of only the newest. memory: of earlier lives of the trainer.
    """

    rules: CheckpointRules = field(default_factory=CheckpointRules)
    settle: float = 1.0
    backlog: bool = False
    memory: WatchMemory = field(default_factory=WatchMemory)
    _found: FoundCandidates | None = None
    _listing: Listing = field(default_factory=lambda: Listing.of([], 0))
    _now: float = 0.0
    _candidates: list[Candidate] = field(default_factory=list)
    _whole: list[Candidate] = field(default_factory=list)
    _stability: dict[str, _Stability] = field(default_factory=dict)
    _were_whole: dict[str, WeightStamps] = field(default_factory=dict)
    _fingerprints: dict[str, tuple[object, str]] = field(default_factory=dict)
    _times: dict[str, tuple[WeightStamps, int]] = field(default_factory=dict)
    _refused: dict[str, FileStates] = field(default_factory=dict)
    _backoffs: dict[str, _Backoff] = field(default_factory=dict)
    _notices: NoticeLog = field(default_factory=NoticeLog)

    # ---- observing ---------------------------------------------------------------------------------------------------

    def observe(self, listing: Listing, now: float) -> None:
        """Take in a listing of the directory. now: monotonic seconds."""
        if self._found is None or listing.entries != self._listing.entries or listing.owner != self._listing.owner:
            self._found = find_candidates(listing, self.rules)
        self._listing, self._now, found = listing, now, self._found
        self._candidates = [self._dated(candidate) for candidate in found.candidates]
        present = {candidate.path for candidate in self._candidates}
        for memory in (
            self._stability,
            self._were_whole,
            self._fingerprints,
            self._times,
            self._refused,
            self._backoffs,
        ):
            for path in [path for path in memory if path not in present]:
                del memory[path]
        self._notices.observe(listing, found, now)
        self._whole = [candidate for candidate in self._candidates if self._is_whole(candidate)]

    def without_fingerprint(self) -> list[Candidate]:
        """Returns the whole checkpoints whose fingerprints the caller must `learn` before it calls `next`."""
        return [candidate for candidate in self._whole if self._fingerprint(candidate) is None]

    def learn(self, candidate: Candidate, fingerprint: str) -> None:
        """Take in the fingerprint of a whole checkpoint."""
        self._fingerprints[candidate.path] = (candidate.stamps, fingerprint)

    def unreadable(self, candidate: Candidate, reason: str) -> None:
        """Take in that a checkpoint's weights could not be read: it does not count as whole in this listing."""
        self._whole = [other for other in self._whole if other.path != candidate.path]
        self._notices.about(candidate, f"is not complete yet: {reason}")

    def notices(self) -> list[Notice]:
        """Returns the notices for people since the last call."""
        return self._notices.take()

    # ---- choosing --------------------------------------------------------------------------------------------------

    def next(self) -> Candidate | None:
        """Returns the checkpoint to publish now; None if the live one is the newest, or none is whole."""
        ready = [candidate for candidate in self._whole if self._is_free(candidate)]
        options = self._options(ready)
        self._note_overtaken(options)
        if not options:
            return None
        chosen = options[0] if self.backlog else options[-1]
        older = [c for c in ready if c.path != chosen.path and c.path not in self.memory.paths]
        if self.memory.live is None and older and not self.backlog:
            others = f"the {len(older)} others are" if len(older) > 1 else "the other one is"
            text = f"{printable(chosen.path)} is the newest of {len(older) + 1} checkpoints: {others} not published"
            self._notices.once("backlog", f"{text}; --backlog all publishes each")
        return chosen

    def begin(self, candidate: Candidate, version: int | None) -> None:
        """Take in that a checkpoint is about to be published while `version` is live (None: none).

        The caller saves `memory` before it publishes.
        """
        live = self._as_live(candidate, -1)
        self.memory.pending = PendingPublish(live, version, self._overtaken_by(live))

    def published(self, candidate: Candidate, version: int) -> None:
        """Take in that a checkpoint is live as `version`: all older checkpoints have been overtaken."""
        live = self._as_live(candidate, version)
        self._take(PendingPublish(live, None, self._overtaken_by(live)))
        self._backoffs.pop(candidate.path, None)
        self._notices.forget(candidate.path)
        self._notices.left_out(candidate)

    def same(self, candidate: Candidate, version: int) -> None:
        """Take in that a checkpoint holds the bits of `version`, which is live.

        A step of the live family becomes the live checkpoint; a copy of another family is only remembered.
        """
        live = self.memory.live
        if live is None or candidate.order.family == live.family:
            self.published(candidate, version)
            return
        self.memory.pending = None
        self.memory.remember(candidate.path, SeenCheckpoint(self._fingerprint(candidate) or "", candidate.weights))

    def refused(self, candidate: Candidate) -> None:
        """Take in that this state of a checkpoint can never be published; a later state may."""
        self._refused[candidate.path] = candidate.state
        self.memory.pending = None

    def failed(self, candidate: Candidate, now: float) -> None:
        """Take in that a checkpoint could not be read: it is tried again after a backoff, others meanwhile."""
        attempts = self._backoffs[candidate.path].attempts if candidate.path in self._backoffs else 0
        pause = min(RETRY_LAST, RETRY_FIRST * 2.0**attempts)
        self._backoffs[candidate.path] = _Backoff(attempts + 1, now + pause)
        self.memory.pending = None

    def resume(self, version: int | None) -> None:
        """Begin after a start with `version` live (None: none): settle the publish that was under way before, if any.

        It counts as published if the live version is another one than before it. A trainer without a version has lost
        its store, so it forgets all earlier publishes.
        """
        if version is None:
            self.memory = WatchMemory()
        if self.memory.pending is not None:
            pending = self.memory.pending
            self.memory.pending = None
            if version is not None and version != pending.before:
                live = msgspec.structs.replace(pending.live, version=version)
                self._take(PendingPublish(live, None, pending.overtaken))

    def _take(self, done: PendingPublish) -> None:
        self.memory.live, self.memory.pending = done.live, None
        for path, seen in done.overtaken.items():
            self.memory.remember(path, seen)
        self.memory.remember(done.live.path, SeenCheckpoint(done.live.fingerprint, done.live.weights))

    def _overtaken_by(self, live: LiveCheckpoint) -> dict[str, SeenCheckpoint]:
        """Returns the checkpoints that are overtaken once `live` is live, by path."""
        overtaken = {}
        whole = {candidate.path for candidate in self._whole}
        for other in self._candidates:
            if other.path == live.path or self._is_newer(other, live, ties=self.backlog) or not is_text(other.path):
                continue
            if other.path in whole:
                overtaken[other.path] = SeenCheckpoint(self._fingerprint(other) or "", other.weights)
            elif other.path not in self.memory.paths:
                overtaken[other.path] = SeenCheckpoint("", ())
        return overtaken

    # ---- whether a checkpoint is whole -----------------------------------------------------------------------------

    def _dated(self, candidate: Candidate) -> Candidate:
        """Returns the candidate with the time of its weights, at most the time when they were first seen."""
        known = self._times.get(candidate.path)
        if known is None or known[0] != candidate.weights:
            known = (candidate.weights, min(candidate.time, self._listing.wall))
            self._times[candidate.path] = known
        return replace(candidate, time=known[1])

    def _is_whole(self, candidate: Candidate) -> bool:
        seen = self._stability.get(candidate.path)
        if seen is None or seen.state != candidate.state or seen.fault != candidate.fault:
            self._stability[candidate.path] = seen = _Stability(candidate.state, candidate.fault, self._now)
        seen.since = min(seen.since, self._now)
        quiet = self._now - seen.since
        if candidate.fault is not None:
            fault = candidate.fault
            if quiet >= max(self.settle, fault.report_after):
                what = "not complete yet" if fault.passing else "not taken"
                self._notices.about(candidate, f"is {what}: {fault.reason}", warning=fault.warning)
            return False
        if not (quiet >= self.settle if self.rules.marker is None else self._is_marked(candidate, quiet)):
            return False
        if _is_remnant(candidate, self._were_whole.get(candidate.path, ())):
            self._notices.about(candidate, "is not taken: some of its weights files were removed")
            return False
        self._were_whole[candidate.path] = candidate.weights
        return True

    def _is_marked(self, candidate: Candidate, quiet: float) -> bool:
        """Returns whether the marker is there; one older than the weights counts only once the candidate has settled.

        Such a marker was copied before the weights, or is left from an earlier policy.
        """
        marker = f"{candidate.path}/{self.rules.marker}" if candidate.path else str(self.rules.marker)
        there = marker in self._listing.entries
        return candidate.marked or (there and quiet >= self.settle)

    def _is_free(self, candidate: Candidate) -> bool:
        held = self._backoffs.get(candidate.path)
        return self._refused.get(candidate.path) != candidate.state and (held is None or held.until <= self._now)

    def _fingerprint(self, candidate: Candidate) -> str | None:
        stamps, fingerprint = self._fingerprints.get(candidate.path, (None, None))
        return fingerprint if stamps == candidate.stamps else None

    # ---- which is newest -------------------------------------------------------------------------------------------

    def _options(self, ready: list[Candidate]) -> list[Candidate]:
        """Returns the checkpoints that may be published, oldest first."""
        families: dict[str, list[Candidate]] = {}
        for candidate in ready:
            if not self._is_copy(candidate, ready):
                families.setdefault(candidate.order.family, []).append(candidate)
        options = []
        for family in families.values():
            family.sort(key=lambda c: (c.order.numbers, c.time, c.path))
            chosen = family if self.backlog else family[-1:]
            latest = max(candidate.time for candidate in family)
            options += [(latest, index, c) for index, c in enumerate(chosen) if self._may_follow(c, latest)]
        options.sort(key=lambda option: (option[0], option[2].order.family, option[1]))
        return [option[2] for option in options]

    def _may_follow(self, candidate: Candidate, latest: int) -> bool:
        """Returns whether a checkpoint may follow the live one. latest: the last write to its family (Unix ns)."""
        live = self.memory.live
        if live is None:
            return True
        if candidate.path == live.path:
            changed = candidate.weights != live.weights or self._fingerprint(candidate) != live.fingerprint
            return changed and not _is_remnant(candidate, live.weights)
        if candidate.order.family == live.family and candidate.order.numbers > live.numbers:
            return True
        if self._is_known(candidate, live):
            return False
        if candidate.order.family != live.family and not self.backlog:
            candidate = replace(candidate, time=latest)
        return self._is_newer(candidate, live) or self._replaces(candidate, live)

    def _is_known(self, candidate: Candidate, live: LiveCheckpoint) -> bool:
        """Returns whether its weights were published or overtaken; those of the live one count only at their own path.

        So another path with the live fingerprint is offered once, and its bits are compared in full.
        """
        fingerprint = self._fingerprint(candidate)
        seen = self.memory.paths.get(candidate.path)
        return fingerprint in self.memory.fingerprints and (
            fingerprint != live.fingerprint or (seen is not None and seen.fingerprint == fingerprint)
        )

    def _is_newer(self, candidate: Candidate, live: LiveCheckpoint, *, ties: bool = True) -> bool:
        """Returns whether a checkpoint is newer than the live one: by number within a family, else by time.

        ties: whether one of the same time that was never seen is newer.
        """
        if candidate.order.family == live.family and candidate.order.numbers != live.numbers:
            return candidate.order.numbers > live.numbers
        tie = ties and candidate.time == live.time and candidate.path not in self.memory.paths
        return candidate.time > live.time or tie

    def _replaces(self, candidate: Candidate, live: LiveCheckpoint) -> bool:
        """Returns whether an older name holds the newest policy: new weights, while newer checkpoints are gone."""
        if self._exists(live.path) or any(self._precedes(candidate, other) for other in self._candidates):
            return False
        known = self.memory.paths.get(candidate.path)
        if known is None:
            return candidate.time > live.time
        return known.fingerprint != "" and not _is_remnant(candidate, known.weights)

    def _precedes(self, candidate: Candidate, other: Candidate) -> bool:
        if other.path == candidate.path or not other.weights:
            return False
        if other.order.family == candidate.order.family:
            return other.order.numbers > candidate.order.numbers
        return other.time > candidate.time

    def _exists(self, path: str) -> bool:
        if path == "":
            return any(candidate.path == "" for candidate in self._candidates)
        return self._listing.may_exist(path)

    def _is_copy(self, candidate: Candidate, ready: list[Candidate]) -> bool:
        """Returns whether a candidate without a number is a copy of a numbered one, as `latest` is."""
        if candidate.order.numbers:
            return False
        fingerprint = self._fingerprint(candidate)
        return any(other.order.numbers and self._fingerprint(other) == fingerprint for other in ready)

    def _note_overtaken(self, options: list[Candidate]) -> None:
        """Remember the bits of whole checkpoints that are older than the live one, and make notices about them."""
        live = self.memory.live
        if live is None:
            return
        for candidate in self._whole:
            fingerprint = self._fingerprint(candidate) or ""
            is_known = fingerprint in self.memory.fingerprints
            if (
                candidate.path == live.path
                or candidate in options
                or not (is_known or not self._is_newer(candidate, live))
            ):
                continue
            seen = self.memory.paths.get(candidate.path)
            if seen is None or seen.fingerprint != fingerprint or seen.weights != candidate.weights:
                self.memory.remember(candidate.path, SeenCheckpoint(fingerprint, candidate.weights))
                if fingerprint != live.fingerprint:
                    self._notices.overtaken(candidate, live.path, self._newer(candidate, live), is_known=is_known)

    def _newer(self, candidate: Candidate, live: LiveCheckpoint) -> str | None:
        """Returns the path of the newer checkpoint that keeps this one out; None if all newer ones are gone."""
        if self._exists(live.path):
            return live.path
        newer = [other for other in self._candidates if self._precedes(candidate, other)]
        return max(newer, key=_age).path if newer else None

    # ---- small things ----------------------------------------------------------------------------------------------

    def _as_live(self, candidate: Candidate, version: int) -> LiveCheckpoint:
        family = [c.time for c in self._whole if c.order.family == candidate.order.family]
        before = self.memory.live
        if before is not None and before.family == candidate.order.family:
            family.append(before.time)
        return LiveCheckpoint(
            path=candidate.path,
            family=candidate.order.family,
            numbers=candidate.order.numbers,
            weights=candidate.weights,
            fingerprint=self._fingerprint(candidate) or "",
            time=max([candidate.time, *family]),
            version=version,
        )


def _age(candidate: Candidate) -> tuple[tuple[int, ...], int]:
    return candidate.order.numbers, candidate.time


def _is_remnant(candidate: Candidate, before: WeightStamps) -> bool:
    """Returns whether some weights files are gone and the others unchanged: a removal that has not ended."""
    return set(candidate.weights) < set(before)
