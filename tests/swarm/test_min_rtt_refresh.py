"""When the paths that carry a long transfer begin anew."""

from __future__ import annotations

from p2psync.swarm.control.min_rtt_refresh import BY, FROM, HELD, LEAST, TRIPS, MinRttRefresh

LOOK = 0.25


def run(renewals: MinRttRefresh, paths: int, seconds: float, begin: float = 0.0) -> dict[float, list[str]]:
    """Who began anew when, on paths that carry all the time."""
    came = {str(i): 1000.0 for i in range(paths)}
    found = {}
    for k in range(1, round(seconds / LOOK) + 1):
        now = begin + k * LOOK
        if names := renewals.due(came, dict.fromkeys(came, 0.02), LOOK, now):
            found[now] = names
    return found


def test_paths_that_began_together_begin_anew_one_after_the_other_before_they_are_ten_seconds_old() -> None:
    renewals = MinRttRefresh()
    renewals.begun([str(i) for i in range(8)], 0.0)
    found = run(renewals, 8, 9.0)
    assert min(found) == FROM
    assert max(found) <= BY
    assert all(len(names) == 1 for names in found.values())
    assert len(found) == 8


def test_of_many_paths_some_restart_at_a_time_so_that_all_have_in_time() -> None:
    renewals = MinRttRefresh()
    renewals.begun([str(i) for i in range(100)], 0.0)
    found = run(renewals, 100, 9.0)
    assert sum(map(len, found.values())) == 100
    assert max(map(len, found.values())) == 9


def test_a_path_restarts_again_and_again_while_chunks_wait() -> None:
    assert list(run(MinRttRefresh(), 1, 20.0)) == [LOOK + FROM, LOOK + 2 * FROM, LOOK + 3 * FROM]


def test_a_path_on_which_nothing_waits_does_not_restart() -> None:
    renewals = MinRttRefresh()
    renewals.begun(["idle"], 0.0)
    assert renewals.due({"busy": 5.0}, {"busy": 0.1}, LOOK, 9.0) == []


def test_a_path_that_restarts_is_paced_at_its_best_recent_rate() -> None:
    renewals = MinRttRefresh()
    renewals.begun(["a"], 0.0)
    renewals.due({"a": 900.0}, {"a": 0.2}, LOOK, FROM - LOOK)
    assert renewals.due({"a": 1000.0}, {"a": 0.2}, LOOK, FROM) == ["a"]
    assert renewals.limits(FROM + 0.1) == {"a": HELD * 1000.0}
    assert renewals.limits(FROM + TRIPS * 0.2) == {}
    assert TRIPS * 0.2 > LEAST


def test_paths_of_former_children_are_forgotten() -> None:
    renewals = MinRttRefresh()
    renewals.begun(["a"], 0.0)
    renewals.due({"a": 900.0}, {"a": 0.2}, LOOK, FROM)
    renewals.keep(["b"])
    assert renewals.limits(FROM) == {}
    assert renewals.due({"a": 900.0}, {"a": 0.2}, LOOK, FROM + LOOK) == []
