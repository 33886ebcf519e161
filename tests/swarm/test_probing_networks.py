"""Probing of whole networks, in virtual time: what is found out, how soon, and at what cost."""

from __future__ import annotations

import random

import pytest
from probing_parts import CONFIG, MBIT, Host, World, asking, told

from p2psync.protocol.messages import SuppressProbes, UplinkRate
from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.node_estimates import NodeEstimates
from p2psync.swarm.control.probe_schedule import ProbeSchedule

FOUR_REGIONS = {
    ("r0", "r1"): (100.0, 0.07),
    ("r0", "r2"): (50.0, 0.1),
    ("r0", "r3"): (20.0, 0.15),
    ("r1", "r2"): (100.0, 0.02),
    ("r1", "r3"): (30.0, 0.12),
    ("r2", "r3"): (10.0, 0.08),
}


def four_regions(seed: int = 0, rate: float = 300) -> World:
    hosts = [Host(f"r{r}-{i}", f"r{r}", rate, rate) for r in range(4) for i in range(3)]
    return World(hosts, FOUR_REGIONS, seed=seed)


def best_way(world: World, a: str, b: str) -> float:
    """The highest rate from one region to another that any node there knows (Mbit/s)."""
    return max(
        host.estimates.paths[other.name].sent.value / MBIT
        for host in world.hosts.values()
        for other in world.hosts.values()
        if (host.region, other.region) == (a, b)
    )


@pytest.mark.parametrize("seed", range(3))
def test_twelve_nodes_that_join_together_measure_all_paths_and_links_within_half_a_minute(seed: int) -> None:
    world = four_regions(seed)
    world.run(12)
    for (a, b), (rate, _) in world.links.items():
        assert best_way(world, a, b) == pytest.approx(rate, rel=0.15), (a, b)
    world.run(18)
    for host in world.hosts.values():
        assert host.estimates.up.value / MBIT == pytest.approx(300, rel=0.15), host.name
        assert host.estimates.down.value / MBIT == pytest.approx(300, rel=0.15), host.name


