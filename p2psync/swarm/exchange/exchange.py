"""The chunk exchange of one node. Sans-I/O.

The shell (sockets, or a simulator) calls the exchange for each event: peers (`peer_up`, `peer_down`), messages
(`receive`), chunks that the kernel has taken (`flushed`), plans (`follow`) and time (`poll`, no later than
`next_wake`). After each call it drains `actions` and carries them out. Times are in seconds of any monotonic clock;
randomness comes from the generator passed in: the same inputs give the same actions.

The publisher sends chunks down the plan's trees (`publisher_sender`), and parents forward them (`forwarding`). A node
requests the chunks that no parent delivers, or all of them without a plan (`request_scheduler`). The
`upload_scheduler` queues all chunks that a node sends. This module connects these parts, begins and ends transfers, and
keeps the peers. Manifests, bans and figures have objects of their own: `gossip`, `trust`, `statistics`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from p2psync.protocol.manifest import Manifest
from p2psync.protocol.messages import (
    NO_VERSION,
    SHORT_ID_BYTES,
    AcceptNext,
    BadChunk,
    Bitfield,
    Cancel,
    Chunk,
    DontHave,
    Have,
    ManifestGossip,
    Message,
    Ping,
    Pong,
    Reject,
    Request,
    Subscribe,
)
from p2psync.protocol.plan import NodePlan
from p2psync.swarm.exchange.actions import Action, Ban, Complete
from p2psync.swarm.exchange.availability import Availability
from p2psync.swarm.exchange.bitmap import Bits, pack_bitmap, unpack_bitmap
from p2psync.swarm.exchange.chunk_intake import ChunkIntake
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.download import Download
from p2psync.swarm.exchange.forwarding import Forwarding
from p2psync.swarm.exchange.gossip import ManifestGossiper
from p2psync.swarm.exchange.have_batch import HaveBatch
from p2psync.swarm.exchange.peer import Peer
from p2psync.swarm.exchange.publisher_sender import PublisherSender
from p2psync.swarm.exchange.request_scheduler import RequestScheduler
from p2psync.swarm.exchange.state import SwarmState
from p2psync.swarm.exchange.statistics import ExchangeStatistics
from p2psync.swarm.exchange.transfer import Transfer
from p2psync.swarm.exchange.trust import Trust
from p2psync.swarm.exchange.upload import Upload
from p2psync.swarm.exchange.upload_scheduler import UploadScheduler


class Exchange:
    """The chunk exchange of one node.

    gossip: passes signed manifests down the trees. trust: the bans. statistics: the figures.
    """

    def __init__(self, config: ExchangeConfig, rng: random.Random, name: str = "") -> None:
        """name: by which peers know this node."""
        self._config = config
        self._state = SwarmState(config, rng, name)
        self._transfers, self._peers = self._state.transfers, self._state.peers
        self._uploads = UploadScheduler(self._state)
        self._haves = HaveBatch(self._state, self._uploads)
        self._forwarding = Forwarding(self._state, self._uploads, self._haves)
        self._publisher = PublisherSender(self._state, self._uploads, self._forwarding)
        self._requests = RequestScheduler(self._state)
        self.gossip = ManifestGossiper(self._state, self._ban)
        self.trust = Trust(config)
        self._availability = Availability(self._state, self._requests, self._publisher)
        self._intake = ChunkIntake(self._state, self._requests, self._forwarding, self._haves, self.trust, self._ban)
        self.statistics = ExchangeStatistics(self._state, self._intake, self._uploads)
        self._accepts = b""

    # ---- transfers -------------------------------------------------------------------------------------------------

    def begin(self, id: bytes, manifest: Manifest, held: Bits, wanted: Bits, now: float) -> None:
        """Begins to exchange a manifest's chunks: announces `held`, fetches those `wanted` and not held (flags).

        For a manifest that is exchanged already, adds to the wanted chunks, and marks chunks as lost that are not in
        `held`. Emits `Complete` at once if no chunk is missing.
        """
        short = id[:SHORT_ID_BYTES]
        known = self._transfers.get(short)
        if known is not None:
            for index in np.flatnonzero(known.held & ~held):
                self.lost(id, int(index), now)
            known.widen(held, wanted)
            self._start_fetch(short, known, now)
            return
        transfer = Transfer.begin(id, manifest, held, wanted, self._state.rng)
        self._transfers[short] = transfer
        for peer in self._peers.values():
            pending = peer.pending.pop(short)
            if pending is not None:
                self._availability.set_holds(peer, short, unpack_bitmap(bytes(pending), manifest.chunks), now)
        if manifest.base is None or manifest.version == manifest.base + 1:
            for peer in self._peers.values():
                if peer.upload.accepts_next == manifest.base_digest:
                    peer.upload.presume_subscribed(short)
        if self._accepts == NO_VERSION and not transfer.complete:
            self.accept_next(b"")  # the follower has chosen a path to the newest version
        self._publisher.begin(transfer, short, now)
        for name in self._peers:
            self._forwarding.announce_all(name, transfer, short)
        self._start_fetch(short, transfer, now)
        for name, chunk in self._intake.pending.pop(short):
            self._intake.process(name, chunk, now)

    def _start_fetch(self, short: bytes, transfer: Transfer, now: float) -> None:
        if transfer.complete:
            self._state.actions.append(Complete(transfer.id))
        elif bool((transfer.needed | transfer.held).all()):
            self._subscribe(short, transfer, self._state.trees.parents, now)
        self._requests.fill_all(now)

    def _subscribe(self, short: bytes, transfer: Transfer, names: Iterable[str], now: float) -> None:
        """Subscribes to a manifest's chunks at those of these parents that are connected."""
        connected = [name for name in sorted(names) if name in self._peers]
        for name in connected:
            self._state.send(name, Subscribe(short, True))
        if connected and not transfer.pushed:
            transfer.pushed = True
            # The timeout of a push begins now, not when a peer announced the chunk.
            transfer.available_since[transfer.available_since < now] = now
            self._requests.wake_at(now)

    def end(self, id: bytes) -> None:
        """Stops fetching and offering this manifest."""
        short = id[:SHORT_ID_BYTES]
        transfer = self._transfers.get(short)
        self._haves.forget(short)
        self._publisher.end(short)
        if transfer is None:
            return
        self._requests.stop(transfer)
        del self._transfers[short]
        for peer in self._peers.values():
            peer.upload.forget(short)
            theirs = peer.holds.pop(short, None)
            if theirs is not None:
                peer.pending.put(short, pack_bitmap(theirs))
            self._state.send(peer.name, DontHave(short))

    def stop_fetch(self, id: bytes) -> None:
        """Stops fetching this manifest; still offers its held chunks."""
        short = id[:SHORT_ID_BYTES]
        transfer = self._transfers.get(short)
        if transfer is None:
            return
        self._requests.stop(transfer)
        if transfer.pushed:
            transfer.pushed = False
            for name in sorted(self._state.trees.parents & self._peers.keys()):
                self._state.send(name, Subscribe(short, False))
        transfer.stop_fetch()

    def lost(self, id: bytes, index: int, now: float) -> None:
        """Fetches a chunk again that the store does not hold after all (a full or damaged disk), and rejects it at all
        peers, so that none waits for it.

        The first time at once; from the second loss of a chunk on after a pause, which doubles with each loss: a disk
        that keeps no data must not load the network for ever.
        """
        short, config = id[:SHORT_ID_BYTES], self._config
        transfer = self._transfers.get(short)
        if transfer is None or not transfer.held[index]:
            return
        losses = transfer.losses.get(index, 0)
        pause = config.refetch_pause_first * 2.0 ** min(losses - 1, 30) if losses else 0.0
        pause = min(config.refetch_pause_most, pause)
        transfer.mark_lost(index, now + pause)
        for peer in self._peers.values():
            self._state.send(peer.name, Reject(short, [index]))
            peer.upload.requested.pop((short, index), None)
            peer.upload.allow_repush(short, [index])
        transfer.reopen(now)
        self._requests.wake_at(now + pause)
        self._requests.fill_all(now)

    # ---- plan ------------------------------------------------------------------------------------------------------

    def accept_next(self, digest: bytes) -> None:
        """Asks the parents to push the next delta from the live version of this digest before this node subscribes.

        `NO_VERSION`: no version is live, and they push the next anchor, until a fetch begins; empty: they push no
        unsolicited chunks.
        """
        self._accepts = digest
        self._send_accept_next(self._state.trees.parents)

    def _send_accept_next(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            if name in self._peers:
                self._state.send(name, AcceptNext(self._accepts))

    def follow(self, plan: NodePlan, now: float) -> None:
        """Replaces the plan."""
        before = self._state.trees.parents
        self._state.trees.follow(plan)
        added = self._state.trees.parents - before
        self._send_accept_next(added)
        for short, transfer in self._transfers.items():
            if transfer.pushed and not transfer.complete:
                self._subscribe(short, transfer, added, now)
        self._publisher.send(now)

    def set_upload_rate(self, rate: float) -> bool:
        """Limits uploads to bytes/s; 0: no limit. Returns whether the limit delayed a chunk since the last call."""
        bucket = self._uploads.bucket
        bucket.rate = rate
        limited, bucket.limited = bucket.limited, False
        return limited

    # ---- state -----------------------------------------------------------------------------------------------------

    def needs(self, short: bytes, index: int) -> bool:
        """Returns whether a chunk (manifest: short id) is wanted and not held."""
        transfer = self._transfers.get(short)
        return transfer is not None and transfer.needs(index)

    # ---- peers -----------------------------------------------------------------------------------------------------

    @property
    def peers(self) -> Iterable[Peer]:
        """The connected peers."""
        return self._peers.values()

    def peer_up(self, name: str, same_region: bool, now: float, *, publishes: bool = False) -> bool:
        """Adds a connected peer; returns False if it is banned and the shell must disconnect it. publishes: it is a
        publisher.

        The shell calls this again for a connected peer when another connection to it is greeted, or one of several is
        lost: messages may have been lost with a connection, or the peer may have noticed the loss of its last one
        sooner than this node. The exchange then repeats its announcements and subscriptions, and changes nothing else.
        For a peer that restarted, the shell calls `peer_down` first.
        """
        if self.trust.is_banned(name, now):
            return False
        surplus = self.trust.peer_up(name)
        if name not in self._peers:
            download, upload = Download(self._config), Upload(self._config.unsolicited_bytes)
            peer = Peer(name, same_region, publishes, download, upload, surplus=surplus)
            self._peers[name] = peer
        for wrong in self.trust.blame.take_accusations(name):
            self._state.send(name, wrong)
        is_parent = name in self._state.trees.parents
        if self._accepts and is_parent:
            self._send_accept_next([name])
        for short, transfer in self._transfers.items():
            self._forwarding.announce_all(name, transfer, short)
            if transfer.pushed and not transfer.complete and is_parent:
                self._subscribe(short, transfer, [name], now)
        return True

    def peer_down(self, name: str, now: float) -> None:
        """Removes a disconnected peer, and requests the chunks that it owed from others."""
        peer = self._peers.pop(name, None)
        if peer is None:
            return
        self.trust.peer_down(peer, now)
        for short, theirs in peer.holds.items():
            self._transfers[short].rarity -= theirs
        self._publisher.peer_down(name, now)
        self.gossip.peer_down(name)
        self._requests.peer_down(peer, now)

    def set_connections(self, name: str, count: int) -> None:
        """Sets how many connections a peer has."""
        peer = self._peers.get(name)
        if peer is not None:
            peer.upload.connections = count

    def flushed(self, name: str, size: int, now: float) -> None:
        """Frees `size` bytes of a peer's connections: the kernel has taken chunks of a `SendChunk`."""
        peer = self._peers.get(name)
        if peer is not None:
            peer.upload.flushing = max(0, peer.upload.flushing - size)
            self._uploads.serve(peer, now)
            self._publisher.send(now)

    # ---- time ------------------------------------------------------------------------------------------------------

    def poll(self, now: float) -> None:
        """Does all work that is due."""
        self._haves.poll(now)
        self._requests.poll(now)
        self._publisher.poll(now)
        self._uploads.poll(now)

    def next_wake(self) -> float:
        """Returns the time of the next `poll` if no other event comes first; infinite: none is needed."""
        parts = self._haves, self._requests, self._publisher, self._uploads
        return min(part.next_wake for part in parts)

    def actions(self) -> list[Action]:
        """Returns the actions for the shell, in order, and clears them."""
        done, self._state.actions = self._state.actions, []
        return done

    # ---- messages --------------------------------------------------------------------------------------------------

    def receive(self, name: str, message: Message, now: float) -> None:
        """Handles a message of a connected peer; ignores messages of others."""
        peer = self._peers.get(name)
        if peer is None:
            return
        match message:
            case Chunk():
                self._intake.receive(peer, message, now)
            case Have():
                self._availability.have(peer, message, now)
            case Bitfield():
                self._availability.bitfield(peer, message, now)
            case DontHave():
                self._availability.dont_have(peer, message.manifest, now)
            case Request():
                self._uploads.requested(peer, message, now)
            case Cancel():
                peer.upload.cancel(message.manifest, message.chunks)
            case Reject():
                self._availability.reject(peer, message, now)
            case Subscribe():
                self._on_subscribe(peer, message, now)
            case AcceptNext():
                peer.upload.accepts_next = message.digest
            case ManifestGossip():
                self.gossip.receive(name, message)
            case BadChunk():
                self._intake.on_bad_chunk(peer, message, now)
            case Ping():
                self._state.send(name, Pong(message.token))
            case _:
                pass

    def _on_subscribe(self, peer: Peer, message: Subscribe, now: float) -> None:
        peer.upload.subscribe(message.manifest, message.wanted)
        transfer = self._transfers.get(message.manifest)
        if transfer is not None and message.wanted:
            self._forwarding.subscribed(peer.name, transfer, message.manifest, now)
            self._publisher.subscribed(message.manifest, now)

    def _ban(self, name: str, reason: str, now: float, seconds: float | None = None) -> None:
        """Bans a peer and removes it. seconds: None for `ExchangeConfig.ban`."""
        until = self.trust.ban(name, now, self._config.ban if seconds is None else seconds)
        self.peer_down(name, now)
        self._state.actions.append(Ban(name, reason, until))
