"""Pulling: what to ask of whom, and for how long to wait for it. A part of the swarm's core.

Each peer has a window of bytes under way. It is filled with open chunks that the peer holds, rarest first among all
peers, ties broken differently at each node. When all are under way, those that are overdue are asked of a second peer
too (endgame), and the slower request is cancelled. A request that is late is cancelled, which frees its chunk for
others, and snubs the peer until it delivers again: a window of one chunk, and a longer wait each time, because what was
late may still come and would come twice. Of what is far away each node of a region asks for a part of its own, and
has the rest from its mates; it takes from another's part only where that does not get on.

Of a manifest that is pushed here along the plan's trees only what is overdue is pulled: what somebody else has held for
longer than pushes take (`Lag`). Whoever has all from the beginning, the source, is the last to be asked, since its
uplink is what everybody waits for. Once the source has put everything in, what lies in the queues of slow relays is
taken from them: of near peers as soon as they have it, and of parents who hold all and have pushed all that is theirs,
so that no way stands idle before everything is here. Where that would still take seconds, everybody else may stand idle
by now, and what would be here last is taken from anywhere. What was heard of last is taken first, since that is the
farthest back in the queues; a slow relay and those who take from it meet in the middle. Nodes of a region take
different chunks; one that has its part takes from those of the others, beginning where they would end.

A small manifest is pushed at once by all who pass it on. Once half of it is here and then nothing comes for some while,
packets were lost, and to wait for them takes longer than to ask others.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from p2psync.protocol.messages import MAX_REQUEST_CHUNKS, SHORT_ID_BYTES, Request
from p2psync.swarm.ground import Ground
from p2psync.swarm.peer import Peer
from p2psync.swarm.transfer import STALL_LEAST, Bits, Transfer

_NEVER = float("inf")
#: Spreads the numbers of chunks evenly (Knuth's multiplicative hash: 2^32 over the golden ratio).
_SCATTER = 2654435769
#: What becomes due to be pulled is looked for no more often than this (seconds).
_LOOK_EVERY = 0.02
#: Once the source has put everything in: for how long somebody must hold a chunk that is asked for, near peers at most;
#: and how often to look (seconds).
ENDGAME_HELD, ENDGAME_NEAR, _ENDGAME_EVERY = 0.3, 1.0, 0.1
#: For how many times as long a far peer that is no parent must; unless what is missing would take longer than so long
#: to come (seconds) at the pace of what comes: then they are asked at once for what would be here after that.
STRANGERS, FAR_OFF = 3.0, 4.0
#: For how many times as long one must be known to hold a chunk that a node nearby should bring into the region, unless
#: it is a parent who is through.
OTHERS_PART = 2.0
#: Where all is pulled: after how long without news from a part of what a region needs, or from its own, a node takes
#: from it as well (seconds).
MATES_AFTER = 1.5
#: For how long a parent must have pushed nothing until it seems to be through: one that holds all, and any (seconds).
SPENT_AFTER, IDLE_AFTER = 0.25, 1.0


class Asking:
    """The requests of one node. `poll` is due at `next_wake`."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._late_due = _NEVER
        self._rest_due = _NEVER
        self._hope_due = _NEVER
        self._ripe_due = _NEVER

    @property
    def next_wake(self) -> float:
        """When something is late, rested, overdue, or to be pulled at last."""
        return min(self._late_due, self._rest_due, self._hope_due, self._ripe_due)

    def poll(self, now: float) -> None:
        """Do what time has made due."""
        if now >= self._late_due:
            self._give_up_late(now)
        if now >= self._rest_due:
            self.reopen(now)
        if now >= self._ripe_due:
            self._look_for_ripe(now)
        if now >= self._hope_due:
            self._hope_due = _NEVER
            self.fill_all(now)

    def pushed(self, transfer: Transfer, now: float) -> None:
        """A chunk was pushed here: see whether the next one comes."""
        if self._is_small(transfer):
            self._ripe_due = min(self._ripe_due, now + transfer.stalls_after)

    def heard(self, transfer: Transfer, now: float) -> None:
        """Somebody holds more of a transfer that is pushed here: see later whether it came."""
        if not transfer.complete:
            wait = ENDGAME_HELD if transfer.told else self._ground.lag.patience
            self._ripe_due = min(self._ripe_due, now + wait)

    def rest(self, until: float) -> None:
        """A lost chunk may be asked for again from then on."""
        self._rest_due = min(self._rest_due, until)

    def reopen(self, now: float) -> None:
        """Lost chunks that have rested may be asked for."""
        transfers = self._ground.transfers.values()
        for transfer in transfers:
            transfer.reopen(now)
        self._rest_due = min((t for x in transfers for t in x.resting.values()), default=_NEVER)
        self.fill_all(now)

    def fill_all(self, now: float) -> None:
        """Fill every peer's window."""
        transfers = self._ground.transfers.values()
        if not any(t.may_ask(now - self._least_patience(t, now)) for t in transfers):
            return
        # Near and fast peers first: where a chunk can be had from both, it should not cross a long link.
        peers = self._ground.peers.values()
        for peer in sorted(peers, key=lambda p: (p.snubbed, p.source, not p.near, -p.rate, p.name)):
            self.fill(peer, now)

    def fill(self, peer: Peer, now: float) -> None:
        """Fill one peer's window."""
        config = self._ground.config
        for short, theirs in peer.holds.items():
            transfer = self._ground.transfers[short]
            if transfer.complete:
                continue
            window = peer.window(transfer.typical, config.window_least, config.window_most, config.horizon)
            room = min(MAX_REQUEST_CHUNKS, -(-(window - peer.asked_bytes) // transfer.typical))
            if room <= 0:
                continue
            if transfer.told and not peer.near and self._is_stranger(peer):
                room = min(room, self._far_off(transfer, now) or room)
            ripe = transfer.ripe(now - self._patience(peer, transfer, now)) if transfer.pushed else None
            if ripe is not None and not ripe.any() and not transfer.asked:
                continue
            chosen = self._choose(peer, transfer, theirs, ripe, room, now)
            if chosen:
                self._ask(peer, transfer, chosen, now)

    def _patience(self, peer: Peer, transfer: Transfer, now: float) -> float:
        """How long this peer must have been known to hold a chunk that is pushed here before it is asked for it."""
        patience = self._ground.lag.patience
        if transfer.told and peer.near and not peer.source:
            patience = min(self._endgame_patience, ENDGAME_NEAR)
        elif transfer.told and self._is_through(peer, transfer, now):
            patience = min(patience, ENDGAME_HELD)
        elif transfer.told and not peer.near and self._is_stranger(peer):
            # Its way here is that of a push that comes, or of one that may soon be asked of a parent.
            patience = ENDGAME_HELD if self._far_off(transfer, now) else patience * STRANGERS
        return patience if peer.source else self._unless_stalled(patience, transfer, now)

    def _is_stranger(self, peer: Peer) -> bool:
        """Whether others than this peer, who are up, push to this node."""
        trees = self._ground.trees
        return peer.name not in trees.parents and not trees.above.isdisjoint(self._ground.peers)

    def _far_off(self, transfer: Transfer, now: float) -> int:
        """How many chunks that nobody was asked for will be missing after `FAR_OFF`, at the pace of what comes here."""
        seconds = transfer.seconds_left(now)
        if seconds <= FAR_OFF:
            return 0
        return max(0, int(transfer.missing * (1 - FAR_OFF / seconds)) - len(transfer.asked))

    def _is_through(self, peer: Peer, transfer: Transfer, now: float) -> bool:
        """Whether a peer seems to have pushed here all that it was to push."""
        if peer.name not in self._ground.trees.above:
            return False
        whole = bool(peer.holds[transfer.id[:SHORT_ID_BYTES]].all())
        return now - peer.pushed_at > (SPENT_AFTER if whole else IDLE_AFTER)

    def _least_patience(self, transfer: Transfer, now: float) -> float:
        """The same of whoever is asked soonest."""
        patience = self._ground.lag.patience
        return self._unless_stalled(min(patience, ENDGAME_HELD) if transfer.told else patience, transfer, now)

    def _unless_stalled(self, patience: float, transfer: Transfer, now: float) -> float:
        return min(patience, transfer.stalls_after) if self._stalls(transfer, now) else patience

    def _is_small(self, transfer: Transfer) -> bool:
        return transfer.size <= self._ground.config.flight_least

    def _stalls(self, transfer: Transfer, now: float) -> bool:
        """Whether most of a small manifest was pushed here, and then nothing more."""
        if not transfer.pushed or not self._is_small(transfer) or 2 * transfer.missing > len(transfer.held):
            return False
        return bool(transfer.missing and transfer.gains) and now - transfer.gained_at >= transfer.stalls_after

    @property
    def _endgame_patience(self) -> float:
        """The same once the source has put everything in; what most pushes take is not waited for in vain."""
        lag = self._ground.lag
        return min(lag.patience, max(ENDGAME_HELD, lag.usual))

    def _choose(
        self, peer: Peer, transfer: Transfer, theirs: Bits, ripe: Bits | None, room: int, now: float
    ) -> list[int]:
        open_ones = transfer.open if ripe is None else transfer.open & ripe
        if peer.near:
            chosen = transfer.pick(open_ones & theirs, room)
        elif ripe is None:
            open_ones, chosen = self._choose_own(transfer, theirs, room, now)
        else:
            turns = self._turns(transfer)
            mine = open_ones & (turns == 0)
            if (mine & theirs).any():
                open_ones, chosen = mine, transfer.pick(mine & theirs, room)
            else:
                # A mate fetches these too: from the other end, so that the two meet where all is here.
                ripe = transfer.ripe(now - self._patience_for_mates(peer, transfer, now))
                held = theirs if ripe is None else theirs & ripe
                next_turn = turns[held].min(initial=len(self._ground.peers))
                chosen = transfer.pick(held & (turns == next_turn), room, backwards=True)
                open_ones = transfer.open
        if chosen or peer.snubbed or open_ones.any():
            return chosen
        chosen, later = transfer.pick_again(peer.name, theirs, room, self._ground.config.endgame_copies, now)
        self._hope_due = min(self._hope_due, later)
        return chosen

    def _choose_own(self, transfer: Transfer, theirs: Bits, room: int, now: float) -> tuple[Bits, list[int]]:
        """Of what a peer far away holds of a transfer that is pulled: this node's part of it; the others' parts only
        where nothing came for some while, or nothing of its own did. Also what is open of its part.
        """
        turns = self._turns(transfer)
        mine, there = transfer.open & (turns == 0), transfer.open & theirs
        chosen = transfer.pick(mine & there, room)
        if not chosen and there.any():
            left = np.bincount(turns[transfer.needed], minlength=int(turns.max()) + 1)
            since = transfer.parts_seen(left, now)
            at = np.minimum(since, since[0])[turns[there]] + MATES_AFTER
            if now >= at.min():
                there[there] = now >= at
                chosen = transfer.pick(there, room)
            else:
                self._hope_due = min(self._hope_due, float(at.min()))
        return mine, chosen

    def _patience_for_mates(self, peer: Peer, transfer: Transfer, now: float) -> float:
        """How long what others are to bring into the region must have been held by a peer far away."""
        if transfer.told and self._is_through(peer, transfer, now):
            return max(ENDGAME_HELD, self._ground.lag.usual)
        return max(self._patience(peer, transfer, now), OTHERS_PART * self._ground.lag.patience)

    def _turns(self, transfer: Transfer) -> NDArray[np.int64]:
        """When this node is to bring each chunk into its region, if all there lack it: 0 for its own part, each mate
        has as many; then the mates' parts, one after the other, in another order at each node."""
        mates = self._mates(transfer)
        return _turns(len(transfer.held), sum(name < self._ground.node for name in mates), 1 + len(mates))

    def _mates(self, transfer: Transfer) -> list[str]:
        """Nodes of this region that fetch it, too."""
        short = transfer.id[:SHORT_ID_BYTES]
        near = [(peer.name, peer.holds.get(short)) for peer in self._ground.peers.values() if peer.near]
        return [name for name, theirs in near if theirs is not None and not theirs.all()]

    def _ask(self, peer: Peer, transfer: Transfer, chunks: list[int], now: float) -> None:
        ground = self._ground
        if not ground.asks:
            ground.downlink.begin(now)
        alone = peer.near or transfer.pushed or not self._mates(transfer)
        least = ground.config.endgame_after if alone else MATES_AFTER
        owed = sum(p.owed for p in ground.peers.values())
        for index in chunks:
            peer.asked_bytes += transfer.manifest.sizes[index]
            peer.owed += transfer.manifest.sizes[index]
            owed += transfer.manifest.sizes[index]
            pace = peer.asked_bytes / peer.rate if peer.rate else 0.0
            pace = max(pace, ground.downlink.queue_seconds(owed, now))
            due = now + ground.config.late_after * peer.patience + 2 * pace
            hoped = now + max(least, 1.5 * (pace + peer.round_trip))
            transfer.ask(index, peer.name, now, due, hoped)
            self._late_due = min(self._late_due, due)
        ground.send(peer.name, Request(transfer.id[:SHORT_ID_BYTES], chunks))
        # Whoever has not answered a request yet may only claim to hold it.
        if transfer.pushed and peer.rate and not peer.snubbed:
            self._call_off_pushes(peer, transfer, chunks)

    def _call_off_pushes(self, asked: Peer, transfer: Transfer, chunks: list[int]) -> None:
        """What lies in the queue of a slow parent need not come from there as well, once somebody else is asked."""
        ground, short = self._ground, transfer.id[:SHORT_ID_BYTES]
        for name in sorted(ground.trees.above & ground.peers.keys() - {asked.name}):
            theirs = ground.peers[name].holds.get(short)
            queued = [i for i in chunks if theirs is not None and theirs[i] and not transfer.is_asked_of(i, name)]
            if queued:
                ground.cancel(name, short, queued)

    def _look_for_ripe(self, now: float) -> None:
        self.fill_all(now)
        patience = self._ground.lag.patience
        pushed = [t for t in self._ground.transfers.values() if t.pushed and not t.complete]
        waits = [patience, OTHERS_PART * patience, STRANGERS * patience]
        self._ripe_due = min((t.next_ripe(now - wait) + wait for t in pushed for wait in waits), default=_NEVER)
        self._ripe_due = max(now + _LOOK_EVERY, self._ripe_due)
        if any(t.told for t in pushed):
            self._ripe_due = min(self._ripe_due, now + _ENDGAME_EVERY)
        for small in filter(self._is_small, pushed):
            stalls = small.gained_at + small.stalls_after
            self._ripe_due = min(self._ripe_due, stalls if stalls > now else now + STALL_LEAST)

    def _give_up_late(self, now: float) -> None:
        late: dict[str, dict[bytes, list[int]]] = {}
        self._late_due = _NEVER
        for short, transfer in self._ground.transfers.items():
            for index, asked in list(transfer.asked.items()):
                for request in list(asked):
                    if request.due > now:
                        self._late_due = min(self._late_due, request.due)
                        continue
                    self._ground.forget_request(transfer, index, request.peer)
                    late.setdefault(request.peer, {}).setdefault(short, []).append(index)
        for name, manifests in late.items():
            peer = self._ground.peers[name]
            peer.was_late()
            for short, chunks in manifests.items():
                peer.late.update((short, index) for index in chunks)
                self._ground.cancel(name, short, chunks)
        self.fill_all(now)


@lru_cache(maxsize=16)
def _turns(chunks: int, rank: int, nodes: int) -> NDArray[np.int64]:
    parts = np.arange(chunks) * _SCATTER % (1 << 32) * nodes >> 32
    turns: NDArray[np.int64] = (rank - parts) % nodes
    turns.flags.writeable = False
    return turns
