"""When a follower tries again: after a failure, and after damage to the live version. Sans-I/O."""

from __future__ import annotations

from p2psync.swarm.synchronizer.config import (
    IMMEDIATE_REPAIRS,
    QUIET_SECONDS,
    REPAIR_MAX_SECONDS,
    RETRY_MAX_SECONDS,
    RETRY_MIN_SECONDS,
)


class Backoff:
    """The time before which a follower begins no attempt (seconds)."""

    def __init__(self) -> None:
        self.retry_at = 0.0
        self._pause = RETRY_MIN_SECONDS
        self._awaits_view = False
        self._damages, self._damaged_at = 0, float("-inf")

    def failed(self, now: float, *, awaits_view: bool = False) -> None:
        """Begins a pause. awaits_view: the next view of the hub ends it early."""
        self.retry_at = now + self._pause
        self._pause = min(RETRY_MAX_SECONDS, self._pause * 2)
        self._awaits_view |= awaits_view

    def viewed(self, now: float) -> None:
        """Ends a pause that awaited a view."""
        if self._awaits_view:
            self._awaits_view, self.retry_at = False, now

    def committed(self) -> None:
        """Makes the next pause the shortest again."""
        self._pause = RETRY_MIN_SECONDS

    def damaged(self, now: float) -> None:
        """Begins a pause if the live version is damaged again and again."""
        self._damages = self._damages + 1 if now - self._damaged_at < QUIET_SECONDS else 1
        self._damaged_at = now
        if self._damages > IMMEDIATE_REPAIRS:
            pause = RETRY_MIN_SECONDS * 2 ** (self._damages - IMMEDIATE_REPAIRS)
            self.retry_at = now + min(REPAIR_MAX_SECONDS, pause)