def test_one_region_measures_unequal_uplinks() -> None:
    ups = [100, 100, 100, 25, 100, 10, 100, 100, 50, 100, 100, 100]
    world = World([Host(f"a{i}", "a", up, 100) for i, up in enumerate(ups)], {})
    world.run(30)
    for host in world.hosts.values():
        assert host.estimates.up.value / MBIT == pytest.approx(host.up, rel=0.15), host.name
    # A downlink shows only if those that were asked could fill it.
    downs = sorted(host.estimates.down.value / MBIT for host in world.hosts.values())
    assert downs[2:] == pytest.approx([100] * 10, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_a_downlink_is_measured_with_the_widest_uplinks_nearby(seed: int) -> None:
    ups = [5.0, 20.0, 20.0, 35.0, 20.0, 60.0]
    hosts = [Host(f"b{i}", "b", up, 300) for i, up in enumerate(ups)]
    world = World(hosts, {}, seed=seed)
    world.run(90)
    for i, host in enumerate(hosts):
        most = sum(sorted(ups[:i] + ups[i + 1 :])[-3:])
        assert world.hosts[host.name].estimates.down.value / MBIT > 0.8 * most, host.name


@pytest.mark.parametrize("seed", range(4))
def test_prober_is_sure_of_a_downlink_once_two_probes_agree_that_it_is_the_limit(seed: int) -> None:
    downs = [20.0, 300.0, 300.0, 70.0, 300.0, 300.0]
    hosts = [Host(f"a{i}", "a", 60, down) for i, down in enumerate(downs)]
    world = World(hosts, {}, seed=seed)
    sure = set()
    for _ in range(120):
        world.run(1)
        for host in hosts:
            if host.name not in sure and world.hosts[host.name].prober.down_sure:
                sure.add(host.name)
                assert host.estimates.down.value / MBIT > 0.85 * host.down, host.name
    assert sure == {"a0", "a3"}, "of the others it shows only what their mates can send"


def test_prober_does_not_probe_a_downlink_for_ever_that_limits_nothing() -> None:
    hosts = [Host(f"a{i}", "a", 60, 300) for i in range(6)]
    world = World(hosts, {})
    world.run(120)
    before = [host.padding_received for host in hosts]
    world.run(120)
    assert [host.padding_received for host in hosts] == before


def test_prober_probes_a_path_between_regions_by_one_pair_at_a_time() -> None:
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
def test_prober_finds_a_link_wider_than_most_uplinks_through_the_widest_one(fast: int) -> None:
    ups = [40.0, 10.0, 40.0, 20.0, 40.0]
    ups.insert(fast, 100.0)
    hosts = [Host(f"a{i}", "a", up, 250) for i, up in enumerate(ups)]
    hosts += [Host(f"b{i}", "b", up, 300) for i, up in enumerate([5.0, 20.0, 20.0, 35.0, 20.0])]
    world = World(hosts, {("a", "b"): (80.0, 0.1)}, seed=fast)
    world.run(25)
    assert best_way(world, "a", "b") == pytest.approx(80, rel=0.1)


def test_prober_measures_an_uplink_over_unequal_paths_at_one_time() -> None:
    hosts = [Host("t0", "t", 300, 300)]
    hosts += [Host(f"{region}{i}", region, up, 300) for region, up in (("e", 40), ("m", 20)) for i in range(4)]
    world = World(hosts, {("t", "e"): (250.0, 0.04), ("t", "m"): (120.0, 0.12), ("e", "m"): (100.0, 0.12)})
    world.run(45)
    assert world.hosts["t0"].estimates.up.value / MBIT == pytest.approx(300, rel=0.05)


def test_prober_announces_its_uplink_once_it_is_measured_and_when_it_has_changed() -> None:
    hosts = [Host("a0", "a", 40, 100), Host("a1", "a", 90, 100), Host("b0", "b", 100, 100)]
    world = World(hosts, {("a", "b"): (200.0, 0.05)})
    assert world.told("a0", UplinkRate) == []
    world.run(15)
    assert [target for target, _ in world.told("a0", UplinkRate)] == ["a1", "b0"]
    assert world.told("a0", UplinkRate)[0][1].rate / MBIT == pytest.approx(40, rel=0.15)
    world.run(100)
    assert len(world.told("a0", UplinkRate)) == 2
    for _ in range(10):  # a transfer shows more
        world.hosts["a0"].estimates.up.add(int(8 * MBIT), 0.1)
    world.run(0.2)
    assert [round(message.rate / MBIT) for _, message in world.told("a0", UplinkRate)[2:]] == [80, 80]


def test_a_peer_that_overstates_its_uplink_is_probed_first_and_hides_nobody() -> None:
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


def test_nodes_without_regions_probe_each_far_peer() -> None:
    hosts = [Host("a0", "x", 100, 100), Host("b0", "y", 100, 100), Host("c0", "z", 100, 100)]
    world = World(hosts, {("x", "y"): (20.0, 0.05), ("x", "z"): (30.0, 0.08), ("y", "z"): (40.0, 0.02)}, named=False)
    world.run(15)
    for (a, b), (rate, _) in world.links.items():
        assert best_way(world, a, b) == pytest.approx(rate, rel=0.15)


def test_probing_stays_within_its_budget_for_hours() -> None:
    config = ProbeConfig(refresh_seconds=20.0)  # as if everything had to be measured again all the time
    world = World([Host(f"a{i}", "a", 20, 20) for i in range(3)], {}, config)
    world.run(900)
    link = 20 * MBIT
    for host in world.hosts.values():
        # Beside the share, what newcomers may take: some seconds of the link, and one probe before it was known.
        most = config.initial_seconds * link * 2 + config.link_share * link * 900
        assert 0.2 * most < host.padding_sent < most
        assert host.padding_received < most


def test_probes_end_when_chunks_flow_and_none_begins() -> None:
    world = four_regions()
    world.run(1.5)
    assert any(host.flows for host in world.hosts.values())
    for host in world.hosts.values():
        host.flowing = True
    world.run(0.3)
    assert not any(host.flows for host in world.hosts.values())
    sent = [host.padding_sent for host in world.hosts.values()]
    world.run(30)
    assert [host.padding_sent for host in world.hosts.values()] == sent
    for host in world.hosts.values():
        host.flowing = False
    world.run(30)
    assert all(host.estimates.up.value for host in world.hosts.values())


def test_suppression_silences_all_descendants_for_a_while() -> None:
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
    root.prober.suppress(world.now)
    world.run(0.5)
    assert not any(host.flows for host in world.hosts.values())
    sent = [host.padding_sent for host in world.hosts.values()]
    world.run(CONFIG.suppressed_seconds - 0.6)
    assert [host.padding_sent for host in world.hosts.values()] == sent
    world.run(30)
    assert best_way(world, "r0", "r1") == pytest.approx(100, rel=0.15)


def test_prober_lets_only_parents_suppress_it_and_not_all_the_time() -> None:
    node = asking()
    node.planned({"p0": 60 * MBIT}, ["p1", "gone"], 0.1)
    node.receive("p1", SuppressProbes(3.0), 0.1)
    assert node.busy, "who says so sends nothing to this node"
    node.receive("p0", SuppressProbes(3.0), 0.2)
    assert not node.busy
    node.receive("p0", SuppressProbes(3.0), 3.1 + CONFIG.suppressed_seconds)  # it would never measure
    node.receive("p0", SuppressProbes(60.0), 3.3 + CONFIG.suppressed_seconds)
    assert [(tell.peer, tell.message) for tell in told(node, SuppressProbes)] == [
        ("p1", SuppressProbes(3.0)),
        ("p1", SuppressProbes(CONFIG.suppressed_seconds)),
    ]


def test_prober_probes_a_planned_path_once_at_a_little_more_than_the_planned_rate() -> None:
    world = four_regions()
    world.run(80)  # all others are done
    source, target = world.hosts["r0-2"], world.hosts["r3-2"]
    assert target.estimates.paths["r0-2"].received.value == 0  # another pair measured the link
    expected = {"r0-2": 12 * MBIT, "r3-0": 12 * MBIT}  # the second is near: its connection needs no warming up
    target.prober.planned(expected, (), world.now)
    near = target.estimates.paths["r3-0"].received.value
    world.run(10)
    assert target.estimates.paths["r0-2"].received.value / MBIT == pytest.approx(15, rel=0.1)
    assert source.estimates.paths["r3-2"].sent.value / MBIT == pytest.approx(15, rel=0.1)
    assert target.estimates.paths["r3-0"].received.value == near
    cost = world.moved("r0-2", "r3-2")
    assert cost < 15 * MBIT * 4
    target.prober.planned(dict(expected), (), world.now)
    world.run(60)
    assert world.moved("r0-2", "r3-2") == cost


def test_prober_does_not_repeat_probes_of_a_path_that_gives_less_than_planned() -> None:
    world = four_regions()
    world.run(80)  # all others are done
    target = world.hosts["r3-1"]
    target.prober.planned({"r2-1": 40 * MBIT}, (), world.now)
    world.run(40)
    assert target.estimates.paths["r2-1"].received.value / MBIT == pytest.approx(10, rel=0.15)
    moved = world.moved("r2-1", "r3-1")
    world.run(120)
    assert world.moved("r2-1", "r3-1") == moved


def test_the_same_seed_probes_alike() -> None:
    def account(seed: int) -> list[float]:
        world = four_regions(seed)
        world.run(12)
        return [host.padding_sent for host in world.hosts.values()]

    assert account(1) == account(1)


def test_probe_schedule_measures_a_path_again_until_a_probe_gives_no_more_than_those_before() -> None:
    schedule = ProbeSchedule(CONFIG, NodeEstimates(), random.Random(0))
    task = schedule.new_task(0.0)

    def rests(best: float) -> float:
        schedule.finished(task, 100.0, best * MBIT)
        return task.due - 100.0

    soon, late = 1.25 * CONFIG.confirm_seconds, 0.75 * CONFIG.refresh_seconds
    assert rests(10) <= soon
    assert rests(25) <= soon, "something took most of it when it was looked at first"
    assert rests(31) <= soon
    assert rests(33) >= late
    assert rests(50) <= soon
