"""Decides which checkpoint of a watched directory is to be published next: the newest whole policy, never an older one.

A pure core over listings: the caller looks at the directory (`p2psync.trainer.watch.look`), hands in what it saw and
the time, and publishes what `next` names. A checkpoint counts as a policy by its bits. Its *print* is a hash over a
sample of its weights; what has been published, or overtaken by something newer, is remembered by path and by print,
durably, so that no touch, copy, rename or restart brings it back. docs/guides/checkpoints.md has every rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from p2psync.engines.checkpoint.framework_names import is_text, shown
from p2psync.trainer.watch.candidates import Candidate, Fault, Found, State, Weights, find_candidates
from p2psync.trainer.watch.layouts import Rules
from p2psync.trainer.watch.listing import Listing
from p2psync.trainer.watch.memory import Live, Memory, Pending, Seen
from p2psync.trainer.watch.remarks import Remark, Remarks

#: Pauses before a checkpoint that could not be read is tried again (seconds): doubled from the first to the last.
RETRY_FIRST, RETRY_LAST = 0.5, 10.0


@dataclass(slots=True)
class _Quiet:
    state: State
    fault: Fault | None
    since: float


@dataclass(slots=True)
class _Held:
    attempts: int
    until: float


@dataclass
class Watcher:
    """The checkpoints of one directory. settle: seconds without a change, where there is no marker.

    backlog: whether every checkpoint is published, oldest first, instead of only the newest. memory: of earlier lives.
    """

    rules: Rules = field(default_factory=Rules)
    settle: float = 1.0
    backlog: bool = False
    memory: Memory = field(default_factory=Memory)
    _found: Found | None = None
    _listing: Listing = field(default_factory=lambda: Listing.of([], 0))
    _now: float = 0.0
    _candidates: list[Candidate] = field(default_factory=list)
    _whole: list[Candidate] = field(default_factory=list)
    _quiet: dict[str, _Quiet] = field(default_factory=dict)
    _were_whole: dict[str, Weights] = field(default_factory=dict)
    _prints: dict[str, tuple[object, str]] = field(default_factory=dict)
    _times: dict[str, tuple[Weights, int]] = field(default_factory=dict)
    _refused: dict[str, State] = field(default_factory=dict)
    _held: dict[str, _Held] = field(default_factory=dict)
    _remarks: Remarks = field(default_factory=Remarks)

    # ---- looking ---------------------------------------------------------------------------------------------------

    def observe(self, listing: Listing, now: float) -> None:
        """Take in one look at the directory. now: monotonic seconds."""
        if self._found is None or listing.entries != self._listing.entries or listing.owner != self._listing.owner:
            self._found = find_candidates(listing, self.rules)
        self._listing, self._now, found = listing, now, self._found
        self._candidates = [self._dated(candidate) for candidate in found.candidates]
        present = {candidate.path for candidate in self._candidates}
        for memory in (self._quiet, self._were_whole, self._prints, self._times, self._refused, self._held):
            for path in [path for path in memory if path not in present]:
                del memory[path]
        self._remarks.looked(listing, found, now)
        self._whole = [candidate for candidate in self._candidates if self._is_whole(candidate)]

    def unprinted(self) -> list[Candidate]:
        """Whole checkpoints whose prints are needed before `next` can be asked."""
        return [candidate for candidate in self._whole if self._print(candidate) is None]

    def learn(self, candidate: Candidate, print: str) -> None:
        """The print of a whole checkpoint."""
        self._prints[candidate.path] = (candidate.stamps, print)

    def unreadable(self, candidate: Candidate, reason: str) -> None:
        """The print of a checkpoint could not be taken: it does not count as whole in this look."""
        self._whole = [other for other in self._whole if other.path != candidate.path]
        self._remarks.about(candidate, f"is not complete yet: {reason}")

    def remarks(self) -> list[Remark]:
        """What people are to be told since the last call."""
        return self._remarks.take()

    # ---- choosing --------------------------------------------------------------------------------------------------

    def next(self) -> Candidate | None:
        """The checkpoint to publish now; None: what is live is the newest, or nothing is whole."""
        ready = [candidate for candidate in self._whole if self._is_free(candidate)]
        options = self._options(ready)
        self._note_overtaken(options)
        if not options:
            return None
        chosen = options[0] if self.backlog else options[-1]
        older = [c for c in ready if c.path != chosen.path and c.path not in self.memory.paths]
        if self.memory.live is None and older and not self.backlog:
            others = f"the {len(older)} others are" if len(older) > 1 else "the other one is"
            text = f"{shown(chosen.path)} is the newest of {len(older) + 1} checkpoints: {others} not published"
            self._remarks.once("backlog", f"{text}; --backlog all publishes each")
        return chosen

    def begin(self, candidate: Candidate, version: int | None) -> None:
        """A checkpoint is about to be published while `version` is live; to be made durable before it is."""
        live = self._as_live(candidate, -1)
        self.memory.pending = Pending(live, version, self._overtaken_by(live))

    def published(self, candidate: Candidate, version: int) -> None:
        """A checkpoint is live as `version`: all that is older has been overtaken."""
        live = self._as_live(candidate, version)
        self._take(Pending(live, None, self._overtaken_by(live)))
        self._held.pop(candidate.path, None)
        self._remarks.forget(candidate.path)
        self._remarks.left_out(candidate)

    def same(self, candidate: Candidate, version: int) -> None:
        """A checkpoint holds the bits of `version`, which is live: a later step is live now, a copy changes nothing."""
        live = self.memory.live
        if live is None or candidate.order.family == live.family:
            self.published(candidate, version)
            return
        self.memory.pending = None
        self.memory.remember(candidate.path, Seen(self._print(candidate) or "", candidate.weights))

    def refused(self, candidate: Candidate) -> None:
        """This state of a checkpoint can never be published; a later state may."""
        self._refused[candidate.path] = candidate.state
        self.memory.pending = None

    def failed(self, candidate: Candidate, now: float) -> None:
        """A checkpoint could not be read this time: it is tried again after a pause, others meanwhile."""
        attempts = self._held[candidate.path].attempts if candidate.path in self._held else 0
        pause = min(RETRY_LAST, RETRY_FIRST * 2.0**attempts)
        self._held[candidate.path] = _Held(attempts + 1, now + pause)
        self.memory.pending = None

    def resume(self, version: int | None) -> None:
        """After a start with `version` live: whether what was being published when the last life ended became it.

        A trainer without a version has lost its store: what was published before counts no more.
        """
        if version is None:
            self.memory = Memory()
        if self.memory.pending is not None:
            pending = self.memory.pending
            self.memory.pending = None
            if version is not None and version != pending.before:
                live = msgspec.structs.replace(pending.live, version=version)
                self._take(Pending(live, None, pending.overtaken))

    def _take(self, done: Pending) -> None:
        self.memory.live, self.memory.pending = done.live, None
        for path, seen in done.overtaken.items():
            self.memory.remember(path, seen)
        self.memory.remember(done.live.path, Seen(done.live.print, done.live.weights))

    def _overtaken_by(self, live: Live) -> dict[str, Seen]:
        """What is never to come back once a checkpoint is live."""
        overtaken = {}
        whole = {candidate.path for candidate in self._whole}
        for other in self._candidates:
            if other.path == live.path or self._is_newer(other, live, ties=self.backlog) or not is_text(other.path):
                continue
            if other.path in whole:
                overtaken[other.path] = Seen(self._print(other) or "", other.weights)
            elif other.path not in self.memory.paths:
                overtaken[other.path] = Seen("", ())
        return overtaken

    # ---- whether a checkpoint is whole -----------------------------------------------------------------------------

    def _dated(self, candidate: Candidate) -> Candidate:
        """With the time of its weights, which is never later than when they were first seen."""
        known = self._times.get(candidate.path)
        if known is None or known[0] != candidate.weights:
            known = (candidate.weights, min(candidate.time, self._listing.wall))
            self._times[candidate.path] = known
        return replace(candidate, time=known[1])

    def _is_whole(self, candidate: Candidate) -> bool:
        seen = self._quiet.get(candidate.path)
        if seen is None or seen.state != candidate.state or seen.fault != candidate.fault:
            self._quiet[candidate.path] = seen = _Quiet(candidate.state, candidate.fault, self._now)
        seen.since = min(seen.since, self._now)
        quiet = self._now - seen.since
        if candidate.fault is not None:
            fault = candidate.fault
            if quiet >= max(self.settle, fault.patience):
                what = "not complete yet" if fault.passing else "not taken"
                self._remarks.about(candidate, f"is {what}: {fault.reason}", warning=fault.warning)
            return False
        if not (quiet >= self.settle if self.rules.marker is None else self._is_marked(candidate, quiet)):
            return False
        if _is_remnant(candidate, self._were_whole.get(candidate.path, ())):
            self._remarks.about(candidate, "is not taken: some of its weights files were removed")
            return False
        self._were_whole[candidate.path] = candidate.weights
        return True

    def _is_marked(self, candidate: Candidate, quiet: float) -> bool:
        """A marker older than the weights was copied before them, or is left from an earlier policy: time decides."""
        marker = f"{candidate.path}/{self.rules.marker}" if candidate.path else str(self.rules.marker)
        there = marker in self._listing.entries
        return candidate.marked or (there and quiet >= self.settle)

    def _is_free(self, candidate: Candidate) -> bool:
        held = self._held.get(candidate.path)
        return self._refused.get(candidate.path) != candidate.state and (held is None or held.until <= self._now)

    def _print(self, candidate: Candidate) -> str | None:
        stamps, print = self._prints.get(candidate.path, (None, None))
        return print if stamps == candidate.stamps else None

    # ---- which is newest -------------------------------------------------------------------------------------------

    def _options(self, ready: list[Candidate]) -> list[Candidate]:
        """What may be published, oldest first."""
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
        """Whether a checkpoint may become live after what is live. latest: when its family was last written to."""
        live = self.memory.live
        if live is None:
            return True
        if candidate.path == live.path:
            changed = candidate.weights != live.weights or self._print(candidate) != live.print
            return changed and not _is_remnant(candidate, live.weights)
        if candidate.order.family == live.family and candidate.order.numbers > live.numbers:
            return True
        if self._is_known(candidate, live):
            return False
        if candidate.order.family != live.family and not self.backlog:
            candidate = replace(candidate, time=latest)
        return self._is_newer(candidate, live) or self._replaces(candidate, live)

    def _is_known(self, candidate: Candidate, live: Live) -> bool:
        """Whether its weights were published or overtaken. Those of the live one are compared in full, once."""
        print = self._print(candidate)
        seen = self.memory.paths.get(candidate.path)
        return print in self.memory.prints and (print != live.print or (seen is not None and seen.print == print))

    def _is_newer(self, candidate: Candidate, live: Live, *, ties: bool = True) -> bool:
        """By its number where the names are alike, else by time. ties: of the same time, one never seen is newer."""
        if candidate.order.family == live.family and candidate.order.numbers != live.numbers:
            return candidate.order.numbers > live.numbers
        tie = ties and candidate.time == live.time and candidate.path not in self.memory.paths
        return candidate.time > live.time or tie

    def _replaces(self, candidate: Candidate, live: Live) -> bool:
        """Whether an older name holds the newest policy: its weights are new, and all that is newer is gone."""
        if self._exists(live.path) or any(self._precedes(candidate, other) for other in self._candidates):
            return False
        known = self.memory.paths.get(candidate.path)
        if known is None:
            return candidate.time > live.time
        return known.print != "" and not _is_remnant(candidate, known.weights)

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
        """Whether a numbered checkpoint holds the same policy, as beside a copy called `latest`."""
        if candidate.order.numbers:
            return False
        print = self._print(candidate)
        return any(other.order.numbers and self._print(other) == print for other in ready)

    def _note_overtaken(self, options: list[Candidate]) -> None:
        """Remember the bits of whole checkpoints that are older than what is live, and say that they are left out."""
        live = self.memory.live
        if live is None:
            return
        for candidate in self._whole:
            print = self._print(candidate) or ""
            is_known = print in self.memory.prints
            if (
                candidate.path == live.path
                or candidate in options
                or not (is_known or not self._is_newer(candidate, live))
            ):
                continue
            seen = self.memory.paths.get(candidate.path)
            if seen is None or seen.print != print or seen.weights != candidate.weights:
                self.memory.remember(candidate.path, Seen(print, candidate.weights))
                if print != live.print:
                    self._remarks.overtaken(candidate, live.path, self._newer(candidate, live), is_known=is_known)

    def _newer(self, candidate: Candidate, live: Live) -> str | None:
        """What keeps an older checkpoint out; None if nothing that is there does."""
        if self._exists(live.path):
            return live.path
        newer = [other for other in self._candidates if self._precedes(candidate, other)]
        return max(newer, key=_age).path if newer else None

    # ---- small things ----------------------------------------------------------------------------------------------

    def _as_live(self, candidate: Candidate, version: int) -> Live:
        family = [c.time for c in self._whole if c.order.family == candidate.order.family]
        before = self.memory.live
        if before is not None and before.family == candidate.order.family:
            family.append(before.time)
        return Live(
            path=candidate.path,
            family=candidate.order.family,
            numbers=candidate.order.numbers,
            weights=candidate.weights,
            print=self._print(candidate) or "",
            time=max([candidate.time, *family]),
            version=version,
        )


def _age(candidate: Candidate) -> tuple[tuple[int, ...], int]:
    return candidate.order.numbers, candidate.time


def _is_remnant(candidate: Candidate, before: Weights) -> bool:
    """Whether some weights files are gone and the others are as they were: a removal that has not ended."""
    return set(candidate.weights) < set(before)
