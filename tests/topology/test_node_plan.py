"""What each node is told is the plan: parents and children agree, and it is small."""

import msgspec
from drawn_networks import example, large

from topology.network import from_topology
from topology.planner import make_plan


def test_parents_and_children_agree_in_every_tree() -> None:
    plan = make_plan(example("volunteers"))
    told = dict(zip(plan.names, plan.node_plans(), strict=True))
    for name, own in told.items():
        own.check()
        for tree, place in enumerate(own.places):
            assert (place.parent < 0) == (name == plan.names[plan.trainer])
            for child in place.children:
                theirs = told[own.peers[child]]
                assert theirs.peers[theirs.places[tree].parent] == name
                assert theirs.places[tree].depth == place.depth + 1


def test_fractions_add_up_to_everything_for_every_receiver() -> None:
    plan = make_plan(example("wan-4x3"))
    for name, own in zip(plan.names, plan.node_plans(), strict=True):
        whole = 0 if name == plan.names[plan.trainer] else 1
        assert abs(sum(own.fractions_from().values()) - whole) < 1e-9
        assert abs(sum(own.fractions_to().values()) - plan.egress(plan.names.index(name))) < 1e-3


def test_a_node_among_a_thousand_is_told_little() -> None:
    plan = make_plan(from_topology(large(1000, 10)))
    sizes = [len(msgspec.msgpack.encode(own)) for own in plan.node_plans()]
    assert max(sizes) < 4000
