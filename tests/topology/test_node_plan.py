"""The nodes' parts of a plan agree with it and each other, and are small."""

import msgspec
import numpy as np
from drawn_networks import example, large

from p2psync.topology.draw import draw_topology
from p2psync.topology.network import from_topology
from p2psync.topology.planner import make_plan
from tests.plan_fractions import fractions_from, fractions_to


def test_parents_and_children_agree_in_every_tree() -> None:
    plan = make_plan(example("volunteers"))
    reported = dict(zip(plan.names, plan.node_plans(), strict=True))
    for name, own in reported.items():
        own.check()
        for tree, place in enumerate(own.positions):
            assert (place.parent < 0) == (name == plan.names[plan.trainer])
            for child in place.children:
                theirs = reported[own.peers[child]]
                assert theirs.peers[theirs.positions[tree].parent] == name
                assert theirs.positions[tree].depth == place.depth + 1


def test_fractions_add_up_to_everything_for_every_receiver() -> None:
    plan = make_plan(example("wan-4x3"))
    for name, own in zip(plan.names, plan.node_plans(), strict=True):
        whole = 0 if name == plan.names[plan.trainer] else 1
        assert abs(sum(fractions_from(own).values()) - whole) < 1e-9
        assert abs(sum(fractions_to(own).values()) - plan.egress(plan.names.index(name))) < 1e-3


def test_children_with_the_tallest_subtree_are_served_first() -> None:
    plan = make_plan(from_topology(large(200, 5)))
    for own in plan.node_plans():
        for tree, place in enumerate(own.positions):
            below = [int(plan.height[tree, plan.index[own.peers[child]]]) for child in place.children]
            assert below == sorted(below, reverse=True)


def test_a_node_among_hundreds_has_few_main_parents_and_none_dominates() -> None:
    plan = make_plan(from_topology(draw_topology(601, 6, hidden=0.2)))
    parts = [fractions_from(own).values() for own in plan.node_plans() if fractions_from(own)]
    assert np.mean([len(each) for each in parts]) < 0.65 * len(plan.shares)
    assert np.median([max(each) for each in parts]) <= 0.25


def test_a_part_of_a_thousand_nodes_plan_is_small() -> None:
    plan = make_plan(from_topology(large(1000, 10)))
    sizes = [len(msgspec.msgpack.encode(own)) for own in plan.node_plans()]
    assert max(sizes) < 4000
