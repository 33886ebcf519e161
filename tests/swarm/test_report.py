"""Which paths a node reports to the hub, and when a report changes."""

from __future__ import annotations

from p2psync.swarm.control.config import SAME_USE_SECONDS
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.path_estimates import PathEstimates
from p2psync.swarm.control.report import Reporter


def measured(used_at: float = 0.0) -> PathEstimates:
    """The path to a peer that was sent a megabyte a second."""
    path = PathEstimates(0.01)
    path.sent.raise_to(1e6)
    path.used_at = used_at
    return path


def reporter_of(max_paths: int, **paths: PathEstimates) -> Reporter:
    """The reporter of a node that reports so many paths."""
    estimates = NodeEstimates()
    estimates.paths.update(paths)
    return Reporter(estimates, max_paths)


def reported(reporter: Reporter) -> set[str]:
    return {path.peer for path in reporter.report().paths}


def test_peers_of_the_plan_come_first_then_measured_ones_in_other_regions_then_other_measured_ones() -> None:
    reporter = reporter_of(
        3,
        near=measured(),
        far=measured(),
        planned=PathEstimates(),
        known=PathEstimates(0.1),
        late=measured(2 * SAME_USE_SECONDS),
    )
    for peer in ("far", "known"):
        reporter.set_remote(peer, True)
    reporter.set_planned({"planned"})
    assert reported(reporter) == {"planned", "far", "late"}
    reporter.max_paths = 4
    assert reported(reporter) == {"planned", "far", "late", "near"}


def test_reported_paths_do_not_change_with_the_exact_time_of_use() -> None:
    paths = {"a": measured(), "b": measured(), "c": measured()}
    reporter = reporter_of(2, **paths)
    before = reporter.report()
    for name, at in {"a": 1.0, "b": 3.0, "c": 2.0}.items():
        paths[name].used_at = at
    assert reporter.report() is before


def test_a_failed_dial_is_reported_at_once() -> None:
    reporter = reporter_of(3, a=measured())
    for number in range(10):
        reporter.failed(f"x{number}")
        assert f"x{number}" in reported(reporter)
    assert reported(reporter) == {"a", "x8", "x9"}


def test_a_repeated_failure_changes_no_report() -> None:
    reporter = reporter_of(3, a=measured())
    for number in range(10):
        reporter.failed(f"x{number}")
    before = reporter.report()
    reporter.failed("x0")
    assert reporter.report() is before


def test_a_failed_peer_of_the_plan_is_reported_even_after_the_plan_leaves_it_out() -> None:
    reporter = reporter_of(3)
    for number in range(10):
        reporter.failed(f"x{number}")
    assert "x0" not in reported(reporter)
    reporter.set_planned({"x0", "other"})
    assert "x0" in reported(reporter)
    reporter.set_planned({"other"})
    assert "x0" in reported(reporter), "a plan that no longer hears of it would count on it again"


def test_a_path_that_failed_and_then_opened_the_other_way_stays_failed() -> None:
    estimates = NodeEstimates()
    reporter = Reporter(estimates)
    reporter.failed("x")
    estimates.round_trip("x", 0.02)
    (path,) = reporter.report().paths
    assert (path.failed, path.rtt) == (True, 0.02)
    reporter.opened("x")
    assert not reporter.report().paths[0].failed


def test_failed_dials_are_reported_until_one_succeeds_or_the_peer_leaves() -> None:
    reporter = reporter_of(9, a=measured())
    for peer in ("x", "y"):
        reporter.failed(peer)
    assert [(path.peer, path.failed) for path in reporter.report().paths] == [("a", False), ("x", True), ("y", True)]
    reporter.opened("x")
    assert not reporter.report().paths[1].failed
    reporter.set_members({"a", "x"})
    assert reported(reporter) == {"a", "x"}
