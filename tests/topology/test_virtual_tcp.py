"""TCP in virtual time: it finds paths as slowly as real connections do, loses, queues, and delivers in order."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest

from p2psync.bench.virtual_tcp import MEASURED, delivered
from p2psync.sim.clock import VirtualClock
from p2psync.topology.tcp.congestion import Bbr, CongestionControl, Cubic
from p2psync.topology.tcp.connection import TcpConnection
from p2psync.topology.tcp.links import LinkDirection

SEEDS = range(9)
MBIT = 1e6 / 8


def medians(control: Callable[[], CongestionControl], connections: int, **path: float) -> list[float]:
    """Mbit/s in each three seconds: the median of the seeds."""
    runs = [delivered(control, connections, seed=seed, **path) for seed in SEEDS]  # type: ignore[arg-type]
    return [statistics.median(period) for period in zip(*runs, strict=True)]


def test_bbr_needs_as_long_as_measured_to_find_a_long_lossy_path() -> None:
    found = medians(Bbr, 1)
    assert max(found[:2]) < 5.0
    # From the third period on within a factor of the measured figures, which vary as much between two runs.
    assert all(0.5 < virtual / real < 3.0 for virtual, real in zip(found[2:], MEASURED["bbr", 1][2:], strict=True))


def test_more_connections_find_it_sooner() -> None:
    one, two, four = (medians(Bbr, connections) for connections in (1, 2, 4))
    assert one[1] < two[1] < four[1]
    assert sum(one) < sum(two) < sum(four)


def test_cubic_never_finds_it() -> None:
    assert max(medians(Cubic, 1)) < 2.5


def test_loss_holds_cubic_to_a_hundredth_of_a_fast_path_and_bbr_hardly() -> None:
    path = {"rate": 1000.0, "rtt": 0.1, "loss": 0.001}
    assert max(medians(Cubic, 1, periods=4, **path)[1:]) < 25.0
    assert medians(Bbr, 1, periods=4, **path)[-1] > 600.0


@pytest.mark.parametrize("control", [Bbr, Cubic])
def test_a_clean_path_is_filled(control: Callable[[], CongestionControl]) -> None:
    assert min(medians(control, 1, rate=100.0, rtt=0.05, loss=0.0)[1:]) > 85.0


@pytest.mark.parametrize("control", [Bbr, Cubic])
@pytest.mark.parametrize("buffer", [20_000, 400_000])
def test_messages_arrive_whole_and_in_order_despite_losses_and_drops(
    control: Callable[[], CongestionControl], buffer: int
) -> None:
    clock, rng = VirtualClock(1), random.Random(1)
    link = LinkDirection(20 * MBIT, buffer, 0.0005)
    came: list[object] = []
    drained: list[float] = []
    connection = TcpConnection(
        clock,
        rng,
        [(link, 0.02)],
        0.02,
        control(),
        on_message=came.append,
        on_drained=lambda: drained.append(clock.now),
    )
    for number in range(200):
        connection.send(1 + rng.randrange(60_000), number)
    clock.run(600.0, lambda: len(came) == 200)
    assert came == list(range(200))
    assert connection.lost_packets > 0 and (link.dropped > 0 or buffer > 20_000)
    assert drained and connection.waiting == 0
    clock.run(clock.now + 1.0, lambda: False)
    assert connection.inflight == 0


def test_connections_share_a_link_and_never_pass_its_rate() -> None:
    rates = delivered(Bbr, 4, rate=50.0, rtt=0.04, loss=0.0, periods=4)
    # Packets held back by a lost one may be delivered in a later period.
    assert rates[-1] > 44.0 and sum(rates) * 1500 / 1448 <= 50.0 * len(rates)


def test_a_link_loses_the_given_share() -> None:
    link, rng = LinkDirection(1.0, 1.0, 0.01), random.Random(2)
    lost = [link.lose(12, rng) for _ in range(50_000)]
    assert sum(lost) / (12 * 50_000) == pytest.approx(0.01, rel=0.05)
    assert max(lost) >= 2


class Line:
    """A connection over one link, with all that it is given to send."""

    def __init__(self, control: CongestionControl, *, rate: float = 40.0, rtt: float = 0.1, loss: float = 0.0) -> None:
        self.clock = VirtualClock(1)
        self.link = LinkDirection(rate * MBIT, rate * MBIT * rtt, loss)
        self.connection = TcpConnection(
            self.clock, random.Random(1), [(self.link, rtt / 2)], rtt / 2, control, on_message=lambda message: None
        )
        self.connection.handshake()

    def run(self, seconds: float) -> float:
        """Returns the Mbit/s that were delivered."""
        before = self.connection.delivered
        self.clock.run(self.clock.now + seconds, lambda: False)
        return (self.connection.delivered - before) / seconds / MBIT


@pytest.mark.parametrize("control", [Bbr, Cubic])
def test_a_limit_on_pacing_holds_a_connection_and_is_lifted(control: Callable[[], CongestionControl]) -> None:
    line = Line(control())
    line.connection.limit = 8 * MBIT
    line.connection.send(100 << 20, "all")
    line.run(2.0)
    # Headers count, too, and BBR tries a little less now and then.
    assert 7.0 < line.run(3.0) < 8.0
    line.connection.limit = float("inf")
    line.run(4.0)
    assert line.run(3.0) > 14.0


def test_bytes_sent_again_are_counted_and_all_arrive() -> None:
    line = Line(Bbr(), loss=0.02)
    line.connection.send(4 << 20, "all")
    line.run(30.0)
    connection = line.connection
    assert connection.received == connection.received_in_order == connection.delivered == 4 << 20
    assert connection.sent - connection.resent == 4 << 20
    assert connection.resent == pytest.approx(0.02 * connection.sent, rel=0.5)
    assert connection.lost_unsent == 0


def test_the_least_round_trip_is_that_of_the_empty_path() -> None:
    line = Line(Bbr())
    assert line.connection.min_rtt == line.connection.srtt == pytest.approx(0.1)
    line.connection.send(20 << 20, "all")
    line.run(3.0)
    assert line.connection.min_rtt == pytest.approx(0.1)
    assert line.connection.srtt > 0.1


def test_a_restart_keeps_the_window_and_looks_for_the_rate_of_a_new_path() -> None:
    line = Line(Bbr(), rate=5.0)
    line.connection.send(1 << 30, "all")
    line.run(5.0)
    window = line.connection.congestion.cwnd
    line.link.rate = 80 * MBIT
    line.connection.restart(Bbr())
    assert line.connection.congestion.cwnd == window
    assert isinstance(line.connection.congestion, Bbr) and line.connection.congestion.state == "startup"
    line.run(1.0)
    assert line.run(1.0) > 60.0


def test_a_flow_that_restarts_from_idle_does_not_stop_to_measure_its_round_trip() -> None:
    line = Line(Bbr())
    line.connection.send(20 << 20, "all")
    line.run(11.0)
    line.run(15.0)
    line.connection.send(1 << 30, "more")
    stopped = []
    for _ in range(80):
        line.run(0.1)
        bbr = line.connection.congestion
        assert isinstance(bbr, Bbr)
        stopped.append(bbr.state == "probe_rtt")
    assert not any(stopped)
