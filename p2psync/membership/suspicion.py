"""Members whose long poll broke off: they hold their leases, but are planned for no more unless they come back soon.

A process that is killed takes its connections with it, and the hub hears of that at once; its lease ends seconds later,
in which trees that go through it bring nothing. Who only lost a connection asks again.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2psync.membership.deadlines import Deadlines

#: So long somebody has to come back (seconds).
SUSPICION_SECONDS = 1.0


class SuspicionTable:
    """Leases in doubt, and the *missing*, whose holders did not come back. Pure."""

    def __init__(self) -> None:
        self._until = Deadlines()
        self._missing: set[str] = set()

    def __contains__(self, lease: str) -> bool:
        """Whether the holder is missing."""
        return lease in self._missing

    def suspect(self, lease: str, now: float) -> None:
        """A poll under this lease ended before it was answered."""
        if lease not in self._missing:
            self._until.set(lease, now + SUSPICION_SECONDS)

    def refute(self, lease: str) -> bool:
        """The holder is there, or the lease has ended. Returns whether it was missing."""
        self._until.discard(lease)
        missing = lease in self._missing
        self._missing.discard(lease)
        return missing

    def ended(self, leases: Iterable[str]) -> None:
        """These leases are no more."""
        for lease in leases:
            self.refute(lease)

    def next(self) -> float | None:
        """When somebody will be missing unless heard of, None if nobody is in doubt."""
        return self._until.next()

    def sweep(self, now: float) -> bool:
        """Whose time is up is missing; returns whether anybody is, who was not."""
        late = self._until.pop_due(now)
        self._missing.update(late)
        return bool(late)
