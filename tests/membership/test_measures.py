"""What nodes measure: bounds on what they say, how long the hub keeps it, and which changes count."""

from __future__ import annotations

import pytest
from membership_parts import fresh, make_core, node

from p2psync.errors import FormatError
from p2psync.membership.checks import MAX_PATHS, check_measures
from p2psync.membership.measures import changed_much, fell
from p2psync.membership.records import Join, Leave, Measures, Path, Renew
from p2psync.membership.renewal import MAX_REFUSED

PEER = "ab" * 16
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "measures",
    [
        Measures(up=NAN),
        Measures(down=INF),
        Measures(up=-1.0),
        Measures(down=1e7),
        Measures(paths=[Path(PEER, sent=NAN)]),
        Measures(paths=[Path(PEER, received=-0.1)]),
        Measures(paths=[Path(PEER, sent=2e6)]),
        Measures(paths=[Path(PEER, rtt=INF)]),
        Measures(paths=[Path(PEER, rtt=-1.0)]),
        Measures(paths=[Path(PEER, rtt=3601.0)]),
        Measures(paths=[Path(PEER, loss=1.01)]),
        Measures(paths=[Path(PEER, loss=NAN)]),
        Measures(paths=[Path("AB" * 16)]),
        Measures(paths=[Path("ab")]),
        Measures(paths=[Path("../../etc/passwd".ljust(32))]),
        Measures(paths=[Path(PEER), Path(PEER)]),
        Measures(paths=[Path(f"{i:032x}") for i in range(MAX_PATHS + 1)]),
    ],
)
def test_measures_out_of_bounds_are_left_out_in_one_line_and_the_lease_is_renewed(measures: Measures) -> None:
    core = make_core()
    lease = core.join(Join(info=node(1)), lease=fresh(), now=0).lease
    with pytest.raises(FormatError):
        check_measures(measures)
    granted = core.renew(Renew(lease=lease, version=7, measures=measures), now=9)
    assert granted.refused and "\n" not in granted.refused and len(granted.refused) <= MAX_REFUSED
    assert core.expire(18.9) == []
    assert core.view().members[0].version == 7
    for told in core.measures().values():
        check_measures(told)


def test_of_measures_each_figure_is_taken_or_left_out_by_itself() -> None:
    core = make_core()
    lease = core.join(Join(info=node(1)), lease=fresh(), now=0).lease
    good = [Path(f"{i:032x}", sent=float(i)) for i in range(2, 5)]
    bad = [Path(PEER, sent=NAN), Path("ab"), good[0]]
    core.renew(Renew(lease=lease, measures=Measures(up=INF, down=3.0, paths=[*bad, *good])), now=1)
    assert core.measures() == {node(1).node: Measures(0.0, 3.0, [good[0], *good[1:]])}


def test_of_too_many_paths_the_first_are_taken() -> None:
    core = make_core()
    lease = core.join(Join(info=node(1)), lease=fresh(), now=0).lease
    paths = [Path(f"{i:032x}") for i in range(MAX_PATHS + 3)]
    granted = core.renew(Renew(lease=lease, measures=Measures(paths=paths)), now=1)
    assert granted.refused.startswith("3 paths")
    assert core.measures()[node(1).node].paths == paths[:MAX_PATHS]


def test_as_many_measures_as_may_be_are_taken() -> None:
    paths = [Path(f"{i:032x}", 3600.0, 1e6, 1e6, 1.0, True) for i in range(MAX_PATHS)]
    check_measures(Measures(1e6, 1e6, paths))
    check_measures(Measures())


def test_the_hub_keeps_the_last_measures_of_each_member() -> None:
    core = make_core()
    first, second = (core.join(Join(info=node(i)), lease=fresh(), now=0).lease for i in (1, 2))
    core.renew(Renew(lease=first, measures=Measures(up=10.0)), now=1)
    core.renew(Renew(lease=second, measures=Measures(up=20.0)), now=1)
    core.renew(Renew(lease=first), now=2)
    assert core.measures() == {node(1).node: Measures(up=10.0), node(2).node: Measures(up=20.0)}
    core.renew(Renew(lease=first, measures=Measures(down=3.0)), now=3)
    assert core.measures()[node(1).node] == Measures(down=3.0)
    ages = {age.node: (age.up, age.down) for age in core.status(3, 0).ages}
    assert ages == {node(1).node: (0.0, 3.0), node(2).node: (20.0, 0.0)}


def test_measures_go_with_the_lease_and_a_new_instance_begins_without() -> None:
    core = make_core()
    left, again, expired = (core.join(Join(info=node(i)), lease=fresh(), now=0).lease for i in (1, 2, 3))
    for lease in (left, again, expired):
        core.renew(Renew(lease=lease, measures=Measures(up=10.0)), now=1)
    core.leave(Leave(lease=left), now=2)
    core.join(Join(info=node(2)), lease=fresh(), now=2)
    assert list(core.measures()) == [node(3).node]
    core.expire(11)
    assert core.measures() == {}


@pytest.mark.parametrize(
    ("before", "after", "much"),
    [
        (None, Measures(), False),
        (None, Measures(up=1.0), True),
        (Measures(up=100.0), Measures(up=119.0), False),
        (Measures(up=100.0), Measures(up=121.0), True),
        (Measures(down=100.0), Measures(down=80.0), True),
        (Measures(up=0.05), Measures(up=0.1), False),
        (Measures(paths=[Path(PEER, sent=50.0)]), Measures(paths=[Path(PEER, sent=5.0)]), True),
        (Measures(paths=[Path(PEER, received=50.0)]), Measures(paths=[Path(PEER, received=52.0)]), False),
        (Measures(paths=[Path(PEER)]), Measures(paths=[Path(PEER, failed=True)]), True),
        (Measures(), Measures(paths=[Path(PEER, failed=True)]), True),
        (Measures(paths=[Path(PEER, failed=True)]), Measures(paths=[Path(PEER)]), True),
        (Measures(), Measures(paths=[Path(PEER, rtt=0.1)]), True),
        (Measures(paths=[Path(PEER, rtt=0.1)]), Measures(paths=[Path(PEER, rtt=0.2, loss=0.1)]), False),
        (Measures(paths=[Path(PEER, sent=50.0)]), Measures(), False),
    ],
)
def test_a_fifth_counts_and_failing_does(before: Measures | None, after: Measures, much: bool) -> None:
    assert changed_much(before, after) is much


def test_that_a_peer_cannot_be_reached_counts_where_the_plan_has_it() -> None:
    failed = Measures(paths=[Path(PEER, failed=True)])
    works_again = Measures(paths=[Path(PEER, rtt=0.1)])
    for news in (fell, changed_much):
        assert news(None, failed) and news(None, failed, [PEER]) and news(Measures(paths=[Path(PEER)]), failed, [])
        assert not news(None, failed, []), "one that was not told of before, and that nobody counts on"
    assert changed_much(failed, works_again, [])
