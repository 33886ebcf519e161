"""Network statistics: their bounds, how long the hub keeps them, and which changes count."""

from __future__ import annotations

import pytest
from membership_parts import fresh, make_core, node

from p2psync.errors import FormatError
from p2psync.membership.checks import MAX_PATHS, check_statistics
from p2psync.membership.records import Join, Leave, NodeStatistics, PathStatistics, Renew
from p2psync.membership.renewal import MAX_REFUSED
from p2psync.membership.statistics_changes import changed_substantially, has_degraded

PEER = "ab" * 16
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "statistics",
    [
        NodeStatistics(up=NAN),
        NodeStatistics(down=INF),
        NodeStatistics(up=-1.0),
        NodeStatistics(down=1e7),
        NodeStatistics(paths=[PathStatistics(PEER, sent=NAN)]),
        NodeStatistics(paths=[PathStatistics(PEER, received=-0.1)]),
        NodeStatistics(paths=[PathStatistics(PEER, sent=2e6)]),
        NodeStatistics(paths=[PathStatistics(PEER, rtt=INF)]),
        NodeStatistics(paths=[PathStatistics(PEER, rtt=-1.0)]),
        NodeStatistics(paths=[PathStatistics(PEER, rtt=3601.0)]),
        NodeStatistics(paths=[PathStatistics(PEER, loss=1.01)]),
        NodeStatistics(paths=[PathStatistics(PEER, loss=NAN)]),
        NodeStatistics(paths=[PathStatistics("AB" * 16)]),
        NodeStatistics(paths=[PathStatistics("ab")]),
        NodeStatistics(paths=[PathStatistics("../../etc/passwd".ljust(32))]),
        NodeStatistics(paths=[PathStatistics(PEER), PathStatistics(PEER)]),
        NodeStatistics(paths=[PathStatistics(f"{i:032x}") for i in range(MAX_PATHS + 1)]),
    ],
)
def test_statistics_out_of_bounds_are_dropped_in_one_line_and_the_lease_is_renewed(statistics: NodeStatistics) -> None:
    core = make_core()
    lease = core.join(Join(info=node(1)), lease=fresh(), now=0).lease
    with pytest.raises(FormatError):
        check_statistics(statistics)
    granted = core.renew(Renew(lease=lease, version=7, statistics=statistics), now=9)
    assert granted.refused and "\n" not in granted.refused and len(granted.refused) <= MAX_REFUSED
    assert core.expire(18.9) == []
    assert core.view().members[0].version == 7
    for reported in core.statistics().values():
        check_statistics(reported)


def test_each_figure_of_statistics_is_accepted_or_dropped_on_its_own() -> None:
    core = make_core()
    lease = core.join(Join(info=node(1)), lease=fresh(), now=0).lease
    good = [PathStatistics(f"{i:032x}", sent=float(i)) for i in range(2, 5)]
    bad = [PathStatistics(PEER, sent=NAN), PathStatistics("ab"), good[0]]
    core.renew(Renew(lease=lease, statistics=NodeStatistics(up=INF, down=3.0, paths=[*bad, *good])), now=1)
    assert core.statistics() == {node(1).node: NodeStatistics(0.0, 3.0, [good[0], *good[1:]])}


def test_of_too_many_paths_the_first_are_accepted() -> None:
    core = make_core()
    lease = core.join(Join(info=node(1)), lease=fresh(), now=0).lease
    paths = [PathStatistics(f"{i:032x}") for i in range(MAX_PATHS + 3)]
    granted = core.renew(Renew(lease=lease, statistics=NodeStatistics(paths=paths)), now=1)
    assert granted.refused.startswith("3 paths")
    assert core.statistics()[node(1).node].paths == paths[:MAX_PATHS]


def test_statistics_of_the_greatest_size_are_accepted() -> None:
    paths = [PathStatistics(f"{i:032x}", 3600.0, 1e6, 1e6, 1.0, True) for i in range(MAX_PATHS)]
    check_statistics(NodeStatistics(1e6, 1e6, paths))
    check_statistics(NodeStatistics())


