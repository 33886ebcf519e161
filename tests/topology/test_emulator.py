"""Packets between the hosts of an emulated network meet its links' rates, delays, losses and cuts."""

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulator_parts import (
    SMALL,
    TCP_SHARE,
    in_threads,
    needs_networks,
    round_trip_ms,
    send,
    transfer,
    udp,
    until,
)

from p2psync.errors import P2PSyncError
from p2psync.topology.emulator import EmulatedNetwork, Emulator

pytestmark = [pytest.mark.root, needs_networks]

PAYLOAD = random.Random(5).randbytes(1_500_000)
_UDP_SEGMENT = 103


@pytest.fixture(scope="module")
def running() -> Iterator[EmulatedNetwork]:
    """One network for all tests of this file."""
    with Emulator(SMALL, congestion="cubic", seed=3) as made:
        yield made


@pytest.fixture
def network(running: EmulatedNetwork) -> Iterator[EmulatedNetwork]:
    """The network, reset to its topology."""
    running.restore()
    yield running
    running.restore()


def seconds_at(rate: float, size: int) -> float:
    """The least seconds of this many bytes over TCP at a rate in Mbit/s."""
    return size * 8 / TCP_SHARE / (rate * 1e6)


def test_a_process_that_starts_commands_stays_out_of_their_network(network: EmulatedNetwork, tmp_path: Path) -> None:
    """Otherwise an interrupt at that moment left it there, to be killed with the network."""
    own, seen = str(Path("/proc/self/ns/net").readlink()), tmp_path / "seen"

    def look() -> None:
        seen.write_text(" ".join(str(Path(f"/proc/{pid}/ns/net").readlink()) for pid in (os.getppid(), "self")))

    assert network.run("b-1", ["true"], preexec_fn=look).wait() == 0
    parent, child = seen.read_text().split()
    assert parent == own != child


@pytest.mark.parametrize(
    ("source", "target", "rate"),
    [("a-0", "b-0", 40), ("a-0", "a-1", 100), ("b-0", "b-1", 50)],
    ids=["link", "uplink", "downlink"],
)
def test_a_transfer_takes_as_long_as_the_slowest_link_of_its_path(
    network: EmulatedNetwork, source: str, target: str, rate: float
) -> None:
    elapsed, came = transfer(network, source, target, PAYLOAD)
    assert came == PAYLOAD
    # A faster transfer is always wrong; a slower one may be due to this machine, or to TCP's slow start.
    assert 0.95 < elapsed / seconds_at(rate, len(PAYLOAD)) < 2.5


def test_two_transfers_over_one_link_share_it(network: EmulatedNetwork) -> None:
    results = in_threads(
        lambda: transfer(network, "a-0", "b-0", PAYLOAD)[0],
        lambda: transfer(network, "a-1", "b-1", PAYLOAD)[0],
    )
    assert max(map(float, results)) > 0.95 * seconds_at(40, 2 * len(PAYLOAD))


def test_opposite_directions_do_not_share(network: EmulatedNetwork) -> None:
    before = network.counters().links
    in_threads(
        lambda: transfer(network, "a-0", "b-0", PAYLOAD),
        lambda: transfer(network, "b-0", "a-0", PAYLOAD),
    )
    after = network.counters().links
    for link in ("a>b", "b>a"):
        assert after[link].bytes - before[link].bytes > len(PAYLOAD)


def test_a_round_trip_takes_twice_the_delay(network: EmulatedNetwork) -> None:
    assert 19.7 < round_trip_ms(network, "a-0", "b-0") < 21
    assert round_trip_ms(network, "a-0", "a-1") < 1


def test_a_large_packet_takes_its_time_on_every_link_of_its_path(network: EmulatedNetwork) -> None:
    network.set_link("a", "b", rate=1)
    with udp(network, "a-0") as one, udp(network, "b-0") as other:
        before = network.counters().links["a>b"].bytes
        for _ in range(5):
            send(network, one, "b-0", bytes(1222))
        for _ in range(5):
            assert len(other.recv(2000)) == 1222
        assert network.counters().links["a>b"].bytes - before == 5 * 1250


