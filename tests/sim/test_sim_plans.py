"""Simulations in which the hub plans: every node gets its part, and the swarm converges with any plan."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from p2psync.membership.planning import PlanTask
from p2psync.membership.records import Member, NodeInfo
from p2psync.sim import run
from p2psync.sim.build import SimConfig, Simulation
from p2psync.sim.planner import SimPlanner
from p2psync.sim.run import run_sim


def task(actors: int) -> PlanTask:
    """A trainer and actors."""
    members = [Member(info=NodeInfo(node=f"{i:032x}", role="actor" if i else "trainer")) for i in range(actors + 1)]
    return PlanTask(members[0].info.node, members, {})


def test_the_simulated_planner_makes_whole_trees_of_every_kind() -> None:
    planner = SimPlanner(random.Random(1), failures=0.0)
    depths: Counter[int] = Counter()
    left_out = 0
    for count in range(200):
        made = task(1 + count % 6)
        book = planner.plan(made)
        assert book.revision == count + 1
        plans = {m.info.node: book.node_plan(m.info.node) for m in made.members}
        left_out += sum(plan is None for plan in plans.values())
        for name, plan in plans.items():
            if plan is None:
                continue
            plan.check()
            for tree, place in enumerate(plan.positions):
                assert (place.parent == -1) == (name == made.trainer) == (place.depth == 0)
                depths[place.depth] += 1
                for child in place.children:
                    theirs = plans[plan.peers[child]]
                    assert theirs is not None
                    assert theirs.peers[theirs.positions[tree].parent] == name
                    assert theirs.positions[tree].depth == place.depth + 1
    assert left_out and depths[1] and max(depths) == 6


def test_a_seed_decides_whether_its_hub_plans_unless_configured() -> None:
    drawn = {Simulation(seed, SimConfig()).planned for seed in range(20)}
    assert drawn == {True, False}
    assert Simulation(1, SimConfig(planned=False)).planned is False


@pytest.mark.parametrize("seed", range(6))
def test_without_faults_every_node_ends_with_its_part_of_the_last_plan(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Simulation] = []
    report = run._report
    monkeypatch.setattr(run, "_report", lambda seed, sim, calm: ended.append(sim) or report(seed, sim, calm))
    run_sim(seed, SimConfig(faults=(), liars=(), planned=True))
    (sim,) = ended
    revision = sim.hub.core.view().plan
    assert revision > 0
    plans = [node.core.plan for node in sim.nodes]
    assert {plan.revision for plan in plans if plan is not None} == {revision} and None not in plans


@pytest.mark.parametrize(
    "kinds", [("restart_hub",), ("lose_hub_calls", "cut_off_hub"), ("take_over", "join_with_nothing")]
)
def test_plans_survive_faults_of_the_hub(kinds: tuple[str, ...]) -> None:
    for seed in range(3):
        run_sim(seed, SimConfig(faults=kinds, fault_count=4, liars=(), planned=True))
