"""Offers of a prober that wait: for one who measures something else, and until they are called off."""

from __future__ import annotations

import pytest
from probing_parts import asking, prober, told

from p2psync.protocol.messages import ProbeEnd, ProbeInvite, ProbeRequest
from p2psync.swarm.control.config import ProbeConfig


def test_an_offer_from_afar_waits_for_one_who_measures_something_else() -> None:
    node = asking()
    asked = told(node, ProbeRequest)
    assert {probe.peer for probe in asked} == {"p0", "p1"}
    node.receive("far", ProbeInvite(7), 0.2)
    node.receive("p0", ProbeInvite(8), 0.2)
    assert [action.message.token for action in told(node, ProbeEnd)] == [8]
    for probe in asked:
        node.receive(probe.peer, ProbeEnd(probe.message.token, 0), 1.0)
    node.poll(False, 1.1)
    assert [(p.peer, p.message.token) for p in told(node, ProbeRequest) if p.message.size] == [("far", 7)]


@pytest.mark.parametrize("end", ["nothing happens", "called off", "gone", "chunks flow", "too old"])
def test_an_offer_that_waits_is_forgotten_when_it_is_called_off_too_old_or_chunks_flow(end: str) -> None:
    node = asking()
    asked = told(node, ProbeRequest)
    node.receive("far", ProbeInvite(7), 0.2)
    if end == "called off":
        node.receive("far", ProbeEnd(7, 0), 0.3)
    if end == "gone":
        node.peer_down("far", 0.3)
    node.poll(end == "chunks flow", 0.4)
    for probe in asked:
        node.receive(probe.peer, ProbeEnd(probe.message.token, 0), 0.5)
    node.poll(False, 3.0 if end == "too old" else 0.6)
    assert (7 in [probe.message.token for probe in told(node, ProbeRequest)]) == (end == "nothing happens")


def test_two_who_wait_for_each_other_find_out_the_way_first() -> None:
    node = prober(ProbeConfig(settle=0.0, spread=0.0), peers=0)
    node.peer_up("far", "b", 0.0)
    node.poll(False, 0.1)
    asked = told(node, ProbeRequest)
    assert [probe.peer for probe in asked] == ["far"]
    node.receive("far", ProbeInvite(7), 0.2)  # it serves nobody while it waits
    assert [action.message.token for action in told(node, ProbeEnd)] == [7]


def test_a_peer_that_goes_leaves_nothing_waiting() -> None:
    node = prober(ProbeConfig(settle=0.0, spread=0.0), peers=2)
    node.poll(False, 0.1)
    assert node.busy
    for name in ("p0", "p1"):
        node.peer_down(name, 0.2)
    node.actions()
    assert not node.busy
