"""One prober, message by message: budgets, refusals, padding, and probes of its own uplink."""

from __future__ import annotations

import random

import pytest
from probing_parts import CONFIG, MBIT, Host, World, prober, told

from p2psync.protocol.messages import ProbeEnd, ProbeInvite, ProbePadding, ProbeRequest
from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.probe_actions import Disconnect, SendMessage, StartPadding, StopPadding
from p2psync.swarm.control.prober import Prober


def test_prober_grants_a_peer_no_more_than_the_budget_however_often_it_asks() -> None:
    node = prober(ProbeConfig(initial_bytes=5 << 20, serve_again_seconds=0.0))
    granted = 0
    for second in range(600):
        now = float(second)
        node.receive("p0", ProbeRequest(second, 1 << 30, 60.0), now)
        for action in node.actions():
            if isinstance(action, StartPadding):
                assert action.until <= now + CONFIG.max_seconds
                granted += action.size
                node.padding_ended("p0", action.size, now)
    # The allowance, and a hundredth of the rate that is assumed of a link that nobody knows.
    assert 5 << 20 <= granted <= (5 << 20) + 0.01 * CONFIG.assumed_rate * 600


def test_prober_serves_one_peer_at_a_time_and_declines_others() -> None:
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


def test_prober_gives_back_budget_that_a_probe_did_not_use() -> None:
    node = prober(ProbeConfig(initial_bytes=1 << 20, serve_again_seconds=0.0, link_share=0.0))
    for token in range(50):
        node.receive("p0", ProbeRequest(token, 1 << 20, 2.0), 1.0)
        assert [type(action) for action in node.actions()] == [StartPadding]
        node.padding_ended("p0", 1000, 1.0)
        node.actions()


def test_prober_disconnects_a_peer_that_sends_padding_unasked() -> None:
    node = prober()
    node.receive("p0", ProbePadding(memoryview(bytes(1000))), 1.0)
    assert [type(action) for action in node.actions()] == [Disconnect]


def test_prober_accepts_requested_padding_late_but_not_in_excess() -> None:
    node = prober(ProbeConfig(settle_seconds=0.0, jitter_seconds=0.0, max_bytes=100_000, downlink_peers=1), peers=1)
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


def test_prober_ignores_messages_of_unknown_peers_and_unasked_answers() -> None:
    node = prober()
    node.receive("nobody", ProbeRequest(1, 1 << 20, 2.0), 1.0)
    node.receive("p0", ProbeEnd(77, 5), 1.0)
    node.receive("p0", ProbeRequest(77, 0, 0.0), 1.0)
    node.padding_ended("p0", 5, 1.0)
    assert node.actions() == []


def test_prober_starts_its_uplink_probe_when_all_accept_and_cancels_it_if_one_declines() -> None:
    node = prober(ProbeConfig(settle_seconds=0.0, jitter_seconds=0.0, uplink_peers=2, downlink_peers=2), peers=2)
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
def test_prober_limits_several_far_paths_to_their_rates_while_it_probes_its_uplink(fan: int) -> None:
    node = prober(ProbeConfig(settle_seconds=0.0, jitter_seconds=0.0, uplink_peers=fan, downlink_peers=3), peers=3)
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
        assert rates == {"p0": pytest.approx(CONFIG.uplink_path_gain * 40 * MBIT, rel=0.01), "p1": 0.0, "p2": 0.0}


def test_prober_probes_its_uplink_until_a_probe_gives_no_more() -> None:
    estimates = NodeEstimates()
    node = Prober("me", "a", ProbeConfig(settle_seconds=0.0, jitter_seconds=0.0), estimates, random.Random(0))
    for name in ("p0", "p1"):
        node.peer_up(name, "a", 0.0)
    now = 0.0

    def next_offer() -> float:
        """Seconds until the node invites again."""
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
    soon, late = 1.25 * CONFIG.confirm_seconds + 1, 0.75 * CONFIG.refresh_seconds
    for rate in (22, 45, 97):  # the machine was busy at first
        found(rate)
        assert next_offer() <= soon
    found(97)
    assert next_offer() >= late


def test_prober_repeats_an_uplink_probe_that_was_too_short_to_be_seen() -> None:
    estimates = NodeEstimates()
    node = Prober("me", "a", ProbeConfig(settle_seconds=0.0, jitter_seconds=0.0), estimates, random.Random(0))
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


def test_prober_invites_peers_that_did_not_decline_the_last_time() -> None:
    node = prober(ProbeConfig(settle_seconds=0.0, jitter_seconds=0.0, uplink_peers=1), peers=4)
    now, asked = 0.0, []
    while len(asked) < 8:
        now += 0.5
        node.poll(False, now)
        for offer in told(node, ProbeInvite):
            asked.append(offer.peer)
            node.receive(offer.peer, ProbeEnd(offer.message.token, 0), now)
    assert len(set(asked[:4])) == 4
    assert asked[4:] == asked[:4]


def test_prober_probes_its_uplink_over_a_slow_and_a_fast_path_to_the_end() -> None:
    hosts = [Host("root", "dc", 200, 200), *(Host(f"a{i}", "a", 20, 300) for i in range(2)), Host("b0", "b", 20, 300)]
    links = {("dc", "a"): (180.0, 0.03), ("dc", "b"): (90.0, 0.15), ("a", "b"): (90.0, 0.15)}
    world = World(hosts, links)
    world.run(30)
    assert world.hosts["root"].estimates.up.value / MBIT > 190


def test_prober_does_not_probe_a_downlink_that_carried_clearly_more_than_planned() -> None:
    def asks(planned: float | None) -> bool:
        estimates = NodeEstimates()
        node = Prober("me", "a", ProbeConfig(settle_seconds=0.0, jitter_seconds=0.0), estimates, random.Random(0))
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
