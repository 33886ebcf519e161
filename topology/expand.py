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
_QUOTA_SLACK = 1.15
#: What a node should get from one and the same relay at most, as a share of everything.
_MAX_SHARE_FROM_ONE = 0.2
#: Multiples of it are spread evenly over [0, 1).
_GOLDEN_RATIO = 0.6180339887498949


@dataclass
class _Expansion:
    """What is still to be given: `left`: copies of everything that each node may still send.

    served: of each node, who serves it as a leaf, and the share of everything that it gets so.
    """

    network: Network
    members: list[Ints]
    copies: Floats
    quotas: Floats
    left: Floats
    unplanned: Floats
    relays: Flags
    max_children: int
    transfers: dict[tuple[int, int], float]
    delay: Floats
    given: dict[tuple[int, int], float] = field(default_factory=dict)
    served: list[dict[int, float]] = field(default_factory=list)
    root_used: float = 0.0
    shares: float = 0.0
    turn: int = 0


def expand(
    network: Network, packing: Packing, kept: Ints, *, stripes: int, max_children: int, demand: Floats
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
    transfers = {pair: weight / rate for pair, weight in packing.transfers.items()}
    quotas = _quotas(packing, members, copies, transfers)
    relays = (demand >= 1) & (network.up > 0)
    relays[network.trainer] = True
    unplanned = np.maximum(0, copies - quotas)
    delay = network.delay[np.ix_(kept, kept)]
    expansion = _Expansion(
        network, members, copies, quotas, quotas.copy(), unplanned, relays, max_children, transfers, delay
    )
    expansion.served = [{} for _ in range(network.size)]
    parents = np.stack([_stripe(expansion, packing.trees[k], share) for k, _, share in jobs])
    return parents, np.array([share for _, _, share in jobs])


def _quotas(packing: Packing, members: list[Ints], copies: Floats, transfers: dict[tuple[int, int], float]) -> Floats:
    """Copies that each node should send: within a region level, as far as its uplink allows (water filling)."""
    sends = np.zeros(len(members))
    for tree, weight in zip(packing.trees, packing.weights, strict=True):
        np.add.at(sends, tree[tree >= 0], weight / packing.rate)
    for (a, b), transfer in transfers.items():
        sends[a] += transfer
        sends[b] -= transfer
    quotas = np.zeros(len(copies))
    for a, nodes in enumerate(members):
        need = _QUOTA_SLACK * max(0.0, sends[a] + len(nodes) - 1)
        own = np.sort(copies[nodes])
        below = np.concatenate([[0], np.cumsum(own)[:-1]])
        levels = (need - below) / np.arange(len(own), 0, -1)
        fits = np.flatnonzero(levels <= own)
        quotas[nodes] = np.minimum(copies[nodes], levels[fits[0]] if len(fits) else np.inf)
    return quotas


def _stripe(expansion: _Expansion, tree: Ints, share: float) -> Ints:
    """One tree over nodes that follows a tree over regions."""
    network, regions = expansion.network, len(expansion.members)
    transferred = _transferred_leaves(expansion, share)
    leaving = np.zeros(regions, np.int64)
    for (_, b), count in transferred.items():
        leaving[b] += count
    below = np.bincount(tree[tree >= 0], minlength=regions)
    for (a, _), count in transferred.items():
        below[a] += count
    chosen = [
        _relays(expansion, a, share, int(len(expansion.members[a]) - 1 - leaving[a] + below[a])) for a in range(regions)
    ]
    parents = np.full(network.size, -2, np.int64)
    parents[network.trainer] = -1
    given: list[list[int]] = [[] for _ in range(regions)]
    leaves = [_leaves(expansion, a, chosen[a][0]) for a in range(regions)]
    for (a, b), count in sorted(transferred.items()):
        count = min(count, len(leaves[b]))
        given[a] += leaves[b][len(leaves[b]) - count :].tolist()
        leaves[b] = leaves[b][: len(leaves[b]) - count]
    for a in range(regions):
        far_first = sorted(np.flatnonzero(tree == a), key=lambda b: -expansion.delay[a, b])
        entries = [int(chosen[b][0][0]) for b in far_first]
        below_all = [np.array(given[a], np.int64), leaves[a]]
        below_all = below_all if network.everyone_dials else below_all[::-1]
        _attach(expansion, parents, *chosen[a], entries, np.concatenate(below_all), share)
    expansion.turn += 1
    return parents


def _transferred_leaves(expansion: _Expansion, share: float) -> dict[tuple[int, int], int]:
    """How many nodes of b hang below nodes of a in this stripe, so that gifts come out right over all stripes."""
    expansion.shares += share
    found = {}
    free = [len(nodes) - 1 for nodes in expansion.members]
    for pair, transfer in expansion.transfers.items():
        given = expansion.given.get(pair, 0.0)
        count = min(max(0, round((transfer * expansion.shares - given) / share)), free[pair[1]])
        if count:
            found[pair] = count
            free[pair[1]] -= count
            expansion.given[pair] = given + count * share
    return found


def _relays(expansion: _Expansion, a: int, share: float, need: int) -> tuple[Ints, Ints]:
    """(nodes of region a that relay, the one that is entered first; how many children each has): `need` in all."""
    network, nodes = expansion.network, expansion.members[a]
    able = nodes[expansion.relays[nodes]]
    home = bool((nodes == network.trainer).any())
    first, forced = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if home:
        first, forced = np.array([network.trainer]), np.array([_root_slots(expansion, share, need)])
        able = able[able != network.trainer]
    rest = need - int(forced.sum())
    slots = _slots(expansion, able, share, rest)
    order = np.lexsort((able, _turns(expansion, able, slots.astype(np.float64) * share)))
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
        best = nodes[np.argmax(expansion.left[nodes] + 1e6 * network.dialable[nodes] + 1e9 * expansion.relays[nodes])]
        return np.array([best]), np.zeros(1, np.int64)
    np.subtract.at(expansion.left, picked, slots * share)
    return picked, slots


def _turns(expansion: _Expansion, able: Ints, takes: Floats) -> Floats:
    """Whose turn to relay it is, least first: whoever used the least share of its quota, each from a point of its own.

    So each tree gets relays of all kinds, and none is left to those who can serve one child each: a chain.
    """
    quota = np.maximum(expansion.quotas[able], 1e-9)
    begin = able * _GOLDEN_RATIO % 1.0
    return np.asarray((quota - expansion.left[able] + begin * takes) / quota)


def _first(slots: Ints, need: int) -> Ints:
    """`need` of these slots, or as many as there are, from the first on."""
    taken: Ints = np.clip(need - (np.cumsum(slots) - slots), 0, slots)
    return taken


def _root_slots(expansion: _Expansion, share: float, need: int) -> int:
    """Children of the trainer in its own region's part: at least one, and its quota over all stripes."""
    quota = max(1.0, expansion.left[expansion.network.trainer] + expansion.root_used)
    slots = min(need, max(1, round(float(quota * expansion.shares - expansion.root_used) / share)))
    expansion.root_used += slots * share
    return slots


def _slots(expansion: _Expansion, able: Ints, share: float, need: int) -> Ints:
    """Children that each may have in this stripe, so that there is room for `need` in all: the usual number if that
    does, then more, then what no quota foresaw, then more than there is room for."""
    free = expansion.left[able]
    for free in (expansion.left[able], expansion.left[able] + expansion.unplanned[able]):
        most = USUAL_CHILDREN
        while True:
            most = min(most, expansion.max_children)
            slots = _parts(np.floor(free / share + 1e-6).astype(np.int64), most)
            if slots.sum() >= need:
                return slots
            if most == expansion.max_children:
                break
            most *= 2
    return _overfill(slots, free, expansion.copies[able], share, need) if len(able) else slots


def _parts(slots: Ints, most: int) -> Ints:
    """The first of the least number of even parts of at most so many: no relay ends with a single child to serve."""
    slots = np.maximum(slots, 0)
    return np.asarray(-(-slots // np.maximum(1, -(-slots // most))))


def _overfill(slots: Ints, free: Floats, copies: Floats, share: float, need: int) -> Ints:
    """More than there is room for, from whoever is overfull by the least share of its uplink then."""
    slots = slots.copy()
    missing = need - int(slots.sum())
    while missing > 0:
        over = ((slots + 1) * share - free) / copies
        cheap = np.argsort(over, kind="stable")[:missing]
        # One more each for those that stay within the least overfull's next step.
        cheap = cheap[over[cheap] <= max(over[cheap[0]] + share / copies[cheap[0]], 0.02)]
        slots[cheap] += 1
        missing -= len(cheap)
    return slots


def _leaves(expansion: _Expansion, a: int, relays: Ints) -> Ints:
    """Nodes of a region that do not relay in this stripe, those first that can only be served by who can be dialled."""
    nodes = expansion.members[a]
    leaves = nodes[~np.isin(nodes, relays)]
    leaves = np.roll(leaves, expansion.turn * max(1, len(leaves) // 7))
    return leaves[np.argsort(expansion.network.dialable[leaves], kind="stable")]


def _attach(
    expansion: _Expansion, parents: Ints, relays: Ints, slots: Ints, entries: list[int], leaves: Ints, share: float
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
    _attach_leaves(expansion, parents, above[len(first) :], leaves, share)


def _attach_leaves(expansion: _Expansion, parents: Ints, slots: Ints, leaves: Ints, share: float) -> None:
    """Leaves into slots (the relay of each), below relays that serve them in other trees if it can be: so nodes have
    few peers. Nobody gets more than `_MAX_SHARE_FROM_ONE` of everything so.

    Those that cannot be dialled come first, and take their places before the others do.
    """
    dialable = expansion.network.dialable
    left = Counter(slots.tolist())
    for group in (leaves[~dialable[leaves]], leaves[dialable[leaves]]):
        others = []
        for leaf in group.tolist():
            known = expansion.served[leaf]
            again = [i for i, part in known.items() if left[i] > 0 and part + share <= _MAX_SHARE_FROM_ONE]
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
        expansion.served[leaf][relay] = expansion.served[leaf].get(relay, 0.0) + share
