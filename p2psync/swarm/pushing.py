"""Pushing along the plan's trees: where chunks enter them, and how they go on. A part of the swarm's core.

The root of the trees, the node that publishes, puts each chunk into one tree. The one comes first whose first hops
have least under way (`flight`), then that whose turn it is by the shares; one whose first hops have no room, or too
much under way, is passed over, so that a relay or a link which is slower than was planned gets less to do; no tree gets
far more than its share, nor less than was planned because another takes little. The chunk carries the tree's tag, and
each node passes it on, as soon as it has verified it, to its children in that tree who want the manifest's chunks and
do not have this one.

While it puts chunks in, the root says nothing of what it holds: everybody would ask it, and its uplink would carry
chunks twice. It watches who says to hold what it gave out; a chunk that nobody has after a while, or whose first hop
went, is put in again elsewhere. When everything is out, or nothing could be put in and nobody got anything for a
second, it tells all.

What trees do not bring in good time is pulled (`asking`). So a plan that is wrong costs time, never the transfer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from p2psync.protocol.plan import NodePlan
from p2psync.swarm.arrivals import Arrivals
from p2psync.swarm.flight import LOOK_EVERY, Flight
from p2psync.swarm.ground import Ground
from p2psync.swarm.serving import Serving
from p2psync.swarm.transfer import Bits, Transfer
from p2psync.swarm.trees import tag_of

_NEVER = float("inf")
#: A root that could put nothing in, and heard of nobody who got any of it, for so long (seconds) tells what it holds.
TELL_AFTER = 1.0
#: A tree whose first hop had no room for so long (seconds) does not hold the others back.
STALLED_AFTER = 0.5
#: A first hop that has not asked for a manifest's chunks is expected to for so long (seconds).
EXPECTED_FOR = 0.5
#: By how much a tree may be ahead of its share, as a part of it, besides one chunk.
AHEAD = 0.2
#: A chunk that nobody holds so long after it was put in (seconds, and times the usual) is put in again.
AGAIN_AFTER, AGAIN_TIMES = 2.0, 4.0


@dataclass(slots=True)
class Injection:
    """How far the root is with one manifest. Seconds.

    waiting: chunks to put in, in order. chunks: how many there are in all. begun: when it began. moved: when a chunk
    was last put in. heard: when somebody last said to hold chunks. sent: chunks put into each tree of plan `revision`.
    planned_at: when that began. roomy: when each tree's first hop last had room. out: chunks put in that nobody is
    known to hold, with their tree and when. usual: how long it takes until somebody holds one. flight: what is on its
    way in the trees.
    """

    waiting: deque[int]
    chunks: int
    begun: float
    moved: float
    flight: Flight
    arrivals: Arrivals
    heard: float = -_NEVER
    revision: int = 0
    planned_at: float = 0.0
    sent: list[int] = field(default_factory=list)
    roomy: list[float] = field(default_factory=list)
    out: dict[int, tuple[int, float]] = field(default_factory=dict)
    usual: float = 0.0

    def begin(self, plan: NodePlan, first_hops: Sequence[Sequence[str]], chunk_bytes: int, now: float) -> None:
        """If this is another plan, shares are counted from here. first_hops: of each tree."""
        trees = len(plan.shares)
        # A hub that was started anew may give the same revision to another plan.
        if (self.revision, len(self.sent)) != (plan.revision, trees):
            self.revision, self.sent, self.roomy = plan.revision, [0] * trees, [now] * trees
            self.planned_at = now
            self.arrivals.planned(trees)
            rates = [place.rate * 125_000 / chunk_bytes for place in plan.positions]
            self.flight.planned(rates, [tuple(hops) for hops in first_hops])

    def held_by_others(self, chunks: Iterable[int], now: float) -> None:
        """Somebody says to hold these."""
        for index in chunks:
            tree = self.out.pop(index, None)
            if tree is not None:
                self.usual += (now - tree[1] - self.usual) / 8

    @property
    def again_after(self) -> float:
        """How long somebody may take to hold a chunk that was put in (seconds)."""
        return max(AGAIN_AFTER, AGAIN_TIMES * self.usual)


class Pushing:
    """The pushes of one node. `poll` is due at `next_wake`."""

    def __init__(self, ground: Ground, serving: Serving) -> None:
        self._ground = ground
        self._serving = serving
        self._injections: dict[bytes, Injection] = {}
        self.next_wake = _NEVER

    # ---- everybody -------------------------------------------------------------------------------------------------

    def forward(self, transfer: Transfer, short: bytes, index: int, tag: int, now: float) -> None:
        """A chunk came down a tree, and goes on."""
        if tag:
            transfer.tags[index] = tag
            for name in self._ground.trees.below(tag):
                self._serving.push(name, transfer, short, index, now)

    def wanted(self, name: str, short: bytes, now: float) -> None:
        """A peer wants the chunks of a manifest: push it what already went down trees in which it is a child."""
        transfer = self._ground.transfers.get(short)
        if transfer is None:
            return
        for index, tag in sorted(transfer.tags.items()):
            if transfer.held[index] and name in self._ground.trees.below(tag):
                self._serving.push(name, transfer, short, index, now)
        if short in self._injections:
            self.next_wake = min(self.next_wake, now + LOOK_EVERY)
        self.inject(now)

    # ---- the root --------------------------------------------------------------------------------------------------

    def begin(self, transfer: Transfer, short: bytes, now: float) -> None:
        """A manifest of which something is held here, and which may be new to everybody: at a root, put that in.

        Roots that publish together hold different chunks, which go down the same trees.
        """
        held = [int(index) for index in np.flatnonzero(transfer.held)]
        if self._ground.trees.is_root and held:
            transfer.silent = True
            least = self._ground.config.flight_least
            first = least // transfer.typical if transfer.size <= least else 0
            peers = self._ground.peers.values()
            # First hops that are near may have far ones behind them.
            near = bool(peers) and all(peer.near for peer in peers)
            flight = Flight(first, near=near, news=self._ground.config.have_delay_pushed)
            transfer.arrivals = Arrivals(len(transfer.held))
            self._injections[short] = Injection(deque(held), len(held), now, now, flight, transfer.arrivals)
            self.next_wake = min(self.next_wake, now + TELL_AFTER)
            self.inject(now)

    def end(self, short: bytes) -> None:
        """The manifest is exchanged no longer."""
        self._injections.pop(short, None)

    def held_by_peer(self, short: bytes, chunks: Iterable[int], now: float) -> None:
        """A peer says to hold these chunks, which it did not before."""
        injection = self._injections.get(short)
        if injection is not None:
            # Who says to hold what nobody was given yet, or the same over and over, would keep the root silent.
            given = [index for index in chunks if index in self._ground.transfers[short].tags]
            if given:
                injection.held_by_others(given, now)
                injection.heard = now
            self._tell_if_over(short, injection, now)

    def holds_flags(self, short: bytes, flags: Bits, now: float) -> None:
        """The same, of flags per chunk."""
        if short in self._injections:
            self.held_by_peer(short, [int(i) for i in np.flatnonzero(flags)], now)

    def peer_down(self, name: str, now: float) -> None:
        """A first hop went: what it alone may have had is put in again."""
        for short, injection in self._injections.items():
            trees = {t for t, children in enumerate(self._ground.trees.children) if name in children}
            lost = [index for index, (tree, _) in injection.out.items() if tree in trees]
            self._again(short, injection, lost)
        self.inject(now)

    def inject(self, now: float) -> None:
        """Put in what there is room for, manifest by manifest."""
        plan = self._ground.trees.plan
        for short, injection in self._injections.items():
            if plan is not None and injection.waiting and self._takers(short):
                typical = self._ground.transfers[short].typical
                injection.begin(plan, self._ground.trees.children, typical, now)
                if injection.flight.is_due(now):
                    held = self._held(short)
                    injection.arrivals.seen(held, now)
                    injection.flight.look(held, now)
                self._inject(short, injection, now)

    def poll(self, now: float) -> None:
        """Do what time has made due."""
        if now < self.next_wake:
            return
        for short, injection in list(self._injections.items()):
            self._again(short, injection, self._stuck(short, injection, now))
            self._tell_if_over(short, injection, now)
        self.inject(now)
        silent = [i for short, i in self._injections.items() if self._ground.transfers[short].silent]
        waits = [max(i.moved, i.heard) + TELL_AFTER for i in silent]
        waits += [at + i.again_after for i in self._injections.values() for _, at in i.out.values()]
        # Where nobody wants it, a wish will come as a message.
        waits += [now + LOOK_EVERY for short, i in self._injections.items() if i.waiting and self._takers(short)]
        self.next_wake = max(now + 0.01, min(waits, default=_NEVER))

    def _inject(self, short: bytes, injection: Injection, now: float) -> None:
        if injection.flight.is_full:
            return
        ground = self._ground
        transfer, plan = ground.transfers[short], ground.trees.plan
        assert plan is not None
        takers = self._takers(short)
        first = {t: hops for t, names in enumerate(ground.trees.children) if (hops := takers.intersection(names))}
        # Those who will ask for it in a moment keep their part.
        expected = now - injection.begun < EXPECTED_FOR
        later = [t for t, names in enumerate(ground.trees.children) if t not in first and expected and self._up(names)]
        if later:
            self.next_wake = min(self.next_wake, injection.begun + EXPECTED_FOR)
        whole = bool(transfer.held.all())
        large = transfer.size > ground.config.flight_least
        transfer.ends = whole and large and injection.flight.soon_over(len(injection.waiting))
        roomy = {name for name in takers if self._serving.has_room(ground.peers[name], transfer, whole=whole)}
        while injection.waiting and roomy:
            index = injection.waiting[0]
            # One that is put in again goes another way, if there is one.
            failed = {tree for tree in first if tag_of(plan.revision, tree) == transfer.tags.get(index)}
            ways = {tree: hops for tree, hops in first.items() if tree not in failed} if failed else first
            tree = _next_tree(ways or first, later, roomy, plan.shares, injection, now)
            if tree is None:
                return
            injection.waiting.popleft()
            transfer.tags[index] = tag_of(plan.revision, tree)
            hops = first[tree]
            given = [self._serving.push(name, transfer, short, index, now) for name in sorted(hops)]
            roomy -= {name for name in hops if not self._serving.has_room(ground.peers[name], transfer, whole=whole)}
            injection.sent[tree] += 1
            injection.flight.add(index, tree, now)
            injection.arrivals.put(index, tree, now)
            injection.moved = now
            if any(given):
                injection.out[index] = (tree, now)
                self.next_wake = min(self.next_wake, now + injection.again_after)
            if not all(ground.peers[name].takes(short) for name in hops):
                # Somebody got all that is pushed before he asks: what follows waits for his word.
                self._inject(short, injection, now)
                return
        transfer.relieves = whole and not injection.waiting

    def _stuck(self, short: bytes, injection: Injection, now: float) -> list[int]:
        """Chunks that nobody holds for long, and that may go another way: whoever is only slow needs no second copy."""
        takers, children = self._takers(short), self._ground.trees.children
        hops = [takers.intersection(names) for names in children]
        stuck = []
        for index, (tree, at) in injection.out.items():
            if now - at >= injection.again_after:
                given = hops[tree] if tree < len(hops) else set()
                if any(names and names != given for names in hops):
                    stuck.append(index)
                else:
                    injection.out[index] = (tree, now)
        return stuck

    def _held(self, short: bytes) -> dict[str, Bits]:
        """What everybody who receives this manifest holds of it, by their names."""
        transfer, peers = self._ground.transfers[short], self._ground.peers.values()
        none = np.zeros(len(transfer.held), np.bool_)
        # Who is further down wants chunks long before any can come there.
        begun = self._ground.trees.first_hops
        return {
            p.name: p.holds.get(short, none) for p in peers if short in p.holds or (p.name in begun and p.takes(short))
        }

    def _up(self, names: list[str]) -> bool:
        return any(name in self._ground.peers for name in names)

    def _takers(self, short: bytes) -> set[str]:
        peers = self._ground.peers
        return {name for name in self._ground.trees.first_hops if name in peers and peers[name].takes(short)}

    def _again(self, short: bytes, injection: Injection, chunks: list[int]) -> None:
        """Put chunks in again, before all others; whoever was given one and has it not is given it again."""
        for index in sorted(chunks, reverse=True):
            injection.out.pop(index, None)
            injection.waiting.appendleft(index)
        for peer in self._ground.peers.values():
            peer.take_back(short, chunks)

    def _tell_if_over(self, short: bytes, injection: Injection, now: float) -> None:
        transfer = self._ground.transfers[short]
        over = not injection.waiting and not injection.out
        if transfer.silent and (over or now - max(injection.moved, injection.heard) >= TELL_AFTER):
            transfer.silent = False
            for name in self._ground.peers:
                self._serving.tell_all(short, transfer, name)
        if over:
            del self._injections[short]


def _next_tree(
    first: dict[int, set[str]],
    later: list[int],
    roomy: set[str],
    shares: list[int],
    injection: Injection,
    now: float,
) -> int | None:
    """The tree whose turn it is among those whose first hops (names by tree) all have room; None: all must wait.

    later: trees that take no chunks yet, and whose part of the whole the others must not get.
    """
    room = [tree for tree, hops in first.items() if hops <= roomy and not injection.flight.full(tree)]
    for tree in room:
        injection.roomy[tree] = now
    moving = [tree for tree in first if now - injection.roomy[tree] < STALLED_AFTER]
    late = injection.flight.too_late([*moving, *later], len(injection.waiting))
    if late:
        room = [tree for tree in room if tree not in late]
        moving = [tree for tree in moving if tree not in late]
    parts = sum(shares[tree] for tree in [*moving, *later])
    total = sum(injection.sent[tree] for tree in moving) + 1
    most = (1 + AHEAD) * total / parts if moving else 0.0
    # As much as was planned by now is fair, however little the others take: a plan around them may be long in coming.
    since = now - injection.planned_at
    fair = [t for t in room if injection.sent[t] < max(most * shares[t] + 1, injection.flight.planned_in(t, since))]
    if later:
        fair = [tree for tree in fair if not injection.flight.has_its_part(tree, injection.chunks)]
    # Whose first hops have least to do, about, then in turns.
    load = injection.flight.load
    turns = {tree: (round(load(tree), 1), (injection.sent[tree] + 0.5) / shares[tree], tree) for tree in fair}
    return min(fair, key=turns.__getitem__, default=None)
