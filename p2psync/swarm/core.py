"""The swarm: what to ask of whom, what to serve to whom, whom to ban. Sans-I/O.

Theory of operation. The shell tells of peers (`peer_up`, `peer_down`), of messages (`receive`), of bytes that left
(`flushed`), of the plan (`follow`) and of time (`poll`, no later than `next_wake`); after each it drains `actions` and
carries them out. Time is in seconds of any monotonic clock; randomness comes from the generator given at the start: the
same inputs give the same actions.

Chunks are pushed along the plan's trees (`pushing`), and what does not come so, or all of it where there is no plan, is
pulled (`asking`). Both leave by the queues of `serving`. This file holds what they share: which manifests are
exchanged, who holds what, and what is done with a chunk that comes.

Trust: a chunk is verified against the signed manifest before it is kept, offered or passed on. A peer whose chunk is
wrong is banned (`blame`); the blame is certain, since nobody else touched that chunk. So is one whose useless bytes,
beyond what it was ever asked for, outweigh its useful ones by more than two windows.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from p2psync.protocol.manifest import Manifest
from p2psync.protocol.messages import (
    MAX_REQUEST_CHUNKS,
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
from p2psync.swarm.actions import Action, Ban, Complete, Recheck, Save, Send, SendChunk, SwarmConfig, Vet
from p2psync.swarm.asking import Asking
from p2psync.swarm.blame import MAX_BLAMED, Blame
from p2psync.swarm.early import EarlyChunks
from p2psync.swarm.ground import Ground
from p2psync.swarm.offers import Offers
from p2psync.swarm.peer import Peer
from p2psync.swarm.pushing import Pushing
from p2psync.swarm.relief import Relief
from p2psync.swarm.serving import Serving
from p2psync.swarm.transfer import Bits, Transfer, pack_bitmap, unpack_bitmap

__all__ = ["Action", "Ban", "Complete", "Save", "Send", "SendChunk", "Swarm", "SwarmConfig"]

#: Peers that went and whose useless bytes are remembered.
MAX_ACCOUNTS = 1024
#: The source's word that it holds a chunk counts so much later (seconds): others are asked first.
SOURCE_LATER = 2.0
#: Once all is put in, news wait for so much less: what several bring should not come twice.
SOONER = 0.3
_NEVER = float("inf")


class Swarm:
    """The chunk exchange of one node."""

    def __init__(self, config: SwarmConfig, rng: random.Random, name: str = "") -> None:
        """name: under which this node's peers know it."""
        self._config = config
        self._ground = Ground(config, rng, name)
        self._transfers = self._ground.transfers
        self._peers = self._ground.peers
        self._asking = Asking(self._ground)
        self._serving = Serving(self._ground)
        self._pushing = Pushing(self._ground, self._serving)
        self._relief = Relief(self._ground, self._serving)
        self._offers = Offers(self._ground)
        self._banned: dict[str, float] = {}
        self._blame = Blame(config)
        # Useless bytes of peers that went, and when they did: coming back does not clear the account.
        self._surplus: dict[str, tuple[int, float]] = {}
        self._news: dict[bytes, list[int]] = {}
        self._news_due = _NEVER
        self._ready = b""
        self._early = EarlyChunks()
        self.received_bytes = 0
        self.wasted_bytes = 0
        #: Of chunks of use that came down a tree of the plan, and and that nobody here had asked its sender for.
        self.pushed_bytes = 0

    # ---- transfers -------------------------------------------------------------------------------------------------

    def begin(self, id: bytes, manifest: Manifest, held: Bits, wanted: Bits, now: float) -> None:
        """Exchange the chunks of a manifest: offer `held`, fetch what is `wanted` and not held (flags per chunk).

        Beginning a known manifest again widens what is wanted, and takes the store's word on what is held. Emits
        `Complete` at once if nothing is missing.
        """
        short = id[:SHORT_ID_BYTES]
        known = self._transfers.get(short)
        if known is not None:
            for index in np.flatnonzero(known.held & ~held):
                self.lost(id, int(index), now)
            known.widen(held, wanted)
            self._begun(short, known, now)
            return
        transfer = Transfer.begin(id, manifest, held, wanted, self._ground.rng)
        self._transfers[short] = transfer
        for peer in self._peers.values():
            early = peer.early.pop(short)
            if early is not None:
                self._learn(peer, short, unpack_bitmap(bytes(early), manifest.chunks), now)
        if manifest.base is None or manifest.version == manifest.base + 1:
            for peer in self._peers.values():
                if peer.ready == manifest.base_digest:
                    peer.may_want(short)
        if self._ready == NO_VERSION and not transfer.complete:
            self.running(b"")  # the way to the newest version is chosen now
        self._pushing.begin(transfer, short, now)
        for name in self._peers:
            self._serving.tell_all(short, transfer, name)
        self._begun(short, transfer, now)
        for name, chunk in self._early.pop(short):
            self._on_known_chunk(name, chunk, now)

    def _begun(self, short: bytes, transfer: Transfer, now: float) -> None:
        if transfer.complete:
            self._ground.actions.append(Complete(transfer.id))
        elif bool((transfer.needed | transfer.held).all()) and self._ground.trees.parents:
            self._want(short, transfer, self._ground.pushers, now)
        self._asking.fill_all(now)

    def _want(self, short: bytes, transfer: Transfer, names: Iterable[str], now: float) -> None:
        """Have a manifest's chunks pushed here by these peers, as far as they are connected."""
        up = [name for name in sorted(names) if name in self._peers]
        for name in up:
            self._ground.send(name, Subscribe(short, True))
        if up and not transfer.pushed:
            transfer.pushed = True
            # Pushes are waited for from now on, whoever holds what since when.
            transfer.heard[transfer.heard < now] = now
            self._asking.heard(transfer, now)

    def publish(self, id: bytes, signed: bytes) -> None:
        """A version of this node's own is about to begin: its manifest goes ahead of its chunks. See `Offers`."""
        self._offers.publish(id, signed)

    def vetted(self, vet: Vet, *, taken: bool) -> None:
        """What a peer offered was signed by whom this node trusts. taken: it is news, and passed on."""
        self._offers.vetted(vet, taken=taken)

    def forged(self, vet: Vet, now: float) -> None:
        """What a peer offered was not."""
        self._offers.forged(vet)
        self._ban(vet.peer, "it offered a manifest that nobody trusted has signed", now)

    def end(self, id: bytes) -> None:
        """Neither fetch nor offer this manifest any longer."""
        short = id[:SHORT_ID_BYTES]
        transfer = self._transfers.pop(short, None)
        self._news.pop(short, None)
        self._pushing.end(short)
        if transfer is None:
            return
        self._drop_requests(transfer, short)
        for peer in self._peers.values():
            theirs = peer.forget(short)
            if theirs is not None:
                peer.early.put(short, pack_bitmap(theirs))
            self._ground.send(peer.name, DontHave(short))

    def forgo(self, id: bytes) -> None:
        """Fetch no more of this manifest; what is held of it is still offered."""
        short = id[:SHORT_ID_BYTES]
        transfer = self._transfers.get(short)
        if transfer is None:
            return
        self._drop_requests(transfer, short)
        if transfer.pushed:
            transfer.pushed = False
            for name in sorted(self._ground.pushers & self._peers.keys()):
                self._ground.send(name, Subscribe(short, False))
        transfer.forgo()

    def _drop_requests(self, transfer: Transfer, short: bytes) -> None:
        for index, asked in list(transfer.asked.items()):
            for request in list(asked):
                self._ground.forget_request(transfer, index, request.peer)
                self._ground.send(request.peer, Cancel(short, [index]))

    def lost(self, id: bytes, index: int, now: float) -> None:
        """A chunk is not on disk after all (it was full, or damaged): fetch it again, and tell peers to wait for none.

        A chunk that is lost again and again is fetched after growing pauses.
        """
        short = id[:SHORT_ID_BYTES]
        transfer = self._transfers.get(short)
        if transfer is None or not transfer.held[index]:
            return
        transfer.lose(index, now)
        for peer in self._peers.values():
            self._ground.send(peer.name, Reject(short, [index]))
            peer.queue.pop((short, index), None)
            peer.take_back(short, [index])
        self._asking.rest(transfer.resting[index])
        self._asking.reopen(now)

    def running(self, digest: bytes) -> None:
        """The version of this digest is live here: parents push the next delta from it unasked. `NO_VERSION`: none is,
        and they push the next anchor, until something is fetched here; empty: they push nothing unasked."""
        self._ready = digest
        self._tell_ready(self._ground.trees.parents)

    def _tell_ready(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            if name in self._peers:
                self._ground.send(name, AcceptNext(self._ready))

    def follow(self, plan: NodePlan, now: float) -> None:
        """This is the plan from now on."""
        before = self._ground.trees.parents
        self._ground.trees.follow(plan)
        self._tell_ready(self._ground.trees.parents - before)
        for short, transfer in self._transfers.items():
            if transfer.pushed and not transfer.complete:
                self._want(short, transfer, self._ground.trees.parents - before, now)
        self._pushing.inject(now)

    @property
    def fetch_rate(self) -> float:
        """See `Downlink.rate`."""
        return self._ground.downlink.rate

    @property
    def sent_bytes(self) -> int:
        """Bytes of chunks handed out."""
        return self._ground.sent_bytes

    def pace(self, rate: float) -> bool:
        """Hand out so many bytes a second from now on, 0: as many as connections take; whether anything had to wait
        since this was said last."""
        outflow = self._serving.outflow
        outflow.limit(rate)
        held, outflow.held = outflow.held, False
        return held

    @property
    def others_fetch(self) -> bool:
        """Whether a peer is known to be in the middle of what is all here."""
        return self._ground.others_fetch

    def progress(self, id: bytes) -> tuple[int, int]:
        """(held, all) chunks of a manifest; (0, 0) if it is unknown."""
        transfer = self._transfers.get(id[:SHORT_ID_BYTES])
        return (int(transfer.held.sum()), len(transfer.held)) if transfer else (0, 0)

    def needs(self, short: bytes, index: int) -> bool:
        """Whether a chunk (manifest: short id) is wanted and not held."""
        transfer = self._transfers.get(short)
        return transfer is not None and 0 <= index < transfer.manifest.chunks and bool(transfer.needed[index])

    # ---- peers -----------------------------------------------------------------------------------------------------

    def peer_up(self, name: str, near: bool, now: float, *, source: bool = False) -> bool:
        """A peer is connected; False if it is banned and must be hung up on. source: it publishes.

        To be said again of a peer that is up when one more connection to it is greeted, or one of several is lost: news
        may have been lost with a connection, or the peer may have noticed the loss of its last one sooner than this
        node; what is held and wanted is told again, and nothing else changes. If the peer was started anew, say
        `peer_down` first.
        """
        if self._banned.get(name, now) > now:
            return False
        self._banned.pop(name, None)
        if name not in self._peers:
            surplus, _ = self._surplus.pop(name, (0, now))
            self._peers[name] = Peer(
                name, near, source, last_arrival=now, surplus=surplus, unasked_most=self._config.unasked
            )
        for wrong in self._blame.to_tell(name):
            self._ground.send(name, wrong)
        if self._ready and name in self._ground.trees.parents:
            self._tell_ready([name])
        for short, transfer in self._transfers.items():
            self._serving.tell_all(short, transfer, name)
            if transfer.pushed and not transfer.complete and name in self._ground.pushers:
                self._want(short, transfer, [name], now)
        return True

    def peer_down(self, name: str, now: float) -> None:
        """A peer is gone: what it was asked for is open again."""
        peer = self._peers.pop(name, None)
        if peer is None:
            return
        self._keep_surplus(peer, now)
        for short, theirs in peer.holds.items():
            self._transfers[short].rarity -= theirs
        for transfer in self._transfers.values():
            for index in [i for i, asked in transfer.asked.items() if any(a.peer == name for a in asked)]:
                transfer.release(index, name)
        self._pushing.peer_down(name, now)
        self._offers.peer_down(name)
        self._asking.fill_all(now)

    def _keep_surplus(self, peer: Peer, now: float) -> None:
        recent = now - self._config.ban
        self._surplus = {name: account for name, account in self._surplus.items() if account[1] > recent}
        if peer.surplus and len(self._surplus) < MAX_ACCOUNTS:
            self._surplus[peer.name] = (peer.surplus, now)

    @property
    def peers(self) -> Iterable[Peer]:
        """Those connected now."""
        return self._peers.values()

    def banned(self, name: str, now: float) -> bool:
        """Whether this peer is shut out."""
        return self._banned.get(name, now) > now

    def banned_until(self, name: str) -> float:
        """When this peer may come back; before all time if it is not shut out."""
        return self._banned.get(name, -_NEVER)

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def receive(self, name: str, message: Message, now: float) -> None:
        """A message came from a connected peer (messages of others are ignored)."""
        peer = self._peers.get(name)
        if peer is None:
            return
        match message:
            case Chunk():
                self._on_chunk(peer, message, now)
            case Bitfield():
                self._on_have(peer, message, now)
            case Have():
                self._on_have_more(peer, message, now)
            case DontHave():
                self._on_gone(peer, message.manifest, now)
            case Request():
                self._serving.requested(peer, message, now)
            case Cancel():
                peer.needs_no_more(message.manifest, message.chunks)
            case Reject():
                self._on_reject(peer, message, now)
            case Subscribe():
                peer.want(message.manifest, message.wanted)
                self._pushing.wanted(name, message.manifest, now)
            case AcceptNext():
                peer.ready = message.digest
            case ManifestGossip():
                self._offers.came(name, message)
            case BadChunk():
                self._on_bad_chunk(peer, message, now)
            case Ping():
                self._ground.send(name, Pong(message.token))
            case _:
                pass

    def connections(self, name: str, count: int) -> None:
        """A peer has so many connections now: as many chunks may be handed out for it at a time."""
        peer = self._peers.get(name)
        if peer is not None:
            peer.connections = count

    def flushed(self, name: str, size: int, now: float) -> None:
        """`size` bytes of chunks handed out for this peer have left: its connections have room again."""
        peer = self._peers.get(name)
        if peer is not None:
            peer.flushing = max(0, peer.flushing - size)
            self._serving.serve(peer, now)
            self._pushing.inject(now)
            self._relief.flushed(peer, now)

    def poll(self, now: float) -> None:
        """Do what time has made due."""
        if now >= self._news_due:
            self._tell_news()
        self._asking.poll(now)
        self._pushing.poll(now)
        self._serving.poll(now)
        self._relief.poll(now)

    def next_wake(self) -> float:
        """When `poll` must be called next at the latest, if nothing else happens; infinite: never."""
        asking, pushing, serving, relief = self._asking, self._pushing, self._serving, self._relief
        return min(self._news_due, asking.next_wake, pushing.next_wake, serving.next_wake, relief.next_wake)

    def actions(self) -> list[Action]:
        """What is to be done now, in order; empties the list."""
        done, self._ground.actions = self._ground.actions, []
        return done

    # ---- chunks that come ------------------------------------------------------------------------------------------

    def _on_chunk(self, peer: Peer, chunk: Chunk, now: float) -> None:
        self.received_bytes += len(chunk.data)
        if not self._ground.asks:
            self._ground.downlink.begin(now)
        self._ground.downlink.arrived(len(chunk.data), now)
        if chunk.manifest not in self._transfers and chunk.tag and peer.name in self._ground.trees.parents:
            # Its manifest is on its way; until then it counts as surplus, so that no peer can send such for ever.
            self._count_surplus(peer, len(chunk.data), now)
            self._early.put(peer.name, chunk)
        else:
            self._on_known_chunk(peer.name, chunk, now)

    def _on_known_chunk(self, name: str, chunk: Chunk, now: float) -> None:
        peer, transfer = self._peers.get(name), self._transfers.get(chunk.manifest)
        if peer is None:
            return
        if transfer is None or not self.needs(chunk.manifest, chunk.index):
            self._on_surplus(peer, chunk, now)
        elif transfer.manifest.verify_chunk(chunk.index, chunk.data):
            self._gain(peer, transfer, chunk, now)
        else:
            self.wasted_bytes += len(chunk.data)
            seconds = self._blame.wrong_chunk(name, chunk.manifest, chunk.index, now)
            self._ban(name, f"chunk {chunk.index} did not have the hash that the manifest signs", now, seconds)

    def _on_surplus(self, peer: Peer, chunk: Chunk, now: float) -> None:
        """A chunk that is of no use: cancelled too late, come by another way, or never asked for."""
        size = len(chunk.data)
        self.wasted_bytes += size
        peer.late.discard((chunk.manifest, chunk.index))
        transfer = self._transfers.get(chunk.manifest)
        if transfer is not None:
            if chunk.tag and not peer.owed and chunk.index < len(transfer.heard):
                self._came_after_all(transfer, chunk.index, now)
            self._ground.forget_request(transfer, chunk.index, peer.name)
        self._count_surplus(peer, max(0, size - peer.owed), now)
        peer.owed = max(0, peer.owed - size)
        if peer.name in self._peers:
            self._asking.fill(peer, now)

    def _came_after_all(self, transfer: Transfer, index: int, now: float) -> None:
        """A chunk was pushed here that had come otherwise, or been asked for: once all is put in, by `Relief`."""
        if transfer.pushed and not transfer.told:
            self._ground.lag.came_late(now - float(transfer.heard[index]))

    def _count_surplus(self, peer: Peer, size: int, now: float) -> None:
        peer.surplus += size
        if peer.surplus > self._config.surplus_most:
            peer.surplus = 0
            self._ban(peer.name, "it keeps sending chunks that nobody asked it for", now)

    def _gain(self, peer: Peer, transfer: Transfer, chunk: Chunk, now: float) -> None:
        short, size = chunk.manifest, len(chunk.data)
        was_late = (short, chunk.index) in peer.late
        peer.late.discard((short, chunk.index))
        peer.owed = max(0, peer.owed - size)
        peer.surplus = max(0, peer.surplus - size)
        asked = transfer.gain(chunk.index, now)
        for request in asked:
            other = self._peers[request.peer]
            other.asked_bytes -= size
            if other is peer:
                peer.arrived(size, request.at, now)
            if other is not peer or was_late:
                self._ground.cancel(request.peer, short, [chunk.index])
        if chunk.tag and not was_late and all(request.peer != peer.name for request in asked):
            self.pushed_bytes += size
        if transfer.pushed and not asked:
            peer.pushed_at = now
            self._ground.lag.sample(max(0.0, now - float(transfer.heard[chunk.index])))
        elif chunk.tag and not was_late and all(request.peer != peer.name for request in asked):
            self._came_after_all(transfer, chunk.index, now)
        peer.delivered(now)
        self._ground.actions.append(Save(transfer.id, chunk.index, chunk.data))
        self._pushing.forward(transfer, short, chunk.index, chunk.tag, now)
        self._news.setdefault(short, []).append(chunk.index)
        self._news_due = min(self._news_due, now + self._news_delay(transfer))
        if transfer.complete:
            self._ground.actions.append(Complete(transfer.id))
            self._tell_news()
            self._asking.fill_all(now)
            if transfer.pushed:
                self._relief.begin(transfer, now)
        elif asked or not transfer.pushed:
            self._asking.fill(peer, now)
        else:
            self._asking.pushed(transfer, now)

    def _on_bad_chunk(self, peer: Peer, wrong: BadChunk, now: float) -> None:
        """A peer accuses this node; it may lie, so that the store alone is believed."""
        transfer = self._transfers.get(wrong.manifest)
        if transfer is None or not wrong.chunks or not self._blame.may_recheck(peer.name, now):
            return
        for index in wrong.chunks[:MAX_BLAMED]:
            if index < len(transfer.held) and transfer.held[index]:
                self._ground.actions.append(Recheck(transfer.id, index))

    def _on_reject(self, peer: Peer, reject: Reject, now: float) -> None:
        transfer = self._transfers.get(reject.manifest)
        theirs = peer.holds.get(reject.manifest)
        if transfer is None or theirs is None:
            return
        for index in reject.chunks:
            if index < len(theirs):
                self._ground.forget_request(transfer, index, peer.name)
                if theirs[index]:
                    theirs[index] = False
                    transfer.rarity[index] -= 1
        self._asking.fill_all(now)

    # ---- what peers hold -------------------------------------------------------------------------------------------

    def _on_have(self, peer: Peer, have: Bitfield, now: float) -> None:
        transfer = self._transfers.get(have.manifest)
        if transfer is None:
            peer.early.put(have.manifest, have.bitmap)
            return
        self._learn(peer, have.manifest, unpack_bitmap(have.bitmap, transfer.manifest.chunks), now)
        self._asking.fill(peer, now)

    def _on_have_more(self, peer: Peer, more: Have, now: float) -> None:
        transfer = self._transfers.get(more.manifest)
        if transfer is None:
            peer.early.add(more.manifest, more.chunks)
            return
        theirs = peer.holds.get(more.manifest)
        if theirs is None:
            theirs = peer.holds[more.manifest] = np.zeros(transfer.manifest.chunks, np.bool_)
        new = transfer.learn(theirs, more.chunks)
        self._pushing.held_by_peer(more.manifest, new, now)
        self._hear(peer, transfer, new, now)
        if not transfer.pushed and transfer.may_be_asked(new, now):
            self._asking.fill(peer, now)

    def _learn(self, peer: Peer, short: bytes, flags: Bits, now: float) -> None:
        transfer = self._transfers[short]
        before = peer.holds.get(short)
        if before is not None:
            transfer.rarity -= before
        peer.holds[short] = flags
        transfer.rarity += flags
        transfer.told |= peer.source and self._sources_hold_all(short)
        self._pushing.holds_flags(short, flags if before is None else flags & ~before, now)
        self._hear(peer, transfer, flags, now)

    def _sources_hold_all(self, short: bytes) -> bool:
        """Whether the sources together have told of all chunks: each has put in what it holds."""
        told = [peer.holds[short] for peer in self._peers.values() if peer.source and short in peer.holds]
        return bool(told) and bool(np.logical_or.reduce(told).all())

    def _hear(self, peer: Peer, transfer: Transfer, chunks: Bits | list[int], now: float) -> None:
        transfer.hear(chunks, now + SOURCE_LATER if peer.source else now)
        if transfer.pushed:
            self._asking.heard(transfer, now)

    def _on_gone(self, peer: Peer, short: bytes, now: float) -> None:
        peer.early.pop(short)
        peer.want(short, False)
        theirs = peer.holds.pop(short, None)
        transfer = self._transfers.get(short)
        if theirs is None or transfer is None:
            return
        transfer.rarity -= theirs
        for index in [i for i, asked in transfer.asked.items() if any(a.peer == peer.name for a in asked)]:
            self._ground.forget_request(transfer, index, peer.name)
        self._asking.fill_all(now)

    def _news_delay(self, transfer: Transfer) -> float:
        config = self._config
        if not transfer.pushed:
            return config.have_delay
        delay = max(config.have_delay_pushed, config.have_per_peer * len(self._peers))
        return delay * SOONER if transfer.told else delay

    def _tell_news(self) -> None:
        for short, gained in self._news.items():
            chunks = [index for index in gained if self._transfers[short].held[index]]
            for start in range(0, len(chunks), MAX_REQUEST_CHUNKS):
                news = Have(short, chunks[start : start + MAX_REQUEST_CHUNKS])
                for name in self._peers:
                    self._ground.send(name, news)
        self._news.clear()
        self._news_due = _NEVER

    def _ban(self, name: str, reason: str, now: float, seconds: float | None = None) -> None:
        until = now + (self._config.ban if seconds is None else seconds)
        self._banned = {banned: end for banned, end in self._banned.items() if end > now}
        self._banned[name] = until
        self.peer_down(name, now)
        self._ground.actions.append(Ban(name, reason, until))
