"""The hub's core and the plan: when one is due, the view of it, and each node's part."""

from __future__ import annotations

import msgspec
import pytest
from membership_parts import LATER_RUN, announce, claim, fresh, make_core, manifest, node

from p2psync.errors import FormatError, HubError, LeaseError
from p2psync.membership.hub import HubCore
from p2psync.membership.planning import PlanTask
from p2psync.membership.records import Announce, Join, Leave, NodeStatistics, Renew
from p2psync.membership.suspicion import SUSPICION_SECONDS
from p2psync.protocol.plan import NodePlan, TreePosition, unplanned

TRAINER = node(1).node


class Book:
    """A plan with positions for some nodes."""

    def __init__(self, revision: int, *names: str) -> None:
        self.revision = revision
        self.diagnostics: dict[str, str] = {}
        self.names = names

    def node_plan(self, name: str) -> NodePlan | None:
        return NodePlan(self.revision, [], [1], [TreePosition(-1, [], 0, 1.0)]) if name in self.names else None


def planned_hub(actors: int = 2) -> tuple[HubCore, list[str]]:
    """A hub with a trainer and actors, and a first plan at time 1; and their leases."""
    core = make_core()
    claim(core)
    leases = [core.join(Join(info=node(i)), lease=fresh(), now=0).lease for i in range(1, actors + 2)]
    assert core.begin_plan(1) is not None
    core.plan_made(Book(1, *(node(i).node for i in range(1, actors + 2))), 1)
    return core, leases


def test_joins_leaves_expiries_and_claimants_make_a_plan_due() -> None:
    core, leases = planned_hub()
    assert core.next_plan() == float("inf")
    newcomer = core.join(Join(info=node(7)), lease=fresh(), now=2).lease
    for now in (3, 4, 12):
        assert now - 1 < core.next_plan() <= now
        task = core.begin_plan(now)
        assert task is not None and task.trainer == TRAINER
        core.plan_made(Book(now), now)
        assert core.next_plan() == float("inf")
        for lease in leases[:2]:
            core.renew(Renew(lease=lease), now=now)
        if now == 3:
            core.leave(Leave(lease=newcomer), now=now)
        if now == 4:
            core.expire(11.5)  # the third one's lease
            assert len(core) == 2
    claim(core, epoch=2, claimant=2, now=13)
    task = core.begin_plan(14)
    assert task is not None and task.trainer == node(2).node


def test_renewals_announcements_and_claims_of_the_same_trainer_make_none_due() -> None:
    core, leases = planned_hub()
    core.renew(Renew(lease=leases[1], version=3, digest="a" * 32), now=2)
    announce(core, claim(core, epoch=2), manifest(0))
    core.join(Join(info=node(2), version=5), lease=fresh(), now=2)
    claim(core, run=LATER_RUN)
    assert core.next_plan() == float("inf")


def test_the_planner_learns_whether_chunks_are_in_flight() -> None:
    core, leases = planned_hub()

    def is_idle(now: float, *versions: int) -> bool:
        core.renew(Renew(lease=leases[0], statistics=NodeStatistics(up=10 * now)), now=now)
        for lease, version in zip(leases[1:], versions, strict=True):
            core.renew(Renew(lease=lease, version=version, digest="a" * 32), now=now)
        task = core.begin_plan(core.next_plan())
        assert task is not None
        core.plan_made(Book(int(now)), now)
        return task.idle

    assert is_idle(2, 7, 8), "no version yet"
    announce(core, claim(core), manifest(0))
    assert not is_idle(4, 7, 8)
    assert not is_idle(6, 0, 8)
    assert is_idle(8, 0, 0), "the trainer has it anyway"


