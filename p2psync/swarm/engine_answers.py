"""What an engine answers, and what follows from it: the hub and the peers are told what is live. Sans-I/O."""

from __future__ import annotations

from p2psync.errors import DigestMismatchError, FormatError
from p2psync.membership.client import MembershipClient
from p2psync.protocol.messages import NO_VERSION
from p2psync.protocol.versions import Position
from p2psync.swarm.exchange.actions import Recheck
from p2psync.swarm.exchange.exchange import Exchange
from p2psync.swarm.synchronizer.actions import Adopt, CommitStage, EngineAction, StageChunk
from p2psync.swarm.synchronizer.follower import Follower


class EngineAnswers:
    """Takes the answers of one node's engine. Those that are not here go to the follower itself."""

    def __init__(self, follower: Follower, exchange: Exchange, membership: MembershipClient) -> None:
        self._follower = follower
        self._exchange = exchange
        self._membership = membership
        self._rechecks: list[Recheck] = []
        membership.why_waiting = lambda: follower.waiting_reason
        if follower.position is not None:
            self._live(follower.position, 0.0)
        elif not follower.local_digest:
            exchange.running(NO_VERSION)

    def adopted(self, action: Adopt, position: Position | None, now: float) -> None:
        """See `Follower.adopted`."""
        self._follower.adopted(action, position, now)
        self._live(position, now)

    def committed(self, action: CommitStage, position: Position, now: float) -> None:
        """See `Follower.committed`."""
        self._follower.committed(action, position, now)
        self._live(position, now)

    def chunk_damaged(self, action: StageChunk, now: float) -> None:
        """A chunk that was to be staged is damaged on disk."""
        self._exchange.lost(action.id, action.chunk, now)
        self._follower.chunk_damaged(action)

    def failed(self, action: EngineAction, error: Exception, position: Position | None, now: float) -> None:
        """See `Follower.failed`.

        If the bits are others than were signed, the hub is told, and the store hashes again what it gave: it may have
        rotted there.
        """
        before = self._follower.position
        digest, chunks = self._follower.suspects(action)
        if digest and isinstance(error, DigestMismatchError | FormatError):
            self._membership.rejected(digest, now)
            self._rechecks += [Recheck(id, chunk) for id, chunk in chunks]
        self._follower.failed(action, str(error) or type(error).__name__, position, now)
        if self._follower.position != before:
            self._live(self._follower.position, now)

    def mark_corrupt(self, message: str, position: Position | None, now: float) -> None:
        """See `Follower.mark_corrupt`."""
        if self._follower.mark_corrupt(message, position, now):
            self._live(position, now)

    def actions(self) -> list[Recheck]:
        """Returns what is to be done now, and empties the list."""
        done, self._rechecks = self._rechecks, []
        return done

    def _live(self, position: Position | None, now: float) -> None:
        if position is None:
            self._exchange.running(b"")
            self._membership.running(None, "", now)
        else:
            self._exchange.running(position.digest)
            self._membership.running(position.version, position.digest.hex(), now, position.run, position.epoch)
