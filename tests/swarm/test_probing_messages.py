"""One prober, message by message: budgets, refusals, junk, and looks at its own uplink."""

from __future__ import annotations

import random

import pytest
from probing_parts import CONFIG, MBIT, Host, World, prober, told

from p2psync.protocol.messages import ProbeEnd, ProbeInvite, ProbePadding, ProbeRequest, UplinkRate
from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.probe_actions import Disconnect, SendMessage, StartPadding, StopPadding
from p2psync.swarm.control.prober import FULL, Prober


def test_a_peer_gets_no_more_than_the_budget_however_often_it_asks() -> None:
    node = prober(ProbeConfig(allowance=5 << 20, cooling=0.0))
    granted = 0
    for second in range(600):
        now = float(second)
        node.receive("p0", ProbeRequest(second, 1 << 30, 60.0), now)
        for action in node.actions():
            if isinstance(action, StartPadding):
                assert action.until <= now + CONFIG.longest
                granted += action.size
                node.padding_ended("p0", action.size, now)
    # The allowance, and a hundredth of the rate that is assumed of a link that nobody knows.
    assert 5 << 20 <= granted <= (5 << 20) + 0.01 * CONFIG.assumed * 600


def test_others_leave_enough_for_the_first_look_at_a_nodes_own_uplink() -> None:
    config = ProbeConfig(settle=0.0, spread=0.0, cooling=0.0)
    node, now, granted = prober(config, region="b"), 0.0, 0
    for token in range(200):
        now += 0.1
        node.receive("p0", ProbeRequest(token, 1 << 30, 4.0), now)
        for pump in [action for action in node.actions() if isinstance(action, StartPadding)]:
            granted += pump.size
            node.padding_ended("p0", pump.size, now)
    assert granted <= (1 - config.own) * config.allowance + 1
    kept, padding_ended = int(config.own * config.allowance), 0
    assert kept > 1.5 * config.own * (config.allowance - granted), "otherwise a share of what is left would do"
    for way in node._jobs.regions.values():
        way.done = True
    while not padding_ended:
        now += 0.1
        node.poll(False, now)
        for action in node.actions():
            if isinstance(action, SendMessage) and isinstance(action.message, ProbeInvite):
                node.receive(action.peer, ProbeRequest(action.message.token, 1 << 30, 4.0), now)
            padding_ended += action.size if isinstance(action, StartPadding) else 0
    assert padding_ended >= kept


def test_a_node_whose_uplink_nobody_has_time_to_look_at_keeps_nothing_back_for_ever() -> None:
    node = prober(ProbeConfig(cooling=0.0))
    node.receive("p0", ProbeRequest(1, 1 << 30, 4.0), 2 * CONFIG.window)
    first = [action.size for action in node.actions() if isinstance(action, StartPadding)]
    early = prober(ProbeConfig(cooling=0.0))
    early.receive("p0", ProbeRequest(1, 1 << 30, 4.0), 1.0)
    assert first > [action.size for action in early.actions() if isinstance(action, StartPadding)]


def test_prober_serves_one_asker_at_a_time_and_refuses_others() -> None:
    node = prober()
    node.receive("p0", ProbeRequest(1, 1 << 20, 2.0), 1.0)
    assert node.actions() == [StartPadding("p0", 1 << 20, 3.0)]
    node.receive("p1", ProbeRequest(2, 1 << 20, 2.0), 1.1)
    assert node.actions() == [SendMessage("p1", ProbeEnd(2, 0))]
    node.receive("p1", ProbeRequest(1, 0, 0.0), 1.2)  # somebody else's probe is not theirs to stop
    assert node.actions() == []
    node.receive("p0", ProbeRequest(1, 0, 0.0), 1.3)
    assert node.actions() == [StopPadding("p0")]
    node.padding_ended("p0", 1000, 1.3)
    assert node.actions() == [SendMessage("p0", ProbeEnd(1, 1000))]
    node.receive("p0", ProbeRequest(3, 1 << 20, 2.0), 1.4)
    assert node.actions() == [SendMessage("p0", ProbeEnd(3, 0))]  # not the same one again at once


def test_unused_probe_budget_is_given_back() -> None:
    node = prober(ProbeConfig(allowance=1 << 20, cooling=0.0, share=0.0))
    for token in range(50):
        node.receive("p0", ProbeRequest(token, 1 << 20, 2.0), 1.0)
        assert [type(action) for action in node.actions()] == [StartPadding]
        node.padding_ended("p0", 1000, 1.0)
        node.actions()


