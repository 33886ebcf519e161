"""Events and buffers of a topology file are read or refused; hosts and links get their numbers."""

from pathlib import Path

import pytest

from p2psync.errors import FormatError, P2PSyncError
from p2psync.topology.emulator.layout import make_layout
from p2psync.topology.emulator.scenario import describe
from p2psync.topology.events import NetworkEvent
from p2psync.topology.model import Host, Link, Region, Topology, load

FILE = """
trainer = "eu-0"
[region.eu]
hosts = 2
up = 100
down = 200
[region.us]
hosts = 300
up = 100
[[link]]
between = ["eu", "us"]
rate = 10
delay_ms = 40
"""


def loaded(tmp_path: Path, text: str) -> Topology:
    """A topology from a file with this text."""
    file = tmp_path / "net.toml"
    file.write_text(text)
    return load(file)


def test_events_are_read_from_the_topology_file(tmp_path: Path) -> None:
    more = '[[event]]\nat = 2\nkind = "degrade"\nlink = ["us", "eu"]\nrate = 5\nloss = 0.1\n'
    event = loaded(tmp_path, FILE + more).event[0]
    assert event == NetworkEvent(2, "degrade", link=("us", "eu"), rate=5, loss=0.1)
    assert describe(event) == "degrade us–eu to 5 Mbit/s, 0.1 lost"


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ('at = -1\nkind = "restore"', "at must be 0 or more"),
        ('at = 1\nkind = "explode"', "Invalid enum value 'explode'"),
        ('at = 1\nkind = "kill"', "it needs host"),
        ('at = 1\nkind = "kill"\nhost = "eu-7"', "'eu-7' is no host"),
        ('at = 1\nkind = "cut"\nlink = ["eu", "ap"]', "there is no link between eu and ap"),
        ('at = 1\nkind = "cut"\nhost = "eu-0"\nlink = ["eu", "us"]', "it needs host or link or regions"),
        ('at = 1\nkind = "partition"\nregions = ["ap"]', "'ap' is no region"),
        ('at = 1\nkind = "degrade"\nhost = "eu-0"', "needs one of them"),
        ('at = 1\nkind = "cut"\nhost = "eu-0"\nrate = 1', "belong to degrade"),
        ('at = 1\nkind = "degrade"\nhost = "eu-0"\nrate = 0', "rate above 0"),
        ('at = 1\nkind = "restore"\nwhen = 2', "unknown field `when`"),
    ],
)
def test_impossible_events_are_refused(tmp_path: Path, event: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        loaded(tmp_path, f"{FILE}[[event]]\n{event}\n")


def test_a_links_buffer_is_a_round_trip_unless_given() -> None:
    regions = {"a": Region(1, 10), "b": Region(1, 10), "c": Region(1, 10)}
    links = [Link(("a", "b"), 10, 40), Link(("a", "c"), 10), Link(("b", "c"), 10, 40, buffer_ms=5)]
    layout = make_layout(Topology("a-0", regions, links))
    assert [layout.between(*pair)[0].buffer_ms for pair in (("a", "b"), ("a", "c"), ("b", "c"))] == [80, 20, 5]


def test_an_empty_buffer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="a buffer above 0"):
        loaded(tmp_path, FILE + "buffer_ms = 0\n")


def test_hosts_of_one_region_may_be_far_apart_and_lose_packets() -> None:
    lossy = make_layout(Topology("eu-0", {"eu": Region(2, 100, delay_ms=3), "us": Region(2, 100, loss=0.25)}))
    assert [(s.delay_ms, s.loss) for name in ("eu", "us") for s in lossy.between(name, name)] == [(3, 0), (0, 0.25)]


def test_hosts_have_addresses_and_their_own_rates() -> None:
    layout = make_layout(Topology("eu-0", {"eu": Region(2, 100, 200)}))
    assert [layout.address(host) for host, _ in layout.hosts] == ["10.77.0.1", "10.77.0.2"]
    assert [stage.rate for stage in layout.of_host("eu-1")] == [100, 200]


def test_more_hosts_than_one_machine_emulates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(P2PSyncError, match="302 hosts: the emulator takes up to 250"):
        make_layout(loaded(tmp_path, FILE))


def test_hosts_links_and_regions_have_their_own_stages() -> None:
    topology = Topology(
        "a-0",
        {"a": Region(2, 100, delay_ms=0.5), "b": Region(2, 50, dialable=False)},
        [Link(("a", "b"), 20, 5, rate_back=10)],
        host={"a-1": Host(up=25), "b-1": Host(dialable=True)},
        blocked=[("a-1", "b-1")],
    )
    layout = make_layout(topology)
    assert [stage.rate for stage in layout.of_host("a-1")] == [25, 100]
    assert [(stage.name, stage.rate) for stage in layout.between("b", "a")] == [("b>a", 10), ("a>b", 20)]
    assert [stage.delay_ms for stage in layout.between("a", "a")] == [0.5]
    assert [stage.name for stage in layout.of_region("a")] == ["a>b", "b>a"]
    # Hosts 0 to 3 are a-0, a-1, b-0, b-1.
    assert layout.barred == [(0, 2), (1, 2), (1, 3), (3, 2)]
