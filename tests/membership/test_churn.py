"""Long churn: departed members leave nothing behind, at the hub or at a node."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from membership_parts import announce, claim, fresh, make_core, manifest, node
from reachable_objects import entries

from p2psync.errors import FencedError
from p2psync.membership.changes import MAX_CHANGES
from p2psync.membership.hub import HubCore
from p2psync.membership.planning import PlanResult
from p2psync.membership.records import Join, Leave, Member, NodeInfo, NodeStatistics, PathStatistics, Renew, View
from p2psync.protocol.plan import NodePlan
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.report import Reporter, most_paths
from p2psync.swarm.node import NodeCore

#: Simultaneous members, and rounds, each with new members.
AT_A_TIME, ROUNDS = 20, 60


class Book:
    """A plan over the current members."""

    diagnostics: dict[str, str] = {}  # noqa: RUF012 (a plan has none here)

    def __init__(self, revision: int, members: list[str]) -> None:
        self.revision = revision
        self._parts = {name: NodePlan(revision, [], [], []) for name in members}

    def node_plan(self, name: str) -> NodePlan | None:
        return self._parts.get(name)


def at_the_hub(member_actions: Callable[[HubCore, int, list[str], float], None]) -> list[int]:
    """Returns the hub's size after each round; member_actions: the actions of a round's members."""
    core = make_core()
    core.join(Join(info=node(0, role="trainer")), lease="trainer", now=0.0)
    token = claim(core, claimant=0)
    announce(core, token, manifest(0))
    held, now = [], 0.0
    for number in range(ROUNDS):
        infos = [node(1 + number * AT_A_TIME + i) for i in range(AT_A_TIME)]
        leases = [core.join(Join(info=info), lease=fresh(), now=now).lease for info in infos]
        names = [info.node for info in infos]
        core.renew(Renew(lease="trainer"), now=now)
        for lease, name in zip(leases, names, strict=True):
            paths = [PathStatistics(other, failed=True) for other in names if other != name]
            core.renew(Renew(lease=lease, version=number, statistics=NodeStatistics(paths=paths)), now=now + 1)
        task = core.begin_plan(now + 2)
        assert task is not None
        plan_result: PlanResult = Book(number + 1, [member.info.node for member in task.members])
        core.plan_made(plan_result, now + 2)
        member_actions(core, number, leases, now + 3)
        core.renew(Renew(lease="trainer"), now=now + 9)
        now += 14
        core.renew(Renew(lease="trainer"), now=now)
        core.expire(now)
        assert len(core) == 1
        held.append(entries(core))
    return held


def leave(core: HubCore, number: int, leases: list[str], now: float) -> None:
    for lease in leases:
        core.leave(Leave(lease=lease), now=now)


def expire(core: HubCore, number: int, leases: list[str], now: float) -> None:
    """They report nothing."""


def break_off(core: HubCore, number: int, leases: list[str], now: float) -> None:
    for lease in leases:
        core.suspect(lease, now)
    core.expire(now + 2)


def ask_and_fail(core: HubCore, number: int, leases: list[str], now: float) -> None:
    for _ in range(AT_A_TIME):
        core.challenge(nonce=fresh(), now=now)
    with pytest.raises(FencedError):
        claim(core, now, epoch=0, claimant=5)


@pytest.mark.parametrize("member_actions", [leave, expire, break_off, ask_and_fail])
def test_departed_members_leave_nothing_at_the_hub(
    member_actions: Callable[[HubCore, int, list[str], float], None],
) -> None:
    held = at_the_hub(member_actions)
    filled = MAX_CHANGES // (2 * AT_A_TIME)  # rounds until as many changes are remembered as ever are
    assert max(held[filled + 4 :]) <= max(held[filled : filled + 4]) + 8 * AT_A_TIME


def test_departed_members_leave_nothing_at_a_node() -> None:
    core, estimates = NodeCore(node(0), NodeConfig(), random.Random(1)), NodeEstimates()
    reporter = Reporter(estimates)
    held = []
    for number in range(ROUNDS):
        now = 100.0 * number
        infos = [node(1 + number * AT_A_TIME + i) for i in range(AT_A_TIME)]
        core.viewed(View(instance="hub", revision=number, members=[Member(info=info) for info in infos]), now)
        estimates.keep([info.node for info in infos])
        reporter.set_members([info.node for info in infos])
        for info in infos[: AT_A_TIME // 2]:
            assert core.peer_up(info.node, "", now)
        for info in infos[AT_A_TIME // 2 :]:
            core.dial_failed(info.node, now)
            reporter.failed(info.node)
        core.poll(now)
        core.actions()
        for info in infos[: AT_A_TIME // 2]:
            core.peer_down(info.node, now + 1)
        core.viewed(View(instance="hub", revision=number), now + 2)
        estimates.keep([])
        reporter.set_members([])
        held.append(entries(core) + entries(reporter))
    assert max(held[len(held) // 2 :]) <= max(held[:4]) + AT_A_TIME


@pytest.mark.parametrize("members", [1, 256, 257, 1000, 5000, 16384])
def test_reports_and_hub_state_are_bounded_in_a_swarm_of_any_size(members: int) -> None:
    reporter = Reporter(NodeEstimates(), most_paths(members))
    for number in range(members):
        reporter.failed(f"{number:032x}")
    reported = reporter.report()
    assert len(reported.paths) == min(members, most_paths(members))
    assert len(msgspec.json.encode(Renew(lease="a" * 32, statistics=reported))) < 32 << 10
    assert members * most_paths(members) <= max(1 << 16, 32 * members)
    core = make_core()
    core.join(Join(info=NodeInfo(node="f" * 32, role="actor")), lease="one", now=0.0)
    assert core.renew(Renew(lease="one", statistics=reported), now=1.0).refused == ""
