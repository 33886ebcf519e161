"""The bound on a broadcast matches theory on networks with known answers."""

from pathlib import Path

import pytest

from p2psync.errors import FormatError
from p2psync.topology.bound import broadcast_bound
from p2psync.topology.model import Link, Region, Topology, load

FOUR_REGIONS = """
trainer = "r0-0"
[region.r0]
hosts = 3
up = 1000
[region.r1]
hosts = 3
up = 1000
[region.r2]
hosts = 3
up = 1000
[region.r3]
hosts = 3
up = 1000
[[link]]
between = ["r0", "r1"]
rate = 100
[[link]]
between = ["r0", "r2"]
rate = 50
[[link]]
between = ["r0", "r3"]
rate = 20
[[link]]
between = ["r1", "r2"]
rate = 100
[[link]]
between = ["r1", "r3"]
rate = 30
[[link]]
between = ["r2", "r3"]
rate = 10
"""


def one_region(hosts: int, up: float, down: float | None = None) -> Topology:
    return Topology("a-0", {"a": Region(hosts, up, down)})


def test_equal_hosts_behind_one_switch_receive_at_the_trainers_uplink() -> None:
    # Mutualcast: min(up, (up + n * up) / n) = up
    assert broadcast_bound(one_region(13, 100)).rate == pytest.approx(100)


def test_slow_downlinks_bind() -> None:
    assert broadcast_bound(one_region(3, 100, 40)).rate == pytest.approx(40)


def test_weak_uplinks_together_bind_below_the_trainers_own() -> None:
    topology = Topology("t-0", {"t": Region(1, 100, 100), "a": Region(9, 10, 100)}, [Link(("t", "a"), 1000)])
    bound = broadcast_bound(topology)
    assert bound.rate == pytest.approx((100 + 9 * 10) / 9)
    assert "uplinks" in bound.because


def test_the_wan_of_four_regions_is_bound_by_the_links_into_the_worst_connected(tmp_path: Path) -> None:
    file = tmp_path / "wan.toml"
    file.write_text(FOUR_REGIONS)
    bound = broadcast_bound(load(file))
    assert bound.rate == pytest.approx(60)  # 20 + 30 + 10 Mbit/s lead into r3
    assert bound.seconds(64 << 20) == pytest.approx(8.95, abs=0.01)


def test_a_region_is_not_a_relay_without_its_hosts() -> None:
    """Traffic from a to c passes b only through b's hosts, whose links then bind."""
    topology = Topology(
        "a-0",
        {"a": Region(1, 100), "b": Region(1, 5, 7), "c": Region(1, 100)},
        [Link(("a", "b"), 100), Link(("b", "c"), 100)],
    )
    assert broadcast_bound(topology).rate == pytest.approx(5)


def test_an_unreachable_region_gives_no_rate_at_all() -> None:
    topology = Topology("a-0", {"a": Region(1, 100), "b": Region(1, 100)})
    assert broadcast_bound(topology).rate == 0
    assert broadcast_bound(topology).seconds(1) == float("inf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('trainer = "a-9"\n[region.a]\nhosts = 2\nup = 10\n', "is no host"),
        ('trainer = "a-0"\n[region.a]\nhosts = 0\nup = 10\n', "needs a host"),
        ('trainer = "a-0"\n[region.a]\nhosts = 1\nup = 10\n[[link]]\nbetween = ["a", "z"]\nrate = 1\n', "'z'"),
        ('trainer = "a-0"\n[region.a]\nhosts = 1\nup = 10\n[[link]]\nbetween = ["a", "a"]\nrate = 1\n', "itself"),
        ('trainer = "a-0"\n[region.a]\nhosts = 1\nup = 10\nlatency = 3\n', "latency"),
        ('trainer = "a-0"\n[region.a]\nhosts = 1000000\nup = 10\n', "more than"),
        ("trainer = ", "wan.toml"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wan.toml"
    file.write_text(text)
    with pytest.raises(FormatError) as caught:
        load(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
