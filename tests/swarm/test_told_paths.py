"""Which paths a node tells the hub of, where it knows more than one report holds."""

from __future__ import annotations

from p2psync.swarm.control.gauge import Gauge
from p2psync.swarm.control.gauges import Gauges
from p2psync.swarm.control.told_paths import SAME_TIME, TURN_EVERY


def measured(rate: float = 1e6, used_at: float = 0.0) -> Gauge:
    """The way to a peer that was sent so many bytes a second."""
    gauge = Gauge(rtt=0.01, used_at=used_at)
    gauge.sent.gave(rate)
    return gauge


def told(gauges: Gauges) -> set[str]:
    """Peers that the hub is told of."""
    return {path.peer for path in gauges.statistics().paths}


def gauges_of(most: int, **paths: Gauge) -> Gauges:
    """The gauges of a node that tells of so many paths."""
    gauges = Gauges()
    gauges.most_told = most
    gauges.paths.update(paths)
    return gauges


def test_peers_of_the_plan_come_first_then_measured_ones_in_other_regions_then_other_measured_ones() -> None:
    gauges = gauges_of(3, near=measured(), far=measured(), planned=Gauge(), known=Gauge(rtt=0.1), late=measured())
    gauges.regions = {"far": "asia", "known": "asia"}
    gauges.planned = frozenset({"planned"})
    gauges.paths["late"].used_at = 2 * SAME_TIME
    assert told(gauges) == {"planned", "far", "late"}
    gauges.most_told = 4
    assert told(gauges) == {"planned", "far", "late", "near"}


def test_told_paths_do_not_change_with_the_exact_time_of_use() -> None:
    gauges = gauges_of(2, a=measured(), b=measured(), c=measured())
    before = gauges.statistics()
    for name, at in {"a": 1.0, "b": 3.0, "c": 2.0}.items():
        gauges.paths[name].used_at = at
    assert gauges.statistics() is before


def test_a_failed_dial_is_told_at_once() -> None:
    gauges = gauges_of(3, a=measured())
    for number in range(10):
        gauges.failed(f"x{number}")
        assert f"x{number}" in told(gauges)
    assert told(gauges) == {"a", "x8", "x9"}


def test_all_that_cannot_be_dialled_are_told_of_in_time_and_few_of_them_change_at_a_time() -> None:
    gauges = gauges_of(9, a=measured())
    names = {f"x{number:03}" for number in range(50)}
    for name in sorted(names):
        gauges.failed(name)
    heard, before, now = set(), told(gauges), 0.0
    for _ in range(50):
        gauges.turn(now)
        gauges.turn(now + TURN_EVERY / 2)
        after = told(gauges)
        assert "a" in after and len(after) == 9 and len(after - before) <= 2
        heard |= after
        before, now = after, now + TURN_EVERY
        for name in sorted(names):
            gauges.failed(name)  # dialled again in vain: no news
    assert heard == names | {"a"}


def test_a_peer_of_the_plan_that_cannot_be_dialled_is_told_of_also_once_the_plan_does_without_it() -> None:
    gauges = gauges_of(3)
    for number in range(10):
        gauges.failed(f"x{number}")
    assert "x0" not in told(gauges)
    gauges.planned = frozenset({"x0", "other"})
    gauges.turn(0.0)
    assert "x0" in told(gauges)
    gauges.planned = frozenset({"other"})
    gauges.turn(1.0)
    assert "x0" in told(gauges), "a plan that hears of it no more would count on it again"


def test_a_path_that_failed_and_then_opened_the_other_way_keeps_that_it_failed() -> None:
    gauges = gauges_of(4)
    gauges.failed("x")
    gauges.round_trip("x", 0.02)
    (path,) = gauges.statistics().paths
    assert (path.failed, path.rtt) == (True, 0.02)
    gauges.failed("x", False)
    assert not gauges.statistics().paths[0].failed
