"""Who probes whom when, in virtual time; what that finds out; and what nobody can make a node do."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from probing_parts import MBIT, Host, World

from p2psync.protocol.messages import ProbeEnd, ProbeInvite, ProbePadding, ProbeRequest, SuppressProbes, UplinkRate
from p2psync.swarm.budget import Budget, ProbeConfig, Steady
from p2psync.swarm.gauges import Gauges
from p2psync.swarm.probe_actions import Expel, Pump, StopPump, Tell
from p2psync.swarm.probe_jobs import Jobs
from p2psync.swarm.probing import FULL, HUSHED, Prober

FOUR_REGIONS = {
    ("r0", "r1"): (100.0, 0.07),
    ("r0", "r2"): (50.0, 0.1),
    ("r0", "r3"): (20.0, 0.15),
    ("r1", "r2"): (100.0, 0.02),
    ("r1", "r3"): (30.0, 0.12),
    ("r2", "r3"): (10.0, 0.08),
}
CONFIG = ProbeConfig()


def four_regions(seed: int = 0, rate: float = 300) -> World:
    hosts = [Host(f"r{r}-{i}", f"r{r}", rate, rate) for r in range(4) for i in range(3)]
    return World(hosts, FOUR_REGIONS, seed=seed)


def best_way(world: World, a: str, b: str) -> float:
    """The highest rate from one region to another that any node there knows (Mbit/s)."""
    return max(
        host.gauges.paths[other.name].sent.value / MBIT
        for host in world.hosts.values()
        for other in world.hosts.values()
        if (host.region, other.region) == (a, b)
    )


@pytest.mark.parametrize("seed", range(3))
def test_twelve_that_join_together_know_all_ways_and_links_within_half_a_minute(seed: int) -> None:
    world = four_regions(seed)
    world.run(12)
    for (a, b), (rate, _) in world.links.items():
        assert best_way(world, a, b) == pytest.approx(rate, rel=0.15), (a, b)
    world.run(18)
    for host in world.hosts.values():
        assert host.gauges.up.value / MBIT == pytest.approx(300, rel=0.15), host.name
        assert host.gauges.down.value / MBIT == pytest.approx(300, rel=0.15), host.name


def test_one_region_of_unequal_uplinks_is_known() -> None:
    ups = [100, 100, 100, 25, 100, 10, 100, 100, 50, 100, 100, 100]
    world = World([Host(f"a{i}", "a", up, 100) for i, up in enumerate(ups)], {})
    world.run(30)
    for host in world.hosts.values():
        assert host.gauges.up.value / MBIT == pytest.approx(host.up, rel=0.15), host.name
    # A downlink shows only if those that were asked could fill it.
    downs = sorted(host.gauges.down.value / MBIT for host in world.hosts.values())
    assert downs[2:] == pytest.approx([100] * 10, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_a_downlink_is_measured_with_the_widest_uplinks_nearby(seed: int) -> None:
    ups = [5.0, 20.0, 20.0, 35.0, 20.0, 60.0]
    hosts = [Host(f"b{i}", "b", up, 300) for i, up in enumerate(ups)]
    world = World(hosts, {}, seed=seed)
    world.run(60)
    for i, host in enumerate(hosts):
        most = sum(sorted(ups[:i] + ups[i + 1 :])[-3:])
        assert world.hosts[host.name].gauges.down.value / MBIT > 0.85 * most, host.name


@pytest.mark.parametrize("seed", range(4))
def test_a_node_is_sure_of_its_downlink_once_two_looks_agree_that_it_binds(seed: int) -> None:
    downs = [20.0, 300.0, 300.0, 70.0, 300.0, 300.0]
    hosts = [Host(f"a{i}", "a", 60, down) for i, down in enumerate(downs)]
    world = World(hosts, {}, seed=seed)
    sure = set()
    for _ in range(120):
        world.run(1)
        for host in hosts:
            if host.name not in sure and world.hosts[host.name].prober.down_sure:
                sure.add(host.name)
                assert host.gauges.down.value / MBIT > 0.85 * host.down, host.name
    assert sure == {"a0", "a3"}, "of the others it shows only what their mates can send"


def test_a_downlink_that_binds_nothing_is_not_looked_at_for_ever() -> None:
    hosts = [Host(f"a{i}", "a", 60, 300) for i in range(6)]
    world = World(hosts, {})
    world.run(120)
    before = [host.junk_received for host in hosts]
    world.run(120)
    assert [host.junk_received for host in hosts] == before


def test_a_way_between_regions_is_probed_by_one_pair_at_a_time() -> None:
    world = four_regions()
    most: dict[tuple[str, str], int] = {}

    def look() -> None:
        now: dict[tuple[str, str], int] = {}
        for host in world.hosts.values():
            for peer in host.flows:
                way = (host.region, world.hosts[peer].region)
                if way[0] != way[1]:
                    now[way] = now.get(way, 0) + 1
        for way, count in now.items():
            most[way] = max(most.get(way, 0), count)

    world.run(25, look)
    assert len(most) == 12
    assert set(most.values()) == {1}


@pytest.mark.parametrize("fast", range(6))
def test_a_link_wider_than_most_uplinks_shows_soon_through_the_widest_whoever_has_it(fast: int) -> None:
    ups = [40.0, 10.0, 40.0, 20.0, 40.0]
    ups.insert(fast, 100.0)
    hosts = [Host(f"a{i}", "a", up, 250) for i, up in enumerate(ups)]
    hosts += [Host(f"b{i}", "b", up, 300) for i, up in enumerate([5.0, 20.0, 20.0, 35.0, 20.0])]
    world = World(hosts, {("a", "b"): (80.0, 0.1)}, seed=fast)
    world.run(25)
    assert best_way(world, "a", "b") == pytest.approx(80, rel=0.1)


def test_an_uplink_over_unequal_ways_is_measured_with_all_of_them_at_one_time() -> None:
    hosts = [Host("t0", "t", 300, 300)]
    hosts += [Host(f"{region}{i}", region, up, 300) for region, up in (("e", 40), ("m", 20)) for i in range(4)]
    world = World(hosts, {("t", "e"): (250.0, 0.04), ("t", "m"): (120.0, 0.12), ("e", "m"): (100.0, 0.12)})
    world.run(45)
    assert world.hosts["t0"].gauges.up.value / MBIT == pytest.approx(300, rel=0.05)


def test_peers_are_told_of_an_uplink_once_it_is_known_and_when_it_is_another() -> None:
    hosts = [Host("a0", "a", 40, 100), Host("a1", "a", 90, 100), Host("b0", "b", 100, 100)]
    world = World(hosts, {("a", "b"): (200.0, 0.05)})
    assert world.told("a0", UplinkRate) == []
    world.run(15)
    assert [target for target, _ in world.told("a0", UplinkRate)] == ["a1", "b0"]
    assert world.told("a0", UplinkRate)[0][1].rate / MBIT == pytest.approx(40, rel=0.15)
    world.run(100)
    assert len(world.told("a0", UplinkRate)) == 2
    for _ in range(10):  # a transfer shows more
        world.hosts["a0"].gauges.up.add(int(8 * MBIT), 0.1)
    world.run(0.2)
    assert [round(message.rate / MBIT) for _, message in world.told("a0", UplinkRate)[2:]] == [80, 80]


def test_a_liar_about_its_uplink_is_asked_first_and_hides_nobody() -> None:
    hosts = [Host(f"a{i}", "a", up, 250) for i, up in enumerate([5.0, 60.0, 30.0])]
    hosts += [Host(f"b{i}", "b", 30, 300) for i in range(2)]
    world = World(hosts, {("a", "b"): (80.0, 0.1)})
    for target in ("b0", "b1"):
        world.send("a0", target, UplinkRate(1000 * MBIT))
    world.run(25)
    assert world.moved("a0", "b0") + world.moved("a0", "b1") > 0
    assert best_way(world, "a", "b") == pytest.approx(60, rel=0.1)


def test_a_peer_whose_connections_changed_is_measured_again_itself() -> None:
    hosts = [Host("a0", "a", 100, 100), *(Host(f"b{i}", "b", 100, 100) for i in range(4))]
    world = World(hosts, {("a", "b"): (50.0, 0.05)})
    world.run(20)
    asked = [name for name in world.hosts if world.moved(name, "a0") > 0]
    assert len(asked) > 1
    for name in asked:
        before = world.moved(name, "a0")
        world.hosts["a0"].prober.again(name, world.now)
        world.run(8)
        assert world.moved(name, "a0") > before, name


def test_nodes_without_given_regions_probe_those_far_away_each() -> None:
    hosts = [Host("a0", "x", 100, 100), Host("b0", "y", 100, 100), Host("c0", "z", 100, 100)]
    world = World(hosts, {("x", "y"): (20.0, 0.05), ("x", "z"): (30.0, 0.08), ("y", "z"): (40.0, 0.02)}, named=False)
    world.run(15)
    for (a, b), (rate, _) in world.links.items():
        assert best_way(world, a, b) == pytest.approx(rate, rel=0.15)


def test_what_probing_costs_stays_within_its_budget_for_hours() -> None:
    config = ProbeConfig(stale=20.0)  # as if everything had to be measured again all the time
    world = World([Host(f"a{i}", "a", 20, 20) for i in range(3)], {}, config)
    world.run(900)
    link = 20 * MBIT
    for host in world.hosts.values():
        # Beside the share, what newcomers may take: some seconds of the link, and one probe before it was known.
        most = config.allowance_seconds * link * 2 + config.share * link * 900
        assert 0.2 * most < host.junk_sent < most
        assert host.junk_received < most


def test_nobody_probes_while_chunks_flow_and_what_runs_ends() -> None:
    world = four_regions()
    world.run(1.5)
    assert any(host.flows for host in world.hosts.values())
    for host in world.hosts.values():
        host.flowing = True
    world.run(0.3)
    assert not any(host.flows for host in world.hosts.values())
    sent = [host.junk_sent for host in world.hosts.values()]
    world.run(30)
    assert [host.junk_sent for host in world.hosts.values()] == sent
    for host in world.hosts.values():
        host.flowing = False
    world.run(30)
    assert all(host.gauges.up.value for host in world.hosts.values())


def test_before_a_version_comes_all_below_fall_silent_and_go_on_after_a_while() -> None:
    world = four_regions()
    root, first, second = (world.hosts[name] for name in ("r0-0", "r1-0", "r2-0"))
    below = [host for host in world.hosts.values() if host not in (root, first, second)]
    root.prober.planned({}, ["r1-0"], 0.0)
    first.prober.planned({"r0-0": 60 * MBIT}, ["r2-0"], 0.0)
    second.prober.planned({"r1-0": 60 * MBIT}, [host.name for host in below], 0.0)
    for host in below:
        host.prober.planned({"r2-0": 60 * MBIT}, (), 0.0)
    world.run(1.5)
    assert any(host.flows for host in world.hosts.values())
    root.prober.hush(world.now)
    world.run(0.5)
    assert not any(host.flows for host in world.hosts.values())
    sent = [host.junk_sent for host in world.hosts.values()]
    world.run(HUSHED - 0.6)
    assert [host.junk_sent for host in world.hosts.values()] == sent
    world.run(30)
    assert best_way(world, "r0", "r1") == pytest.approx(100, rel=0.15)


def test_only_a_parent_is_hushed_by_and_not_all_the_time() -> None:
    node = asking()
    node.planned({"p0": 60 * MBIT}, ["p1", "gone"], 0.1)
    node.receive("p1", SuppressProbes(3.0), 0.1)
    assert node.busy, "who says so sends nothing to this node"
    node.receive("p0", SuppressProbes(3.0), 0.2)
    assert not node.busy
    node.receive("p0", SuppressProbes(3.0), 3.1 + HUSHED)  # it would never measure
    node.receive("p0", SuppressProbes(60.0), 3.3 + HUSHED)
    assert [(tell.peer, tell.message) for tell in told(node, SuppressProbes)] == [
        ("p1", SuppressProbes(3.0)),
        ("p1", SuppressProbes(HUSHED)),
    ]


def test_a_way_that_the_plan_counts_on_is_tried_at_a_little_more_than_the_planned_rate_and_only_once() -> None:
    world = four_regions()
    world.run(80)  # all others are done
    source, target = world.hosts["r0-2"], world.hosts["r3-2"]
    assert target.gauges.paths["r0-2"].received.value == 0  # another pair measured the link
    expected = {"r0-2": 12 * MBIT, "r3-0": 12 * MBIT}  # the second is near: its connection needs no warming up
    target.prober.planned(expected, (), world.now)
    near = target.gauges.paths["r3-0"].received.value
    world.run(10)
    assert target.gauges.paths["r0-2"].received.value / MBIT == pytest.approx(15, rel=0.1)
    assert source.gauges.paths["r3-2"].sent.value / MBIT == pytest.approx(15, rel=0.1)
    assert target.gauges.paths["r3-0"].received.value == near
    cost = world.moved("r0-2", "r3-2")
    assert cost < 15 * MBIT * 4
    target.prober.planned(dict(expected), (), world.now)
    world.run(60)
    assert world.moved("r0-2", "r3-2") == cost


def test_a_way_that_gives_less_than_the_plan_counts_on_is_not_tried_again_and_again() -> None:
    world = four_regions()
    world.run(80)  # all others are done
    target = world.hosts["r3-1"]
    target.prober.planned({"r2-1": 40 * MBIT}, (), world.now)
    world.run(40)
    assert target.gauges.paths["r2-1"].received.value / MBIT == pytest.approx(10, rel=0.15)
    moved = world.moved("r2-1", "r3-1")
    world.run(120)
    assert world.moved("r2-1", "r3-1") == moved


def test_the_same_seed_probes_alike() -> None:
    def account(seed: int) -> list[float]:
        world = four_regions(seed)
        world.run(12)
        return [host.junk_sent for host in world.hosts.values()]

    assert account(1) == account(1)


def test_a_region_is_looked_at_until_a_look_finds_no_more_than_those_before_it() -> None:
    jobs = Jobs(CONFIG, Gauges(), random.Random(0))
    job = jobs.new(0.0)

    def rests(best: float) -> float:
        jobs.judge(job, True, 100.0, best * MBIT)
        return job.due - 100.0

    soon, late = 1.25 * CONFIG.again, 0.75 * CONFIG.stale
    assert rests(10) <= soon
    assert rests(25) <= soon, "something took most of it when it was looked at first"
    assert rests(31) <= soon
    assert rests(33) >= late
    assert rests(50) <= soon


# ---- one node, message by message ----------------------------------------------------------------------------------


def prober(config: ProbeConfig = CONFIG, peers: int = 3, region: str = "a") -> Prober:
    """A node with peers p0, p1, … of its region."""
    made = Prober("me", "a", config, Gauges(), random.Random(0))
    for i in range(peers):
        made.peer_up(f"p{i}", region, 0.0)
    return made


def told(node: Prober, kind: Callable[..., object]) -> list[Tell]:
    return [action for action in node.actions() if isinstance(action, Tell) and isinstance(action.message, kind)]  # type: ignore[arg-type]


def test_a_peer_gets_no_more_than_the_budget_however_often_it_asks() -> None:
    node = prober(ProbeConfig(allowance=5 << 20, cooling=0.0))
    granted = 0
    for second in range(600):
        now = float(second)
        node.receive("p0", ProbeRequest(second, 1 << 30, 60.0), now)
        for action in node.actions():
            if isinstance(action, Pump):
                assert action.until <= now + CONFIG.longest
                granted += action.size
                node.pumped("p0", action.size, now)
    # The allowance, and a hundredth of the rate that is assumed of a link that nobody knows.
    assert 5 << 20 <= granted <= (5 << 20) + 0.01 * CONFIG.assumed * 600


def test_others_leave_enough_for_the_first_look_at_a_nodes_own_uplink() -> None:
    config = ProbeConfig(settle=0.0, spread=0.0, cooling=0.0)
    node, now, granted = prober(config, region="b"), 0.0, 0
    for token in range(200):
        now += 0.1
        node.receive("p0", ProbeRequest(token, 1 << 30, 4.0), now)
        for pump in [action for action in node.actions() if isinstance(action, Pump)]:
            granted += pump.size
            node.pumped("p0", pump.size, now)
    assert granted <= (1 - config.own) * config.allowance + 1
    kept, pumped = int(config.own * config.allowance), 0
    assert kept > 1.5 * config.own * (config.allowance - granted), "otherwise a share of what is left would do"
    for way in node._jobs.regions.values():
        way.done = True
    while not pumped:
        now += 0.1
        node.poll(False, now)
        for action in node.actions():
            if isinstance(action, Tell) and isinstance(action.message, ProbeInvite):
                node.receive(action.peer, ProbeRequest(action.message.token, 1 << 30, 4.0), now)
            pumped += action.size if isinstance(action, Pump) else 0
    assert pumped >= kept


def test_a_node_whose_uplink_nobody_has_time_to_look_at_keeps_nothing_back_for_ever() -> None:
    node = prober(ProbeConfig(cooling=0.0))
    node.receive("p0", ProbeRequest(1, 1 << 30, 4.0), 2 * CONFIG.window)
    first = [action.size for action in node.actions() if isinstance(action, Pump)]
    early = prober(ProbeConfig(cooling=0.0))
    early.receive("p0", ProbeRequest(1, 1 << 30, 4.0), 1.0)
    assert first > [action.size for action in early.actions() if isinstance(action, Pump)]


def test_one_asks_at_a_time_and_others_are_refused() -> None:
    node = prober()
    node.receive("p0", ProbeRequest(1, 1 << 20, 2.0), 1.0)
    assert node.actions() == [Pump("p0", 1 << 20, 3.0)]
    node.receive("p1", ProbeRequest(2, 1 << 20, 2.0), 1.1)
    assert node.actions() == [Tell("p1", ProbeEnd(2, 0))]
    node.receive("p1", ProbeRequest(1, 0, 0.0), 1.2)  # somebody else's probe is not theirs to stop
    assert node.actions() == []
    node.receive("p0", ProbeRequest(1, 0, 0.0), 1.3)
    assert node.actions() == [StopPump("p0")]
    node.pumped("p0", 1000, 1.3)
    assert node.actions() == [Tell("p0", ProbeEnd(1, 1000))]
    node.receive("p0", ProbeRequest(3, 1 << 20, 2.0), 1.4)
    assert node.actions() == [Tell("p0", ProbeEnd(3, 0))]  # not the same one again at once


def test_what_was_not_used_is_given_back() -> None:
    node = prober(ProbeConfig(allowance=1 << 20, cooling=0.0, share=0.0))
    for token in range(50):
        node.receive("p0", ProbeRequest(token, 1 << 20, 2.0), 1.0)
        assert [type(action) for action in node.actions()] == [Pump]
        node.pumped("p0", 1000, 1.0)
        node.actions()


def test_a_peer_that_sends_junk_unasked_is_hung_up_on() -> None:
    node = prober()
    node.receive("p0", ProbePadding(memoryview(bytes(1000))), 1.0)
    assert [type(action) for action in node.actions()] == [Expel]


def test_junk_that_was_asked_for_may_come_late_but_not_in_excess() -> None:
    node = prober(ProbeConfig(settle=0.0, spread=0.0, most=100_000, down_fan=1), peers=1)
    node.poll(False, 0.1)
    asked = told(node, ProbeRequest)
    assert [tell.message.size for tell in asked if isinstance(tell.message, ProbeRequest)] == [100_000]
    node.receive("p0", ProbePadding(memoryview(bytes(60_000))), 0.2)
    node.poll(False, 60.0)  # long over
    node.actions()
    node.receive("p0", ProbePadding(memoryview(bytes(40_000))), 60.1)
    assert not any(isinstance(action, Expel) for action in node.actions())
    node.receive("p0", ProbePadding(memoryview(bytes(1))), 60.2)
    assert any(isinstance(action, Expel) for action in node.actions())


def test_strangers_and_answers_to_nothing_are_ignored() -> None:
    node = prober()
    node.receive("nobody", ProbeRequest(1, 1 << 20, 2.0), 1.0)
    node.receive("p0", ProbeEnd(77, 5), 1.0)
    node.receive("p0", ProbeRequest(77, 0, 0.0), 1.0)
    node.pumped("p0", 5, 1.0)
    assert node.actions() == []


def test_an_offer_waits_for_all_and_is_called_off_if_one_has_no_time() -> None:
    node = prober(ProbeConfig(settle=0.0, spread=0.0, up_fan=2, down_fan=2), peers=2)
    node.poll(False, 0.1)
    offers = told(node, ProbeInvite)
    assert {tell.peer for tell in offers} == {"p0", "p1"}
    token = offers[0].message.token
    node.receive("p0", ProbeRequest(token, 1 << 20, 2.0), 0.2)
    assert not any(isinstance(action, Pump) for action in node.actions())
    node.receive("p1", ProbeEnd(token, 0), 0.3)
    assert Tell("p0", ProbeEnd(token, 0)) in node.actions()
    for _ in range(100):  # later both have time
        now = 5.0
        node.poll(False, now)
        offers = told(node, ProbeInvite)
        if offers:
            break
    token = offers[0].message.token
    for name in ("p0", "p1"):
        node.receive(name, ProbeRequest(token, 1 << 20, 2.0), 5.1)
    assert [action.peer for action in node.actions() if isinstance(action, Pump)] == ["p0", "p1"]


@pytest.mark.parametrize("fan", [1, 3])
def test_several_far_ways_are_sent_what_they_give_while_an_uplink_is_looked_at_over_them(fan: int) -> None:
    node = prober(ProbeConfig(settle=0.0, spread=0.0, up_fan=fan, down_fan=3), peers=3)
    gauges = node._gauges
    for name, rtt in (("p0", 0.1), ("p1", 0.001), ("p2", 0.1)):
        gauges.round_trip(name, rtt)
    for name, rate in (("p0", 40), ("p1", 20)):
        for _ in range(10):
            gauges.paths[name].sent.add(int(rate * MBIT / 10), 0.1)
    node.poll(False, 0.1)
    for offer in told(node, ProbeInvite):
        node.receive(offer.peer, ProbeRequest(offer.message.token, 1 << 20, 2.0), 0.2)  # type: ignore[union-attr]
    rates = {action.peer: action.rate for action in node.actions() if isinstance(action, Pump)}
    if fan == 1:
        assert set(rates.values()) == {0.0}, "it may give more"
    else:
        assert rates == {"p0": pytest.approx(FULL * 40 * MBIT, rel=0.01), "p1": 0.0, "p2": 0.0}


def test_a_nodes_own_uplink_is_looked_at_until_a_look_finds_no_more() -> None:
    gauges = Gauges()
    node = Prober("me", "a", ProbeConfig(settle=0.0, spread=0.0), gauges, random.Random(0))
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
            gauges.up.add(int(rate * MBIT / 10), 0.1)
        for action in node.actions():
            if isinstance(action, Pump):
                node.pumped(action.peer, 1 << 20, now)

    next_offer()
    soon, late = 1.25 * CONFIG.again + 1, 0.75 * CONFIG.stale
    for rate in (22, 45, 97):  # the machine was busy at first
        found(rate)
        assert next_offer() <= soon
    found(97)
    assert next_offer() >= late


def test_an_uplink_that_a_pump_was_too_short_to_show_is_pumped_again_and_not_taken_for_slow() -> None:
    gauges = Gauges()
    node = Prober("me", "a", ProbeConfig(settle=0.0, spread=0.0), gauges, random.Random(0))
    for name in ("p0", "p1"):
        node.peer_up(name, "a", 0.0)
    for _ in range(40):
        gauges.up.add(int(19 * MBIT / 10), 0.1)  # over a slow way to somebody far away
    now, granted = 0.0, 0
    for again in (False, True):
        while not (offers := told(node, ProbeInvite)):
            now += 0.1
            node.poll(False, now)
        assert now <= (2.0 if again else 0.2)
        for offer in offers:
            node.receive(offer.peer, ProbeRequest(offer.message.token, 16 << 20, 2.0), now)
        now += 0.3
        pumps = [action for action in node.actions() if isinstance(action, Pump)]
        granted = sum(pump.size for pump in pumps)
        for pump in pumps:
            node.pumped(pump.peer, pump.size, now)
    assert granted == 32 << 20, "it may spend what a link may that nobody has measured"


def test_an_own_uplink_is_not_known_by_a_pump_that_ended_for_want_of_bytes() -> None:
    gauges = Gauges()
    node = Prober("me", "a", ProbeConfig(settle=0.0, spread=0.0), gauges, random.Random(0))
    for name in ("p0", "p1"):
        node.peer_up(name, "a", 0.0)
    node.poll(False, 0.1)
    for offer in told(node, ProbeInvite):
        node.receive(offer.peer, ProbeRequest(offer.message.token, 1 << 20, 2.0), 0.1)
    for pump in [action for action in node.actions() if isinstance(action, Pump)]:
        node.pumped(pump.peer, pump.size, 0.3)
    for _ in range(10):
        gauges.up.add(int(9 * MBIT / 10), 0.1)
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
    assert world.hosts["root"].gauges.up.value / MBIT > 190


def test_a_downlink_that_gave_clearly_more_than_the_plan_needs_is_not_looked_at() -> None:
    def asks(planned: float | None) -> bool:
        gauges = Gauges()
        node = Prober("me", "a", ProbeConfig(settle=0.0, spread=0.0), gauges, random.Random(0))
        for name in ("p0", "p1"):
            node.peer_up(name, "a", 0.0)
        for _ in range(10):
            gauges.down.add(int(60 * MBIT / 10), 0.1)
        if planned is not None:
            node.planned({"p0": planned / 2 * MBIT, "p1": planned / 2 * MBIT}, (), 0.0)
        node.poll(False, 0.1)
        return bool(told(node, ProbeRequest))

    assert asks(None)
    assert asks(50.0)
    assert not asks(39.0)


def asking() -> Prober:
    """A node that asks two near peers for junk, and leaves the way to one far away to another."""
    gauges = Gauges()
    node = Prober("second in line", "a", ProbeConfig(settle=0.0, spread=0.0, rank_wait=1e6), gauges, random.Random(0))
    node.members(["me"])
    for name, region in (("p0", "a"), ("p1", "a"), ("far", "b")):
        node.peer_up(name, region, 0.0)
    node.poll(False, 0.1)
    return node


def test_an_offer_from_afar_waits_for_one_who_measures_something_else() -> None:
    node = asking()
    asked = told(node, ProbeRequest)
    assert {probe.peer for probe in asked} == {"p0", "p1"}
    node.receive("far", ProbeInvite(7), 0.2)
    node.receive("p0", ProbeInvite(8), 0.2)
    assert [action.message.token for action in told(node, ProbeEnd)] == [8]
    for probe in asked:
        node.receive(probe.peer, ProbeEnd(probe.message.token, 0), 1.0)
    node.poll(False, 1.1)
    assert [(p.peer, p.message.token) for p in told(node, ProbeRequest) if p.message.size] == [("far", 7)]


@pytest.mark.parametrize("end", ["nothing happens", "called off", "gone", "chunks flow", "too old"])
def test_an_offer_that_waits_is_forgotten_when_it_is_called_off_too_old_or_chunks_flow(end: str) -> None:
    node = asking()
    asked = told(node, ProbeRequest)
    node.receive("far", ProbeInvite(7), 0.2)
    if end == "called off":
        node.receive("far", ProbeEnd(7, 0), 0.3)
    if end == "gone":
        node.peer_down("far", 0.3)
    node.poll(end == "chunks flow", 0.4)
    for probe in asked:
        node.receive(probe.peer, ProbeEnd(probe.message.token, 0), 0.5)
    node.poll(False, 3.0 if end == "too old" else 0.6)
    assert (7 in [probe.message.token for probe in told(node, ProbeRequest)]) == (end == "nothing happens")


def test_two_who_wait_for_each_other_find_out_the_way_first() -> None:
    node = prober(ProbeConfig(settle=0.0, spread=0.0), peers=0)
    node.peer_up("far", "b", 0.0)
    node.poll(False, 0.1)
    asked = told(node, ProbeRequest)
    assert [probe.peer for probe in asked] == ["far"]
    node.receive("far", ProbeInvite(7), 0.2)  # it serves nobody while it waits
    assert [action.message.token for action in told(node, ProbeEnd)] == [7]


def test_a_peer_that_goes_leaves_nothing_waiting() -> None:
    node = prober(ProbeConfig(settle=0.0, spread=0.0), peers=2)
    node.poll(False, 0.1)
    assert node.busy
    for name in ("p0", "p1"):
        node.peer_down(name, 0.2)
    node.actions()
    assert not node.busy


# ---- budgets and steadiness ----------------------------------------------------------------------------------------


def test_a_budget_fills_to_a_minutes_share_and_no_further() -> None:
    budget = Budget(CONFIG)
    rate = 1.25e6
    assert budget.left(rate, 0.0, known=True) == CONFIG.allowance_seconds * rate
    budget.spend(int(CONFIG.allowance_seconds * rate))
    assert budget.left(rate, 0.0, known=True) == 0
    assert budget.left(rate, 10.0, known=True) == pytest.approx(0.01 * rate * 10, rel=0.01)
    assert budget.left(rate, 1e6, known=True) == pytest.approx(0.01 * rate * 60, rel=0.01)


def test_a_flow_that_still_grows_is_not_steady() -> None:
    steady, total = Steady(0.1), 0.0
    for tick in range(40):
        now = tick * 0.1
        total += min(1e6, 2e4 * 2 ** (now / 0.2)) * 0.1
        if steady.reached(int(total), now):
            break
    # It doubles for 1.1 s and is flat from then on.
    assert 1.4 <= now <= 2.6
