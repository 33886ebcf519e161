"""How many connections: more where losses limit one, fewer where more did not help; with BBR a fixed number."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from p2psync.protocol.messages import MAX_STREAMS
from p2psync.swarm.control.config import StreamPolicyConfig
from p2psync.swarm.control.path_estimates import PathEstimates
from p2psync.swarm.control.stream_policy import StreamPolicy

MBIT = 125_000
CONFIG = StreamPolicyConfig()
TICK = 0.25


def drive(
    policy: StreamPolicy,
    rate: Callable[[int], float],
    seconds: float,
    *,
    loss: Callable[[int], float] = lambda streams: 0.005,
    rtt: float = 0.15,
    begin: float = 0.0,
) -> list[int]:
    """Connections over time, on a path that gives `rate(connections)` Mbit/s and loses `loss(connections)`."""
    path, streams, seen = PathEstimates(rtt), policy.wanted("p"), []
    path.network_limited_since = begin
    for tick in range(round(seconds / TICK)):
        path.sending = rate(streams) * MBIT
        path.losses.sent, path.losses.retransmitted = 1e7, 1e7 * loss(streams)
        streams = policy.observe("p", streams, path, TICK, begin + tick * TICK)
        seen.append(streams)
    return seen


def mathis(loss: float, rtt: float) -> float:
    """Mbit/s of one connection."""
    return 1.22 * 1448 / (rtt * math.sqrt(loss)) / MBIT


def test_cubic_with_losses_gets_as_many_connections_as_reach_the_rate_of_the_path() -> None:
    each = mathis(0.005, 0.15)
    seen = drive(StreamPolicy("cubic"), lambda streams: min(8.0, streams * each), 30)
    assert seen[0] == 2
    assert 0.95 * 8.0 / each <= seen[-1] <= 2.5 * 8.0 / each
    assert len(set(seen[-80:])) == 1


def test_a_path_that_the_most_connections_do_not_fill_keeps_the_most() -> None:
    each = mathis(0.01, 0.08)
    seen = drive(StreamPolicy("cubic"), lambda streams: streams * each, 30, loss=lambda streams: 0.01, rtt=0.08)
    assert seen[-1] == MAX_STREAMS


def test_a_far_planned_path_gets_its_connections_before_anything_is_sent() -> None:
    policy, path = StreamPolicy("cubic"), PathEstimates(rtt=0.15)
    policy.expect("p", path, 8.0 * MBIT)
    assert 8.0 / mathis(CONFIG.assumed_loss, 0.15) <= policy.wanted("p") <= 2 * 8.0 / mathis(CONFIG.assumed_loss, 0.15)
    path.losses.sent, path.losses.retransmitted = 1e7, 1e4
    policy.expect("q", path, 8.0 * MBIT)
    assert 8.0 / mathis(0.001, 0.15) <= policy.wanted("q") <= 2 * 8.0 / mathis(0.001, 0.15)
    policy.expect("unplanned", path, 0.0)
    assert policy.wanted("unplanned") == CONFIG.unplanned


def test_near_paths_and_those_of_bbr_keep_the_first_number_whatever_the_plan_sends() -> None:
    cubic, bbr = StreamPolicy("cubic"), StreamPolicy("bbr")
    cubic.expect("near", PathEstimates(rtt=0.001), 100.0 * MBIT)
    bbr.expect("far", PathEstimates(rtt=0.15), 100.0 * MBIT)
    assert cubic.wanted("near") == bbr.wanted("far") == 2


def test_a_share_of_a_path_gets_fewer_connections_than_the_whole_path_had() -> None:
    policy, each = StreamPolicy("cubic"), mathis(0.005, 0.15)
    found = drive(policy, lambda streams: min(20.0, streams * each), 30)[-1]
    path = PathEstimates(rtt=0.15)
    path.losses.sent, path.losses.retransmitted = 1e7, 1e7 * 0.005
    policy.expect("p", path, 20.0 * MBIT)
    assert found <= policy.wanted("p") <= 1.3 * found, "the number found for about that rate stays"
    policy.expect("p", path, 5.0 * MBIT)
    assert 5.0 / each <= policy.wanted("p") <= 2 * 5.0 / each
    path.network_limited_since = 40.0
    policy.expect("p", path, 1.0 * MBIT)
    assert policy.wanted("p") >= 5.0 / each, "none is closed while the path is saturated"


def test_connections_with_few_packets_in_flight_do_not_become_more() -> None:
    # A path of 10 Mbit/s and 80 ms holds 69 packets: 32 connections would have two each.
    seen = drive(
        StreamPolicy("cubic"), lambda streams: 9.0 + 0.1 * streams, 60, loss=lambda streams: 0.01 * streams, rtt=0.08
    )
    assert max(seen) * CONFIG.min_window * 1448 <= 1.3 * 10.0 * MBIT * 0.08


def test_stream_policy_takes_back_streams_that_did_not_help() -> None:
    seen = drive(StreamPolicy("cubic"), lambda streams: 20.0, CONFIG.pause_seconds - 5)
    assert max(seen) > 2
    assert seen[-1] == 2
    assert sum(b > a for a, b in itertools.pairwise(seen)) == 1


def test_stream_policy_tries_no_more_streams_without_loss() -> None:
    assert set(drive(StreamPolicy("cubic"), lambda streams: 20.0, 30, loss=lambda streams: 0.0)) == {2}


def test_stream_policy_leaves_idle_peers_alone() -> None:
    policy = StreamPolicy("cubic")
    path = PathEstimates(rtt=0.1)
    path.losses.sent, path.losses.retransmitted = 1e7, 1e5
    assert {policy.observe("p", 2, path, TICK, now * TICK) for now in range(100)} == {2}


def test_stream_policy_keeps_the_first_number_with_bbr() -> None:
    for loss in (0.005, 0.3):
        assert set(drive(StreamPolicy("bbr"), lambda streams: 20.0, 30, loss=lambda streams, x=loss: x)) == {2}  # type: ignore[misc]


@pytest.mark.parametrize("first", [1, 4])
def test_stream_policy_starts_with_the_given_number(first: int) -> None:
    policy = StreamPolicy("cubic", first)
    assert policy.wanted("p") == first
    drive(policy, lambda streams: 5.0 * streams, 10)
    assert policy.wanted("p") > first
    policy.forget("p")
    assert policy.wanted("p") == first
