"""From trees over regions to trees over nodes: who relays in which tree, and who hangs below whom.

Each tree over nodes (a *stripe*) carries a share of all chunks. A node with uplink u at rate r can send u/r copies in
all, which is cut into slots of one child in one tree. In each tree a few nodes of a region relay, with many children
each, and all others are leaves; whoever relayed little so far is next, so that every node relays in a few trees and
hangs as a leaf in all others (interior-disjoint trees as in SplitStream, weighted by capacity as in Mutualcast), and no
tree depends on one node more than it must.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from p2psync.topology.network import Flags, Floats, Ints, Network
from p2psync.topology.packing import Packing

#: Children that a relay gets in one tree if all goes well; only where slots are short does it get more.
USUAL_CHILDREN = 4
_ROOM = 1.15
#: What a node should get from one and the same relay at most, as a share of everything.
_MOST_FROM_ONE = 0.2
#: Multiples of it are spread evenly over [0, 1).
_GOLDEN = 0.6180339887498949


@dataclass
class _Work:
    """What is still to be given: `left`: copies of everything that each node may still send.

    served: of each node, who serves it as a leaf, and the share of everything that it gets so.
    """

    network: Network
    members: list[Ints]
    copies: Floats
    quotas: Floats
    left: Floats
    spare: Floats
    relays: Flags
    most_children: int
    gifts: dict[tuple[int, int], float]
    delay: Floats
    given: dict[tuple[int, int], float] = field(default_factory=dict)
    served: list[dict[int, float]] = field(default_factory=list)
    root_used: float = 0.0
    shares: float = 0.0
    turn: int = 0


def expand(
    network: Network, packing: Packing, kept: Ints, *, stripes: int, most_children: int, demand: Floats
) -> tuple[Ints, Floats]:
    """(parents: stripes × nodes, -1 at the trainer, -2 where no slot was left; shares of each stripe, summing to 1).

    packing: over the regions `kept`. demand: share of the rate that each node takes; who takes less than 1 relays
    nothing. most_children: in one tree. Capacities may be passed where slots do not come out even: rates must be taken
    from the loads afterwards.
    """
    rate = packing.rate
    order = np.argsort(-packing.weights, kind="stable")
    parts = [max(1, round(stripes * packing.weights[k] / rate)) for k in order]
    jobs = [
        (k, part / count, packing.weights[k] / rate / count)
        for k, count in zip(order, parts, strict=True)
        for part in range(count)
    ]
    # Taken in turns, so that no tree over regions comes last with all its stripes.
    jobs.sort(key=lambda job: (job[1], -job[2]))
    copies = network.up / rate
    members = [network.members()[a] for a in kept]
    gifts = {pair: weight / rate for pair, weight in packing.gifts.items()}
    quotas = _quotas(packing, members, copies, gifts)
    relays = (demand >= 1) & (network.up > 0)
    relays[network.trainer] = True
    spare = np.maximum(0, copies - quotas)
    delay = network.delay[np.ix_(kept, kept)]
    work = _Work(network, members, copies, quotas, quotas.copy(), spare, relays, most_children, gifts, delay)
    work.served = [{} for _ in range(network.size)]
    parents = np.stack([_stripe(work, packing.trees[k], share) for k, _, share in jobs])
    return parents, np.array([share for _, _, share in jobs])


def _quotas(packing: Packing, members: list[Ints], copies: Floats, gifts: dict[tuple[int, int], float]) -> Floats:
    """Copies that each node should send: within a region level, as far as its uplink allows (water filling)."""
    sends = np.zeros(len(members))
    for tree, weight in zip(packing.trees, packing.weights, strict=True):
        np.add.at(sends, tree[tree >= 0], weight / packing.rate)
    for (a, b), gift in gifts.items():
        sends[a] += gift
        sends[b] -= gift
    quotas = np.zeros(len(copies))
    for a, nodes in enumerate(members):
        need = _ROOM * max(0.0, sends[a] + len(nodes) - 1)
        own = np.sort(copies[nodes])
        below = np.concatenate([[0], np.cumsum(own)[:-1]])
        levels = (need - below) / np.arange(len(own), 0, -1)
        fits = np.flatnonzero(levels <= own)
        quotas[nodes] = np.minimum(copies[nodes], levels[fits[0]] if len(fits) else np.inf)
    return quotas


def _stripe(work: _Work, tree: Ints, share: float) -> Ints:
    """One tree over nodes that follows a tree over regions."""
    network, regions = work.network, len(work.members)
    adopted = _adoptions(work, share)
    leaving = np.zeros(regions, np.int64)
    for (_, b), count in adopted.items():
        leaving[b] += count
    below = np.bincount(tree[tree >= 0], minlength=regions)
    for (a, _), count in adopted.items():
        below[a] += count
    chosen = [_relays(work, a, share, int(len(work.members[a]) - 1 - leaving[a] + below[a])) for a in range(regions)]
    parents = np.full(network.size, -2, np.int64)
    parents[network.trainer] = -1
    given: list[list[int]] = [[] for _ in range(regions)]
    leaves = [_leaves(work, a, chosen[a][0]) for a in range(regions)]
    for (a, b), count in sorted(adopted.items()):
        count = min(count, len(leaves[b]))
        given[a] += leaves[b][len(leaves[b]) - count :].tolist()
        leaves[b] = leaves[b][: len(leaves[b]) - count]
    for a in range(regions):
        far_first = sorted(np.flatnonzero(tree == a), key=lambda b: -work.delay[a, b])
        entries = [int(chosen[b][0][0]) for b in far_first]
        below_all = [np.array(given[a], np.int64), leaves[a]]
        below_all = below_all if network.everyone_dials else below_all[::-1]
        _wire(work, parents, *chosen[a], entries, np.concatenate(below_all), share)
    work.turn += 1
    return parents


def _adoptions(work: _Work, share: float) -> dict[tuple[int, int], int]:
    """How many nodes of b hang below nodes of a in this stripe, so that gifts come out right over all stripes."""
    work.shares += share
    found = {}
    room = [len(nodes) - 1 for nodes in work.members]
    for pair, gift in work.gifts.items():
        given = work.given.get(pair, 0.0)
        count = min(max(0, round((gift * work.shares - given) / share)), room[pair[1]])
        if count:
            found[pair] = count
            room[pair[1]] -= count
            work.given[pair] = given + count * share
    return found


def _relays(work: _Work, a: int, share: float, need: int) -> tuple[Ints, Ints]:
    """(nodes of region a that relay, the one that is entered first; how many children each has): `need` in all."""
    network, nodes = work.network, work.members[a]
    able = nodes[work.relays[nodes]]
    home = bool((nodes == network.trainer).any())
    first, forced = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if home:
        first, forced = np.array([network.trainer]), np.array([_root_slots(work, share, need)])
        able = able[able != network.trainer]
    rest = need - int(forced.sum())
    slots = _slots(work, able, share, rest)
    order = np.lexsort((able, _turns(work, able, slots.astype(np.float64) * share)))
    able, slots = able[order], slots[order]
    taken = np.zeros_like(slots)
    if not network.everyone_dials:
        # Whoever cannot be dialled must hang below somebody who can.
        dialable = network.dialable[able]
        taken = _first(np.where(dialable, slots, 0), min(rest, int((~network.dialable[nodes]).sum())))
    taken += _first(slots - taken, rest - int(taken.sum()))
    used = np.flatnonzero(taken)
    # The fast ones on top, where all others wait for them; those with one child below.
    used = used[np.lexsort((-network.up[able[used]], taken[used] < 2, ~network.dialable[able[used]]))]
    picked, slots = np.concatenate([first, able[used]]), np.concatenate([forced, taken[used]])
    if not len(picked):
        best = nodes[np.argmax(work.left[nodes] + 1e6 * network.dialable[nodes] + 1e9 * work.relays[nodes])]
        return np.array([best]), np.zeros(1, np.int64)
    np.subtract.at(work.left, picked, slots * share)
    return picked, slots


def _turns(work: _Work, able: Ints, takes: Floats) -> Floats:
    """Whose turn to relay it is, least first: whoever used the least share of its quota, each from a point of its own.

    So each tree gets relays of all kinds, and none is left to those who can serve one child each: a chain.
    """
    quota = np.maximum(work.quotas[able], 1e-9)
    begin = able * _GOLDEN % 1.0
    return np.asarray((quota - work.left[able] + begin * takes) / quota)


def _first(slots: Ints, need: int) -> Ints:
    """`need` of these slots, or as many as there are, from the first on."""
    taken: Ints = np.clip(need - (np.cumsum(slots) - slots), 0, slots)
    return taken


def _root_slots(work: _Work, share: float, need: int) -> int:
    """Children of the trainer in its own region's part: at least one, and its quota over all stripes."""
    quota = max(1.0, work.left[work.network.trainer] + work.root_used)
    slots = min(need, max(1, round(float(quota * work.shares - work.root_used) / share)))
    work.root_used += slots * share
    return slots


