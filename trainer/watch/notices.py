"""What people are told of a watched directory, once each: what is left out, passed over or not complete, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2psync.engines.checkpoint.framework_names import is_hidden, is_unfinished, order_of, shown
from p2psync.trainer.watch.candidates import UNFINISHED_SECONDS, Candidate, FoundCandidates
from p2psync.trainer.watch.listing import EntryKind, Listing

#: Names listed of what is left out.
_LISTED = 6


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people are told once. warning: it asks for attention."""

    text: str
    warning: bool = True


@dataclass
class NoticeLog:
    """Remarks by what they are about; one with the same text as the last about it is not made again."""

    _told: dict[str, str] = field(default_factory=dict)
    _made: list[Notice] = field(default_factory=list)
    _unfinished: dict[str, float] = field(default_factory=dict)

    def take(self) -> list[Notice]:
        """What was made since the last call."""
        made, self._made = self._made, []
        return made

    def forget(self, path: str) -> None:
        """What was said of a path may be said again."""
        self._told.pop(path, None)

    def once(self, about: str, text: str) -> None:
        """Say something that is said only once about this."""
        if f"\0{about}" not in self._told:
            self._add(f"\0{about}", text, warning=False)

    def about(self, candidate: Candidate, text: str, *, warning: bool = True) -> None:
        """Say something of a checkpoint."""
        self._add(candidate.path, f"{shown(candidate.path) or 'the watched directory'} {text}", warning=warning)

    def observe(self, listing: Listing, found: FoundCandidates, now: float) -> None:
        """Say what is no checkpoint in a listing, and forget what is gone from it."""
        self._told = {key: text for key, text in self._told.items() if key[:1] in ("", "\0") or listing.may_exist(key)}
        for path, why in found.excluded.items():
            self._add(path, f"{shown(path)} is left out: it {why}", warning=False)
        there = [entry for entry in listing.children("") if not is_hidden(entry.name)]
        for entry in there:
            if entry.error and entry.kind is EntryKind.OTHER:
                self._add(entry.path, f"{shown(entry.path)} is passed over: {entry.error}", warning=False)
        forgotten = [e.path for e in there if e.kind is EntryKind.DIRECTORY and is_unfinished(e.name)]
        self._unfinished = {path: self._unfinished.get(path, now) for path in forgotten}
        for path, since in self._unfinished.items():
            if now - since >= UNFINISHED_SECONDS:
                text = f"{shown(path)} is passed over: its name says that it is unfinished; remove or rename it"
                self._add(path, text, warning=False)

    def overtaken(self, candidate: Candidate, live: str, newer: str | None, *, is_known: bool) -> None:
        """Say why a whole checkpoint is not published. newer: what keeps it out; None: what was live and is gone."""
        if is_known:
            text = f"its weights were published or overtaken before, {_display(live)} is live"
        elif newer is None:
            text = f"it is older than {_display(live)}, which was live; the next one is published"
        else:
            text = (
                f"it is older than {_display(newer)}; if the run began anew, move that one and all others of the old "
                "run away: the next checkpoint is published then"
            )
        self.about(candidate, f"is left out: {text}", warning=not is_known)

    def left_out(self, candidate: Candidate) -> None:
        """Say which training state of a checkpoint was not published; once for all checkpoints that have the like."""
        if not candidate.left_out:
            return
        listed = [shown(name) for name, _ in candidate.left_out]
        more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
        size = sum(size for _, size in candidate.left_out) / 1e6
        self.once(
            f"left out {candidate.order.family} {sorted({order_of(name).family for name in listed})}",
            f"{_display(candidate.path)}: {', '.join(listed[:_LISTED])}{more} ({size:.1f} MB) left out as training "
            "state; --training-state sends such files too",
        )

    def _add(self, about: str, text: str, *, warning: bool) -> None:
        if self._told.get(about) != text:
            self._told[about] = text
            self._made.append(Notice(text, warning))


def _display(path: str) -> str:
    return shown(path) or "the watched directory"
