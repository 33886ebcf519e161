"""Invitations to measure a peer's uplink, which wait while a node is busy."""

from __future__ import annotations

import pytest
from probing_parts import asking, prober, told

from p2psync.protocol.messages import ProbeEnd, ProbeInvite, ProbeRequest
from p2psync.swarm.control.config import ProbeConfig


@pytest.mark.parametrize("inviter", ["far", "p0"])
def test_an_invitation_waits_while_the_node_is_busy_and_is_accepted_next(inviter: str) -> None:
    node = asking()
    asked = told(node, ProbeRequest)
    assert {probe.peer for probe in asked} == {"p0", "p1"}
    node.receive(inviter, ProbeInvite(7), 0.2)
    assert not told(node, ProbeEnd)
    for probe in asked:
        node.receive(probe.peer, ProbeEnd(probe.message.token, 0), 1.0)
    node.poll(False, 1.1)
    assert [(p.peer, p.message.token) for p in told(node, ProbeRequest) if p.message.size] == [(inviter, 7)]


@pytest.mark.parametrize("end", ["nothing happens", "cancelled", "gone", "chunks flow", "too old"])
def test_a_waiting_invitation_is_dropped_when_it_is_cancelled_or_too_old_or_chunks_flow(end: str) -> None:
    node = asking()
    asked = told(node, ProbeRequest)
    node.receive("far", ProbeInvite(7), 0.2)
    if end == "cancelled":
        node.receive("far", ProbeEnd(7, 0), 0.3)
    if end == "gone":
        node.peer_down("far", 0.3)
    node.poll(end == "chunks flow", 0.4)
    for probe in asked:
        node.receive(probe.peer, ProbeEnd(probe.message.token, 0), 0.5)
    node.poll(False, 3.0 if end == "too old" else 0.6)
    assert (7 in [probe.message.token for probe in told(node, ProbeRequest)]) == (end == "nothing happens")


def test_a_node_declines_an_invitation_while_its_paths_are_not_measured() -> None:
    node = prober(ProbeConfig(settle_seconds=0.0, jitter_seconds=0.0), peers=0)
    node.peer_up("far", "b", 0.0)
    node.poll(False, 0.1)
    asked = told(node, ProbeRequest)
    assert [probe.peer for probe in asked] == ["far"]
    node.receive("far", ProbeInvite(7), 0.2)  # a node that invites serves nobody
    assert [action.message.token for action in told(node, ProbeEnd)] == [7]


def test_a_peer_that_disconnects_leaves_nothing_waiting() -> None:
    node = prober(ProbeConfig(settle_seconds=0.0, jitter_seconds=0.0), peers=2)
    node.poll(False, 0.1)
    assert node.busy
    for name in ("p0", "p1"):
        node.peer_down(name, 0.2)
    node.actions()
    assert not node.busy