def _slots(work: _Work, able: Ints, share: float, need: int) -> Ints:
    """Children that each may have in this stripe, so that there is room for `need` in all: the usual number if that
    does, then more, then what no quota foresaw, then more than there is room for."""
    room = work.left[able]
    for room in (work.left[able], work.left[able] + work.spare[able]):
        most = USUAL_CHILDREN
        while True:
            most = min(most, work.most_children)
            slots = _parts(np.floor(room / share + 1e-6).astype(np.int64), most)
            if slots.sum() >= need:
                return slots
            if most == work.most_children:
                break
            most *= 2
    return _overfill(slots, room, work.copies[able], share, need) if len(able) else slots


def _parts(slots: Ints, most: int) -> Ints:
    """The first of the least number of even parts of at most so many: no relay ends with a single child to serve."""
    slots = np.maximum(slots, 0)
    return np.asarray(-(-slots // np.maximum(1, -(-slots // most))))


def _overfill(slots: Ints, room: Floats, copies: Floats, share: float, need: int) -> Ints:
    """More than there is room for, from whoever is overfull by the least share of its uplink then."""
    slots = slots.copy()
    missing = need - int(slots.sum())
    while missing > 0:
        over = ((slots + 1) * share - room) / copies
        cheap = np.argsort(over, kind="stable")[:missing]
        # One more each for those that stay within the least overfull's next step.
        cheap = cheap[over[cheap] <= max(over[cheap[0]] + share / copies[cheap[0]], 0.02)]
        slots[cheap] += 1
        missing -= len(cheap)
    return slots


def _leaves(work: _Work, a: int, relays: Ints) -> Ints:
    """Nodes of a region that do not relay in this stripe, those first that can only be served by who can be dialled."""
    nodes = work.members[a]
    leaves = nodes[~np.isin(nodes, relays)]
    leaves = np.roll(leaves, work.turn * max(1, len(leaves) // 7))
    return leaves[np.argsort(work.network.dialable[leaves], kind="stable")]


def _wire(
    work: _Work, parents: Ints, relays: Ints, slots: Ints, entries: list[int], leaves: Ints, share: float
) -> None:
    """Children into slots, breadth first: other regions' entries as early as may be, then relays, then leaves."""
    children: list[int] = []
    open_slots = int(slots[0]) if len(slots) else 0
    rest = relays[1:].tolist()
    own = slots[1:].tolist()
    waiting = list(entries)
    while rest:
        if waiting and open_slots >= 2:
            children.append(waiting.pop(0))
            open_slots -= 1
        else:
            children.append(rest.pop(0))
            open_slots += own.pop(0) - 1
    above = np.repeat(relays, slots)
    first = np.array((children + waiting)[: len(above)], np.int64)
    parents[first] = above[: len(first)]
    _hang_leaves(work, parents, above[len(first) :], leaves, share)


def _hang_leaves(work: _Work, parents: Ints, slots: Ints, leaves: Ints, share: float) -> None:
    """Leaves into slots (the relay of each), below relays that serve them in other trees if it can be: so nodes have
    few peers. Nobody gets more than `_MOST_FROM_ONE` of everything so.

    Those that cannot be dialled come first, and take their places before the others do.
    """
    dialable = work.network.dialable
    left = Counter(slots.tolist())
    for group in (leaves[~dialable[leaves]], leaves[dialable[leaves]]):
        others = []
        for leaf in group.tolist():
            known = work.served[leaf]
            again = [i for i, part in known.items() if left[i] > 0 and part + share <= _MOST_FROM_ONE]
            if again:
                parents[leaf] = max(again, key=known.__getitem__)
                left[int(parents[leaf])] -= 1
            else:
                others.append(leaf)
        rest = [i for i, count in left.items() for _ in range(count)][: len(others)]
        for leaf, relay in zip(others, rest, strict=False):
            parents[leaf] = relay
            left[relay] -= 1
    for leaf in leaves[parents[leaves] >= 0].tolist():
        relay = int(parents[leaf])
        work.served[leaf][relay] = work.served[leaf].get(relay, 0.0) + share