def test_the_hub_keeps_each_members_last_statistics() -> None:
    core = make_core()
    first, second = (core.join(Join(info=node(i)), lease=fresh(), now=0).lease for i in (1, 2))
    core.renew(Renew(lease=first, statistics=NodeStatistics(up=10.0)), now=1)
    core.renew(Renew(lease=second, statistics=NodeStatistics(up=20.0)), now=1)
    core.renew(Renew(lease=first), now=2)
    assert core.statistics() == {node(1).node: NodeStatistics(up=10.0), node(2).node: NodeStatistics(up=20.0)}
    core.renew(Renew(lease=first, statistics=NodeStatistics(down=3.0)), now=3)
    assert core.statistics()[node(1).node] == NodeStatistics(down=3.0)
    ages = {age.node: (age.up, age.down) for age in core.status(3, 0).ages}
    assert ages == {node(1).node: (0.0, 3.0), node(2).node: (20.0, 0.0)}


def test_statistics_end_with_the_lease_and_with_the_hubs_instance() -> None:
    core = make_core()
    left, again, expired = (core.join(Join(info=node(i)), lease=fresh(), now=0).lease for i in (1, 2, 3))
    for lease in (left, again, expired):
        core.renew(Renew(lease=lease, statistics=NodeStatistics(up=10.0)), now=1)
    core.leave(Leave(lease=left), now=2)
    core.join(Join(info=node(2)), lease=fresh(), now=2)
    assert list(core.statistics()) == [node(3).node]
    core.expire(11)
    assert core.statistics() == {}


@pytest.mark.parametrize(
    ("before", "after", "much"),
    [
        (None, NodeStatistics(), False),
        (None, NodeStatistics(up=1.0), True),
        (NodeStatistics(up=100.0), NodeStatistics(up=119.0), False),
        (NodeStatistics(up=100.0), NodeStatistics(up=121.0), True),
        (NodeStatistics(down=100.0), NodeStatistics(down=80.0), True),
        (NodeStatistics(up=0.05), NodeStatistics(up=0.1), False),
        (
            NodeStatistics(paths=[PathStatistics(PEER, sent=50.0)]),
            NodeStatistics(paths=[PathStatistics(PEER, sent=5.0)]),
            True,
        ),
        (
            NodeStatistics(paths=[PathStatistics(PEER, received=50.0)]),
            NodeStatistics(paths=[PathStatistics(PEER, received=52.0)]),
            False,
        ),
        (NodeStatistics(paths=[PathStatistics(PEER)]), NodeStatistics(paths=[PathStatistics(PEER, failed=True)]), True),
        (NodeStatistics(), NodeStatistics(paths=[PathStatistics(PEER, failed=True)]), True),
        (NodeStatistics(paths=[PathStatistics(PEER, failed=True)]), NodeStatistics(paths=[PathStatistics(PEER)]), True),
        (NodeStatistics(), NodeStatistics(paths=[PathStatistics(PEER, rtt=0.1)]), True),
        (
            NodeStatistics(paths=[PathStatistics(PEER, rtt=0.1)]),
            NodeStatistics(paths=[PathStatistics(PEER, rtt=0.2, loss=0.1)]),
            False,
        ),
        (NodeStatistics(paths=[PathStatistics(PEER, sent=50.0)]), NodeStatistics(), False),
    ],
)
def test_a_change_by_a_fifth_or_a_failure_is_substantial(
    before: NodeStatistics | None, after: NodeStatistics, much: bool
) -> None:
    assert changed_substantially(before, after) is much


def test_a_failed_path_is_substantial_only_if_the_plan_uses_it() -> None:
    failed = NodeStatistics(paths=[PathStatistics(PEER, failed=True)])
    works_again = NodeStatistics(paths=[PathStatistics(PEER, rtt=0.1)])
    for is_change in (has_degraded, changed_substantially):
        assert (
            is_change(None, failed)
            and is_change(None, failed, [PEER])
            and is_change(NodeStatistics(paths=[PathStatistics(PEER)]), failed, [])
        )
        assert not is_change(None, failed, []), "a new failure of a path that no plan uses"
    assert changed_substantially(failed, works_again, [])
