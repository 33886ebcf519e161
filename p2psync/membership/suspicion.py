"""Suspected members, whose long poll broke off: they keep their leases, but plans leave them out unless they call again
soon.

As in SWIM, suspicion precedes removal. A killed process loses its connections, and the hub sees that at once, seconds
before the lease expires; until then trees through it carry nothing. A node that only lost its connection polls again.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2psync.membership.deadlines import Deadlines

#: Seconds that a suspected member has to call again. A longer time delays the plan without it, a shorter one plans
#: without nodes that only reconnect.
SUSPICION_SECONDS = 1.0


class SuspicionTable:
    """The suspected leases, and the *missing* ones, whose holders did not call in time. Pure."""

    def __init__(self) -> None:
        self._until = Deadlines()
        self._missing: set[str] = set()

    def __contains__(self, lease: str) -> bool:
        """Returns whether the holder of this lease is missing."""
        return lease in self._missing

    def suspect(self, lease: str, now: float) -> None:
        """A poll under this lease ended before it was answered: its holder has `SUSPICION_SECONDS` to call again."""
        if lease not in self._missing:
            self._until.set(lease, now + SUSPICION_SECONDS)

    def refute(self, lease: str) -> bool:
        """Clears the lease: its holder called, or it has ended. Returns whether the holder was missing."""
        self._until.discard(lease)
        missing = lease in self._missing
        self._missing.discard(lease)
        return missing

    def ended(self, leases: Iterable[str]) -> None:
        """Removes leases that have ended."""
        for lease in leases:
            self.refute(lease)

    def next(self) -> float | None:
        """Returns when the next suspected member becomes missing (seconds), None if nobody is suspected."""
        return self._until.next()

    def sweep(self, now: float) -> bool:
        """Declares the members missing whose time is up; returns whether there were any."""
        late = self._until.pop_due(now)
        self._missing.update(late)
        return bool(late)
