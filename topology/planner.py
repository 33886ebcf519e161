"""The planner: from a network to weighted spanning trees near the bound. Pure: equal networks give equal plans.

Trees are first packed over regions (a small linear program), then mapped to the nodes of each region (see
`p2psync.topology.expand`); a last linear program weighs the trees so that no link is overfull. Small networks whose
nodes differ too much for that (pairs that cannot connect, slow pairs) are packed node by node.

Related work. Mutualcast shares chunks out by uplink, each relayed by one node to all others. SplitStream makes each
node relay in one tree only. Overcast and Bullet build trees by measured bandwidth, Bullet with a mesh that repairs the
tree's errors, as the swarm's pulling does here. FastReplica and Kraken neither measure nor plan.
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

#: Default bound on a node's children in one tree.
DEFAULT_MAX_CHILDREN = 16
#: Up to this many nodes are packed node by node where packing by regions falls short.
_BY_NODE_MAX_NODES = 128
#: Plans are compared by the makespan of a payload: of this many bytes by default, in about this many chunks, of at
#: least and at most these sizes (bytes).
DEFAULT_PAYLOAD_BYTES = 64 << 20
_CHUNKS_PER_PAYLOAD, _SMALLEST_CHUNK, _LARGEST_CHUNK = 256, 64 << 10, 256 << 10
#: Plans below this share of the highest rate are dropped, unless the payload is small.
NEAR_BEST_SHARE = 0.97
#: A plan with fewer flows between regions is preferred while its makespan is at most this multiple of the best; up to
#: this many nodes, since with more nodes the uplinks are the bottleneck.
NEAR_BEST_TIME_FACTOR, _FEW_NODES = 1.03, 32
#: Delay one way (seconds) up to which two-hop trees are tried for any payload; over longer paths a few large flows are
#: better.
_CLOSE_SECONDS = 0.001
#: An old plan is kept while it has this share of the new one's rate; the second value is for a few nodes, which adopt
#: new parents quickly.
KEEP_MIN_SHARE, KEEP_MIN_SHARE_FEW = 0.95, 0.97
#: In one region, where only uplinks limit, a plan is replaced once a relay is fuller than the first value and the new
#: plan's fullest relay is below the second value times that (see `p2psync.topology.balance`): acknowledgements and
#: retransmissions need capacity that no plan accounts for. Among a few nodes of several regions the same applies to
#: links, while no chunk is in flight.
CROWDED_SHARE, _CLEARLY_LESS = 0.96, 0.95
#: The old trees are reweighed if that raises the rate by this factor. It costs less than other trees would: no node
#: gets a new parent, and all connections are warm.
REWEIGH_FACTOR = 1.025
#: The same two for a few nodes of several regions while no chunk is in flight, when a better plan delays nobody.
KEEP_MIN_SHARE_IDLE, REWEIGH_FACTOR_IDLE = 0.985, 1.005
#: The same trees are planned anew if their rate moved by this factor: publishers and paths are paced by it.
SAME_RATE_FACTOR = 1.1


def make_plan(
    network: Network,
    *,
    max_children: int = DEFAULT_MAX_CHILDREN,
    revision: int = 0,
    payload: int = DEFAULT_PAYLOAD_BYTES,
) -> Plan:
    """Returns the best plan found. Its `unreachable` names the nodes that cannot be reached.

    max_children: of a node in one tree; exceeded only where the plan would otherwise fall far below the bound: a few
    strong nodes among many weak ones. payload: typical payload in bytes; for a small one latency counts more than rate.
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
    """Returns the plan for a trainer alone: one tree without an edge, at rate 0. network: of the trainer only."""
    alone = np.full((1, network.size), -1, np.int64)
    return Plan(network.names, network.trainer, alone, np.ones(1), 0.0, {}, 0.0, unreachable, revision)


def _best(plans: list[Plan], network: Network, payload: int) -> Plan:
    """Returns the plan with the shortest makespan among those near the highest rate."""
    highest = max(plan.lowest_rate for plan in plans)
    best = _soonest(plans, NEAR_BEST_SHARE * highest, network, payload)
    return replace(best, share_of_highest=best.lowest_rate / highest if highest else 1.0)


