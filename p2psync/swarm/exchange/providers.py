"""The providers of chunks: which peers owe which chunks to this node, and the download rate.

A parent owes each chunk that it announces with the tag of a tree in which it is the parent, and pushes it without a
request; any other peer owes the chunks that this node requested of it. A chunk has one provider, or two if the repair
has requested it of another peer, too: once it arrives from one, the node cancels it at the other.
"""

from __future__ import annotations

from collections import deque

from p2psync.protocol.messages import MAX_REQUEST_CHUNKS, SHORT_ID_BYTES, Chunk, Request
from p2psync.swarm.exchange.download import OwedChunk
from p2psync.swarm.exchange.peer import Peer
from p2psync.swarm.exchange.state import SwarmState
from p2psync.swarm.exchange.transfer import Transfer

BYTES_PER_MBIT = 125_000


class Providers:
    """Keeps the providers of one node's chunks. Bytes, seconds."""

    def __init__(self, state: SwarmState) -> None:
        self._state = state
        self._arrivals: deque[tuple[float, int]] = deque()

    # ---- owed chunks -----------------------------------------------------------------------------------------------

    def announced(self, peer: Peer, transfer: Transfer, index: int, now: float) -> None:
        """Makes a parent the provider of a chunk that it announced and will push."""
        self._owe(peer, transfer, index, now, requested=False)

    def request(self, peer: Peer, transfer: Transfer, chunks: list[int], now: float) -> None:
        """Requests chunks of a peer, which becomes their provider."""
        for index in chunks:
            self._owe(peer, transfer, index, now, requested=True)
        short = transfer.id[:SHORT_ID_BYTES]
        for start in range(0, len(chunks), MAX_REQUEST_CHUNKS):
            self._state.send(peer.name, Request(short, chunks[start : start + MAX_REQUEST_CHUNKS]))

    def _owe(self, peer: Peer, transfer: Transfer, index: int, now: float, *, requested: bool) -> None:
        key, size = (transfer.id[:SHORT_ID_BYTES], index), transfer.manifest.sizes[index]
        peer.download.owe(key, size, now, requested=requested)
        transfer.assign(index, peer.name)

    def arrived(self, peer: Peer, transfer: Transfer, chunk: Chunk, now: float) -> OwedChunk | None:
        """Marks a needed chunk as held, and cancels it at other providers. Returns its entry if the sender owed it."""
        key, size = (chunk.manifest, chunk.index), len(chunk.data)
        mine = None
        for name in transfer.mark_held(chunk.index):
            owed = self._state.peers[name].download.drop(key)
            if name == peer.name:
                mine = owed
            else:
                self._state.cancel(name, chunk.manifest, [chunk.index])
        peer.download.arrived(size, mine, now)
        self._arrivals.append((now, size))
        return mine

    def release(self, peer: Peer, transfer: Transfer, index: int) -> None:
        """Removes a peer as the provider of a chunk, if it is one."""
        if peer.download.drop((transfer.id[:SHORT_ID_BYTES], index)) is not None:
            transfer.unassign(index, peer.name)

    def give_up(self, peer: Peer, transfer: Transfer, chunks: list[int]) -> None:
        """Cancels these chunks at a peer, which provides them no longer."""
        for index in chunks:
            self.release(peer, transfer, index)
        self._state.cancel(peer.name, transfer.id[:SHORT_ID_BYTES], chunks)

    def stop(self, transfer: Transfer) -> None:
        """Cancels all chunks of a manifest at their providers."""
        short = transfer.id[:SHORT_ID_BYTES]
        for peer in self._state.peers.values():
            chunks = [index for key, index in peer.download.owed if key == short]
            if chunks:
                self.give_up(peer, transfer, chunks)

    # ---- rates -----------------------------------------------------------------------------------------------------

    def rate(self, now: float) -> float:
        """Returns the bytes/s of useful chunks from all peers."""
        window, arrivals = self._state.config.rate_window, self._arrivals
        while arrivals and arrivals[0][0] < now - window:
            arrivals.popleft()
        return sum(size for _, size in arrivals) / window

    def seconds_left(self, now: float, without: Peer | None = None) -> float:
        """Returns the seconds that the missing chunks take at the present rate; 0 if the rate is 0.

        without: leaves out a peer's rate and the chunks that it owes.
        """
        missing = sum(transfer.missing * transfer.mean_chunk_bytes for transfer in self._state.transfers.values())
        rate = self.rate(now)
        if without is not None:
            missing -= without.download.nbytes
            rate -= min(rate, without.download.rate(now))
        return missing / rate if rate > 0 else 0.0

    def planned_rate(self, peer: Peer) -> float:
        """Returns the planned rate from a peer to this node (bytes/s); 0: none."""
        return BYTES_PER_MBIT * self._state.trees.planned_from.get(peer.name, 0.0)

    # ---- free parents ----------------------------------------------------------------------------------------------

    def is_free(self, peer: Peer, short: bytes) -> bool:
        """Returns whether a parent holds a whole manifest and has pushed all announced chunks: the links' capacity that
        the plan gave it is idle.
        """
        theirs, download = peer.holds.get(short), peer.download
        return (
            peer.name in self._state.trees.parents
            and not download.snubbed
            and theirs is not None
            and bool(theirs.all())
            and not download.announced
        )

    def free_parents(self, short: bytes) -> list[Peer]:
        """Returns the free parents for a manifest, see `is_free`."""
        peers, parents = self._state.peers, self._state.trees.parents
        return [peers[name] for name in parents if name in peers and self.is_free(peers[name], short)]

    def free_room(self, peer: Peer, transfer: Transfer) -> int:
        """Returns how many more chunks a free parent may owe: its planned rate times the round trip and `free_horizon`,
        at least two chunks, less what it owes.
        """
        flow = self.planned_rate(peer) * (peer.download.round_trip + self._state.config.free_horizon)
        return max(2, round(flow / transfer.mean_chunk_bytes)) - -(-peer.download.nbytes // transfer.mean_chunk_bytes)
