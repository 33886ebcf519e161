"""Notices about a watched directory, each made once: which checkpoints are left out or not complete, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2psync.engines.checkpoint.framework_names import is_hidden, is_unfinished, order_of, printable
from p2psync.trainer.watch.candidates import UNFINISHED_SECONDS, Candidate, FoundCandidates
from p2psync.trainer.watch.listing import EntryKind, Listing

#: Names listed in a notice about files that are left out.
_LISTED = 6


@dataclass(frozen=True, slots=True)
class Notice:
    """A line for people. warning: they should act."""

    text: str
    warning: bool = True


@dataclass
class NoticeLog:
    """Collects notices by subject; one with the same text as the last on its subject is not made again."""

    _told: dict[str, str] = field(default_factory=dict)
    _made: list[Notice] = field(default_factory=list)
    _unfinished: dict[str, float] = field(default_factory=dict)

    def take(self) -> list[Notice]:
        """Returns the notices made since the last call."""
        made, self._made = self._made, []
        return made

    def forget(self, path: str) -> None:
        """Forget the last notice about a path, so that it may be made again."""
        self._told.pop(path, None)

    def once(self, about: str, text: str) -> None:
        """Make a notice, unless there was one on the subject `about` before."""
        if f"\0{about}" not in self._told:
            self._add(f"\0{about}", text, warning=False)

    def about(self, candidate: Candidate, text: str, *, warning: bool = True) -> None:
        """Make a notice about a checkpoint. text: the rest of a sentence that begins with its path."""
        self._add(candidate.path, f"{printable(candidate.path) or 'the watched directory'} {text}", warning=warning)

    def observe(self, listing: Listing, found: FoundCandidates, now: float) -> None:
        """Make notices about entries that are no checkpoints, and forget those about entries that are gone."""
        self._told = {key: text for key, text in self._told.items() if key[:1] in ("", "\0") or listing.may_exist(key)}
        for path, why in found.excluded.items():
            self._add(path, f"{printable(path)} is left out: it {why}", warning=False)
        there = [entry for entry in listing.children("") if not is_hidden(entry.name)]
        for entry in there:
            if entry.error and entry.kind is EntryKind.OTHER:
                self._add(entry.path, f"{printable(entry.path)} is passed over: {entry.error}", warning=False)
        forgotten = [e.path for e in there if e.kind is EntryKind.DIRECTORY and is_unfinished(e.name)]
        self._unfinished = {path: self._unfinished.get(path, now) for path in forgotten}
        for path, since in self._unfinished.items():
            if now - since >= UNFINISHED_SECONDS:
                text = f"{printable(path)} is passed over: its name says that it is unfinished; remove or rename it"
                self._add(path, text, warning=False)

    def overtaken(self, candidate: Candidate, live: str, newer: str | None, *, is_known: bool) -> None:
        """Make a notice on why a whole checkpoint is not published.

        live: path of the live checkpoint. newer: path of the checkpoint that is newer; None: it is gone. is_known:
        whether its weights were published or overtaken before.
        """
        if is_known:
            text = f"its weights were published or overtaken before, {_display(live)} is live"
        elif newer is None:
            text = f"it is older than {_display(live)}, which was live; the next one is published"
        else:
            text = (
                f"it is older than {_display(newer)}; if the run started over, move that one and all others of the old "
                "run away: the next checkpoint is published then"
            )
        self.about(candidate, f"is left out: {text}", warning=not is_known)

    def left_out(self, candidate: Candidate) -> None:
        """Make a notice on training state of a checkpoint that was not published; once for all similar checkpoints."""
        if not candidate.left_out:
            return
        listed = [printable(name) for name, _ in candidate.left_out]
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
    return printable(path) or "the watched directory"
