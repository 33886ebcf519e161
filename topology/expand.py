"""Maps trees over regions to trees over nodes: which nodes relay in which tree, and which parent each node has.

Each tree over nodes (a *stripe*) carries a share of all chunks. A node with uplink u at rate r can send u/r copies in
all, cut into slots of one child in one tree. In each tree a few nodes of a region relay, with many children each, and
all others are leaves. The nodes that have relayed least so far relay next, so that every node relays in a few trees and
is a leaf in all others (interior-disjoint trees as in SplitStream, weighted by capacity as in Mutualcast), and no tree
depends on one node more than necessary.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from p2psync.topology.network import Flags, Floats, Ints, Network
from p2psync.topology.packing import Packing

#: Usual children of a relay in one tree; it gets more only where slots are short.
USUAL_CHILDREN = 4
_QUOTA_SLACK = 1.15
#: Most that a node should receive from one relay, as a share of the payload.
_MAX_SHARE_FROM_ONE = 0.2
#: Multiples of the golden ratio are spread evenly over [0, 1).
_GOLDEN_RATIO = 0.6180339887498949


@dataclass
class _Expansion:
    """The state of the mapping. left: copies of the payload that each node may still send.

    quotas: copies that each node should send. unplanned: copies beyond the quota that its uplink allows. served: for
    each node, the relays that serve it as a leaf, and the share of the payload from each.
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
    stripe: int = 0


def expand(
    network: Network, packing: Packing, kept: Ints, *, stripes: int, max_children: int, demand: Floats
) -> tuple[Ints, Floats]:
    """Returns (parents: stripes × nodes, -1 at the trainer, -2 where no slot was left; shares of the stripes, summing
    to 1).

    packing: over the regions `kept`. demand: share of the rate that each node takes; nodes below 1 relay nothing.
    max_children: in one tree. Capacities may be exceeded where slots are not whole numbers: compute the rates from the
    loads afterwards.
    """
    rate = packing.rate
    order = np.argsort(-packing.weights, kind="stable")
    parts = [max(1, round(stripes * packing.weights[k] / rate)) for k in order]
    jobs = [
        (k, part / count, packing.weights[k] / rate / count)
        for k, count in zip(order, parts, strict=True)
        for part in range(count)
    ]
    # Interleaved, so that no tree over regions comes last with all its stripes.
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
    """Returns the copies that each node should send: equal within a region, as far as uplinks allow (water filling)."""
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
        smaller = np.concatenate([[0], np.cumsum(own)[:-1]])
        levels = (need - smaller) / np.arange(len(own), 0, -1)
        fits = np.flatnonzero(levels <= own)
        quotas[nodes] = np.minimum(copies[nodes], levels[fits[0]] if len(fits) else np.inf)
    return quotas


