"""The planner: from a network to weighted spanning trees near the bound. Pure: the same network gives the same plan.

Trees are packed over regions first (a small linear program), then carried out by the nodes of each region (see
`p2psync.topology.expand`); a last linear program weighs the trees so that nothing is overfull. Networks of a few nodes
whose nodes differ too much for that (pairs that cannot connect, slow pairs) are packed node by node.

What others do, and what was taken from it: Mutualcast shares chunks out by uplink, each relayed by one node to all
others; SplitStream has each node relay in one tree only; Overcast and Bullet build by measured bandwidth, Bullet with a
mesh beside the tree for what the tree gets wrong, as here the swarm's pulling; FastReplica and Kraken neither measure
nor plan.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import linprog

from p2psync.topology.balance import balance
from p2psync.topology.bound import EXACT_MAX_NODES, broadcast_bound
from p2psync.topology.capacities import by_node, by_region
from p2psync.topology.expand import expand
from p2psync.topology.network import Floats, Ints, Network
from p2psync.topology.packing import pack
from p2psync.topology.plan import Plan, demands, fullest_link, fullest_relay, predicted_makespan, usage
from p2psync.topology.repair import repair, with_members, without_crowds
from p2psync.topology.shallow import shallow_packing
from p2psync.topology.two_hop_trees import two_hop_trees

#: Children of a node in one tree, at most, unless told otherwise.
DEFAULT_MAX_CHILDREN = 16
#: Up to this many nodes are packed one by one where regions do not do.
_BY_NODE_MAX_NODES = 128
#: Plans are compared by the time that a payload takes: of so many bytes unless told otherwise, in chunks of about this
#: part of it, and of these sizes at least and at most (bytes).
DEFAULT_PAYLOAD_BYTES = 64 << 20
_CHUNKS_PER_PAYLOAD, _SMALLEST_CHUNK, _LARGEST_CHUNK = 256, 64 << 10, 256 << 10
#: With less than this share of the highest rate a plan is none of the best, unless the payload is a smaller one.
NEAR_BEST_SHARE = 0.97
#: How much later than by the best of them a payload may be everywhere for fewer flows between regions; among so few
#: nodes, since where there are many it is the uplinks that count.
NEAR_BEST_TIME_FACTOR, _FEW_NODES = 1.03, 32
#: Seconds one way within which every node may as well feed all others: over long ways a few thick flows are better.
_CLOSE_SECONDS = 0.001
#: An old plan is kept while it has this share of the new one's rate; among a few nodes, who have soon found their new
#: parents, while it has so much.
KEEP_MIN_SHARE, KEEP_MIN_SHARE_FEW = 0.95, 0.97
#: In one region, where uplinks alone count, a plan is also left once a relay is fuller than this and the fullest of the
#: new one clearly is not (see `p2psync.topology.balance`): acknowledgements, and what is sent again, have no place in a
#: plan. Among a few nodes of several regions the same goes for links, while nothing is on its way.
CROWDED_SHARE, _CLEARLY_LESS = 0.96, 0.95
#: The old trees get other weights where that gives so many times the rate. It costs less than other trees would: no
#: node gets another parent, and all connections are warm.
REWEIGH_FACTOR = 1.025
#: The same two among a few nodes of several regions while nothing is on its way: then a better plan costs nobody time.
KEEP_MIN_SHARE_IDLE, REWEIGH_FACTOR_IDLE = 0.985, 1.005


def make_plan(
    network: Network,
    *,
    max_children: int = DEFAULT_MAX_CHILDREN,
    revision: int = 0,
    payload: int = DEFAULT_PAYLOAD_BYTES,
) -> Plan:
    """The best plan that is found. Nodes that cannot be reached are named in it, and in no tree.

    most_children: of a node in one tree. It is passed only where the bound would else be missed by far: a few strong
    nodes among many weak ones. payload: of what is usually sent (bytes); of a small one latency counts more than rate.
    """
    reachable = network.reachable()
    lost = tuple(network.names[i] for i in np.flatnonzero(~reachable))
    network = network.only(reachable)
    if network.size < 2:
        return reaching_nobody(network, lost, revision)
    slow = _slow(network, max_children)
    plans = _plans_by_region(network, slow, max_children, payload)
    bound = broadcast_bound(network).rate
    if network.size <= _BY_NODE_MAX_NODES and (
        max(plan.lowest_rate for plan in plans) < (0.98 if network.size <= EXACT_MAX_NODES else 0.92) * bound
    ):
        plans += _plans_by_node(network, slow, max_children)
    return replace(_best(plans, network, payload), bound=bound, unreachable=lost, revision=revision)


def reaching_nobody(network: Network, unreachable: tuple[str, ...] = (), revision: int = 0) -> Plan:
    """The plan for a trainer alone: one tree without an edge, at rate 0. network: of the trainer only."""
    alone = np.full((1, network.size), -1, np.int64)
    return Plan(network.names, network.trainer, alone, np.ones(1), 0.0, {}, 0.0, unreachable, revision)


def _best(plans: list[Plan], network: Network, payload: int) -> Plan:
    """The plan by which a payload should be everywhere first, of those that come near the highest rate."""
    highest = max(plan.lowest_rate for plan in plans)
    best = _soonest(plans, NEAR_BEST_SHARE * highest, network, payload)
    return replace(best, of_highest=best.lowest_rate / highest if highest else 1.0)


def _soonest(plans: list[Plan], enough: float, network: Network, payload: int) -> Plan:
    near = [plan for plan in plans if plan.lowest_rate >= enough or payload < DEFAULT_PAYLOAD_BYTES]
    timed = [(round(_time(plan, network, payload), 3), plan) for plan in near]
    timed.sort(key=lambda pair: pair[0])
    if network.size > _FEW_NODES:
        return timed[0][1]
    soon = (plan for time, plan in timed if time <= NEAR_BEST_TIME_FACTOR * timed[0][0])
    if len(network.regions) == 1:
        # Of trees with two hops the root sees all that goes wrong: whoever passes its part on too slowly gets less.
        return min(soon, key=lambda plan: int(plan.depth.max()))
    # A few thick flows over a long link find their rates sooner than many thin ones; on one that is full for nothing
    # chunks wait, and at the end all that is late does. What was assumed of a link says nothing of its room.
    fullness = [(_fullest_known(plan, network), plan) for plan in soon]
    least = min(full for full, _ in fullness)
    roomy = [plan for full, plan in fullness if full * _CLEARLY_LESS <= least]
    return min(roomy, key=lambda plan: _crossings(plan, network))


def _time(plan: Plan, network: Network, payload: int) -> float:
    chunk = min(_LARGEST_CHUNK, max(_SMALLEST_CHUNK, payload // _CHUNKS_PER_PAYLOAD))
    return predicted_makespan(plan, network, payload, chunk)


def _crossings(plan: Plan, network: Network) -> int:
    """Pairs of nodes of different regions of which one feeds the other."""
    index = {name: i for i, name in enumerate(network.names)}
    region = network.region[[index[name] for name in plan.names]]
    below = plan.parents >= 0
    tree, child = np.nonzero(below)
    parent = plan.parents[tree, child]
    across = region[parent] != region[child]
    return len(np.unique(parent[across] * len(plan.names) + child[across]))


def replan(
    old: Plan,
    network: Network,
    *,
    keep_min_share: float = 0.0,
    max_children: int = DEFAULT_MAX_CHILDREN,
    payload: int = DEFAULT_PAYLOAD_BYTES,
    idle: bool = False,
) -> Plan:
    """A plan for a network that changed: the old trees as they are as long as they are about as good as new ones.

    Nodes that left are taken out, and what hung below them hangs elsewhere; nodes that joined are added as leaves; the
    trees are weighed anew where that pays. If that reaches `keep_min_share` of the new plan's rate (0:
    `KEEP_MIN_SHARE`, or as is usual among few), or has a small payload everywhere as much later at most, and no relay
    is crowded that need not be, it is the plan; with its old revision if nothing in it changed. quiet: nothing is on
    its way.
    """
    few = network.size <= _FEW_NODES
    # In one region the last percent is in relays that are all about as full, which other weights would crowd.
    idle = idle and few and len(network.regions) > 1
    reweighed = REWEIGH_FACTOR_IDLE if idle else REWEIGH_FACTOR
    keep_min_share = keep_min_share or (
        KEEP_MIN_SHARE if not few else KEEP_MIN_SHARE_IDLE if idle else KEEP_MIN_SHARE_FEW
    )
    new = make_plan(network, max_children=max_children, revision=old.revision + 1, payload=payload)
    if old.reaches_nobody and new.reaches_nobody and (old.names, old.unreachable) == (new.names, new.unreachable):
        return old
    patched = _patched(old, network, new, max_children, reweighed)
    if patched is None:
        return new
    if payload < DEFAULT_PAYLOAD_BYTES:
        worse = keep_min_share * _time(patched, network, payload) > _time(new, network, payload)
    else:
        # What was given up as the old one was made, for other merits, is not held against it now.
        highest = new.lowest_rate / new.of_highest
        worse = patched.lowest_rate < keep_min_share * max(NEAR_BEST_SHARE, old.of_highest) * highest
    if worse or _is_crowded(patched, new, network) or (idle and _has_full_links(patched, new, network)):
        return new
    same = (
        patched.names == old.names
        and np.array_equal(patched.parents, old.parents)
        and np.array_equal(patched.shares, old.shares)
    )
    return replace(patched, revision=old.revision if same else old.revision + 1)


def _is_crowded(patched: Plan, new: Plan, network: Network) -> bool:
    if len(network.regions) > 1 or network.size > _BY_NODE_MAX_NODES:
        return False
    fullest = fullest_relay(patched, network)
    return fullest > CROWDED_SHARE and _CLEARLY_LESS * fullest > fullest_relay(new, network)


def _has_full_links(patched: Plan, new: Plan, network: Network) -> bool:
    """Whether a link between regions is about full that clearly is not in the new plan, at about the same rate."""
    if new.lowest_rate < KEEP_MIN_SHARE_IDLE * patched.lowest_rate:
        return False
    fullest = _fullest_known(patched, network)
    return fullest > CROWDED_SHARE and _CLEARLY_LESS * fullest > _fullest_known(new, network)


def _fullest_known(plan: Plan, network: Network) -> float:
    """What the fullest link carries, as a share of what it has; 0 while some of them are not measured."""
    return fullest_link(plan, network) if network.measured.all() else 0.0


def changed_places(old: Plan, new: Plan) -> float:
    """The share of the places (node, tree) of nodes in both plans whose parent is another one, or new."""
    names = {name: i for i, name in enumerate(old.names)}
    both = [(i, names[name]) for i, name in enumerate(new.names) if name in names]
    if old.parents.shape[0] != new.parents.shape[0]:
        return 1.0
    ours, theirs = (np.array([pair[k] for pair in both]) for k in (0, 1))
    old_names, new_names = np.array([*old.names, ""]), np.array([*new.names, ""])
    return float((new_names[new.parents[:, ours]] != old_names[old.parents[:, theirs]]).mean())


def _slow(network: Network, max_children: int) -> dict[str, float]:
    """Nodes whose own downlink is below what the rest could have, and what they take.

    The rest need not wait for them: they hang as leaves in all trees, and take what they can.
    """
    free = float(network.up[network.trainer])
    if network.down.min() >= free:
        return {}
    capacities, _ = by_region(network, free)
    rate = pack(capacities, within=0.02).rate
    slow = (network.down < rate * 0.999) & (np.arange(network.size) != network.trainer)
    if slow.sum() > network.size // 2:
        # Then it is they who are the rule: a rate that half of all can take.
        rate = float(np.median(network.down))
        slow &= network.down < rate
    return {network.names[i]: float(network.down[i]) for i in np.flatnonzero(slow)}


def _plans_by_region(network: Network, slow: dict[str, float], max_children: int, payload: int) -> list[Plan]:
    """Plans over regions: with trees from the linear program, and with shallow ones."""
    others = [i for i, name in enumerate(network.names) if name not in slow and i != network.trainer]
    most = float(min([network.up[network.trainer], *network.down[others]]))
    demand = demands(network, slow, most)
    capacities, kept = by_region(network, most, demand)
    packing = pack(capacities)
    if slow:
        demand = demands(network, slow, packing.rate)
        capacities, kept = by_region(network, most, demand)
        packing = pack(capacities)
    plans = []
    for stripes in _stripe_counts(network):
        for trees in (packing, shallow_packing(capacities, packing, stripes)):
            if trees is None:
                continue
            parents, shares = expand(network, trees, kept, stripes=stripes, max_children=max_children, demand=demand)
            parents = repair(network, parents, shares, packing.rate, demand, max_children)
            parents = balance(network, parents, shares, packing.rate, demand, max_children)
            plans.append(_weighed(network, parents, shares, slow, demand, most))
    close = len(network.regions) == 1 and network.delay[0, 0] <= _CLOSE_SECONDS
    if (payload < DEFAULT_PAYLOAD_BYTES or close) and (flat := two_hop_trees(network, slow, max_children)) is not None:
        parents = repair(network, flat[0], flat[1], packing.rate, demand, max_children)
        plans.append(_plan(network, parents, flat[1], slow, most))
    return plans


def _plans_by_node(network: Network, slow: dict[str, float], max_children: int) -> list[Plan]:
    """Plans over single nodes: one in which slow nodes are left behind by the others, and one in which nobody is."""
    plans = []
    for behind in [slow] if not slow else [slow, {}]:
        others = [i for i, name in enumerate(network.names) if name not in behind and i != network.trainer]
        most = float(min([network.up[network.trainer], *network.down[others]]))
        packing = pack(replace(by_node(network, most), max_children=max_children))
        demand = demands(network, behind, max(packing.rate, 1e-9))
        parents, shares = np.stack(packing.trees), packing.weights / packing.rate
        order = np.argsort(-shares, kind="stable")
        parents = without_crowds(parents, max_children)
        parents = repair(network, parents, shares, packing.rate, demand, max_children)
        plans.append(_weighed(network, parents[order], shares[order], behind, demand, most))
    return plans


def _stripe_counts(network: Network) -> list[int]:
    """Trees over nodes to aim at: more split capacities more finely, and give each node more peers."""
    if network.size <= _FEW_NODES:
        return [48, 12, 6] if len(network.regions) > 1 else [48]
    return [24] if network.size <= 256 else [16]


def _weighed(
    network: Network, parents: Ints, shares: Floats, slow: dict[str, float], demand: Floats, most: float
) -> Plan:
    """The plan of these trees, with other weights where that gives a clearly higher rate."""
    used = usage(network, parents, demand)
    rate = min(most, used.rate(shares))
    if rate < most * 0.995:
        full = used.per_tree @ shares * rate > 0.5 * used.capacity
        bounds = np.concatenate([used.capacity[full], [most]])
        rows = np.vstack([used.per_tree[full], np.ones(len(shares))])
        found = linprog(-np.ones(len(shares)), A_ub=rows, b_ub=bounds, method="highs-ds")
        if found.x is not None and found.x.sum() > 0:
            weighed = found.x / found.x.sum()
            better = min(most, used.rate(weighed))
            if better > rate * 1.005:
                keep = weighed > 1e-4
                parents, shares = parents[keep], weighed[keep] / weighed[keep].sum()
    return _plan(network, parents, shares, slow, most)


def _plan(network: Network, parents: Ints, shares: Floats, slow: dict[str, float], most: float) -> Plan:
    """The plan of these trees with these weights, the heaviest first."""
    order = np.lexsort((np.arange(len(shares)), -np.round(shares, 9)))
    parents, shares = parents[order], shares[order]
    rate, takes = _fitting(network, parents, shares, slow, most)
    return Plan(network.names, network.trainer, parents, shares, rate, takes, 0.0)


def _fitting(
    network: Network, parents: Ints, shares: Floats, slow: dict[str, float], most: float
) -> tuple[float, dict[str, float]]:
    """(the highest rate at which nothing is overfull, nodes that take less than it and what they take)."""
    index = {name: i for i, name in enumerate(network.names)}
    slow = dict(sorted(slow.items(), key=lambda item: item[1]))
    while True:
        own = np.zeros(network.size)
        own[[index[name] for name in slow]] = list(slow.values())
        fast = usage(network, parents, (own == 0).astype(float))
        load = fast.per_tree @ shares
        # What slow nodes take does not rise with the rate.
        left = fast.capacity - (usage(network, parents, own).per_tree @ shares if slow else 0.0)
        used = load > 1e-12
        rate = min(most, float((left[used] / load[used]).min(initial=np.inf)))
        if not slow or (rate >= max(slow.values()) and left.min() >= 0):
            return rate, slow
        slow.popitem()


def _patched(old: Plan, network: Network, new: Plan, max_children: int, reweighed: float) -> Plan | None:
    """The old trees over the new plan's nodes; None if they have nothing to say about them."""
    if old.names[old.trainer] != new.names[new.trainer] or old.reaches_nobody or new.reaches_nobody:
        return None
    network = network.only(np.isin(network.names, new.names))
    demand = demands(network, new.slow, new.rate)
    parents = with_members(old.names, old.parents, network)
    parents = repair(network, parents, old.shares, new.rate, demand, max_children)
    # Who relays must keep up; who does not may be left behind.
    leaf = ~np.isin(np.arange(network.size), parents)
    relays = ~leaf
    relays[network.trainer] = False
    most = float(min([network.up[network.trainer], *network.down[relays]]))
    behind = {network.names[i]: float(network.down[i]) for i in np.flatnonzero(leaf & (network.down < most))}
    rate, slow = _fitting(network, parents, old.shares, behind, most)
    patched = Plan(network.names, network.trainer, parents, old.shares, rate, slow, new.bound)
    weighed = _weighed(network, parents, old.shares, behind, demand, most)
    better = weighed if weighed.lowest_rate >= reweighed * patched.lowest_rate else patched
    return replace(better, bound=new.bound, unreachable=new.unreachable, of_highest=old.of_highest)