def test_statistics_of_a_transfer_are_planned_with_once_all_run_the_newest_version() -> None:
    core, leases = planned_hub()
    announce(core, claim(core), manifest(0))
    core.renew(Renew(lease=leases[1], statistics=NodeStatistics(up=30.0)), now=5)
    assert core.begin_plan(core.next_plan()) is not None
    core.plan_made(Book(2), 6.5)
    core.renew(Renew(lease=leases[0]), now=7)
    core.renew(Renew(lease=leases[1], version=0, digest="a" * 32, statistics=NodeStatistics(up=30.5)), now=8)
    assert core.next_plan() == float("inf")
    core.renew(Renew(lease=leases[2], version=0, digest="a" * 32), now=9)
    task = core.begin_plan(core.next_plan())
    assert task is not None and task.idle
    core.plan_made(Book(2), 10)
    announce(core, claim(core), manifest(1, 0))
    for lease in leases[1:]:
        core.renew(Renew(lease=lease, version=1, digest="b" * 32), now=11)
    assert core.next_plan() == float("inf"), "no member reported anything since"


def test_statistics_reach_the_planner() -> None:
    core, leases = planned_hub()
    core.renew(Renew(lease=leases[1], statistics=NodeStatistics(up=30.0)), now=5)
    task = core.begin_plan(core.next_plan())
    assert task is not None and task.statistics == {node(2).node: NodeStatistics(up=30.0)}


def test_a_new_plan_raises_the_revision_once_but_not_the_urgent_one() -> None:
    core, _ = planned_hub()
    revision, urgent_revision = core.revision, core.urgent_revision
    assert core.view().plan == 1
    core.join(Join(info=node(7)), lease=fresh(), now=2)
    assert core.begin_plan(3) is not None
    core.plan_made(Book(2), 3)
    assert (core.view().plan, core.revision, core.urgent_revision) == (2, revision + 2, urgent_revision)
    core.join(Join(info=node(8)), lease=fresh(), now=4)
    assert core.begin_plan(5) is not None
    core.plan_made(Book(2), 5)
    assert (core.view().plan, core.revision) == (2, revision + 3)


def test_a_failed_plan_leaves_the_last_one() -> None:
    core, leases = planned_hub()
    core.join(Join(info=node(7)), lease=fresh(), now=2)
    assert core.begin_plan(3) is not None
    revision = core.revision
    assert core.plan_failed("cannot plan", 3)
    assert (core.view().plan, core.revision) == (1, revision)
    assert core.node_plan(leases[0], 4).revision == 1
    assert core.next_plan() < float("inf")


def test_only_members_get_their_part_of_the_plan() -> None:
    core, leases = planned_hub()
    assert core.node_plan(leases[1], 2) == NodePlan(1, [], [1], [TreePosition(-1, [], 0, 1.0)])
    newcomer = core.join(Join(info=node(7)), lease=fresh(), now=2).lease
    assert core.node_plan(newcomer, 2) == unplanned(1)
    core.node_plan(newcomer, 2).check()
    for lease in ("", "made up", leases[0]):
        with pytest.raises(LeaseError):
            core.node_plan(lease, 10.5)


def test_before_the_first_plan_a_request_for_it_fails() -> None:
    core = make_core()
    lease = core.join(Join(info=node(1)), lease=fresh(), now=0).lease
    assert core.view().plan == 0
    with pytest.raises(HubError, match="no plan yet"):
        core.node_plan(lease, 1)


# inlined manifests by reader


def inlined(core: HubCore, known: int) -> list[int]:
    """Versions of the manifests that are inlined for a reader of a revision."""
    return [a.version for a in core.view(known).lineage if a.inline is not None]


def test_a_returning_reader_gets_only_unseen_manifests() -> None:
    core = make_core()
    token = claim(core)
    revisions = [announce(core, token, manifest(0))]
    revisions += [announce(core, token, manifest(v, v - 1)) for v in (1, 2, 3)]
    assert inlined(core, -1) == [0, 1, 2, 3]
    assert inlined(core, 0) == [0, 1, 2, 3]
    assert inlined(core, revisions[1]) == [2, 3]
    assert inlined(core, revisions[3]) == inlined(core, 99) == []
    assert [a.version for a in core.view(99).lineage] == [0, 1, 2, 3], "the lineage itself is always complete"
    announce(core, token, retire=(core.view().lineage[0].id,))
    core.join(Join(info=node(1)), lease=fresh(), now=0)
    assert inlined(core, revisions[2]) == [3]
    assert core.new_manifests_after(revisions[2]) == 1


