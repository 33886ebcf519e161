"""Which connections are held to what the plan has for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from p2psync.protocol.plan import NodePlan, TreePosition
from p2psync.swarm.control.min_rtt_refresh import HELD
from p2psync.swarm.control.path_controller import FIRST, QUEUE
from p2psync.swarm.control.path_controllers import REST, PathControllers
from p2psync.swarm.control.tcp_sample import TcpSample

PART = 125_000 * 10.0
PLAN = NodePlan(1, ["far", "near"], [1], [TreePosition(-1, [0, 1], 0, 10.0)], headroom=[1.0, 1.0])


@dataclass(eq=False)
class Line:
    """Stands for a connection: what it was held to last."""

    peer: str
    rtt: float = 0.1
    carries: bool = True
    rates: list[float] = field(default_factory=list)
    begun: int = 0
    can_restart: bool = True
    rests: bool = True

    def idle(self, seconds: float) -> bool:
        return self.rests

    def restart(self) -> None:
        self.begun += 1

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
    """Paces whose connections all send as much as the plan has for them."""

    def __init__(self, *more: Line, stops: bool = True) -> None:
        self.far, self.near = Line("far"), Line("near", rtt=0.001)
        lines = (self.far, self.near, *more)
        self.paces = PathControllers(cast(Any, Table(*lines)), stops=stops)
        self.paces.planned(PLAN)
        self.now = 0.0
        self._readings = {line: TcpSample(line.peer) for line in lines}

    def run(
        self,
        seconds: float,
        lost: float,
        probed: tuple[str, ...] = (),
        *,
        rate: float = PART,
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
            self.paces.read(cast(Any, dict(self._readings)), self.now, probed)


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_child_that_loses_little_is_not_paced(node: Node) -> None:
    node.run(5, 0.01)
    assert not node.far.rates


def test_a_far_child_that_loses_much_is_held_and_a_near_one_never(node: Node) -> None:
    node.run(1, 0.2)
    assert node.far.rates[-1] == pytest.approx(FIRST * PART, rel=0.05)
    assert not node.near.rates


def test_a_former_child_is_no_longer_paced(node: Node) -> None:
    node.run(1, 0.2)
    node.paces.planned(NodePlan(2, ["near"], [1], [TreePosition(-1, [0], 0, 10.0)], headroom=[1.0]))
    node.run(0.25, 0.0)
    assert node.far.rates[-1] == 0.0


def test_a_probe_has_a_rate_of_its_own_and_what_was_held_is_held_again_after_it(node: Node) -> None:
    node.run(1, 0.2)
    held, count = node.far.rates[-1], len(node.far.rates)
    node.run(1, 0.2, probed=("far",))
    assert len(node.far.rates) == count
    assert node.paces.held == {"far"}
    node.run(0.25, 0.0)
    assert node.far.rates[-1] == pytest.approx(held, rel=0.05)


def test_losses_of_a_probe_pace_no_path(node: Node) -> None:
    node.run(2, 0.3, probed=("far",))
    node.run(1, 0.0)
    assert not node.far.rates


def test_connections_that_carry_share_what_their_peer_may_have() -> None:
    other = Line("far")
    node = Node(other)
    node.run(1, 0.2, rate=PART / 4)
    assert node.far.rates[-1] == other.rates[-1] == pytest.approx(FIRST * PART / 2, rel=0.3)


def test_a_connection_that_carries_alone_has_the_whole_rate() -> None:
    other = Line("far", carries=False)
    node = Node(other)
    node.run(0.5, 0.2)
    assert node.far.rates[-1] == pytest.approx(FIRST * PART, rel=0.05)


def test_what_came_through_is_not_measured_over_a_silence(node: Node) -> None:
    node.run(10, 0.0, rate=1000.0, tick=5.0)
    node.run(1, 0.2, rate=4 * PART)
    assert node.far.rates[0] == pytest.approx(4 * FIRST * PART, rel=0.05)


def test_a_path_that_brings_far_less_than_planned_begins_anew_on_all_its_connections() -> None:
    other = Line("far", carries=False)
    node = Node(other)
    node.run(1, 0.0, rate=0.3 * PART)
    assert (node.far.begun, other.begun, node.near.begun) == (1, 1, 0)


def test_a_path_that_is_probed_or_brings_what_is_planned_does_not_begin_anew(node: Node) -> None:
    node.run(2, 0.0)
    node.run(3, 0.0, ("far",), rate=0.1 * PART)
    assert node.far.begun == 0


def test_a_path_that_brings_what_it_is_held_to_does_not_begin_anew(node: Node) -> None:
    for _ in range(20):
        node.run(0.25, 0.2, rate=node.far.rates[-1] if node.far.rates else PART)
    assert node.far.rates[-1] < 0.6 * PART
    node.run(1, 0.0, rate=0.95 * node.far.rates[-1])
    assert node.far.begun == 0


def test_one_that_is_held_as_a_transfer_begins_and_then_brings_far_less_begins_anew(node: Node) -> None:
    node.paces.begin(["far"], node.now, 1 << 40)
    node.run(1.25, 0.0, rate=0.3 * PART)
    assert node.far.rates[0] == pytest.approx(FIRST * PART)
    assert node.far.begun == 2, "as the transfer begins, and again since that did not help"


def test_those_far_away_to_whom_nothing_flowed_begin_with_their_parts_at_once(node: Node) -> None:
    node.paces.begin(["far", "a stranger"], node.now, 1 << 40)
    assert node.far.rates == [pytest.approx(FIRST * PART)]
    assert node.far.begun == 1, "what congestion control remembers of an idle path is out of date"
    assert not node.near.rates
    assert node.near.begun == 0
    node.run(5, 0.0)
    assert node.far.rates[-1] == 0.0, "and are let go"


def test_a_path_that_always_carries_begins_anew_before_it_would_be_stopped_held_to_what_it_carries(node: Node) -> None:
    node.paces.begin(["far"], node.now, 1 << 40)
    node.run(5.5, 0.0)
    assert (node.far.begun, node.far.rates[-1]) == (1, 0.0)
    node.run(0.75, 0.0)
    assert node.far.begun == 2
    assert node.far.rates[-1] == pytest.approx(HELD * PART)
    node.run(1, 0.0)
    assert node.far.rates[-1] == 0.0
    node.run(4, 0.0)
    assert node.far.begun == 2


def test_one_that_is_old_and_may_not_begin_anew_just_now_is_not_held_and_does_so_as_soon_as_it_may(node: Node) -> None:
    node.paces.begin(["far"], node.now, 1 << 40)
    node.run(5.5, 0.0)
    node.far.can_restart = False
    node.run(2, 0.0)
    assert (node.far.begun, node.far.rates[-1]) == (1, 0.0)
    node.far.can_restart = True
    node.run(0.25, 0.0)
    assert node.far.begun == 2
    assert node.far.rates[-1] == pytest.approx(HELD * PART)


def test_a_slow_path_does_not_begin_anew_while_that_would_cost_it_its_window(node: Node) -> None:
    node.far.can_restart = False
    node.run(1, 0.0, rate=0.3 * PART)
    assert node.far.begun == 0


def test_where_no_congestion_control_stops_old_connections_none_is_held_for_its_age() -> None:
    node = Node(stops=False)
    node.run(12, 0.0)
    node.paces.rest(node.now)
    assert not node.far.rates
    assert node.far.begun == 0


def test_connections_that_carry_nothing_begin_anew_more_often_than_they_would_be_stopped(node: Node) -> None:
    node.near.rests = False
    while node.now < 60.0:
        node.now += 0.25
        node.paces.rest(node.now)
    assert node.far.begun == pytest.approx(60.0 / REST, abs=1)
    assert REST + 1.0 < 10.0, "BBR stops a connection whose least round trip is ten seconds old"
    assert node.near.begun == 0, "it is not idle"


def test_one_that_rests_and_would_lose_its_window_begins_anew_as_soon_as_it_may(node: Node) -> None:
    node.now = 20.0
    node.far.can_restart = False
    node.paces.rest(node.now)
    assert node.far.begun == 0
    node.far.can_restart = True
    node.paces.rest(node.now + 0.5)
    assert node.far.begun == 1


def test_a_small_transfer_begins_with_more_than_its_part_as_far_as_queues_have_room(node: Node) -> None:
    seconds = 2 * QUEUE
    node.paces.begin(["far"], node.now, int(seconds * PART))
    assert node.far.rates[-1] == pytest.approx(2 * FIRST * PART, rel=1e-5)
    assert node.far.begun == 1


def test_a_transfer_that_any_queue_holds_is_not_held(node: Node) -> None:
    node.paces.begin(["far"], node.now, int(QUEUE * PART))
    assert node.far.begun == 1
    assert not node.far.rates
