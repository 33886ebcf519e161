"""What connections' counters show: rates that lasted, changes, loss, round trips, and what is no measure."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest

from p2psync.swarm.control.estimators import WindowedMax
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.tcp_sample import TcpSample

MBIT = 125_000
TICK = 0.25


class Feed:
    """Estimates fed by connections of given rates (Mbit/s), one of each peer unless told otherwise."""

    def __init__(self) -> None:
        self.estimates = NodeEstimates()
        self.now = 0.0
        self.counters: dict[Hashable, TcpSample] = {}
        self.junk: set[str] = set()

    def run(
        self,
        seconds: float,
        sent: dict[str, float] | None = None,
        received: dict[str, float] | None = None,
        *,
        pressed: bool = True,
        loss: float = 0.0,
        rtt: float = 0.02,
        held: bool = False,
        dry: bool = False,
        limit: float = 0.0,
        tick: float = TICK,
    ) -> NodeEstimates:
        sent, received = sent or {}, received or {}
        for _ in range(round(seconds / tick)):
            self.now += tick
            for peer in {*sent, *received}:
                before = self.counters.get(peer, TcpSample(peer))
                out = int(sent.get(peer, 0) * MBIT * tick)
                self.counters[peer] = TcpSample(
                    peer,
                    delivered=before.delivered + out,
                    received=before.received + int(received.get(peer, 0) * MBIT * tick),
                    sent=before.sent + out,
                    retransmitted=before.retransmitted + int(out * loss),
                    backlog=int(pressed and peer in sent),
                    rtt=rtt,
                    rwnd_limited=before.rwnd_limited + tick * held,
                    app_limited=before.app_limited + dry,
                    pacing_limit=limit * MBIT,
                )
            self.estimates.read(dict(self.counters), self.now, self.junk)
        return self.estimates


def mbit(best: WindowedMax) -> float:
    return best.value / MBIT


def test_a_pressed_path_has_the_rate_that_it_gave() -> None:
    estimates = Feed().run(3, {"a": 50, "b": 20}, {"a": 10})
    assert mbit(estimates.paths["a"].sent) == pytest.approx(50)
    assert mbit(estimates.paths["b"].sent) == pytest.approx(20)
    assert mbit(estimates.paths["a"].received) == pytest.approx(10)
    assert mbit(estimates.up) == pytest.approx(70)
    assert mbit(estimates.down) == pytest.approx(10)


def test_the_hub_is_told_of_a_downlink_only_once_it_is_sure() -> None:
    estimates = Feed().run(3, {"a": 50}, {"a": 10})
    told = estimates.statistics(down_sure=False)
    assert (told.up, told.down) == (50, 0)
    assert estimates.statistics().down == 10


def test_what_is_not_pressed_or_is_held_up_by_the_peer_is_no_measure() -> None:
    assert Feed().run(3, {"a": 50}, pressed=False).paths["a"].sent.value == 0
    assert Feed().run(3, {"a": 50}, held=True).paths["a"].sent.value == 0


def test_a_flow_that_runs_dry_between_two_readings_is_no_measure() -> None:
    feed = Feed()
    assert feed.run(3, {"a": 10}, dry=True).paths["a"].sent.value == 0
    assert mbit(feed.run(3, {"a": 10}).paths["a"].sent) == pytest.approx(10, rel=0.05)


def test_a_path_that_changed_tells_what_is_left_until_it_gives_a_good_deal_more() -> None:
    feed = Feed()
    feed.run(5, {"a": 80, "b": 10})
    feed.run(3, {"a": 8, "b": 10})
    (a, b) = feed.estimates.statistics().paths
    assert a.degraded_to == pytest.approx(0.1, rel=0.1)
    assert b.degraded_to == 0
    feed.run(3, {"a": 12, "b": 10})
    assert feed.estimates.statistics().paths[0].degraded_to == a.degraded_to
    feed.run(3, {"a": 40, "b": 10})
    assert feed.estimates.statistics().paths[0].degraded_to == 0


def test_one_who_sends_all_that_he_may_refutes_nothing_and_one_who_gives_less_does() -> None:
    feed = Feed()
    feed.run(3, {"a": 50})
    assert mbit(feed.run(120, {"a": 10}, limit=10).paths["a"].sent) == pytest.approx(50)
    assert not feed.estimates.paths["a"].degraded_to
    assert mbit(feed.run(3, {"a": 60}, limit=60).paths["a"].sent) == pytest.approx(60), "what came through is a rate"
    assert feed.run(5, {"a": 5}, limit=10).paths["a"].degraded_to


def test_messages_without_chunks_measure_no_path() -> None:
    assert Feed().run(3, received={"a": 0.3}).paths["a"].received.value == 0


def test_a_burst_that_does_not_last_is_no_rate() -> None:
    feed = Feed()
    feed.run(2, {"a": 10})
    feed.run(0.25, {"a": 200})
    feed.run(2, {"a": 10})
    assert mbit(feed.estimates.paths["a"].sent) < 110  # over half a second and more
    feed = Feed()
    feed.run(0.5, {"a": 200})
    assert feed.estimates.paths["a"].sent.value == 0


def test_what_comes_at_once_when_a_hole_is_filled_is_not_faster() -> None:
    """Receiving at 20 Mbit/s, in order only in lumps: 0.4 s of nothing, then all of it."""
    best = WindowedMax()
    for i in range(40):
        best.add(int(20 * MBIT * 0.5) if i % 5 == 4 else 0, 0.1)
    assert mbit(best) <= 20 * 1.01


def test_what_seems_to_arrive_faster_than_it_left_is_no_faster() -> None:
    """Sending at 5 Mbit/s, while the word of what arrived waited 0.2 s, and then does not any more."""
    best = WindowedMax()
    for i in range(30):
        best.add(int((5 if i < 10 or i >= 16 else 5 * 8 / 6) * MBIT * 0.1), 0.1, left=int(5 * MBIT * 0.1))
    assert mbit(best) == pytest.approx(5, rel=0.01)


def test_what_leaves_faster_than_it_arrives_fills_queues_and_is_no_faster() -> None:
    best = WindowedMax()
    for _ in range(20):
        best.add(int(5 * MBIT * 0.1), 0.1, left=int(8 * MBIT * 0.1))
    assert mbit(best) == pytest.approx(5, rel=0.01)


def test_figures_are_told_to_three_digits() -> None:
    assert Feed().run(2, {"b": 19.54}).statistics().up == 19.5


def test_a_ramp_does_not_hide_the_rate_that_it_leads_to() -> None:
    best = WindowedMax()
    for i in range(20):
        best.add(int(min(80, 2 * 2**i) * MBIT * 0.1), 0.1)
    assert mbit(best) == pytest.approx(80, rel=0.01)


def test_a_path_cut_to_a_tenth_shows_within_three_seconds() -> None:
    feed = Feed()
    feed.run(10, {"a": 50, "b": 20})
    feed.run(3, {"a": 5, "b": 20})
    assert mbit(feed.estimates.paths["a"].sent) == pytest.approx(5)
    assert mbit(feed.estimates.paths["b"].sent) == pytest.approx(20)
    feed.run(3, {"a": 50, "b": 20})
    assert mbit(feed.estimates.paths["a"].sent) == pytest.approx(50)


def test_a_path_that_gives_a_tenth_is_found_out_in_a_second_and_a_half_and_not_a_second_time() -> None:
    feed = Feed()
    feed.estimates.expected = {"a": 40 * MBIT}
    feed.run(5, {"a": 40})
    feed.estimates.statistics()
    feed.run(1.5, {"a": 4})
    assert feed.estimates.fell
    assert feed.estimates.statistics().paths[0].degraded_to == pytest.approx(0.1, rel=0.3)
    assert not feed.estimates.fell, "until it is asked for"
    feed.run(5, {"a": 4})
    assert not feed.estimates.fell, "the plan still expects what was before"
    feed.estimates.expected = {"a": 4 * MBIT}
    feed.run(5, {"a": 4})
    feed.run(1.5, {"a": 0.4})
    assert feed.estimates.fell
    feed.run(3, {"a": 4})
    feed.estimates.statistics()
    feed.run(1.5, {"a": 0.4})
    assert feed.estimates.fell, "it had risen again meanwhile"


@pytest.mark.parametrize(("rtt", "fell"), [(0.02, True), (0.65, False)])
def test_a_far_path_that_gives_little_while_one_loss_is_repaired_is_not_taken_for_changed(
    rtt: float, fell: bool
) -> None:
    feed = Feed()
    feed.estimates.expected = {"a": 40 * MBIT}
    feed.run(10, {"a": 40}, rtt=rtt)
    feed.run(2, {"a": 4}, rtt=rtt)
    assert feed.estimates.fell is fell
    feed.run(3, {"a": 4}, rtt=rtt)
    assert feed.estimates.fell, "it stays slow"


def test_what_is_left_of_a_path_is_what_it_gives_in_the_end_and_not_as_it_falls() -> None:
    feed = Feed()
    feed.estimates.expected = {"a": 40 * MBIT}
    feed.run(5, {"a": 40})
    feed.run(0.75, {"a": 11})
    for _ in range(8):
        if not feed.estimates.fell:
            feed.run(0.25, {"a": 4})
    assert feed.estimates.fell
    assert feed.estimates.statistics().paths[0].degraded_to == pytest.approx(0.1, abs=0.05)


def test_a_path_that_gives_nothing_any_more_has_fallen_and_does_not_pass_for_one_that_has_not() -> None:
    feed = Feed()
    feed.estimates.expected = {"a": 40 * MBIT}
    feed.run(5, {"a": 40})
    feed.run(2, {"a": 0})
    assert feed.estimates.fell
    (path,) = feed.estimates.statistics().paths
    assert 0 < path.degraded_to <= 0.01
    assert 0 < path.sent <= 0.4, "0 would say that nothing is known of it"
    feed.run(5, {"a": 0})
    assert not feed.estimates.fell, "there is no less than nothing"
    feed.run(3, {"a": 40})
    assert feed.estimates.statistics().paths[0].degraded_to == 0


def test_a_path_that_only_carries_what_was_lost_as_it_was_cut_gives_as_much_as_arrives() -> None:
    feed = Feed()
    feed.estimates.expected = {"a": 40 * MBIT}
    feed.run(5, {"a": 40})
    feed.run(2, {"a": 4}, loss=1.0)
    assert feed.estimates.statistics().paths[0].degraded_to == pytest.approx(0.1, rel=0.01)


def test_a_pause_of_a_second_is_no_fall() -> None:
    feed = Feed()
    feed.estimates.expected = {"a": 40 * MBIT}
    for _ in range(5):
        feed.run(3, {"a": 40})
        feed.run(1, {"a": 0})
    assert not feed.estimates.fell


def test_a_link_that_empties_all_that_waits_between_two_looks_was_not_slow() -> None:
    feed = Feed()
    feed.run(10, {"far": 19}, rtt=0.1)
    feed.run(5, {"far": 0}, pressed=False)
    feed.run(0.4, {"near": 900}, pressed=False, rtt=0.0001, tick=0.1)
    assert mbit(feed.estimates.up) == pytest.approx(900)
    assert feed.estimates.paths["near"].sent.value == 0


def test_an_uplink_cut_to_a_tenth_is_not_blamed_on_the_paths() -> None:
    feed = Feed()
    feed.run(10, {"a": 50, "b": 20})
    feed.run(4, {"a": 5, "b": 2})
    assert mbit(feed.estimates.up) == pytest.approx(7)
    assert mbit(feed.estimates.paths["a"].sent) == pytest.approx(50)
    assert mbit(feed.estimates.paths["b"].sent) == pytest.approx(20)


def test_a_link_cut_to_a_tenth_is_not_blamed_on_the_uplink_though_all_that_is_pressed_goes_there() -> None:
    feed = Feed()
    feed.estimates.regions.update(a="there", b="there", c="elsewhere")
    feed.run(10, {"a": 50, "b": 20})
    estimates = feed.run(4, {"a": 5, "b": 2})
    assert mbit(estimates.up) == pytest.approx(70)
    assert [path.degraded_to for path in estimates.statistics().paths] == [pytest.approx(0.1), pytest.approx(0.1)]


def test_an_uplink_cut_to_a_tenth_shows_in_ways_to_several_regions() -> None:
    feed = Feed()
    feed.estimates.regions.update(a="there", b="elsewhere")
    feed.run(10, {"a": 50, "b": 20})
    estimates = feed.run(4, {"a": 5, "b": 2})
    assert mbit(estimates.up) == pytest.approx(7)
    assert not any(path.degraded_to for path in estimates.statistics().paths)


def test_sharing_an_uplink_makes_no_path_slow() -> None:
    feed = Feed()
    feed.run(2, {"a": 100})
    feed.run(90, dict.fromkeys("abcdefghijkl", 100 / 12))
    assert mbit(feed.estimates.paths["a"].sent) == pytest.approx(100)
    assert mbit(feed.estimates.up) == pytest.approx(100, rel=0.01)


def test_junk_that_hardly_comes_through_refutes_nothing() -> None:
    feed = Feed()
    feed.run(3, {"a": 100, "b": 5})
    feed.junk = {"a"}
    feed.run(5, {"a": 10, "b": 5})
    assert mbit(feed.estimates.paths["a"].sent) == pytest.approx(100)


def test_small_transfers_and_ramps_refute_nothing() -> None:
    feed = Feed()
    feed.run(3, {"a": 100})
    for _ in range(20):
        feed.run(0.75, {"a": 10})
        feed.run(0.75, {"a": 100})
        feed.run(5, {"a": 0}, pressed=False)
    assert mbit(feed.estimates.paths["a"].sent) == pytest.approx(100)


def test_what_begins_slowly_has_not_changed_and_what_stays_slow_has() -> None:
    feed = Feed()
    feed.run(3, {"a": 50, "b": 50}, rtt=0.1)
    feed.run(5, {"a": 0, "b": 0}, pressed=False, rtt=0.1)
    slow = feed.run(2, {"a": 1, "b": 50}, rtt=0.1)
    assert slow.paths["a"].degraded_to == 0
    slow = feed.run(1, {"a": 1, "b": 50}, rtt=0.1)
    assert slow.paths["a"].degraded_to > 0


def test_slow_moments_before_pauses_do_not_add_up() -> None:
    feed = Feed()
    feed.run(3, {"a": 50, "b": 50})
    for _ in range(4):
        feed.run(5, {"a": 0, "b": 0}, pressed=False)
        assert feed.run(1.75, {"a": 1, "b": 50}).paths["a"].degraded_to == 0


def test_all_that_begins_slowly_together_does_not_make_the_uplink_slow() -> None:
    feed = Feed()
    feed.run(3, {"a": 50, "b": 50}, rtt=0.1)
    feed.run(5, {"a": 0, "b": 0}, pressed=False, rtt=0.1)
    assert mbit(feed.run(2, {"a": 1, "b": 1}, rtt=0.1).up) > 90
    assert mbit(feed.run(1, {"a": 1, "b": 1}, rtt=0.1).up) < 10


def test_an_uplink_gives_no_less_than_one_of_its_paths_did() -> None:
    feed = Feed()
    feed.estimates.round_trip("near", 0.001)
    feed.estimates.round_trip("far", 0.15)
    # Not for long enough to be a rate of the far one, and so of both together.
    feed.run(0.4, {"near": 900, "far": 10}, rtt=0, tick=0.05)
    feed.run(2, {"near": 0, "far": 0}, rtt=0, pressed=False)
    estimates = feed.run(4, {"far": 60}, rtt=0)
    assert mbit(estimates.paths["near"].sent) == pytest.approx(900)
    assert mbit(estimates.up) == pytest.approx(900)


def test_a_thin_path_does_not_make_an_uplink_thin_through_which_more_has_gone_already() -> None:
    feed = Feed()
    # Too fast to be seen to wait.
    estimates = feed.run(0.5, {"near": 900}, rtt=0.001, pressed=False, tick=0.1)
    assert mbit(estimates.up) == 0, "it may give far more"
    estimates = feed.run(4, {"near": 0, "far": 20}, rtt=0.1)
    assert mbit(estimates.up) == pytest.approx(900)


def test_an_uplink_that_fell_gives_what_is_left_whatever_its_paths_did_before() -> None:
    feed = Feed()
    feed.run(4, {"a": 300, "b": 200})
    estimates = feed.run(4, {"a": 30, "b": 20})
    assert mbit(estimates.up) == pytest.approx(50)


def test_the_best_is_kept_while_nothing_flows_and_forgotten_after_a_minute_under_pressure() -> None:
    feed = Feed()
    feed.run(3, {"a": 100})
    feed.run(600, {"a": 0}, pressed=False)
    assert mbit(feed.estimates.paths["a"].sent) == pytest.approx(100)
    feed.run(30, {"a": 60})
    assert mbit(feed.estimates.paths["a"].sent) == pytest.approx(100)
    feed.run(60, {"a": 60})
    assert mbit(feed.estimates.paths["a"].sent) == pytest.approx(60)


def test_loss_is_that_of_flows_that_have_found_their_rate() -> None:
    feed = Feed()
    feed.run(1, {"a": 50}, loss=0.4)
    feed.run(5, {"a": 50}, loss=0.01)
    assert feed.estimates.paths["a"].loss == pytest.approx(0.01, abs=0.001)


def test_round_trips_are_the_least_seen() -> None:
    feed = Feed()
    feed.run(1, {"a": 1}, rtt=0.05)
    feed.run(1, {"a": 1}, rtt=0.08)
    feed.estimates.round_trip("b", 0.3)
    paths = {path.peer: path for path in feed.estimates.statistics().paths}
    assert paths["a"].rtt == 0.05
    assert paths["b"].rtt == 0.3


def test_late_ticks_and_new_connections_are_no_measure() -> None:
    feed = Feed()
    feed.run(4, {"a": 50}, tick=2.0)
    assert feed.estimates.paths["a"].sent.value == 0
    estimates = NodeEstimates()
    estimates.read({1: TcpSample("a", delivered=10**9, backlog=1)}, 0.0)
    estimates.read({2: TcpSample("a", delivered=10**9, backlog=1)}, 0.25)
    estimates.read(
        {1: TcpSample("a", delivered=0, backlog=1), 2: TcpSample("a", backlog=1)}, 0.5
    )  # counters begin anew
    assert estimates.up.value == 0


def test_measures_are_told_again_on_a_change_and_not_on_noise() -> None:
    feed, rng = Feed(), random.Random(0)
    feed.run(5, {"a": 50})
    told = feed.estimates.statistics()
    assert told.up == 50
    for _ in range(50):
        feed.run(0.25, {"a": 50 * rng.uniform(0.98, 1.02)})
        assert feed.estimates.statistics() is told
    feed.run(3, {"a": 70})
    assert feed.estimates.statistics().up == 70


def test_failed_dials_are_told_until_one_succeeds_and_others_than_members_forgotten() -> None:
    feed = Feed()
    feed.estimates.failed("x")
    feed.run(2, {"a": 5})
    assert [(path.peer, path.failed) for path in feed.estimates.statistics().paths] == [("a", False), ("x", True)]
    feed.estimates.failed("x", False)
    assert not feed.estimates.statistics().paths[1].failed
    feed.estimates.keep(["a"])
    assert [path.peer for path in feed.estimates.statistics().paths] == ["a"]


def test_a_path_that_shares_a_link_as_planned_has_not_changed() -> None:
    feed = Feed()
    feed.run(5, {"a": 50})
    feed.estimates.expected = {"a": 6 * MBIT}
    assert mbit(feed.run(10, {"a": 5.5}).paths["a"].sent) == pytest.approx(50, rel=0.05)


def test_a_path_that_falls_short_of_the_plan_has_changed_in_proportion() -> None:
    feed = Feed()
    feed.run(5, {"a": 50})
    feed.estimates.expected = {"a": 6 * MBIT}
    feed.run(3, {"a": 6})
    assert mbit(feed.run(4, {"a": 0.6}).paths["a"].sent) == pytest.approx(5, rel=0.2)


def test_a_path_that_never_gave_what_was_planned_has_changed_in_proportion_to_that() -> None:
    # A fast link empties what waits before two looks have seen it: it was cut before it was ever measured.
    feed = Feed()
    feed.estimates.expected = {"a": 30.0 * MBIT}
    feed.run(3, {"a": 30}, pressed=False)
    estimates = feed.run(2.5, {"a": 3})
    assert estimates.fell
    assert estimates.statistics().paths[0].degraded_to == pytest.approx(0.1)
    assert mbit(estimates.paths["a"].sent) == pytest.approx(3)
    feed.run(10, {"a": 3})
    assert not estimates.fell, "and it is told once"
    assert estimates.statistics().paths[0].degraded_to == pytest.approx(0.1)


def test_a_path_that_gives_more_than_three_tenths_of_what_was_planned_from_the_beginning_has_not_changed() -> None:
    feed = Feed()
    feed.estimates.expected = {"a": 30.0 * MBIT}
    assert not feed.run(5, {"a": 10}).fell


def test_a_path_of_which_the_plan_asks_nothing_is_not_taken_for_changed() -> None:
    feed = Feed()
    feed.run(5, {"a": 50})
    feed.estimates.expected = {"b": 6 * MBIT}
    assert mbit(feed.run(10, {"a": 2}).paths["a"].sent) == pytest.approx(50, rel=0.05)
