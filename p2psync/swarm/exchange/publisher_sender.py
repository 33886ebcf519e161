"""The publisher's sender: which chunk goes down which tree of the plan, and when.

The publisher sends each chunk down one tree: of those whose children have room, the one whose path is loaded least, and
of equally loaded ones the one that is furthest behind its share. A tree may be a little ahead of its share, or as far
as its planned rate explains, so that a fast child does not take more than the links behind it carry; a tree whose
children have had no room for a while does not hold the others back. An in-flight window (`in_flight_window`) limits the
chunks in flight.

While it sends, the publisher does not announce its chunks: all peers would request them, and its uplink would carry
them twice. Its peers' Haves confirm the chunks that it sent. If no peer confirms a chunk for a while, or its child
disconnects, the publisher sends it down another tree. Once peers have confirmed all chunks, or transfers stall, the
publisher announces its chunks to all peers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from p2psync.protocol.plan import NodePlan
from p2psync.swarm.exchange.bitmap import Bits
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.forwarding import Forwarding
from p2psync.swarm.exchange.in_flight_window import SMOOTHING, InFlightWindow
from p2psync.swarm.exchange.providers import BYTES_PER_MBIT
from p2psync.swarm.exchange.state import SwarmState
from p2psync.swarm.exchange.transfer import Transfer
from p2psync.swarm.exchange.trees import tag_of
from p2psync.swarm.exchange.upload_scheduler import UploadScheduler

_NEVER = float("inf")


@dataclass(slots=True)
class Publication:
    """The progress of publishing one manifest. Seconds.

    unsent: chunks to send, in order. sent_at: when a chunk was last sent; confirmed_at: when a peer last announced one.
    window: the chunks in flight. revision, sent: the plan, and how many chunks went down each of its trees.
    planned_at: when the plan came. room_at: when the children in each tree last had room. unconfirmed: chunks that
    were sent and that no peer announces, with their tree and the time. delivery_seconds: smoothed time until a peer
    announces a chunk.
    """

    unsent: deque[int]
    sent_at: float
    window: InFlightWindow
    confirmed_at: float = -_NEVER
    revision: int = 0
    planned_at: float = 0.0
    sent: list[int] = field(default_factory=list)
    room_at: list[float] = field(default_factory=list)
    unconfirmed: dict[int, tuple[int, float]] = field(default_factory=dict)
    delivery_seconds: float = 0.0

    def follow(self, plan: NodePlan, children: Sequence[Sequence[str]], chunk_bytes: int, now: float) -> None:
        """Follows a new plan, and counts the trees' shares from now on. children: of this node in each tree."""
        trees = len(plan.shares)
        # A restarted hub may give the same revision to another plan.
        if (self.revision, len(self.sent)) != (plan.revision, trees):
            self.revision, self.sent, self.room_at = plan.revision, [0] * trees, [now] * trees
            self.planned_at = now
            rates = [place.rate * BYTES_PER_MBIT / chunk_bytes for place in plan.positions]
            self.window.follow(rates, [tuple(names) for names in children])

    def next_tree(self, ready: Sequence[int], shares: Sequence[int], config: ExchangeConfig, now: float) -> int | None:
        """Returns the tree for the next chunk, of those whose children have room (`ready`); None: wait.

        A tree is left out if it has no room in the window, completes the last chunks too late
        (`InFlightWindow.slow_trees`), or is ahead of its share and of its planned rate. Path loads within a tenth count
        as equal.
        """
        ready = [tree for tree in ready if self.window.has_room(tree)]
        for tree in ready:
            self.room_at[tree] = now
        moving = [tree for tree, at in enumerate(self.room_at) if now - at < config.stalled_after]
        slow = self.window.slow_trees(moving, len(self.unsent))
        moving = [tree for tree in moving if tree not in slow]
        sent, share = (sum(values[tree] for tree in moving) for values in (self.sent, shares))
        most = {tree: (1 + config.ahead) * (sent + 1) * shares[tree] / share + 1 for tree in moving}
        planned = [self.window.planned_rate(tree) * (now - self.planned_at) for tree in range(len(shares))]
        behind = [tree for tree in ready if tree in most and self.sent[tree] < max(most[tree], planned[tree])]

        def order(tree: int) -> tuple[float, float, int]:
            return round(self.window.load(tree), 1), (self.sent[tree] + 0.5) / shares[tree], tree

        return min(behind, key=order, default=None)

    def confirm(self, chunks: Iterable[int], now: float) -> None:
        """Marks sent chunks as confirmed, and samples their delivery times."""
        self.confirmed_at = now
        for index in chunks:
            sent = self.unconfirmed.pop(index, None)
            if sent is not None:
                self.delivery_seconds += (now - sent[1] - self.delivery_seconds) * SMOOTHING


