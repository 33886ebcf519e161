"""The intake of chunks: verifies, saves, forwards and announces each; bans the senders of wrong ones."""

from __future__ import annotations

from p2psync.protocol.messages import BadChunk, Chunk
from p2psync.swarm.exchange.actions import Complete, Recheck, Save
from p2psync.swarm.exchange.blame import MAX_WRONG_CHUNKS
from p2psync.swarm.exchange.downlink import Downlink
from p2psync.swarm.exchange.forwarding import Forwarding
from p2psync.swarm.exchange.have_batch import HaveBatch
from p2psync.swarm.exchange.peer import Peer
from p2psync.swarm.exchange.pending_chunks import PendingChunks
from p2psync.swarm.exchange.request_scheduler import RequestScheduler
from p2psync.swarm.exchange.state import SwarmState
from p2psync.swarm.exchange.transfer import Transfer
from p2psync.swarm.exchange.trust import BanPeer, Trust


class ChunkIntake:
    """Handles the chunks that one node receives.

    received_bytes: of all chunks; wasted_bytes: of useless and wrong ones; pushed_bytes: of useful ones that parents
    pushed. downlink: the download rate. pending: chunks whose manifest is not known yet.
    """

    def __init__(
        self,
        state: SwarmState,
        requests: RequestScheduler,
        forwarding: Forwarding,
        haves: HaveBatch,
        trust: Trust,
        ban: BanPeer,
    ) -> None:
        self._state, self._requests, self._forwarding, self._haves = state, requests, forwarding, haves
        self._trust, self._ban = trust, ban
        self._transfers, self._peers = state.transfers, state.peers
        self.downlink = Downlink()
        self.pending = PendingChunks()
        self.received_bytes = self.wasted_bytes = self.pushed_bytes = 0

    def receive(self, peer: Peer, chunk: Chunk, now: float) -> None:
        """Handles a chunk from a peer; keeps a parent's chunk until its manifest is known."""
        size = len(chunk.data)
        self.received_bytes += size
        if not any(transfer.provider for transfer in self._transfers.values()):
            self.downlink.begin(now)
        self.downlink.arrived(size, now)
        if chunk.manifest not in self._transfers and chunk.tag and peer.name in self._state.trees.parents:
            # The manifest should follow. Until then the chunk counts as useless, which limits what a peer can send.
            self._add_useless_bytes(peer, size, now)
            self.pending.put(peer.name, chunk)
        else:
            self.process(peer.name, chunk, now)

    def process(self, name: str, chunk: Chunk, now: float) -> None:
        """Verifies and accepts a chunk from a peer (name), if this node still needs it."""
        peer, transfer = self._peers.get(name), self._transfers.get(chunk.manifest)
        if peer is None:
            return
        if transfer is None or not transfer.needs(chunk.index):
            self._on_useless_chunk(peer, transfer, chunk, now)
        elif transfer.manifest.verify_chunk(chunk.index, chunk.data):
            self._accept(peer, transfer, chunk, now)
        else:
            self.wasted_bytes += len(chunk.data)
            seconds = self._trust.blame.record_wrong_chunk(name, chunk.manifest, chunk.index, now)
            self._ban(name, f"chunk {chunk.index} did not have the hash that the manifest signs", now, seconds)

    def _on_useless_chunk(self, peer: Peer, transfer: Transfer | None, chunk: Chunk, now: float) -> None:
        """Counts a chunk that was cancelled too late, is a duplicate, or was not requested."""
        size, credit = len(chunk.data), peer.download.credit
        self.wasted_bytes += size
        if transfer is not None:
            self._requests.release(peer, transfer, chunk.index)
        peer.download.credit = max(0, credit - size)
        self._add_useless_bytes(peer, max(0, size - credit), now)

    def _add_useless_bytes(self, peer: Peer, size: int, now: float) -> None:
        if self._trust.add_useless_bytes(peer, size):
            self._ban(peer.name, "it keeps sending chunks that nobody asked it for", now, None)

    def _accept(self, peer: Peer, transfer: Transfer, chunk: Chunk, now: float) -> None:
        short, size = chunk.manifest, len(chunk.data)
        peer.surplus = max(0, peer.surplus - size)
        if self._requests.arrived(peer, transfer, chunk, now):
            self.pushed_bytes += size
        self._state.actions.append(Save(transfer.id, chunk.index, chunk.data))
        self._forwarding.forward(transfer, short, chunk.index, chunk.tag, now)
        self._haves.add(short, transfer, chunk.index, now)
        if transfer.complete:
            self._state.actions.append(Complete(transfer.id))
            self._haves.announce()
        self._requests.refill(peer, transfer, now)

    def on_bad_chunk(self, peer: Peer, message: BadChunk, now: float) -> None:
        """Handles a report of wrong chunks: has the store verify them, since the peer may lie."""
        transfer = self._transfers.get(message.manifest)
        if transfer is None or not message.chunks or not self._trust.blame.may_recheck(peer.name, now):
            return
        for index in message.chunks[:MAX_WRONG_CHUNKS]:
            if index < transfer.chunks and transfer.held[index]:
                self._state.actions.append(Recheck(transfer.id, index))
