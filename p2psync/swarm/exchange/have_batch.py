"""HAVE batches: a node announces new chunks to all peers a moment later, several in one message."""

from __future__ import annotations

from p2psync.protocol.messages import MAX_REQUEST_CHUNKS, Have
from p2psync.swarm.exchange.state import SwarmState
from p2psync.swarm.exchange.transfer import Transfer
from p2psync.swarm.exchange.upload_scheduler import UploadScheduler

_NEVER = float("inf")


class HaveBatch:
    """The chunks that one node has not announced yet. `poll` is due at `next_wake`."""

    def __init__(self, state: SwarmState, uploads: UploadScheduler) -> None:
        self._state, self._uploads = state, uploads
        self._unannounced: dict[bytes, list[int]] = {}
        self.next_wake = _NEVER

    def add(self, short: bytes, transfer: Transfer, index: int, now: float) -> None:
        """Adds a new chunk to the batch."""
        self._unannounced.setdefault(short, []).append(index)
        self.next_wake = min(self.next_wake, now + self._delay(transfer))

    def forget(self, short: bytes) -> None:
        """Drops the chunks of a manifest."""
        self._unannounced.pop(short, None)

    def poll(self, now: float) -> None:
        """Announces the batch if it is due."""
        if now >= self.next_wake:
            self.announce()

    def announce(self) -> None:
        """Announces the batch to all peers."""
        for short, gained in self._unannounced.items():
            transfer = self._state.transfers[short]
            chunks = [index for index in gained if transfer.held[index]]
            for start in range(0, len(chunks), MAX_REQUEST_CHUNKS):
                have = self.message(short, transfer, chunks[start : start + MAX_REQUEST_CHUNKS])
                for name in self._state.peers:
                    self._state.send(name, have)
        self._unannounced.clear()
        self.next_wake = _NEVER

    def message(self, short: bytes, transfer: Transfer, chunks: list[int]) -> Have:
        """Returns a Have of these chunks, with their tags and this node's backlog."""
        tags = [transfer.tags.get(index, 0) for index in chunks]
        return Have(short, chunks, tags if any(tags) else [], self._uploads.backlog())

    def _delay(self, transfer: Transfer) -> float:
        config = self._state.config
        if not transfer.pushed:
            return config.have_delay
        return max(config.have_delay_pushed, config.have_per_peer * len(self._state.peers))
