"""What the counters of connections show: rates that lasted, degradations, loss, round trips; what is no sample."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest

from p2psync.swarm.control.estimators import WindowedMax
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.report import Reporter
from p2psync.swarm.control.tcp_sample import TcpSample

MBIT = 125_000
TICK = 0.25


class Feed:
    """Estimates fed by connections of given rates (Mbit/s), one of each peer."""

    def __init__(self) -> None:
        self.estimates = NodeEstimates()
        self.reporter = Reporter(self.estimates)
        self.now = 0.0
        self.counters: dict[Hashable, TcpSample] = {}
        self.transferring = True

    def run(
        self,
        seconds: float,
        sent: dict[str, float] | None = None,
        received: dict[str, float] | None = None,
        *,
        backlogged: bool = True,
        loss: float = 0.0,
        rtt: float = 0.02,
        receiver_limited: bool = False,
        app_limited: bool = False,
        pacing_limit: float = 0.0,
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
                    backlog=int(backlogged and peer in sent),
                    rtt=rtt,
                    receiver_limited=before.receiver_limited + tick * receiver_limited,
                    app_limited=before.app_limited + app_limited,
                    pacing_limit=pacing_limit * MBIT,
                )
            self.estimates.read(dict(self.counters), self.now, transferring=self.transferring)
        return self.estimates

    def expect(self, **rates: float) -> None:
        """Plans so many Mbit/s to each peer."""
        self.estimates.expect({peer: rate * MBIT for peer, rate in rates.items()})

    def sent(self, peer: str) -> float:
        """The best rate to a peer (Mbit/s)."""
        return mbit(self.estimates.paths[peer].sent)

    def degraded_to(self, peer: str) -> float:
        return self.estimates.paths[peer].degraded_to


@pytest.fixture
def feed() -> Feed:
    return Feed()


def mbit(best: WindowedMax) -> float:
    return best.value / MBIT


def test_a_network_limited_path_has_the_rate_that_it_delivered(feed: Feed) -> None:
    estimates = feed.run(3, {"a": 50, "b": 20}, {"a": 10})
    assert feed.sent("a") == pytest.approx(50)
    assert feed.sent("b") == pytest.approx(20)
    assert mbit(estimates.paths["a"].received) == pytest.approx(10)
    assert mbit(estimates.up) == pytest.approx(70)
    assert mbit(estimates.down) == pytest.approx(10)


def test_a_downlink_is_reported_only_once_it_is_sure(feed: Feed) -> None:
    feed.run(3, {"a": 50}, {"a": 10})
    report = feed.reporter.report(is_down_sure=False)
    assert (report.up, report.down) == (50, 0)
    assert feed.reporter.report().down == 10


def test_flows_that_the_application_or_the_receiver_limits_are_no_samples(feed: Feed) -> None:
    assert Feed().run(3, {"a": 50}, backlogged=False).paths["a"].sent.value == 0
    assert Feed().run(3, {"a": 50}, receiver_limited=True).paths["a"].sent.value == 0
    assert feed.run(3, {"a": 10}, app_limited=True).paths["a"].sent.value == 0
    feed.run(3, {"a": 10})
    assert feed.sent("a") == pytest.approx(10, rel=0.05)


def test_a_flow_at_its_pacing_limit_refutes_no_rate_and_a_slower_one_does(feed: Feed) -> None:
    feed.expect(a=50)
    feed.run(3, {"a": 50})
    feed.run(120, {"a": 10}, pacing_limit=10)
    assert feed.sent("a") == pytest.approx(50)
    assert not feed.degraded_to("a")
    feed.run(3, {"a": 60}, pacing_limit=60)
    assert feed.sent("a") == pytest.approx(60), "a delivered rate raises the maximum"
    feed.run(5, {"a": 5}, pacing_limit=10)
    assert feed.degraded_to("a")


def test_messages_without_chunks_measure_no_path(feed: Feed) -> None:
    assert feed.run(3, received={"a": 0.3}).paths["a"].received.value == 0


def test_a_burst_that_does_not_last_is_no_rate(feed: Feed) -> None:
    feed.run(2, {"a": 10})
    feed.run(0.25, {"a": 200})
    feed.run(2, {"a": 10})
    assert feed.sent("a") < 110
    short = Feed()
    short.run(0.5, {"a": 200})
    assert short.sent("a") == 0


def test_a_filled_hole_in_the_sequence_is_no_rate() -> None:
    """Receives 20 Mbit/s, but in order only in lumps: 0.4 s of nothing, then all of it."""
    best = WindowedMax()
    for i in range(40):
        best.add(int(20 * MBIT * 0.5) if i % 5 == 4 else 0, 0.1)
    assert mbit(best) <= 20 * 1.01


def test_queued_acknowledgements_are_no_rate() -> None:
    """Sends 5 Mbit/s; acknowledgements first wait for 0.2 s, and then come at once."""
    best = WindowedMax()
    for i in range(30):
        best.add(int((5 if i < 10 or i >= 16 else 5 * 8 / 6) * MBIT * 0.1), 0.1, sent=int(5 * MBIT * 0.1))
    assert mbit(best) == pytest.approx(5, rel=0.01)


def test_bytes_that_fill_a_queue_are_no_rate() -> None:
    best = WindowedMax()
    for _ in range(20):
        best.add(int(5 * MBIT * 0.1), 0.1, sent=int(8 * MBIT * 0.1))
    assert mbit(best) == pytest.approx(5, rel=0.01)


def test_a_ramp_does_not_hide_the_rate_that_it_leads_to() -> None:
    best = WindowedMax()
    for i in range(20):
        best.add(int(min(80, 2 * 2**i) * MBIT * 0.1), 0.1)
    assert mbit(best) == pytest.approx(80, rel=0.01)


def test_the_best_rate_lasts_while_nothing_flows_and_for_a_minute_of_samples(feed: Feed) -> None:
    feed.run(3, {"a": 100})
    feed.run(600, {"a": 0}, backlogged=False)
    assert feed.sent("a") == pytest.approx(100)
    feed.run(30, {"a": 60})
    assert feed.sent("a") == pytest.approx(100)
    feed.run(60, {"a": 60})
    assert feed.sent("a") == pytest.approx(60)


def test_late_ticks_and_new_connections_are_no_samples(feed: Feed) -> None:
    feed.run(4, {"a": 50}, tick=2.0)
    assert feed.sent("a") == 0
    estimates = NodeEstimates()
    estimates.read({1: TcpSample("a", delivered=10**9, backlog=1)}, 0.0)
    estimates.read({2: TcpSample("a", delivered=10**9, backlog=1)}, 0.25)
    restarted = {1: TcpSample("a", delivered=0, backlog=1), 2: TcpSample("a", backlog=1)}
    estimates.read(restarted, 0.5)
    assert estimates.up.value == 0


def test_loss_is_that_of_flows_that_have_found_their_rate(feed: Feed) -> None:
    feed.run(1, {"a": 50}, loss=0.4)
    feed.run(5, {"a": 50}, loss=0.01)
    assert feed.estimates.paths["a"].loss == pytest.approx(0.01, abs=0.001)


def test_round_trips_are_the_least_seen(feed: Feed) -> None:
    feed.run(1, {"a": 1}, rtt=0.05)
    feed.run(1, {"a": 1}, rtt=0.08)
    feed.estimates.round_trip("b", 0.3)
    assert [feed.estimates.paths[peer].rtt for peer in "ab"] == [0.05, 0.3]


# ---- reports -----------------------------------------------------------------------------------------------------


def test_figures_are_reported_to_three_digits(feed: Feed) -> None:
    feed.run(2, {"b": 19.54})
    assert feed.reporter.report().up == 19.5


def test_a_report_changes_with_the_network_and_not_with_noise(feed: Feed) -> None:
    rng = random.Random(0)
    feed.run(5, {"a": 50})
    report = feed.reporter.report()
    assert report.up == 50
    for _ in range(50):
        feed.run(0.25, {"a": 50 * rng.uniform(0.98, 1.02)})
        assert feed.reporter.report() is report
    feed.run(3, {"a": 70})
    assert feed.reporter.report().up == 70


# ---- degradations of paths ---------------------------------------------------------------------------------------


def test_a_degraded_path_is_reported_until_it_delivers_a_good_deal_more(feed: Feed) -> None:
    feed.expect(a=80, b=10)
    feed.run(5, {"a": 80, "b": 10})
    feed.run(3, {"a": 8, "b": 10})
    (a, b) = feed.reporter.report().paths
    assert a.degraded_to == pytest.approx(0.1, rel=0.1)
    assert b.degraded_to == 0
    feed.run(3, {"a": 12, "b": 10})
    assert feed.degraded_to("a") == pytest.approx(a.degraded_to)
    feed.run(3, {"a": 40, "b": 10})
    assert feed.degraded_to("a") == 0


def test_a_path_cut_to_a_tenth_shows_within_three_seconds(feed: Feed) -> None:
    feed.expect(a=50, b=20)
    feed.run(10, {"a": 50, "b": 20})
    feed.run(3, {"a": 5, "b": 20})
    assert feed.sent("a") == pytest.approx(5)
    assert feed.sent("b") == pytest.approx(20)
    feed.run(3, {"a": 50, "b": 20})
    assert feed.sent("a") == pytest.approx(50)


def test_a_path_degrades_once_until_the_plan_changes(feed: Feed) -> None:
    feed.expect(a=40)
    feed.run(5, {"a": 40})
    feed.run(1.5, {"a": 4})
    assert feed.estimates.degradations == 1
    assert feed.degraded_to("a") == pytest.approx(0.1, rel=0.3)
    feed.run(5, {"a": 4})
    assert feed.estimates.degradations == 1, "the plan still counts on the former rate"
    feed.expect(a=4)
    feed.run(5, {"a": 4})
    feed.run(1.5, {"a": 0.4})
    assert feed.estimates.degradations == 2
    feed.run(3, {"a": 4})
    feed.run(1.5, {"a": 0.4})
    assert feed.estimates.degradations == 3, "it had recovered in between"


@pytest.mark.parametrize(("rtt", "count"), [(0.02, 1), (0.65, 0)])
def test_a_far_path_that_repairs_one_loss_is_not_degraded(feed: Feed, rtt: float, count: int) -> None:
    feed.expect(a=40)
    feed.run(10, {"a": 40}, rtt=rtt)
    feed.run(2, {"a": 4}, rtt=rtt)
    assert feed.estimates.degradations == count
    feed.run(3, {"a": 4}, rtt=rtt)
    assert feed.estimates.degradations == 1, "it stays slow"


def test_the_reported_share_is_what_a_path_delivers_in_the_end(feed: Feed) -> None:
    feed.expect(a=40)
    feed.run(5, {"a": 40})
    feed.run(0.75, {"a": 11})
    for _ in range(8):
        if not feed.estimates.degradations:
            feed.run(0.25, {"a": 4})
    assert feed.degraded_to("a") == pytest.approx(0.1, abs=0.05)


def test_a_path_that_delivers_nothing_is_degraded_to_a_little(feed: Feed) -> None:
    feed.expect(a=40)
    feed.run(5, {"a": 40})
    feed.run(2, {"a": 0})
    (path,) = feed.reporter.report().paths
    assert 0 < path.degraded_to <= 0.01, "0 would say that it is not degraded"
    assert 0 < path.sent <= 0.4, "0 would say that it is not measured"
    feed.run(5, {"a": 0})
    assert feed.estimates.degradations == 1, "there is no less than nothing"
    feed.run(3, {"a": 40})
    assert feed.degraded_to("a") == 0


def test_a_cut_path_that_only_retransmits_is_degraded_to_what_arrives(feed: Feed) -> None:
    feed.expect(a=40)
    feed.run(5, {"a": 40})
    feed.run(2, {"a": 4}, loss=1.0)
    assert feed.degraded_to("a") == pytest.approx(0.1, rel=0.01)


def test_a_pause_of_a_second_is_no_degradation(feed: Feed) -> None:
    feed.expect(a=40)
    for _ in range(5):
        feed.run(3, {"a": 40})
        feed.run(1, {"a": 0})
    assert not feed.estimates.degradations


def test_a_path_that_shares_a_link_as_planned_is_not_degraded(feed: Feed) -> None:
    feed.run(5, {"a": 50})
    feed.expect(a=6)
    feed.run(10, {"a": 5.5})
    assert feed.sent("a") == pytest.approx(50, rel=0.05)


def test_a_path_degrades_in_proportion_to_its_planned_rate(feed: Feed) -> None:
    feed.run(5, {"a": 50})
    feed.expect(a=6)
    feed.run(3, {"a": 6})
    feed.run(4, {"a": 0.6})
    assert feed.sent("a") == pytest.approx(5, rel=0.2)


def test_a_path_that_never_delivered_its_planned_rate_degrades_in_proportion_to_it(feed: Feed) -> None:
    # A fast link empties its queue between two looks, so it was cut before its first sample.
    feed.expect(a=30)
    feed.run(3, {"a": 30}, backlogged=False)
    feed.run(2.5, {"a": 3})
    assert feed.degraded_to("a") == pytest.approx(0.1)
    assert feed.sent("a") == pytest.approx(3)
    feed.run(10, {"a": 3})
    assert feed.estimates.degradations == 1
    assert feed.degraded_to("a") == pytest.approx(0.1)


def test_a_path_that_delivers_three_tenths_of_its_planned_rate_is_not_degraded(feed: Feed) -> None:
    feed.expect(a=30)
    assert not feed.run(5, {"a": 10}).degradations


def test_a_path_outside_of_the_plan_is_not_degraded(feed: Feed) -> None:
    feed.run(5, {"a": 50})
    feed.expect(b=6)
    feed.run(10, {"a": 2})
    assert feed.sent("a") == pytest.approx(50, rel=0.05)


def test_low_rates_of_padding_refute_nothing(feed: Feed) -> None:
    feed.expect(a=100, b=5)
    feed.run(3, {"a": 100, "b": 5})
    feed.transferring = False
    feed.run(5, {"a": 10, "b": 5})
    assert feed.sent("a") == pytest.approx(100)


def test_small_transfers_and_ramps_refute_nothing(feed: Feed) -> None:
    feed.expect(a=100)
    feed.run(3, {"a": 100})
    for _ in range(20):
        feed.run(0.75, {"a": 10})
        feed.run(0.75, {"a": 100})
        feed.run(5, {"a": 0}, backlogged=False)
    assert feed.sent("a") == pytest.approx(100)


def test_a_flow_that_starts_slowly_is_not_degraded_and_one_that_stays_slow_is(feed: Feed) -> None:
    feed.expect(a=50, b=50)
    feed.run(3, {"a": 50, "b": 50}, rtt=0.1)
    feed.run(5, {"a": 0, "b": 0}, backlogged=False, rtt=0.1)
    feed.run(2, {"a": 1, "b": 50}, rtt=0.1)
    assert feed.degraded_to("a") == 0
    feed.run(1, {"a": 1, "b": 50}, rtt=0.1)
    assert feed.degraded_to("a") > 0


def test_slow_moments_before_pauses_do_not_add_up(feed: Feed) -> None:
    feed.expect(a=50, b=50)
    feed.run(3, {"a": 50, "b": 50})
    for _ in range(4):
        feed.run(5, {"a": 0, "b": 0}, backlogged=False)
        feed.run(1.75, {"a": 1, "b": 50})
        assert feed.degraded_to("a") == 0


# ---- uplinks -----------------------------------------------------------------------------------------------------


def test_a_link_that_empties_its_queue_between_two_looks_raises_the_uplink(feed: Feed) -> None:
    feed.run(10, {"far": 19}, rtt=0.1)
    feed.run(5, {"far": 0}, backlogged=False)
    feed.run(0.4, {"near": 900}, backlogged=False, rtt=0.0001, tick=0.1)
    assert mbit(feed.estimates.up) == pytest.approx(900)
    assert feed.sent("near") == 0


def test_a_slow_path_does_not_pass_for_an_uplink_that_already_delivered_more(feed: Feed) -> None:
    # Too fast to be seen with a backlog.
    estimates = feed.run(0.5, {"near": 900}, rtt=0.001, backlogged=False, tick=0.1)
    assert mbit(estimates.up) == 0, "it may have far more"
    estimates = feed.run(4, {"near": 0, "far": 20}, rtt=0.1)
    assert mbit(estimates.up) == pytest.approx(900)


def test_an_uplink_has_at_least_the_rate_of_each_path(feed: Feed) -> None:
    feed.estimates.round_trip("near", 0.001)
    feed.estimates.round_trip("far", 0.15)
    # Too short to be a rate of the far path, and so of both together.
    feed.run(0.4, {"near": 900, "far": 10}, rtt=0, tick=0.05)
    feed.run(2, {"near": 0, "far": 0}, rtt=0, backlogged=False)
    estimates = feed.run(4, {"far": 60}, rtt=0)
    assert feed.sent("near") == pytest.approx(900)
    assert mbit(estimates.up) == pytest.approx(900)


def test_a_shared_uplink_lowers_no_path(feed: Feed) -> None:
    feed.run(2, {"a": 100})
    feed.run(90, dict.fromkeys("abcdefghijkl", 100 / 12))
    assert feed.sent("a") == pytest.approx(100)
    assert mbit(feed.estimates.up) == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("regions", [{}, {"a": "there", "b": "elsewhere"}])
def test_a_cut_uplink_degrades_no_path(feed: Feed, regions: dict[str, str]) -> None:
    for peer, region in regions.items():
        feed.estimates.set_region(peer, region)
    feed.expect(a=50, b=20)
    feed.run(10, {"a": 50, "b": 20})
    feed.run(4, {"a": 5, "b": 2})
    assert mbit(feed.estimates.up) == pytest.approx(7)
    assert (feed.sent("a"), feed.sent("b")) == (pytest.approx(50), pytest.approx(20))
    assert not feed.estimates.degradations


def test_a_cut_link_to_a_region_degrades_its_paths_and_not_the_uplink(feed: Feed) -> None:
    for peer, region in {"a": "there", "b": "there", "c": "elsewhere"}.items():
        feed.estimates.set_region(peer, region)
    feed.expect(a=50, b=20)
    feed.run(10, {"a": 50, "b": 20})
    feed.run(4, {"a": 5, "b": 2})
    assert mbit(feed.estimates.up) == pytest.approx(70)
    assert [feed.degraded_to(peer) for peer in "ab"] == [pytest.approx(0.1), pytest.approx(0.1)]


def test_flows_that_start_slowly_together_do_not_degrade_the_uplink(feed: Feed) -> None:
    feed.expect(a=50, b=50)
    feed.run(3, {"a": 50, "b": 50}, rtt=0.1)
    feed.run(5, {"a": 0, "b": 0}, backlogged=False, rtt=0.1)
    assert mbit(feed.run(2, {"a": 1, "b": 1}, rtt=0.1).up) > 90
    assert mbit(feed.run(1, {"a": 1, "b": 1}, rtt=0.1).up) < 10


def test_a_degraded_uplink_has_what_it_delivers_now(feed: Feed) -> None:
    feed.expect(a=300, b=200)
    feed.run(4, {"a": 300, "b": 200})
    assert mbit(feed.run(4, {"a": 30, "b": 20}).up) == pytest.approx(50)
