"""Which of the runs that hubs offer one node follows, and what people are told of it. Sans-I/O.

`p2psync.membership.runs` holds the law; this is what a node must remember for it.
"""

from __future__ import annotations

from p2psync.membership.records import View
from p2psync.membership.runs import NEWEST, RefusalReason, RunRefusal, why_not
from p2psync.protocol.versions import Position
from p2psync.swarm.synchronizer.actions import ChangedRun, RefuseRun


class RunChoice:
    """The run of one node."""

    def __init__(self, position: Position | None, follow: str = NEWEST) -> None:
        """position: what is live. follow: see `p2psync.membership.runs.parse_follow`."""
        #: The offer that stands and is not followed.
        self.refusal: RunRefusal | None = None
        self._follow = follow
        # Run and epoch of what is, or was last, live; "" before the first commit.
        self._live = (position.run, position.epoch) if position else ("", 0)

    def why_not(self, view: View) -> RefusalReason | None:
        """Why what a hub offers is not followed; None: it is."""
        return why_not(self._follow, live=self._live, offered=(view.run, view.epoch))

    def accept(self) -> None:
        """What the hub offers now is followed."""
        self.refusal = None

    def refuse(self, view: View, reason: RefusalReason) -> list[RefuseRun]:
        """Do not follow it; what people are to be told, once for one situation."""
        refusal = RunRefusal(reason, view.run, view.epoch, *self._live, self._follow)
        known, self.refusal = self.refusal, refusal
        return [] if refusal == known else [RefuseRun(refusal)]

    def went_to(self, position: Position) -> list[ChangedRun]:
        """This is live now; what people are to be told."""
        (before, _), self._live = self._live, (position.run, position.epoch)
        return [] if before in ("", position.run) else [ChangedRun(position.run, before)]
