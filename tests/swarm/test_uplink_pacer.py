"""A node whose plan fills its uplink hands out chunks as fast as the uplink sends; faster once it shows more."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from p2psync.swarm.control.config import UplinkPacerConfig
from p2psync.swarm.control.tcp_sample import TcpSample
from p2psync.swarm.control.uplink_pacer import UplinkPacer

TICK = 0.25
UPLINK = 1e7
CONFIG = UplinkPacerConfig()
GAIN = CONFIG.gain


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
        self.pacer = UplinkPacer()
        self.now = 0.0
        self.sent = 0

    def look(self, looks: int = 1, *, rate: float | None = None) -> float:
        """So many looks; returns the rate. rate: bytes a second that get through, if not what may."""
        for _ in range(looks):
            self.now += TICK
            through = min(self.pacer.rate or self.uplink, self.uplink) if rate is None else rate
            self.sent += int(through * TICK / 4)
            has_waited = self.eager and bool(self.pacer.rate)
            samples = {
                peer: TcpSample(
                    peer, delivered=self.sent, sent=self.sent, backlog=self.waits, queueing_delay=self.delay
                )
                for peer in "abcd"
            }
            self.pacer.observe(samples, self.now, known=self.known, planned=self.planned, has_waited=has_waited)
        return self.pacer.rate


def test_an_uplink_that_the_plan_hardly_uses_or_nobody_measured_has_no_limit() -> None:
    assert Node(planned=0.9 * CONFIG.binding * UPLINK).look(8) == 0
    assert Node(known=0.0).look(8) == 0


def test_chunks_are_handed_out_as_fast_as_the_uplink_is_known_to_send() -> None:
    assert Node().look(1, rate=0.0) == pytest.approx(GAIN * UPLINK), "before anything flows"
    assert Node(delay=0.2).look(20) == pytest.approx(GAIN * UPLINK, rel=0.02), "and while it is busy"


def test_spare_uplink_is_found_within_seconds() -> None:
    node = Node(known=0.2 * UPLINK, planned=0.2 * UPLINK)
    node.look(1)
    assert node.look(40) > 0.8 * UPLINK
    assert CONFIG.fast_growth**13 > 5, "one step in three looks"


def test_a_queueing_delay_keeps_the_limit_about_where_it_is() -> None:
    node = Node(known=0.5 * UPLINK, planned=0.5 * UPLINK, delay=0.1)
    node.look(1)
    assert node.look(40) < 0.55 * UPLINK


def test_lost_bytes_do_not_raise_the_uplink_rate() -> None:
    node = Node()
    node.look(1)
    assert node.look(20, rate=0.5 * UPLINK) == pytest.approx(GAIN * UPLINK, rel=0.02)


def test_a_node_with_nothing_more_to_send_raises_no_limit() -> None:
    node = Node(uplink=10 * UPLINK, eager=False)
    assert node.look(20, rate=2 * UPLINK) == pytest.approx(GAIN * UPLINK, rel=0.02)


def test_a_full_uplink_limits_to_what_it_delivered_but_not_far_below_the_measured_rate() -> None:
    node = Node(known=1.1 * UPLINK, planned=UPLINK)
    node.look(4)
    node.waits = CONFIG.full_bytes
    assert node.look(4) == pytest.approx(GAIN * UPLINK, rel=0.02), "estimates had seen a burst"
    assert node.look(8, rate=0.2 * UPLINK) == pytest.approx(GAIN * CONFIG.surely_known * node.known, rel=0.02)


def test_after_a_pause_the_limit_is_what_the_uplink_delivered() -> None:
    node = Node(uplink=4 * UPLINK)
    risen = node.look(30)
    assert risen > 1.2 * UPLINK
    assert node.look(1, rate=0.0) < risen
    assert node.look(1, rate=0.0) >= GAIN * UPLINK