def _stripe(expansion: _Expansion, tree: Ints, share: float) -> Ints:
    """Returns one tree over nodes that follows a tree over regions."""
    network, regions = expansion.network, len(expansion.members)
    transferred = _transferred_leaves(expansion, share)
    leaving = np.zeros(regions, np.int64)
    for (_, b), count in transferred.items():
        leaving[b] += count
    children = np.bincount(tree[tree >= 0], minlength=regions)
    for (a, _), count in transferred.items():
        children[a] += count
    chosen = [
        _relays(expansion, a, share, int(len(expansion.members[a]) - 1 - leaving[a] + children[a]))
        for a in range(regions)
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
        leaf_order = [np.array(given[a], np.int64), leaves[a]]
        leaf_order = leaf_order if network.everyone_dials else leaf_order[::-1]
        _attach(expansion, parents, *chosen[a], entries, np.concatenate(leaf_order), share)
    expansion.stripe += 1
    return parents


def _transferred_leaves(expansion: _Expansion, share: float) -> dict[tuple[int, int], int]:
    """Returns how many nodes of b get parents in a in this stripe, so that transfers add up over all stripes."""
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
    """Returns (the relays of region a, the region's entry first; how many children each has): `need` children
    in all."""
    network, nodes = expansion.network, expansion.members[a]
    able = nodes[expansion.relays[nodes]]
    home = bool((nodes == network.trainer).any())
    first, forced = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if home:
        first, forced = np.array([network.trainer]), np.array([_root_slots(expansion, share, need)])
        able = able[able != network.trainer]
    rest = need - int(forced.sum())
    slots = _slots(expansion, able, share, rest)
    order = np.lexsort((able, _relay_order(expansion, able, slots.astype(np.float64) * share)))
    able, slots = able[order], slots[order]
    taken = np.zeros_like(slots)
    if not network.everyone_dials:
        # Nodes that cannot be dialled need a dialable parent.
        dialable = network.dialable[able]
        taken = _first(np.where(dialable, slots, 0), min(rest, int((~network.dialable[nodes]).sum())))
    taken += _first(slots - taken, rest - int(taken.sum()))
    used = np.flatnonzero(taken)
    # Fast relays first, since all others wait for them; those with one child last.
    used = used[np.lexsort((-network.up[able[used]], taken[used] < 2, ~network.dialable[able[used]]))]
    picked, slots = np.concatenate([first, able[used]]), np.concatenate([forced, taken[used]])
    if not len(picked):
        best = nodes[np.argmax(expansion.left[nodes] + 1e6 * network.dialable[nodes] + 1e9 * expansion.relays[nodes])]
        return np.array([best]), np.zeros(1, np.int64)
    np.subtract.at(expansion.left, picked, slots * share)
    return picked, slots


def _relay_order(expansion: _Expansion, able: Ints, takes: Floats) -> Floats:
    """Returns each node's rank for relaying, least first: the used share of its quota, each from a starting point of
    its own.

    So each tree gets relays of all sizes, and none is left to nodes that can serve one child each, which would form a
    chain.
    """
    quota = np.maximum(expansion.quotas[able], 1e-9)
    begin = able * _GOLDEN_RATIO % 1.0
    return np.asarray((quota - expansion.left[able] + begin * takes) / quota)


def _first(slots: Ints, need: int) -> Ints:
    """Returns the first `need` of these slots, or as many as there are."""
    taken: Ints = np.clip(need - (np.cumsum(slots) - slots), 0, slots)
    return taken


def _root_slots(expansion: _Expansion, share: float, need: int) -> int:
    """Returns the trainer's children in its own region: at least one, and its quota over all stripes."""
    quota = max(1.0, expansion.left[expansion.network.trainer] + expansion.root_used)
    slots = min(need, max(1, round(float(quota * expansion.shares - expansion.root_used) / share)))
    expansion.root_used += slots * share
    return slots


def _slots(expansion: _Expansion, able: Ints, share: float, need: int) -> Ints:
    """Returns the children that each node may have in this stripe, `need` in all: the usual number if that suffices,
    then more, then beyond quotas, then beyond capacity."""
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
    """Returns the first of the fewest even parts of at most `most`, so that no relay is left with a single child."""
    slots = np.maximum(slots, 0)
    return np.asarray(-(-slots // np.maximum(1, -(-slots // most))))


def _overfill(slots: Ints, free: Floats, copies: Floats, share: float, need: int) -> Ints:
    """Adds slots beyond capacity, at the nodes whose uplinks are then overfull by the least share."""
    slots = slots.copy()
    missing = need - int(slots.sum())
    while missing > 0:
        over = ((slots + 1) * share - free) / copies
        cheap = np.argsort(over, kind="stable")[:missing]
        # One more slot for each node that stays within the least overfull node's next step.
        cheap = cheap[over[cheap] <= max(over[cheap[0]] + share / copies[cheap[0]], 0.02)]
        slots[cheap] += 1
        missing -= len(cheap)
    return slots


def _leaves(expansion: _Expansion, a: int, relays: Ints) -> Ints:
    """Returns the nodes of a region that do not relay in this stripe, those that need a dialable parent first."""
    nodes = expansion.members[a]
    leaves = nodes[~np.isin(nodes, relays)]
    leaves = np.roll(leaves, expansion.stripe * max(1, len(leaves) // 7))
    return leaves[np.argsort(expansion.network.dialable[leaves], kind="stable")]


def _attach(
    expansion: _Expansion, parents: Ints, relays: Ints, slots: Ints, entries: list[int], leaves: Ints, share: float
) -> None:
    """Assigns children to slots, breadth first: other regions' entries as early as possible, then relays, then
    leaves."""
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
    slot_relays = np.repeat(relays, slots)
    first = np.array((children + waiting)[: len(slot_relays)], np.int64)
    parents[first] = slot_relays[: len(first)]
    _attach_leaves(expansion, parents, slot_relays[len(first) :], leaves, share)


def _attach_leaves(expansion: _Expansion, parents: Ints, slots: Ints, leaves: Ints, share: float) -> None:
    """Assigns leaves to slots (the relay of each), to relays that serve them in other trees if possible, so that nodes
    have few peers.

    No leaf gets more than `_MAX_SHARE_FROM_ONE` of the payload from one relay this way. Leaves that cannot be dialled
    come first, before the others take their slots.
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