def test_manifests_inlined_for_a_returning_reader_are_bounded_in_number_and_bytes() -> None:
    core = make_core()
    token = claim(core)
    announce(core, token, manifest(0), *(manifest(v, v - 1) for v in range(1, 20)))
    assert inlined(core, 0) == list(range(12, 20))
    tight = make_core(new_manifests_bytes=2 * len(manifest(5, 4)))
    announce(tight, claim(tight), manifest(0), *(manifest(v, v - 1) for v in range(1, 20)))
    assert inlined(tight, 0) == [18, 19]
    assert len(inlined(tight, -1)) == 20


def test_co_publishers_are_planned_with_the_trainer_until_another_trainer_claims_the_run() -> None:
    core = make_core()
    token = claim(core)
    for i in range(1, 6):
        role = "trainer" if i < 4 else "actor"
        core.join(Join(info=msgspec.structs.replace(node(i), role=role)), lease=fresh(), now=0)
    task = core.begin_plan(1)
    assert task is not None and not task.co_publishers
    assert {m.info.node for m in task.members} == {node(i).node for i in (1, 4, 5)}
    core.plan_made(Book(1), 1)
    core.announce(Announce(token=token, co_publishers=[node(2).node, node(9).node]), now=0.0)
    task = core.begin_plan(max(2, core.next_plan()))
    assert task is not None and task.co_publishers == {node(2).node}  # the other one is no member
    assert {m.info.node for m in task.members} == {node(i).node for i in (1, 2, 4, 5)}
    core.plan_made(Book(2), 3)
    core.announce(Announce(token=token, note="nothing new of them"), now=0.0)
    assert core.next_plan() == float("inf")
    with pytest.raises(FormatError):
        core.announce(Announce(token=token, co_publishers=["x"]), now=0.0)
    claim(core, epoch=2, claimant=3, now=4)
    task = core.begin_plan(max(5, core.next_plan()))
    assert task is not None and (task.trainer, task.co_publishers) == (node(3).node, frozenset())


def members_of(task: object) -> list[str]:
    """The planned nodes."""
    assert isinstance(task, PlanTask)
    return [member.info.node for member in task.members]


def test_a_suspected_member_that_does_not_return_leaves_the_plan() -> None:
    core, leases = planned_hub()
    core.suspect(leases[1], 2)
    core.expire(2)
    assert core.next_plan() == float("inf") and core.next_expiry() == 2 + SUSPICION_SECONDS
    core.expire(2 + SUSPICION_SECONDS)
    task = core.begin_plan(core.next_plan())
    assert members_of(task) == [TRAINER, node(3).node]
    assert len(core) == 3, "it holds its lease, and is a member"
    core.plan_made(Book(2), 4)
    for there in (lambda: core.heard_from(leases[1], 5), lambda: core.renew(Renew(lease=leases[1]), now=8)):
        there()
        assert node(2).node in members_of(core.begin_plan(core.next_plan()))
        core.plan_made(Book(3), 7)
        core.suspect(leases[1], 7)
        core.expire(8)
        assert node(2).node not in members_of(core.begin_plan(core.next_plan()))
        core.plan_made(Book(4), 8)


def test_a_suspected_member_that_polls_again_stays_in_the_plan() -> None:
    core, leases = planned_hub()
    core.suspect(leases[1], 2)
    assert not core.heard_from(leases[1], 2.5)
    core.expire(9)
    assert core.next_plan() == float("inf")


def test_a_restarted_missing_node_is_planned_for_at_once() -> None:
    core, leases = planned_hub()
    core.suspect(leases[1], 2)
    core.expire(3)
    assert core.begin_plan(core.next_plan()) is not None
    core.plan_made(Book(2), 3)
    core.join(Join(info=node(2)), lease=fresh(), now=4)
    assert node(2).node in members_of(core.begin_plan(core.next_plan()))


def test_an_ended_lease_is_not_suspected() -> None:
    core, leases = planned_hub()
    core.suspect(leases[1], 2)
    core.leave(Leave(lease=leases[1]), now=2.1)
    core.suspect(leases[1], 2.2)
    core.suspect("unknown", 2.2)
    assert core.begin_plan(core.next_plan()) is not None
    core.plan_made(Book(2), 2.3)
    assert core.next_expiry() == 10
    core.expire(9)
    assert core.next_plan() == float("inf")