def test_losses_are_as_frequent_as_the_link_is_set_to(network: EmulatedNetwork) -> None:
    sent, p = 4000, 0.05
    before = network.counters()
    with udp(network, "b-0") as one, udp(network, "c-0"):
        for i in range(sent):
            send(network, one, "c-0")
            if i % 500 == 0:
                network.counters()
        until(lambda: network.counters().links["b>c"].offered - before.links["b>c"].offered == sent)
    after = network.counters()
    lost = after.links["b>c"].lost - before.links["b>c"].lost
    # Five standard deviations.
    assert abs(lost - sent * p) < 5 * (sent * p * (1 - p)) ** 0.5
    assert after.links["b-0 up"].lost == 0


def test_super_packets_are_split_where_a_segment_is_lost(network: EmulatedNetwork) -> None:
    lost = network.counters().links["b>c"].lost
    assert transfer(network, "b-0", "c-0", PAYLOAD)[1] == PAYLOAD
    assert network.counters().links["b>c"].lost > lost + 10


def test_segments_of_udp_super_packets_are_lost_one_by_one(network: EmulatedNetwork) -> None:
    network.set_link("b", "c", loss=0.3)
    size, count, rounds = 1000, 30, 10
    before = network.counters().links["b>c"]
    came: list[bytes] = []
    with udp(network, "b-0") as one, udp(network, "c-0") as other:
        one.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, size)
        segments = [i.to_bytes(2, "big") * (size // 2) for i in range(count)]
        for sent in range(count, rounds * count + 1, count):
            send(network, one, "c-0", b"".join(segments))
            until(lambda sent=sent: network.counters().links["b>c"].offered - before.offered == sent)
            lost = network.counters().links["b>c"].lost - before.lost
            came += [other.recv(2 * size) for _ in range(sent - lost - len(came))]
    assert 40 < lost < 140
    assert set(came) <= set(segments)


def test_packets_for_a_full_buffer_are_dropped_and_counted(network: EmulatedNetwork) -> None:
    network.set_link("a", "b", rate=1, buffer_ms=100)
    before = network.counters().links["a>b"]
    with udp(network, "a-0") as one, udp(network, "b-0") as other:
        for _ in range(100):
            send(network, one, "b-0", bytes(1222))
        until(lambda: network.counters().links["a>b"].offered - before.offered == 100)
        after = network.counters().links["a>b"]
        for _ in range(after.packets - before.packets):
            other.recv(2000)
    # 100 ms at 1 Mbit/s are ten packets of 1250 bytes; a few more are sent while the rest still come.
    assert 10 <= after.packets - before.packets < 60
    assert after.overflowed - before.overflowed == 100 - (after.packets - before.packets)
    assert after.queue_peak >= 12_000


def test_a_cut_link_blocks_all_packets_until_it_is_restored(network: EmulatedNetwork) -> None:
    network.cut("a", "b")
    before = network.counters().links["a>b"]
    with udp(network, "a-0") as one, udp(network, "b-0") as other:
        send(network, one, "b-0", b"lost")
        until(lambda: network.counters().links["a>b"].severed == before.severed + 1)
        network.restore("a", "b")
        send(network, one, "b-0", b"there")
        assert other.recv(100) == b"there"


def test_a_cut_may_be_one_way(network: EmulatedNetwork) -> None:
    network.cut("a", "b", one_way=True)
    severed = network.counters().links["a>b"].severed
    with udp(network, "a-0") as one, udp(network, "b-0") as other:
        send(network, other, "a-0", b"this way")
        assert one.recv(100) == b"this way"
        send(network, one, "b-0")
        until(lambda: network.counters().links["a>b"].severed == severed + 1)


def test_a_host_may_be_cut_off_its_own_region(network: EmulatedNetwork) -> None:
    network.cut("a-1")
    severed = network.counters().links["a-1 down"].severed
    with udp(network, "a-0") as one, udp(network, "a-1"):
        send(network, one, "a-1")
        until(lambda: network.counters().links["a-1 down"].severed == severed + 1)


def test_a_partition_cuts_the_links_to_the_rest_alone(network: EmulatedNetwork) -> None:
    network.partition(["b", "c"])
    severed = network.counters().links["a>b"].severed
    network.set_link("b", "c", loss=0)
    with udp(network, "a-0") as a, udp(network, "b-0") as b, udp(network, "c-0") as c:
        send(network, c, "b-0", b"within")
        assert b.recv(100) == b"within"
        send(network, a, "b-0")
        until(lambda: network.counters().links["a>b"].severed == severed + 1)


def test_regions_without_a_link_do_not_reach_each_other(network: EmulatedNetwork) -> None:
    before = network.counters().unroutable
    with udp(network, "a-0") as one, udp(network, "c-0"):
        send(network, one, "c-0")
        until(lambda: network.counters().unroutable == before + 1)


def test_a_host_that_cannot_dial_another_is_dialled_by_it(network: EmulatedNetwork) -> None:
    barred = network.counters().barred
    with network.inside("a-1"):
        listener = socket.create_server((network.address("a-1"), 0))
    with network.inside("b-1"):
        dialler = socket.socket()
    with listener, dialler:
        dialler.setblocking(False)
        dialler.connect_ex(listener.getsockname())
        until(lambda: network.counters().barred > barred)
    assert transfer(network, "a-1", "b-1", b"both ways")[1] == b"both ways"


def test_a_changed_link_takes_effect_at_once(network: EmulatedNetwork) -> None:
    network.set_link("a", "b", rate=10, delay_ms=1)
    assert 1.7 < round_trip_ms(network, "a-0", "b-0") < 3.5
    size = 400_000
    assert transfer(network, "a-0", "b-0", PAYLOAD[:size])[0] > 0.95 * seconds_at(10, size)


def test_a_queue_is_sent_at_the_new_rate(network: EmulatedNetwork) -> None:
    network.set_link("a", "b", rate=0.01, buffer_ms=60_000)
    with udp(network, "a-0") as one, udp(network, "b-0") as other:
        before = network.counters().links["a>b"].packets
        for _ in range(5):
            send(network, one, "b-0", bytes(1222))
        until(lambda: network.counters().links["a>b"].packets == before + 5)
        # Five seconds at the old rate.
        network.set_link("a", "b", rate=100)
        for _ in range(5):
            other.settimeout(0.9)
            assert len(other.recv(2000)) == 1222


def test_a_hosts_own_rates_can_be_changed(network: EmulatedNetwork) -> None:
    network.set_host("a-0", up=5)
    size = 200_000
    assert transfer(network, "a-0", "a-1", PAYLOAD[:size])[0] > 0.9 * seconds_at(5, size)


def test_hosts_use_the_congestion_control_asked_for(network: EmulatedNetwork) -> None:
    with network.inside("a-0"), socket.socket() as made:
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"cubic"


def test_commands_run_in_their_hosts_network(network: EmulatedNetwork) -> None:
    process = network.run("b-1", ["sh", "-c", "echo $WAN_HOST $WAN_ADDRESS $WAN_TRAINER"], stdout=-1, text=True)
    assert process.communicate()[0].split() == ["b-1", network.address("b-1"), network.address("a-0")]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n: n.address("a-9"), "'a-9' is no host"),
        (lambda n: n.run("x", ["true"]), "'x' is no host"),
        (lambda n: n.set_link("a", "c", rate=1), "no link between a and c"),
        (lambda n: n.set_link("a", "b", rate=0), "cut the link"),
        (lambda n: n.set_link("a", "b", loss=1), "a loss from 0 to below 1"),
        (lambda n: n.cut("nowhere"), "'nowhere' is no host"),
        (lambda n: n.partition(["d"]), "'d' is no region"),
    ],
)
def test_unknown_hosts_and_links_are_refused(network: EmulatedNetwork, call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(P2PSyncError, match=message):
        call(network)