def _soonest(plans: list[Plan], enough: float, network: Network, payload: int) -> Plan:
    near = [plan for plan in plans if plan.lowest_rate >= enough or payload < DEFAULT_PAYLOAD_BYTES]
    timed = [(round(_time(plan, network, payload), 3), plan) for plan in near]
    timed.sort(key=lambda pair: pair[0])
    if network.size > _FEW_NODES:
        return timed[0][1]
    soon = (plan for time, plan in timed if time <= NEAR_BEST_TIME_FACTOR * timed[0][0])
    if len(network.regions) == 1:
        # In two-hop trees the publisher sees every loss of speed: a relay that forwards too slowly gets less.
        return min(soon, key=lambda plan: int(plan.depth.max()))
    # A few large flows over a long link find their rates sooner than many small ones; on a link that is full without
    # need, chunks queue, and late chunks come last. An unmeasured link says nothing about its capacity.
    fullness = [(_fullest_known(plan, network), plan) for plan in soon]
    least = min(full for full, _ in fullness)
    roomy = [plan for full, plan in fullness if full * _CLEARLY_LESS <= least]
    return min(roomy, key=lambda plan: _crossings(plan, network))


def _time(plan: Plan, network: Network, payload: int) -> float:
    chunk = min(_LARGEST_CHUNK, max(_SMALLEST_CHUNK, payload // _CHUNKS_PER_PAYLOAD))
    return predicted_makespan(plan, network, payload, chunk)


def _crossings(plan: Plan, network: Network) -> int:
    """Returns the number of parent–child pairs whose nodes are in different regions."""
    index = {name: i for i, name in enumerate(network.names)}
    region = network.region[[index[name] for name in plan.names]]
    tree, child = np.nonzero(plan.parents >= 0)
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
    """Returns a plan for a changed network: the old trees while they are about as good as new ones.

    Nodes that left are removed and their children get new parents; nodes that joined become leaves; the trees are
    reweighed where that pays. The patched plan is used if it reaches `keep_min_share` of the new plan's rate (0: the
    default for this network), or for a small payload the corresponding makespan, and no relay is crowded without need;
    it keeps its old revision, and the rate that nodes were told, if nothing has changed and the rate hardly. idle: no
    chunk is in flight.
    """
    few = network.size <= _FEW_NODES
    # In one region the last percent of rate takes relays that are all about equally full; other weights would crowd
    # some.
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
        # Rate that the old plan gave up for fewer flows or shorter paths does not count against it.
        highest = new.lowest_rate / new.share_of_highest
        worse = patched.lowest_rate < keep_min_share * max(NEAR_BEST_SHARE, old.share_of_highest) * highest
    if worse or _is_crowded(patched, new, network) or (idle and _has_full_links(patched, new, network)):
        return new
    same = (
        patched.names == old.names
        and np.array_equal(patched.parents, old.parents)
        and np.array_equal(patched.shares, old.shares)
        and old.rate / SAME_RATE_FACTOR <= patched.rate <= SAME_RATE_FACTOR * old.rate
    )
    return replace(patched, revision=old.revision, rate=old.rate) if same else replace(patched, revision=new.revision)


def _is_crowded(patched: Plan, new: Plan, network: Network) -> bool:
    if len(network.regions) > 1 or network.size > _BY_NODE_MAX_NODES:
        return False
    fullest = fullest_relay(patched, network)
    return fullest > CROWDED_SHARE and _CLEARLY_LESS * fullest > fullest_relay(new, network)


def _has_full_links(patched: Plan, new: Plan, network: Network) -> bool:
    """Returns whether a link between regions is nearly full that is clearly less full in the new plan, at about the
    same rate."""
    if new.lowest_rate < KEEP_MIN_SHARE_IDLE * patched.lowest_rate:
        return False
    fullest = _fullest_known(patched, network)
    return fullest > CROWDED_SHARE and _CLEARLY_LESS * fullest > _fullest_known(new, network)


def _fullest_known(plan: Plan, network: Network) -> float:
    """Returns the utilisation of the fullest link; 0 while some links are unmeasured."""
    return fullest_link(plan, network) if network.measured.all() else 0.0


def changed_places(old: Plan, new: Plan) -> float:
    """Returns the share of (node, tree) pairs, for nodes in both plans, whose parent is a different or new node."""
    names = {name: i for i, name in enumerate(old.names)}
    both = [(i, names[name]) for i, name in enumerate(new.names) if name in names]
    if old.parents.shape[0] != new.parents.shape[0]:
        return 1.0
    ours, theirs = (np.array([pair[k] for pair in both]) for k in (0, 1))
    old_names, new_names = np.array([*old.names, ""]), np.array([*new.names, ""])
    return float((new_names[new.parents[:, ours]] != old_names[old.parents[:, theirs]]).mean())


def _slow(network: Network, max_children: int) -> dict[str, float]:
    """Returns the nodes whose own downlink is below the rate of the others, and their Mbit/s.

    The others need not wait for them: they are leaves in all trees, and take what they can.
    """
    free = float(network.up[network.trainer])
    if network.down.min() >= free:
        return {}
    capacities, _ = by_region(network, free)
    rate = pack(capacities, within=0.02).rate
    slow = (network.down < rate * 0.999) & (np.arange(network.size) != network.trainer)
    if slow.sum() > network.size // 2:
        # Most nodes are slow: choose a rate that half of all can take.
        rate = float(np.median(network.down))
        slow &= network.down < rate
    return {network.names[i]: float(network.down[i]) for i in np.flatnonzero(slow)}


def _plans_by_region(network: Network, slow: dict[str, float], max_children: int, payload: int) -> list[Plan]:
    """Returns plans over regions: with trees from the linear program, and with shallow ones."""
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
    """Returns plans over single nodes: one in which slow nodes fall behind the others, and one in which none does."""
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
    """Returns the numbers of trees over nodes to try: more split capacities more finely, and give each node
    more peers."""
    if network.size <= _FEW_NODES:
        return [48, 12, 6] if len(network.regions) > 1 else [48]
    return [24] if network.size <= 256 else [16]


def _weighed(
    network: Network, parents: Ints, shares: Floats, slow: dict[str, float], demand: Floats, most: float
) -> Plan:
    """Returns the plan of these trees, with other weights where that gives a clearly higher rate."""
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
    """Returns the plan of these trees with these weights, the heaviest first."""
    order = np.lexsort((np.arange(len(shares)), -np.round(shares, 9)))
    parents, shares = parents[order], shares[order]
    rate, takes = _fitting(network, parents, shares, slow, most)
    return Plan(network.names, network.trainer, parents, shares, rate, takes, 0.0)


def _fitting(
    network: Network, parents: Ints, shares: Floats, slow: dict[str, float], most: float
) -> tuple[float, dict[str, float]]:
    """Returns the highest rate at which no link is overfull, and the nodes that take less than it with their Mbit/s."""
    index = {name: i for i, name in enumerate(network.names)}
    slow = dict(sorted(slow.items(), key=lambda item: item[1]))
    while True:
        own = np.zeros(network.size)
        own[[index[name] for name in slow]] = list(slow.values())
        fast = usage(network, parents, (own == 0).astype(float))
        load = fast.per_tree @ shares
        # The load of slow nodes does not rise with the rate.
        left = fast.capacity - (usage(network, parents, own).per_tree @ shares if slow else 0.0)
        used = load > 1e-12
        rate = min(most, float((left[used] / load[used]).min(initial=np.inf)))
        if not slow or (rate >= max(slow.values()) and left.min() >= 0):
            return rate, slow
        slow.popitem()


def _patched(old: Plan, network: Network, new: Plan, max_children: int, reweighed: float) -> Plan | None:
    """Returns the old trees over the new plan's nodes; None if they share no trainer or reach nobody."""
    if old.names[old.trainer] != new.names[new.trainer] or old.reaches_nobody or new.reaches_nobody:
        return None
    network = network.only(np.isin(network.names, new.names))
    demand = demands(network, new.slow, new.rate)
    parents = with_members(old.names, old.parents, network)
    parents = repair(network, parents, old.shares, new.rate, demand, max_children)
    # Relays must keep up with the rate; leaves may fall behind.
    leaf = ~np.isin(np.arange(network.size), parents)
    relays = ~leaf
    relays[network.trainer] = False
    most = float(min([network.up[network.trainer], *network.down[relays]]))
    behind = {network.names[i]: float(network.down[i]) for i in np.flatnonzero(leaf & (network.down < most))}
    rate, slow = _fitting(network, parents, old.shares, behind, most)
    patched = Plan(network.names, network.trainer, parents, old.shares, rate, slow, new.bound)
    weighed = _weighed(network, parents, old.shares, behind, demand, most)
    better = weighed if weighed.lowest_rate >= reweighed * patched.lowest_rate else patched
    return replace(better, bound=new.bound, unreachable=new.unreachable, share_of_highest=old.share_of_highest)
