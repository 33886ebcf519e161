"""Which paths a node tells the hub of, where it knows more than one report holds."""

from __future__ import annotations

from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.path_estimates import PathEstimates
from p2psync.swarm.control.report_selection import SAME_TIME, TURN_EVERY


def measured(rate: float = 1e6, used_at: float = 0.0) -> PathEstimates:
    """The way to a peer that was sent so many bytes a second."""
    path = PathEstimates(rtt=0.01, used_at=used_at)
    path.sent.gave(rate)
    return path


def told(estimates: NodeEstimates) -> set[str]:
    """Peers that the hub is told of."""
    return {path.peer for path in estimates.statistics().paths}


def estimates_of(most: int, **paths: PathEstimates) -> NodeEstimates:
    """The estimates of a node that tells of so many paths."""
    estimates = NodeEstimates()
    estimates.most_told = most
    estimates.paths.update(paths)
    return estimates


def test_peers_of_the_plan_come_first_then_measured_ones_in_other_regions_then_other_measured_ones() -> None:
    estimates = estimates_of(
        3, near=measured(), far=measured(), planned=PathEstimates(), known=PathEstimates(rtt=0.1), late=measured()
    )
    estimates.regions = {"far": "asia", "known": "asia"}
    estimates.planned = frozenset({"planned"})
    estimates.paths["late"].used_at = 2 * SAME_TIME
    assert told(estimates) == {"planned", "far", "late"}
    estimates.most_told = 4
    assert told(estimates) == {"planned", "far", "late", "near"}


def test_told_paths_do_not_change_with_the_exact_time_of_use() -> None:
    estimates = estimates_of(2, a=measured(), b=measured(), c=measured())
    before = estimates.statistics()
    for name, at in {"a": 1.0, "b": 3.0, "c": 2.0}.items():
        estimates.paths[name].used_at = at
    assert estimates.statistics() is before


def test_a_failed_dial_is_told_at_once() -> None:
    estimates = estimates_of(3, a=measured())
    for number in range(10):
        estimates.failed(f"x{number}")
        assert f"x{number}" in told(estimates)
    assert told(estimates) == {"a", "x8", "x9"}


def test_all_that_cannot_be_dialled_are_told_of_in_time_and_few_of_them_change_at_a_time() -> None:
    estimates = estimates_of(9, a=measured())
    names = {f"x{number:03}" for number in range(50)}
    for name in sorted(names):
        estimates.failed(name)
    heard, before, now = set(), told(estimates), 0.0
    for _ in range(50):
        estimates.turn(now)
        estimates.turn(now + TURN_EVERY / 2)
        after = told(estimates)
        assert "a" in after and len(after) == 9 and len(after - before) <= 2
        heard |= after
        before, now = after, now + TURN_EVERY
        for name in sorted(names):
            estimates.failed(name)  # dialled again in vain: no news
    assert heard == names | {"a"}


def test_a_peer_of_the_plan_that_cannot_be_dialled_is_told_of_also_once_the_plan_does_without_it() -> None:
    estimates = estimates_of(3)
    for number in range(10):
        estimates.failed(f"x{number}")
    assert "x0" not in told(estimates)
    estimates.planned = frozenset({"x0", "other"})
    estimates.turn(0.0)
    assert "x0" in told(estimates)
    estimates.planned = frozenset({"other"})
    estimates.turn(1.0)
    assert "x0" in told(estimates), "a plan that hears of it no more would count on it again"


def test_a_path_that_failed_and_then_opened_the_other_way_keeps_that_it_failed() -> None:
    estimates = estimates_of(4)
    estimates.failed("x")
    estimates.round_trip("x", 0.02)
    (path,) = estimates.statistics().paths
    assert (path.failed, path.rtt) == (True, 0.02)
    estimates.failed("x", False)
    assert not estimates.statistics().paths[0].failed
