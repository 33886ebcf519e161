"""The repair: requests chunks of a second peer if the first one would deliver them too late.

The owed chunks of a peer take (bytes owed) / (rate), and at least as long as it has been silent. If that exceeds the
time for all other chunks, and `short_wait` plus a round trip, the repair requests the peer's last chunks of another
holder with an idle uplink, as long as that one delivers them sooner.

Paths between regions share links, and the plan has filled these. So the other holder is a node of this region, or a
free parent (`Providers.is_free`), which keeps to its planned rate; any other peer only if the first one is silent. The
repair also cancels chunks that timed out.
"""

from __future__ import annotations

from p2psync.swarm.exchange.download import ChunkKey
from p2psync.swarm.exchange.peer import Peer
from p2psync.swarm.exchange.providers import Providers
from p2psync.swarm.exchange.state import SwarmState


class Repair:
    """Repairs one node's downloads."""

    def __init__(self, state: SwarmState, providers: Providers) -> None:
        self._state, self._providers = state, providers

    def poll(self, now: float) -> None:
        """Cancels requests that timed out, and requests late chunks of other peers, too."""
        self._give_up(now)
        waits = {
            peer.name: peer.download.wait(now)
            for peer in self._state.peers.values()
            if peer.download.owed and self._is_late(peer, now)
        }
        for name in sorted(waits, key=waits.__getitem__, reverse=True):
            self._request_from_others(self._state.peers[name], now)

    def _give_up(self, now: float) -> None:
        """Cancels chunks that timed out, even if no other peer holds them, and snubs their peers."""
        for peer in self._state.peers.values():
            late: dict[bytes, list[int]] = {}
            for (short, index), chunk in peer.download.owed.items():
                if peer.download.has_timed_out(chunk, now):
                    late.setdefault(short, []).append(index)
            for short, chunks in late.items():
                self._providers.give_up(peer, self._state.transfers[short], chunks)
            if late:
                peer.download.timed_out()

    def _request_from_others(self, peer: Peer, now: float) -> None:
        """Requests the last chunks that a peer owes of other holders, too."""
        download = peer.download
        wait, left, nbytes = download.wait(now), download.nbytes, download.nbytes
        for (short, index), chunk in reversed(list(download.owed.items())):
            expected = wait * left / nbytes
            left -= chunk.size
            transfer = self._state.transfers[short]
            if index in transfer.second_provider or transfer.provider.get(index) != peer.name:
                continue
            other = self._faster_provider(peer, (short, index), chunk.size, expected, now)
            if other is None:
                break
            self._providers.request(other, transfer, [index], now)

    def _is_late(self, peer: Peer, now: float) -> bool:
        """Returns whether the chunks of a peer will arrive after all other chunks, and not in a moment."""
        wait = peer.download.wait(now)
        if wait <= self._state.config.short_wait + peer.download.round_trip:
            return False
        return wait > self._providers.seconds_left(now, without=peer)

    def _is_silent(self, peer: Peer, now: float) -> bool:
        """Returns whether a peer that owes chunks has sent none for `silent_after`, and for twice a round trip and the
        time of a chunk at its planned rate.
        """
        config, download = self._state.config, peer.download
        first = next(iter(download.owed.values()))
        usual = first.size / (self._providers.planned_rate(peer) or config.prior_rate)
        return download.silence(now) > max(config.silent_after, 2 * (download.round_trip + usual))

    def _faster_provider(self, peer: Peer, key: ChunkKey, size: int, expected: float, now: float) -> Peer | None:
        """Returns the holder that would deliver a chunk first; None if the peer that owes it is as fast.

        expected: seconds until that peer delivers it.
        """
        any_region = self._is_silent(peer, now)
        best, least = None, expected
        for other in self._state.peers.values():
            if other is peer or other.download.snubbed or not other.has(*key):
                continue
            if other.download.backlog(now) > self._state.config.idle_backlog:
                continue
            wait = self._wait(other, key[0], size, now, any_region=any_region)
            if wait < least:
                best, least = other, wait
        return best

    def _wait(self, other: Peer, short: bytes, size: int, now: float, *, any_region: bool) -> float:
        """Returns the seconds until a holder would deliver a chunk; infinite if the repair must not ask it."""
        wait = other.download.wait_for_another(size, now)
        if self._providers.is_free(other, short):
            return wait if self._providers.free_room(other, self._state.transfers[short]) > 0 else float("inf")
        return wait if other.same_region or any_region else float("inf")