class PublisherSender:
    """Sends the manifests that one node publishes. `poll` is due at `next_wake`."""

    def __init__(self, state: SwarmState, uploads: UploadScheduler, forwarding: Forwarding) -> None:
        self._state, self._uploads, self._forwarding = state, uploads, forwarding
        self._publications: dict[bytes, Publication] = {}
        self.next_wake = _NEVER

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def begin(self, transfer: Transfer, short: bytes, now: float) -> None:
        """Sends the held chunks of a manifest down the trees, if this node is their publisher.

        Co-publishers hold different chunks, and send them down the same trees.
        """
        held = np.flatnonzero(transfer.held).tolist()
        if self._state.trees.is_publisher and held:
            transfer.unannounced = True
            self._publications[short] = Publication(deque(held), now, self._window(transfer))
            self.next_wake = min(self.next_wake, now + self._state.config.poll_interval)
            self.send(now)

    def end(self, short: bytes) -> None:
        """Stops sending a manifest."""
        self._publications.pop(short, None)

    def confirm(self, short: bytes, chunks: Iterable[int], now: float) -> None:
        """Confirms chunks that a peer newly announced."""
        publication = self._publications.get(short)
        if publication is not None:
            # A peer that claims unsent chunks must not keep the publisher from announcing.
            sent = [index for index in chunks if index in self._state.transfers[short].tags]
            if sent:
                publication.confirm(sent, now)
            self._announce_if_over(short, publication, now)

    def confirm_flags(self, short: bytes, flags: Bits, now: float) -> None:
        """Confirms chunks (flags) that a peer newly announced."""
        if short in self._publications:
            self.confirm(short, np.flatnonzero(flags).tolist(), now)

    def subscribed(self, short: bytes, now: float) -> None:
        """Sends to a peer that subscribed to a manifest."""
        if short in self._publications:
            self.next_wake = min(self.next_wake, now)
        self.send(now)

    def peer_down(self, name: str, now: float) -> None:
        """Resends the unconfirmed chunks of a disconnected child down other trees."""
        for short, publication in self._publications.items():
            trees = {tree for tree, names in enumerate(self._state.trees.children) if name in names}
            lost = [index for index, (tree, _) in publication.unconfirmed.items() if tree in trees]
            self._resend(short, publication, lost)
        self.send(now)

    def poll(self, now: float) -> None:
        """Resends overdue chunks, announces finished publications, and sends more chunks, if due."""
        if now < self.next_wake:
            return
        for short, publication in list(self._publications.items()):
            self._resend(short, publication, self._overdue(short, publication, now))
            self._announce_if_over(short, publication, now)
        self.send(now)
        config, wakes = self._state.config, [_NEVER]
        for short, publication in self._publications.items():
            if self._state.transfers[short].unannounced:
                wakes.append(max(publication.sent_at, publication.confirmed_at) + config.announce_after)
            wakes += [at + self._resend_after(publication) for _, at in publication.unconfirmed.values()]
            if publication.unsent and self._takers(short):
                wakes.append(now + config.poll_interval)
        self.next_wake = max(now + 0.01, min(wakes))

    # ---- sending ---------------------------------------------------------------------------------------------------

    def send(self, now: float) -> None:
        """Sends chunks while windows and children have room, manifest by manifest."""
        plan = self._state.trees.plan
        for short, publication in self._publications.items():
            if plan is not None and publication.unsent:
                self._send(short, publication, plan, now)

    def _send(self, short: bytes, publication: Publication, plan: NodePlan, now: float) -> None:
        state, transfer = self._state, self._state.transfers[short]
        publication.follow(plan, state.trees.children, transfer.mean_chunk_bytes, now)
        if publication.window.is_due(now):
            publication.window.update(self._held(short, transfer), now)
        if publication.window.is_full:
            return
        takers = self._takers(short)
        children = {tree: takers.intersection(names) for tree, names in enumerate(state.trees.children)}
        while publication.unsent:
            index = publication.unsent[0]
            trees = [tree for tree in children if children[tree]]
            # A resent chunk takes another tree, if there is one.
            others = [tree for tree in trees if tag_of(plan.revision, tree) != transfer.tags.get(index)]
            ready = [tree for tree in others or trees if self._has_room(children[tree], transfer)]
            tree = publication.next_tree(ready, plan.shares, state.config, now)
            if tree is None:
                return
            publication.unsent.popleft()
            transfer.tags[index] = tag_of(plan.revision, tree)
            publication.sent[tree] += 1
            publication.sent_at = now
            publication.window.sent(index, tree, now)
            given = [self._uploads.push(name, transfer, short, index, now) for name in sorted(children[tree])]
            if any(given):
                publication.unconfirmed[index] = (tree, now)
                self.next_wake = min(self.next_wake, now + self._resend_after(publication))
            # A child that has not subscribed yet accepts a bounded number of bytes.
            children[tree] = {name for name in children[tree] if state.peers[name].upload.accepts_pushes(short)}

    def _window(self, transfer: Transfer) -> InFlightWindow:
        """Returns the in-flight window of a manifest, unlimited for a small one."""
        config = self._state.config
        return InFlightWindow(config, unlimited=transfer.manifest.payload_bytes <= config.window_first)

    def _held(self, short: bytes, transfer: Transfer) -> dict[str, Bits]:
        """Returns the flags of the chunks that each receiver of a manifest holds, by name.

        Only children count before their first announcement: nodes further down subscribe long before a chunk can
        reach them.
        """
        none = np.zeros(transfer.chunks, np.bool_)
        children = self._takers(short)
        peers = self._state.peers.values()
        return {p.name: p.holds.get(short, none) for p in peers if short in p.holds or p.name in children}

    def _has_room(self, children: set[str], transfer: Transfer) -> bool:
        return all(self._uploads.has_room(self._state.peers[name], transfer) for name in children)

    def _takers(self, short: bytes) -> set[str]:
        peers = self._state.peers
        children = self._state.trees.all_children & peers.keys()
        return {name for name in children if peers[name].upload.accepts_pushes(short)}

    def _resend_after(self, publication: Publication) -> float:
        """Returns after how many seconds an unconfirmed chunk is overdue."""
        config = self._state.config
        return max(config.resend_after, config.resend_factor * publication.delivery_seconds)

    def _overdue(self, short: bytes, publication: Publication, now: float) -> list[int]:
        """Returns unconfirmed chunks to resend, if other children can take them: a slow one needs no second copy."""
        takers = self._takers(short)
        children = [takers.intersection(names) for names in self._state.trees.children]
        overdue = []
        for index, (tree, at) in publication.unconfirmed.items():
            if now - at >= self._resend_after(publication):
                given = children[tree] if tree < len(children) else set()
                if any(names and names != given for names in children):
                    overdue.append(index)
                else:
                    publication.unconfirmed[index] = (tree, now)
        return overdue

    def _resend(self, short: bytes, publication: Publication, chunks: list[int]) -> None:
        """Queues chunks before all others, and allows pushing them again to their children."""
        for index in sorted(chunks, reverse=True):
            publication.unconfirmed.pop(index, None)
            publication.unsent.appendleft(index)
        for peer in self._state.peers.values():
            peer.upload.allow_repush(short, chunks)

    def _announce_if_over(self, short: bytes, publication: Publication, now: float) -> None:
        """Announces the chunks to all peers if all of them are sent and confirmed, or none was for `announce_after`."""
        transfer, over = self._state.transfers[short], not publication.unsent and not publication.unconfirmed
        quiet = now - max(publication.sent_at, publication.confirmed_at) >= self._state.config.announce_after
        if transfer.unannounced and (over or quiet):
            transfer.unannounced = False
            for name in self._state.peers:
                self._forwarding.announce_all(name, transfer, short)
        if over:
            del self._publications[short]
