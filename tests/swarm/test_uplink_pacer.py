"""How fast a node hands out where the plan fills its uplink: as that sends; more, once what is known is too little."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from p2psync.swarm.control.tcp_sample import TcpSample
from p2psync.swarm.control.uplink_pacer import BINDS, FULL_LEAST, KEPT, LEAP, SURE, UplinkPacer

TICK = 0.25
UPLINK = 1e7


@dataclass
class Node:
    """A node with connections to four peers, over an uplink that gives so many bytes a second.

    eager: it always has more to send than it may. delay: of each connection (seconds). waits: bytes that stand in each.
    """

    uplink: float = UPLINK
    known: float = UPLINK
    planned: float = UPLINK
    eager: bool = True
    delay: float = 0.0
    waits: int = 0

    def __post_init__(self) -> None:
        self.pace = UplinkPacer()
        self.now = 0.0
        self.sent = 0

    def look(self, looks: int = 1, *, rate: float | None = None) -> float:
        """So many looks; returns the rate. rate: bytes a second that get through, if not what may."""
        for _ in range(looks):
            self.now += TICK
            through = min(self.pace.rate or self.uplink, self.uplink) if rate is None else rate
            self.sent += int(through * TICK / 4)
            held = self.eager and bool(self.pace.rate)
            samples = {
                peer: TcpSample(
                    peer, delivered=self.sent, sent=self.sent, backlog=self.waits, queueing_delay=self.delay
                )
                for peer in "abcd"
            }
            self.pace.read(samples, self.now, known=self.known, planned=self.planned, held=held)
        return self.pace.rate


def test_an_uplink_that_the_plan_hardly_uses_or_nobody_measured_is_not_paced() -> None:
    assert Node(planned=0.9 * BINDS * UPLINK).look(8) == 0
    assert Node(known=0.0).look(8) == 0


def test_chunks_are_handed_out_as_fast_as_the_uplink_is_known_to_send() -> None:
    assert Node().look(1, rate=0.0) == pytest.approx(KEPT * UPLINK), "before anything flows"
    assert Node(delay=0.2).look(20) == pytest.approx(KEPT * UPLINK, rel=0.02), "and while it is busy"


def test_an_uplink_that_gives_more_than_was_known_is_found_out_within_seconds() -> None:
    node = Node(known=0.2 * UPLINK, planned=0.2 * UPLINK)
    node.look(1)
    assert node.look(40) > 0.8 * UPLINK
    assert LEAP**13 > 5, "one step in three looks"


def test_where_connections_are_delayed_the_rate_stays_about_where_it_is() -> None:
    node = Node(known=0.5 * UPLINK, planned=0.5 * UPLINK, delay=0.1)
    node.look(1)
    assert node.look(40) < 0.55 * UPLINK


def test_lost_bytes_do_not_raise_the_uplink_rate() -> None:
    node = Node()
    node.look(1)
    assert node.look(20, rate=0.5 * UPLINK) == pytest.approx(KEPT * UPLINK, rel=0.02)


def test_a_node_that_had_nothing_more_to_send_has_shown_nothing() -> None:
    node = Node(uplink=10 * UPLINK, eager=False)
    assert node.look(20, rate=2 * UPLINK) == pytest.approx(KEPT * UPLINK, rel=0.02)


def test_once_connections_are_full_it_is_again_what_the_uplink_gave_but_never_far_below_what_is_known() -> None:
    node = Node(known=1.1 * UPLINK, planned=UPLINK)
    node.look(4)
    node.waits = FULL_LEAST
    assert node.look(4) == pytest.approx(KEPT * UPLINK, rel=0.02), "estimates had seen a burst"
    assert node.look(8, rate=0.2 * UPLINK) == pytest.approx(KEPT * SURE * node.known, rel=0.02)


def test_after_a_pause_it_begins_with_what_the_uplink_gives() -> None:
    node = Node(uplink=4 * UPLINK)
    risen = node.look(30)
    assert risen > 1.2 * UPLINK
    assert node.look(1, rate=0.0) < risen
    assert node.look(1, rate=0.0) >= KEPT * UPLINK