def test_a_peer_that_sends_junk_unasked_is_hung_up_on() -> None:
    node = prober()
    node.receive("p0", ProbePadding(memoryview(bytes(1000))), 1.0)
    assert [type(action) for action in node.actions()] == [Disconnect]


def test_junk_that_was_asked_for_may_come_late_but_not_in_excess() -> None:
    node = prober(ProbeConfig(settle=0.0, spread=0.0, most=100_000, down_fan=1), peers=1)
    node.poll(False, 0.1)
    asked = told(node, ProbeRequest)
    assert [tell.message.size for tell in asked if isinstance(tell.message, ProbeRequest)] == [100_000]
    node.receive("p0", ProbePadding(memoryview(bytes(60_000))), 0.2)
    node.poll(False, 60.0)  # long over
    node.actions()
    node.receive("p0", ProbePadding(memoryview(bytes(40_000))), 60.1)
    assert not any(isinstance(action, Disconnect) for action in node.actions())
    node.receive("p0", ProbePadding(memoryview(bytes(1))), 60.2)
    assert any(isinstance(action, Disconnect) for action in node.actions())


def test_probe_messages_of_unknown_peers_and_unasked_answers_are_ignored() -> None:
    node = prober()
    node.receive("nobody", ProbeRequest(1, 1 << 20, 2.0), 1.0)
    node.receive("p0", ProbeEnd(77, 5), 1.0)
    node.receive("p0", ProbeRequest(77, 0, 0.0), 1.0)
    node.padding_ended("p0", 5, 1.0)
    assert node.actions() == []


def test_an_offer_waits_for_all_and_is_called_off_if_one_has_no_time() -> None:
    node = prober(ProbeConfig(settle=0.0, spread=0.0, up_fan=2, down_fan=2), peers=2)
    node.poll(False, 0.1)
    offers = told(node, ProbeInvite)
    assert {tell.peer for tell in offers} == {"p0", "p1"}
    token = offers[0].message.token
    node.receive("p0", ProbeRequest(token, 1 << 20, 2.0), 0.2)
    assert not any(isinstance(action, StartPadding) for action in node.actions())
    node.receive("p1", ProbeEnd(token, 0), 0.3)
    assert SendMessage("p0", ProbeEnd(token, 0)) in node.actions()
    for _ in range(100):  # later both have time
        now = 5.0
        node.poll(False, now)
        offers = told(node, ProbeInvite)
        if offers:
            break
    token = offers[0].message.token
    for name in ("p0", "p1"):
        node.receive(name, ProbeRequest(token, 1 << 20, 2.0), 5.1)
    assert [action.peer for action in node.actions() if isinstance(action, StartPadding)] == ["p0", "p1"]


@pytest.mark.parametrize("fan", [1, 3])
def test_several_far_ways_are_sent_what_they_give_while_an_uplink_is_looked_at_over_them(fan: int) -> None:
    node = prober(ProbeConfig(settle=0.0, spread=0.0, up_fan=fan, down_fan=3), peers=3)
    estimates = node._estimates
    for name, rtt in (("p0", 0.1), ("p1", 0.001), ("p2", 0.1)):
        estimates.round_trip(name, rtt)
    for name, rate in (("p0", 40), ("p1", 20)):
        for _ in range(10):
            estimates.paths[name].sent.add(int(rate * MBIT / 10), 0.1)
    node.poll(False, 0.1)
    for offer in told(node, ProbeInvite):
        node.receive(offer.peer, ProbeRequest(offer.message.token, 1 << 20, 2.0), 0.2)  # type: ignore[union-attr]
    rates = {action.peer: action.rate for action in node.actions() if isinstance(action, StartPadding)}
    if fan == 1:
        assert set(rates.values()) == {0.0}, "it may give more"
    else:
        assert rates == {"p0": pytest.approx(FULL * 40 * MBIT, rel=0.01), "p1": 0.0, "p2": 0.0}


def test_a_nodes_own_uplink_is_looked_at_until_a_look_finds_no_more() -> None:
    estimates = NodeEstimates()
    node = Prober("me", "a", ProbeConfig(settle=0.0, spread=0.0), estimates, random.Random(0))
    for name in ("p0", "p1"):
        node.peer_up(name, "a", 0.0)
    now = 0.0

    def next_offer() -> float:
        """Seconds until the node offers its junk again."""
        nonlocal now
        since = now
        while not (offers := told(node, ProbeInvite)):
            now += 0.5
            node.poll(False, now)
        for offer in offers:
            node.receive(offer.peer, ProbeRequest(offer.message.token, 1 << 20, 2.0), now)
        return now - since

    def found(rate: float) -> None:
        nonlocal now
        now += 2.0
        for _ in range(10):
            estimates.up.add(int(rate * MBIT / 10), 0.1)
        for action in node.actions():
            if isinstance(action, StartPadding):
                node.padding_ended(action.peer, 1 << 20, now)

    next_offer()
    soon, late = 1.25 * CONFIG.again + 1, 0.75 * CONFIG.stale
    for rate in (22, 45, 97):  # the machine was busy at first
        found(rate)
        assert next_offer() <= soon
    found(97)
    assert next_offer() >= late


