"""Which connections are paced at their planned rates, and which restart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from p2psync.protocol.plan import NodePlan, TreePosition
from p2psync.swarm.control.config import PathControlConfig
from p2psync.swarm.control.path_controllers import PathControllers
from p2psync.swarm.control.tcp_sample import TcpSample

PLANNED = 125_000 * 10.0
CONFIG = PathControlConfig()
GAIN = CONFIG.pacing_gain
PLAN = NodePlan(1, ["far", "near"], [1], [TreePosition(-1, [0, 1], 0, 10.0)], headroom=[1.0, 1.0])


@dataclass(eq=False)
class Line:
    """Stands for a connection: its pacing limits and restarts."""

    peer: str
    rtt: float = 0.1
    carries: bool = True
    rates: list[float] = field(default_factory=list)
    restarts: int = 0
    can_restart: bool = True
    is_idle: bool = True

    def idle(self, seconds: float) -> bool:
        return self.is_idle

    def restart(self) -> None:
        self.restarts += 1

    def set_pacing_limit(self, rate: float) -> None:
        self.rates.append(rate)


class Table:
    """Stands for the connections of a node."""

    def __init__(self, *lines: Line) -> None:
        self.lines = lines

    def streams(self, name: str) -> list[Line]:
        return [line for line in self.lines if line.peer == name]

    def all_streams(self) -> tuple[Line, ...]:
        return self.lines


class Node:
    """Controllers whose connections all send at their planned rate."""

    def __init__(self, *more: Line, probes_rtt: bool = True) -> None:
        self.far, self.near = Line("far"), Line("near", rtt=0.001)
        lines = (self.far, self.near, *more)
        self.paths = PathControllers(cast(Any, Table(*lines)), probes_rtt=probes_rtt)
        self.paths.set_plan(PLAN)
        self.now = 0.0
        self._readings = {line: TcpSample(line.peer) for line in lines}

    def run(
        self,
        seconds: float,
        lost: float,
        probed: tuple[str, ...] = (),
        *,
        rate: float = PLANNED,
        tick: float = 0.25,
    ) -> None:
        for _ in range(round(seconds / tick)):
            self.now += tick
            for line, before in self._readings.items():
                came, again = int(rate * tick), int(lost * rate * tick)
                if not line.carries:
                    came = again = 0
                self._readings[line] = TcpSample(
                    line.peer,
                    delivered=before.delivered + came,
                    sent=before.sent + came + again,
                    retransmitted=before.retransmitted + again,
                    backlog=1,
                    rtt=line.rtt,
                )
            self.paths.observe(cast(Any, dict(self._readings)), self.now, probed)


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_child_that_loses_little_is_not_paced(node: Node) -> None:
    node.run(5, 0.01)
    assert not node.far.rates


def test_a_far_child_that_loses_much_is_paced_and_a_near_one_never(node: Node) -> None:
    node.run(1, 0.2)
    assert node.far.rates[-1] == pytest.approx(GAIN * PLANNED, rel=0.05)
    assert not node.near.rates


def test_a_former_child_is_no_longer_paced(node: Node) -> None:
    node.run(1, 0.2)
    node.paths.set_plan(NodePlan(2, ["near"], [1], [TreePosition(-1, [0], 0, 10.0)], headroom=[1.0]))
    node.run(0.25, 0.0)
    assert node.far.rates[-1] == 0.0


def test_a_probe_has_its_own_rate_and_a_paced_path_is_paced_again_after_it(node: Node) -> None:
    node.run(1, 0.2)
    held, count = node.far.rates[-1], len(node.far.rates)
    node.run(1, 0.2, probed=("far",))
    assert len(node.far.rates) == count
    assert node.paths.paced == {"far"}
    node.run(0.25, 0.0)
    assert node.far.rates[-1] == pytest.approx(held, rel=0.05)


def test_losses_of_a_probe_pace_no_path(node: Node) -> None:
    node.run(2, 0.3, probed=("far",))
    node.run(1, 0.0)
    assert not node.far.rates


def test_connections_that_carry_share_the_pacing_rate_of_their_path() -> None:
    other = Line("far")
    node = Node(other)
    node.run(1, 0.2, rate=PLANNED / 4)
    assert node.far.rates[-1] == other.rates[-1] == pytest.approx(GAIN * PLANNED / 2, rel=0.3)


def test_a_connection_that_carries_alone_has_the_whole_pacing_rate() -> None:
    node = Node(Line("far", carries=False))
    node.run(0.5, 0.2)
    assert node.far.rates[-1] == pytest.approx(GAIN * PLANNED, rel=0.05)


def test_the_delivery_rate_is_not_measured_over_a_silence(node: Node) -> None:
    node.run(10, 0.0, rate=1000.0, tick=5.0)
    node.run(1, 0.2, rate=4 * PLANNED)
    assert node.far.rates[0] == pytest.approx(4 * GAIN * PLANNED, rel=0.05)


def test_a_path_that_delivers_far_less_than_planned_restarts_on_all_its_connections() -> None:
    other = Line("far", carries=False)
    node = Node(other)
    node.run(1, 0.0, rate=0.3 * PLANNED)
    assert (node.far.restarts, other.restarts, node.near.restarts) == (1, 1, 0)


def test_a_path_that_is_probed_or_delivers_its_planned_rate_does_not_restart(node: Node) -> None:
    node.run(2, 0.0)
    node.run(3, 0.0, ("far",), rate=0.1 * PLANNED)
    assert node.far.restarts == 0


def test_a_starting_path_that_delivers_far_less_restarts_again(node: Node) -> None:
    node.paths.start_transfer(["far"], node.now, 1 << 40)
    node.run(1.25, 0.0, rate=0.3 * PLANNED)
    assert node.far.rates[0] == pytest.approx(GAIN * PLANNED)
    assert node.far.restarts == 2, "once as the transfer starts, and once since it is slow"


def test_quiet_far_paths_start_a_transfer_restarted_and_at_their_planned_rates(node: Node) -> None:
    node.paths.start_transfer(["far", "no child"], node.now, 1 << 40)
    assert node.far.rates == [pytest.approx(GAIN * PLANNED)]
    assert node.far.restarts == 1, "congestion control remembers an idle path as slow"
    assert not node.near.rates
    assert node.near.restarts == 0
    node.run(5, 0.0)
    assert node.far.rates[-1] == 0.0, "and is free after some seconds"


def test_a_busy_path_restarts_before_bbr_would_stop_it(node: Node) -> None:
    node.paths.start_transfer(["far"], node.now, 1 << 40)
    node.run(CONFIG.refresh_seconds - 0.5, 0.0)
    assert node.far.restarts == 1
    node.run(CONFIG.refresh_spread + 0.5, 0.0)
    assert node.far.restarts == 2
    assert node.far.rates[-1] == 0.0
    node.run(CONFIG.refresh_seconds - CONFIG.refresh_spread, 0.0)
    assert node.far.restarts == 2


def test_a_refresh_waits_until_the_connection_can_restart(node: Node) -> None:
    node.paths.start_transfer(["far"], node.now, 1 << 40)
    node.run(5.5, 0.0)
    node.far.can_restart = False
    node.run(5, 0.0)
    assert node.far.restarts == 1
    node.far.can_restart = True
    node.run(0.25, 0.0)
    assert node.far.restarts == 2


def test_a_slow_path_does_not_restart_while_that_would_cost_its_window(node: Node) -> None:
    node.far.can_restart = False
    node.run(1, 0.0, rate=0.3 * PLANNED)
    assert node.far.restarts == 0


def test_without_bbr_no_path_is_refreshed() -> None:
    node = Node(probes_rtt=False)
    node.run(12, 0.0)
    node.paths.restart_idle(node.now)
    assert not node.far.rates
    assert node.far.restarts == 0


def test_idle_connections_restart_more_often_than_bbr_would_stop_them(node: Node) -> None:
    node.near.is_idle = False
    while node.now < 60.0:
        node.now += 0.25
        node.paths.restart_idle(node.now)
    assert node.far.restarts == pytest.approx(60.0 / CONFIG.idle_restart_seconds, abs=1)
    assert CONFIG.idle_restart_seconds + 1.0 < 10.0, "BBR stops a connection whose least round trip is ten seconds old"
    assert node.near.restarts == 0, "it is not idle"


def test_an_idle_connection_that_would_lose_its_window_restarts_as_soon_as_it_can(node: Node) -> None:
    node.now = 20.0
    node.far.can_restart = False
    node.paths.restart_idle(node.now)
    assert node.far.restarts == 0
    node.far.can_restart = True
    node.paths.restart_idle(node.now + 0.5)
    assert node.far.restarts == 1


def test_a_small_transfer_starts_faster_than_planned_as_far_as_queues_have_room(node: Node) -> None:
    seconds = 2 * CONFIG.queue_seconds
    node.paths.start_transfer(["far"], node.now, int(seconds * PLANNED))
    assert node.far.rates[-1] == pytest.approx(2 * GAIN * PLANNED, rel=1e-5)
    assert node.far.restarts == 1


def test_a_transfer_that_any_queue_holds_is_not_paced(node: Node) -> None:
    node.paths.start_transfer(["far"], node.now, int(CONFIG.queue_seconds * PLANNED))
    assert node.far.restarts == 1
    assert not node.far.rates
