"""The repair: chunks that a peer owes too late are requested of another one, too.

What a peer owes takes (bytes owed) / (rate), and no less than it has been silent. Is that longer than all other chunks
take, its last chunks are requested a second time, as long as another holder with an idle uplink brings them sooner.

Paths between regions share links, and the plan has filled these. So the other one is a node of this region, or a free
parent (`Providers.is_free`), which keeps to its planned rate; any other peer only if the first one is silent.
"""

from __future__ import annotations

from p2psync.swarm.exchange.download import ChunkKey
from p2psync.swarm.exchange.peer import Peer
from p2psync.swarm.exchange.providers import Providers
from p2psync.swarm.exchange.state import SwarmState


class Repair:
    """The repair of one node's downloads."""

    def __init__(self, state: SwarmState, providers: Providers) -> None:
        self._state, self._providers = state, providers

    def poll(self, now: float) -> None:
        """Looks at what all peers owe."""
        self._give_up(now)
        waits = {
            peer.name: peer.download.wait(now)
            for peer in self._state.peers.values()
            if peer.download.owed and self._is_late(peer, now)
        }
        for name in sorted(waits, key=waits.__getitem__, reverse=True):
            self._request_from_others(self._state.peers[name], now)

    def _give_up(self, now: float) -> None:
        """Gives up chunks that were owed for far too long, whoever else holds them."""
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
        """Requests the last chunks that a peer owes of others, too."""
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
        """Returns whether what a peer owes will be here after everything else."""
        wait = peer.download.wait(now)
        if wait <= self._state.config.short_wait + peer.download.round_trip:
            return False
        return wait > self._providers.seconds_left(now, without=peer)

    def _is_silent(self, peer: Peer, now: float) -> bool:
        """Returns whether a peer that owes chunks has sent none for longer than its plan and its path explain."""
        config, download = self._state.config, peer.download
        first = next(iter(download.owed.values()))
        usual = first.size / (self._providers.planned_rate(peer) or config.prior_rate)
        return download.silence(now) > max(config.silent_after, 2 * (download.round_trip + usual))

    def _faster_provider(self, peer: Peer, key: ChunkKey, size: int, expected: float, now: float) -> Peer | None:
        """Returns the holder that would bring a chunk soonest; None if it comes as soon (`expected` seconds) from the
        peer that owes it."""
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
        """Returns the seconds until a holder would bring a chunk; infinite if it must not be asked."""
        wait = other.download.wait_for_another(size, now)
        if self._providers.is_free(other, short):
            return wait if self._providers.free_room(other, self._state.transfers[short]) > 0 else float("inf")
        return wait if other.near or any_region else float("inf")