def test_an_uplink_that_a_pump_was_too_short_to_show_is_pumped_again_and_not_taken_for_slow() -> None:
    estimates = NodeEstimates()
    node = Prober("me", "a", ProbeConfig(settle=0.0, spread=0.0), estimates, random.Random(0))
    for name in ("p0", "p1"):
        node.peer_up(name, "a", 0.0)
    for _ in range(40):
        estimates.up.add(int(19 * MBIT / 10), 0.1)  # over a slow way to somebody far away
    now, granted = 0.0, 0
    for again in (False, True):
        while not (offers := told(node, ProbeInvite)):
            now += 0.1
            node.poll(False, now)
        assert now <= (2.0 if again else 0.2)
        for offer in offers:
            node.receive(offer.peer, ProbeRequest(offer.message.token, 16 << 20, 2.0), now)
        now += 0.3
        pumps = [action for action in node.actions() if isinstance(action, StartPadding)]
        granted = sum(pump.size for pump in pumps)
        for pump in pumps:
            node.padding_ended(pump.peer, pump.size, now)
    assert granted == 32 << 20, "it may spend what a link may that nobody has measured"


def test_an_own_uplink_is_not_known_by_a_pump_that_ended_for_want_of_bytes() -> None:
    estimates = NodeEstimates()
    node = Prober("me", "a", ProbeConfig(settle=0.0, spread=0.0), estimates, random.Random(0))
    for name in ("p0", "p1"):
        node.peer_up(name, "a", 0.0)
    node.poll(False, 0.1)
    for offer in told(node, ProbeInvite):
        node.receive(offer.peer, ProbeRequest(offer.message.token, 1 << 20, 2.0), 0.1)
    for pump in [action for action in node.actions() if isinstance(action, StartPadding)]:
        node.padding_ended(pump.peer, pump.size, 0.3)
    for _ in range(10):
        estimates.up.add(int(9 * MBIT / 10), 0.1)
    node.poll(False, 0.4)
    assert not told(node, UplinkRate)


def test_an_offer_goes_to_those_who_did_not_lack_time_the_last_time() -> None:
    node = prober(ProbeConfig(settle=0.0, spread=0.0, up_fan=1), peers=4)
    now, asked = 0.0, []
    while len(asked) < 8:
        now += 0.5
        node.poll(False, now)
        for offer in told(node, ProbeInvite):
            asked.append(offer.peer)
            node.receive(offer.peer, ProbeEnd(offer.message.token, 0), now)
    assert len(set(asked[:4])) == 4
    assert asked[4:] == asked[:4]


def test_an_own_uplink_over_a_slow_and_a_fast_way_is_pumped_over_both_to_the_end() -> None:
    hosts = [Host("root", "dc", 200, 200), *(Host(f"a{i}", "a", 20, 300) for i in range(2)), Host("b0", "b", 20, 300)]
    links = {("dc", "a"): (180.0, 0.03), ("dc", "b"): (90.0, 0.15), ("a", "b"): (90.0, 0.15)}
    world = World(hosts, links)
    world.run(30)
    assert world.hosts["root"].estimates.up.value / MBIT > 190


def test_a_downlink_that_gave_clearly_more_than_the_plan_needs_is_not_looked_at() -> None:
    def asks(planned: float | None) -> bool:
        estimates = NodeEstimates()
        node = Prober("me", "a", ProbeConfig(settle=0.0, spread=0.0), estimates, random.Random(0))
        for name in ("p0", "p1"):
            node.peer_up(name, "a", 0.0)
        for _ in range(10):
            estimates.down.add(int(60 * MBIT / 10), 0.1)
        if planned is not None:
            node.planned({"p0": planned / 2 * MBIT, "p1": planned / 2 * MBIT}, (), 0.0)
        node.poll(False, 0.1)
        return bool(told(node, ProbeRequest))

    assert asks(None)
    assert asks(50.0)
    assert not asks(39.0)
