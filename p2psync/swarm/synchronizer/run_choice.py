"""Chooses which of the runs that hubs offer a node follows, and what it tells people. Sans-I/O.

`p2psync.membership.runs` decides; this class keeps the node's state for it.
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
        #: The hub's run, if the node refuses it.
        self.refusal: RunRefusal | None = None
        self._follow = follow
        # Run and epoch of the version that is, or was last, live; "" before the first commit.
        self._live = (position.run, position.epoch) if position else ("", 0)

    def why_not(self, view: View) -> RefusalReason | None:
        """Returns why the node does not follow the run of a hub's view; None: it does."""
        return why_not(self._follow, live=self._live, offered=(view.run, view.epoch))

    def accept(self) -> None:
        """Clears the refusal: the node follows the hub's run."""
        self.refusal = None

    def refuse(self, view: View, reason: RefusalReason) -> list[RefuseRun]:
        """Refuses the run of a hub's view. Returns the actions that tell people, once for each refusal."""
        refusal = RunRefusal(reason, view.run, view.epoch, *self._live, self._follow)
        known, self.refusal = self.refusal, refusal
        return [] if refusal == known else [RefuseRun(refusal)]

    def went_to(self, position: Position) -> list[ChangedRun]:
        """Takes the live position. Returns the actions that tell people of another run."""
        (before, _), self._live = self._live, (position.run, position.epoch)
        return [] if before in ("", position.run) else [ChangedRun(position.run, before)]
