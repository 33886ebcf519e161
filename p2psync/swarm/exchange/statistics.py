"""The figures of one node's exchange: what it sent and received, and how fast."""

from __future__ import annotations

from p2psync.swarm.exchange.chunk_intake import ChunkIntake
from p2psync.swarm.exchange.state import SwarmState
from p2psync.swarm.exchange.upload_scheduler import UploadScheduler


class ExchangeStatistics:
    """The figures of one exchange since it began, read-only. Bytes of chunks, bytes/s."""

    def __init__(self, state: SwarmState, intake: ChunkIntake, uploads: UploadScheduler) -> None:
        self._state, self._intake, self._uploads = state, intake, uploads

    @property
    def fetch_rate(self) -> float:
        """The download rate over all peers, see `Downlink.rate`; 0: not known yet."""
        return self._intake.downlink.rate

    @property
    def received_bytes(self) -> int:
        """Bytes of all chunks that peers sent."""
        return self._intake.received_bytes

    @property
    def wasted_bytes(self) -> int:
        """Bytes of received chunks that were duplicates, wrong, or not requested."""
        return self._intake.wasted_bytes

    @property
    def pushed_bytes(self) -> int:
        """Bytes of useful chunks that parents pushed."""
        return self._intake.pushed_bytes

    @property
    def sent_bytes(self) -> int:
        """Bytes of all chunks that this node sent."""
        return self._uploads.sent_bytes

    @property
    def others_fetch(self) -> bool:
        """Whether a peer holds some, and not all, of the newest manifest, of which this node holds all chunks."""
        transfers = self._state.transfers
        newest = max(transfers, key=lambda short: transfers[short].manifest.version, default=None)
        if newest is None or not transfers[newest].held.all():
            return False
        theirs = [peer.holds[newest] for peer in self._state.peers.values() if newest in peer.holds]
        return any(flags.any() and not flags.all() for flags in theirs)
