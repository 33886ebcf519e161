"""Topology files with settings of single hosts, directions, and undialable hosts; and their consequences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from p2psync.errors import FormatError
from p2psync.topology.bound import broadcast_bound, least_makespan
from p2psync.topology.model import Host, Link, Region, Topology, load
from p2psync.topology.network import from_topology

FULL = """
trainer = "eu-0"
blocked = [["us-1", "eu"], ["eu-1", "us-1"]]

[region.eu]
hosts = 2
up = 100
down = 200
delay_ms = 1
loss = 0.01

[region.us]
hosts = 2
up = 50
dialable = false

[host.us-1]
up = 25
dialable = true

[[link]]
between = ["eu", "us"]
rate = 40
rate_back = 10
delay_ms = 35
"""


def test_a_hosts_own_settings_override_its_regions(tmp_path: Path) -> None:
    (tmp_path / "wan.toml").write_text(FULL)
    network = from_topology(load(tmp_path / "wan.toml"))
    assert network.names == ("eu-0", "eu-1", "us-0", "us-1")
    assert network.up.tolist() == [100, 100, 50, 25]
    assert network.down.tolist() == [200, 200, 50, 50]
    assert network.dialable.tolist() == [True, True, False, True]
    assert network.rate.tolist() == [[np.inf, 40], [10, np.inf]]
    assert network.delay.tolist() == [[0.001, 0.035], [0.035, 0]]
    assert network.loss.tolist() == [[0.01, 0], [0, 0]]


def test_one_direction_of_dialling_is_enough_for_both_directions_of_data(tmp_path: Path) -> None:
    (tmp_path / "wan.toml").write_text(FULL)
    network = from_topology(load(tmp_path / "wan.toml"))
    eu0, eu1, us0, us1 = range(4)
    assert network.connects(eu0, us1), "eu-0 dials us-1"
    assert network.connects(us1, eu0)
    assert not network.connects(eu1, us1), "neither can dial the other"
    assert network.connects(us0, eu1), "us-0 dials out"
    many = network.connections()
    assert all(many[i, j] == (i != j and network.connects(i, j)) for i in range(4) for j in range(4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[host.us-1]", "[host.us-7]"), "us-7"),
        (("up = 25", "up = 0"), "us-1"),
        (("up = 25", "speed = 25"), "speed"),
        (('["us-1", "eu"]', '["us-1", "mars"]'), "mars"),
        (("rate_back = 10", "rate_back = -1"), "rate above 0"),
        (("rate = 40", "rate = nan"), "rate above 0"),
        (("up = 50", "up = inf"), "region us"),
        (("delay_ms = 35", "delay_ms = 1e9"), "delay_ms"),
        (("loss = 0.01", "loss = 1"), "region eu: loss"),
    ],
)
def test_an_inconsistent_topology_is_refused_in_one_line(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    file = tmp_path / "wan.toml"
    file.write_text(FULL.replace(*change))
    with pytest.raises(FormatError) as caught:
        load(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_slower_network_has_lower_rates_and_an_equally_lower_bound(tmp_path: Path) -> None:
    (tmp_path / "wan.toml").write_text(FULL + '[[event]]\nat = 1\nkind = "degrade"\nlink = ["eu", "us"]\nrate = 4\n')
    whole = load(tmp_path / "wan.toml")
    slow = whole.slower(4)
    before, after = from_topology(whole), from_topology(slow)
    for ours, theirs in ((after.up, before.up), (after.down, before.down), (after.rate, before.rate)):
        assert np.array_equal(ours, theirs / 4)
    assert np.array_equal(after.delay, before.delay)
    assert np.array_equal(after.loss, before.loss)
    assert slow.event[0].rate == 1
    assert broadcast_bound(slow).rate == pytest.approx(broadcast_bound(whole).rate / 4)
    with pytest.raises(FormatError, match="rates above 0"):
        whole.slower(float("inf"))


def test_two_nodes_that_only_dial_out_need_a_third() -> None:
    hidden = {"a-1": Host(dialable=False), "a-2": Host(dialable=False)}
    assert broadcast_bound(Topology("a-0", {"a": Region(3, 100)}, host=hidden)).rate == pytest.approx(50)
    alone = Topology("a-0", {"a": Region(2, 100)}, host={"a-0": Host(dialable=False), "a-1": Host(dialable=False)})
    bound = broadcast_bound(alone)
    assert bound.rate == 0
    assert "a-1" in bound.because


def test_a_region_without_uplinks_relays_to_no_other() -> None:
    network = from_topology(
        Topology("a-0", {"a": Region(1, 10), "b": Region(1, 10), "c": Region(1, 10)}, [Link(("a", "b"), 5)])
    )
    assert network.reachable().tolist() == [True, True, False]


def test_a_link_shared_by_competing_copies_counts_once() -> None:
    # Max-flow to each host alone is 10, and so it is to both at once: one copy crosses, and b's hosts relay.
    shared = Topology("a-0", {"a": Region(1, 100), "b": Region(2, 100)}, [Link(("a", "b"), 10)])
    assert broadcast_bound(shared).rate == pytest.approx(10, rel=2e-3)
    # Where they cannot relay, two copies share the link, and no max-flow sees it.
    apart = Topology(
        "a-0", {"a": Region(1, 100), "b": Region(2, 100)}, [Link(("a", "b"), 10)], {}, [("b-0", "b-1"), ("b-1", "b-0")]
    )
    bound = broadcast_bound(apart)
    assert bound.rate == pytest.approx(5, rel=2e-3)
    assert bound.exact
    assert bound.because == "the link a→b"


def test_the_bound_names_its_bottleneck() -> None:
    assert "downlink of a-2" in broadcast_bound(Topology("a-0", {"a": Region(4, 9)}, host={"a-2": Host(9, 3)})).because
    assert "uplink of a-0" in broadcast_bound(Topology("a-0", {"a": Region(4, 9)})).because


def test_the_least_makespan_includes_the_first_chunks_delay() -> None:
    network = Topology("a-0", {"a": Region(1, 100), "b": Region(1, 100)}, [Link(("a", "b"), 8, 250)])
    assert least_makespan(network, 1_000_000) == pytest.approx(1.25, rel=2e-3)
    assert least_makespan(network, 0) == pytest.approx(0.25, rel=2e-3)


def test_a_relay_that_waits_for_whole_chunks_adds_one_to_the_least_makespan() -> None:
    chain = Topology(
        "a-0",
        {"a": Region(1, 8), "b": Region(1, 8), "c": Region(1, 8)},
        [Link(("a", "b"), 8), Link(("b", "c"), 8)],
    )
    assert least_makespan(chain, 1_000_000) == pytest.approx(1.0, rel=2e-3)
    assert least_makespan(chain, 1_000_000, 100_000) == pytest.approx(1.1, rel=2e-3)
