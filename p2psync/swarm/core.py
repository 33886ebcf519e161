"""The swarm: what to ask of whom, what to serve to whom, whom to ban. Sans-I/O.

Theory of operation. The shell tells of peers (`peer_up`, `peer_down`), of messages (`receive`), of bytes that left
(`flushed`) and of time (`poll`, no later than `next_wake`); after each it drains `actions` and carries them out. Time
is in seconds of any monotonic clock; randomness comes from the generator given at the start: the same inputs give the
same actions.

Asking: each peer has a window of bytes under way. It is filled with the chunks that this node needs and the peer
holds, rarest first among all peers, ties broken differently at each node; when every needed chunk is under way, the
last ones are asked of a second peer too (endgame), and the slower request is cancelled. A request that is late is
cancelled, which frees its chunk for others, and snubs the peer until it delivers again: a window of one chunk, and a
longer wait each time, because what was late may still come and would come twice.

Serving: requests wait here, not in socket buffers. The next chunk for a peer is handed out when its connections have
room; chunks that this node has sent the fewest times go first, so a trainer sends each chunk once before any twice.

Trust: a chunk is verified against the signed manifest before it is kept, offered or passed on. A peer whose chunk is
wrong is banned; the blame is certain, since nobody else touched that chunk. So is one whose useless bytes, beyond what
it was ever asked for, outweigh its useful ones by more than two windows.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from p2psync.protocol.manifest import Manifest
from p2psync.protocol.messages import (
    MAX_REQUEST,
    SHORT_ID_BYTES,
    Cancel,
    Chunk,
    Gone,
    Have,
    HaveMore,
    Hello,
    Message,
    Ping,
    Pong,
    Reject,
    Request,
)
from p2psync.protocol.plan import NodePlan
from p2psync.swarm.actions import Action, Ban, Complete, Save, Send, SendChunk, SwarmConfig
from p2psync.swarm.downlink import Downlink
from p2psync.swarm.peer import MAX_QUEUED, Peer
from p2psync.swarm.transfer import Bits, Transfer, pack_bitmap, unpack_bitmap

__all__ = ["Action", "Ban", "Complete", "Save", "Send", "SendChunk", "Swarm", "SwarmConfig"]

#: Peers that went and whose useless bytes are remembered.
MAX_ACCOUNTS = 1024
_NEVER = float("inf")


class Swarm:
    """The chunk exchange of one node."""

    def __init__(self, config: SwarmConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._transfers: dict[bytes, Transfer] = {}
        self._peers: dict[str, Peer] = {}
        self._banned: dict[str, float] = {}
        # Useless bytes of peers that went, and when they did: coming back does not clear the account.
        self._surplus: dict[str, tuple[int, float]] = {}
        self._actions: list[Action] = []
        self._news: dict[bytes, list[int]] = {}
        self._news_due = _NEVER
        self._late_due = _NEVER
        self._rest_due = _NEVER
        self._hope_due = _NEVER
        self._downlink = Downlink()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.wasted_bytes = 0

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
            if known.complete:
                self._actions.append(Complete(id))
            self._fill_all(now)
            return
        transfer = Transfer.begin(id, manifest, held, wanted, self._rng)
        self._transfers[short] = transfer
        for peer in self._peers.values():
            early = peer.early.pop(short)
            if early is not None:
                self._learn(peer, short, unpack_bitmap(bytes(early), manifest.chunks))
            if transfer.held.any():
                self._actions.append(Send(peer.name, Have(short, pack_bitmap(transfer.held))))
        if transfer.complete:
            self._actions.append(Complete(id))
        self._fill_all(now)

    def end(self, id: bytes) -> None:
        """Neither fetch nor offer this manifest any longer."""
        short = id[:SHORT_ID_BYTES]
        transfer = self._transfers.pop(short, None)
        self._news.pop(short, None)
        if transfer is None:
            return
        for index, asked in list(transfer.asked.items()):
            for request in list(asked):
                self._forget_request(transfer, index, request.peer)
                self._actions.append(Send(request.peer, Cancel(short, [index])))
        for peer in self._peers.values():
            theirs = peer.holds.pop(short, None)
            if theirs is not None:
                peer.early.put(short, pack_bitmap(theirs))
            peer.late = {key for key in peer.late if key[0] != short}
            for key in [key for key in peer.queue if key[0] == short]:
                del peer.queue[key]
            self._actions.append(Send(peer.name, Gone(short)))

    def follow(self, plan: NodePlan, now: float) -> None:
        """Send and expect chunks by this plan."""
        self._plan = plan

    def forgo(self, id: bytes) -> None:
        """Fetch no more of this manifest; what is held of it is still offered."""
        transfer = self._transfers.get(id[:SHORT_ID_BYTES])
        if transfer is None:
            return
        for index, asked in list(transfer.asked.items()):
            for request in list(asked):
                self._forget_request(transfer, index, request.peer)
                self._actions.append(Send(request.peer, Cancel(id[:SHORT_ID_BYTES], [index])))
        transfer.forgo()

    def lost(self, id: bytes, index: int, now: float) -> None:
        """A chunk is not on disk after all (it was full, or damaged): fetch it again, and tell peers to wait for none.

        A chunk that is lost again and again is fetched after growing pauses.
        """
        short = id[:SHORT_ID_BYTES]
        transfer = self._transfers.get(short)
        if transfer is None or not transfer.held[index]:
            return
        transfer.lose(index, now)
        self._actions += [Send(name, Reject(short, [index])) for name in self._peers]
        for peer in self._peers.values():
            peer.queue.pop((short, index), None)
        self._rest_due = min(self._rest_due, transfer.resting[index])
        self._reopen(now)

    @property
    def fetch_rate(self) -> int:
        """See `Downlink.rate`; two digits of it."""
        rate = self._downlink.rate
        return int(float(f"{rate:.1e}"))

    def progress(self, id: bytes) -> tuple[int, int]:
        """(held, all) chunks of a manifest; (0, 0) if it is unknown."""
        transfer = self._transfers.get(id[:SHORT_ID_BYTES])
        return (int(transfer.held.sum()), len(transfer.held)) if transfer else (0, 0)

    def needs(self, short: bytes, index: int) -> bool:
        """Whether a chunk (manifest: short id) is wanted and not held."""
        transfer = self._transfers.get(short)
        return transfer is not None and 0 <= index < transfer.manifest.chunks and bool(transfer.needed[index])

    def chunk_bytes(self, id: bytes, index: int) -> int:
        """Bytes of a chunk; 0 if the manifest is unknown."""
        transfer = self._transfers.get(id[:SHORT_ID_BYTES])
        return transfer.manifest.sizes[index] if transfer is not None else 0

    # ---- peers -----------------------------------------------------------------------------------------------------

    def peer_up(self, name: str, near: bool, now: float) -> bool:
        """A peer is connected; False if it is banned and must be hung up on.

        To be said again of a peer that is up when one more connection to it is greeted, or one of several is lost: news
        may have been lost with a connection, or the peer may have noticed the loss of its last one sooner than this
        node; what is held is told again, and nothing else changes. If the peer was started anew, say `peer_down` first.
        """
        if self._banned.get(name, now) > now:
            return False
        self._banned.pop(name, None)
        if name not in self._peers:
            surplus, _ = self._surplus.pop(name, (0, now))
            self._peers[name] = Peer(name, near, last_arrival=now, surplus=surplus)
        for short, transfer in self._transfers.items():
            if transfer.held.any():
                self._actions.append(Send(name, Have(short, pack_bitmap(transfer.held))))
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
        self._fill_all(now)

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
            case Have():
                self._on_have(peer, message, now)
            case HaveMore():
                self._on_have_more(peer, message, now)
            case Gone():
                self._on_gone(peer, message.manifest, now)
            case Request():
                self._on_request(peer, message)
            case Cancel():
                for index in message.chunks:
                    peer.queue.pop((message.manifest, index), None)
            case Reject():
                self._on_reject(peer, message, now)
            case Ping():
                self._actions.append(Send(name, Pong(message.token)))
            case Hello() | Pong():
                pass

    def flushed(self, name: str, size: int, now: float) -> None:
        """`size` bytes of chunks handed out for this peer have left: its connections have room again."""
        peer = self._peers.get(name)
        if peer is not None:
            peer.flushing = max(0, peer.flushing - size)
            self._serve(peer)

    def poll(self, now: float) -> None:
        """Do what time has made due."""
        if now >= self._news_due:
            self._tell_news()
        if now >= self._late_due:
            self._give_up_late(now)
        if now >= self._rest_due:
            self._reopen(now)
        if now >= self._hope_due:
            self._hope_due = _NEVER
            self._fill_all(now)

    def next_wake(self) -> float | None:
        """When `poll` must be called next at the latest, if nothing else happens."""
        wake = min(self._news_due, self._late_due, self._rest_due, self._hope_due)
        return None if wake == _NEVER else wake

    def actions(self) -> list[Action]:
        """What is to be done now, in order; empties the list."""
        done, self._actions = self._actions, []
        return done

    # ---- asking ----------------------------------------------------------------------------------------------------

    def _fill_all(self, now: float) -> None:
        # Near and fast peers first: where a chunk can be had from both, it should not cross a long link.
        for peer in sorted(self._peers.values(), key=lambda p: (p.snubbed, not p.near, -p.rate, p.name)):
            self._fill(peer, now)

    def _fill(self, peer: Peer, now: float) -> None:
        for short, theirs in peer.holds.items():
            transfer = self._transfers[short]
            if transfer.complete:
                continue
            typical = max(1, transfer.manifest.payload_bytes // max(1, transfer.manifest.chunks))
            config = self._config
            window = peer.window(typical, config.window_least, config.window_most, config.horizon)
            room = min(MAX_REQUEST, -(-(window - peer.asked_bytes) // typical))
            if room <= 0:
                continue
            chosen = transfer.pick(theirs, room)
            if not chosen and not peer.snubbed:
                chosen, later = transfer.pick_again(peer.name, theirs, room, config.endgame_copies, now)
                self._hope_due = min(self._hope_due, later)
            if chosen:
                self._ask(peer, transfer, chosen, now)

    def _ask(self, peer: Peer, transfer: Transfer, chunks: list[int], now: float) -> None:
        if not any(p.asked_bytes for p in self._peers.values()):
            self._downlink.begin(now)
        owed = sum(p.owed for p in self._peers.values())
        for index in chunks:
            peer.asked_bytes += transfer.manifest.sizes[index]
            peer.owed += transfer.manifest.sizes[index]
            owed += transfer.manifest.sizes[index]
            pace = peer.asked_bytes / peer.rate if peer.rate else 0.0
            pace = max(pace, self._downlink.queue_seconds(owed, now))
            due = now + self._config.late_after * peer.patience + 2 * pace
            hoped = now + max(self._config.endgame_after, 1.5 * (pace + peer.round_trip))
            transfer.ask(index, peer.name, now, due, hoped)
            self._late_due = min(self._late_due, due)
        self._actions.append(Send(peer.name, Request(transfer.id[:SHORT_ID_BYTES], chunks)))

    def _give_up_late(self, now: float) -> None:
        late: dict[str, dict[bytes, list[int]]] = {}
        self._late_due = _NEVER
        for short, transfer in self._transfers.items():
            for index, asked in list(transfer.asked.items()):
                for request in list(asked):
                    if request.due > now:
                        self._late_due = min(self._late_due, request.due)
                        continue
                    self._forget_request(transfer, index, request.peer)
                    late.setdefault(request.peer, {}).setdefault(short, []).append(index)
        for name, manifests in late.items():
            peer = self._peers[name]
            peer.was_late()
            for short, chunks in manifests.items():
                peer.late.update((short, index) for index in chunks)
                self._cancel(name, short, chunks)
        self._fill_all(now)

    def _cancel(self, name: str, short: bytes, chunks: list[int]) -> None:
        for start in range(0, len(chunks), MAX_REQUEST):
            self._actions.append(Send(name, Cancel(short, chunks[start : start + MAX_REQUEST])))

    def _reopen(self, now: float) -> None:
        for transfer in self._transfers.values():
            transfer.reopen(now)
        self._rest_due = min((t for x in self._transfers.values() for t in x.resting.values()), default=_NEVER)
        self._fill_all(now)

    def _forget_request(self, transfer: Transfer, index: int, name: str) -> None:
        released = transfer.release(index, name)
        peer = self._peers.get(name)
        if released is not None and peer is not None:
            peer.asked_bytes -= transfer.manifest.sizes[index]

    def _on_chunk(self, peer: Peer, chunk: Chunk, now: float) -> None:
        transfer = self._transfers.get(chunk.manifest)
        self.received_bytes += len(chunk.data)
        self._downlink.arrived(len(chunk.data), now)
        if transfer is None or not self.needs(chunk.manifest, chunk.index):
            self._on_surplus(peer, chunk, now)
        elif transfer.manifest.verify_chunk(chunk.index, chunk.data):
            self._gain(peer, transfer, chunk, now)
        else:
            self.wasted_bytes += len(chunk.data)
            self._ban(peer.name, f"chunk {chunk.index} did not have the hash that the manifest signs", now)

    def _on_surplus(self, peer: Peer, chunk: Chunk, now: float) -> None:
        """A chunk that is of no use: cancelled too late, or never asked for."""
        size = len(chunk.data)
        self.wasted_bytes += size
        peer.late.discard((chunk.manifest, chunk.index))
        transfer = self._transfers.get(chunk.manifest)
        if transfer is not None:
            self._forget_request(transfer, chunk.index, peer.name)
        peer.surplus += max(0, size - peer.owed)
        peer.owed = max(0, peer.owed - size)
        if peer.surplus > 2 * self._config.window_most:
            peer.surplus = 0
            self._ban(peer.name, "it keeps sending chunks that nobody asked it for", now)
        else:
            self._fill(peer, now)

    def _gain(self, peer: Peer, transfer: Transfer, chunk: Chunk, now: float) -> None:
        short, size = chunk.manifest, len(chunk.data)
        was_late = (short, chunk.index) in peer.late
        peer.late.discard((short, chunk.index))
        peer.owed = max(0, peer.owed - size)
        peer.surplus = max(0, peer.surplus - size)
        for request in transfer.gain(chunk.index):
            other = self._peers[request.peer]
            other.asked_bytes -= size
            if other is peer:
                peer.arrived(size, request.at, now)
            if other is not peer or was_late:
                self._cancel(request.peer, short, [chunk.index])
        peer.delivered(now)
        self._actions.append(Save(transfer.id, chunk.index, chunk.data))
        self._news.setdefault(short, []).append(chunk.index)
        self._news_due = min(self._news_due, now + self._config.have_delay)
        if transfer.complete:
            self._actions.append(Complete(transfer.id))
            self._tell_news()
            self._fill_all(now)
        else:
            self._fill(peer, now)

    def _on_reject(self, peer: Peer, reject: Reject, now: float) -> None:
        transfer = self._transfers.get(reject.manifest)
        theirs = peer.holds.get(reject.manifest)
        if transfer is None or theirs is None:
            return
        for index in reject.chunks:
            if index < len(theirs):
                self._forget_request(transfer, index, peer.name)
                if theirs[index]:
                    theirs[index] = False
                    transfer.rarity[index] -= 1
        self._fill_all(now)

    # ---- what peers hold -------------------------------------------------------------------------------------------

    def _on_have(self, peer: Peer, have: Have, now: float) -> None:
        transfer = self._transfers.get(have.manifest)
        if transfer is None:
            peer.early.put(have.manifest, have.bitmap)
            return
        self._learn(peer, have.manifest, unpack_bitmap(have.bitmap, transfer.manifest.chunks))
        self._fill(peer, now)

    def _on_have_more(self, peer: Peer, more: HaveMore, now: float) -> None:
        transfer = self._transfers.get(more.manifest)
        if transfer is None:
            peer.early.add(more.manifest, more.chunks)
            return
        flags = peer.holds.get(more.manifest, np.zeros(transfer.manifest.chunks, np.bool_)).copy()
        flags[[index for index in more.chunks if index < len(flags)]] = True
        self._learn(peer, more.manifest, flags)
        self._fill(peer, now)

    def _learn(self, peer: Peer, short: bytes, flags: Bits) -> None:
        transfer = self._transfers[short]
        before = peer.holds.get(short)
        if before is not None:
            transfer.rarity -= before
        peer.holds[short] = flags
        transfer.rarity += flags

    def _on_gone(self, peer: Peer, short: bytes, now: float) -> None:
        peer.early.pop(short)
        theirs = peer.holds.pop(short, None)
        transfer = self._transfers.get(short)
        if theirs is None or transfer is None:
            return
        transfer.rarity -= theirs
        for index in [i for i, asked in transfer.asked.items() if any(a.peer == peer.name for a in asked)]:
            self._forget_request(transfer, index, peer.name)
        self._fill_all(now)

    def _tell_news(self) -> None:
        for short, gained in self._news.items():
            chunks = [index for index in gained if self._transfers[short].held[index]]
            for start in range(0, len(chunks), MAX_REQUEST):
                news = HaveMore(short, chunks[start : start + MAX_REQUEST])
                self._actions += [Send(name, news) for name in self._peers]
        self._news.clear()
        self._news_due = _NEVER

    # ---- serving ---------------------------------------------------------------------------------------------------

    def _on_request(self, peer: Peer, request: Request) -> None:
        transfer = self._transfers.get(request.manifest)
        refused = []
        for index in request.chunks:
            held = transfer is not None and index < len(transfer.held) and bool(transfer.held[index])
            if held and len(peer.queue) < MAX_QUEUED:
                peer.queue[(request.manifest, index)] = None
            else:
                refused.append(index)
        if refused:
            self._actions.append(Send(peer.name, Reject(request.manifest, refused)))
        self._serve(peer)

    def _serve(self, peer: Peer) -> None:
        while peer.queue and peer.flushing < self._config.flush_limit:
            short, index = min(peer.queue, key=lambda key: self._transfers[key[0]].sent.get(key[1], 0))
            del peer.queue[(short, index)]
            transfer = self._transfers[short]
            if not transfer.held[index]:
                self._actions.append(Send(peer.name, Reject(short, [index])))
                continue
            size = transfer.manifest.sizes[index]
            peer.flushing += size
            transfer.sent[index] = transfer.sent.get(index, 0) + 1
            self.sent_bytes += size
            self._actions.append(SendChunk(peer.name, transfer.id, index))

    def _ban(self, name: str, reason: str, now: float) -> None:
        until = now + self._config.ban
        self._banned = {banned: end for banned, end in self._banned.items() if end > now}
        self._banned[name] = until
        self.peer_down(name, now)
        self._actions.append(Ban(name, reason, until))
