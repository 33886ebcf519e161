"""Whom a node dials and when, and how the parts of a node hang together."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from swarm_parts import RUN, announce, chunk_data, digest_of, flags, id_of, manifest_of, view_of

from p2psync.errors import DigestMismatchError, EngineError
from p2psync.membership.client import CallJoin, CallRenew
from p2psync.membership.records import Lease, NodeInfo, Role
from p2psync.protocol.messages import NO_VERSION, SHORT_ID_BYTES, AcceptNext, Bitfield, Chunk
from p2psync.protocol.versions import Position
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.dialer import Dial
from p2psync.swarm.exchange.actions import Ban, Recheck, Save, Send
from p2psync.swarm.node import Hangup, NodeCore
from p2psync.swarm.synchronizer.actions import CommitStage, Fetch, OpenStage, Retire, StageChunk
from p2psync.swarm.synchronizer.follower import Follower
from tests.exchange.exchange_trees import relay_plan

CONFIG = NodeConfig(max_dialled_peers=4, max_peers=6)


def info(name: str, *, role: Role = "actor", port: int = 1, region: str = "") -> NodeInfo:
    """A member."""
    return NodeInfo(node=name, role=role, region=region, host="h", port=port)


class Node:
    """A node under test that is a member already."""

    def __init__(
        self, name: str = "m", *, port: int = 1, follower: Follower | None = None, config: NodeConfig = CONFIG
    ) -> None:
        self.core = NodeCore(info(name, port=port, region="here"), config, random.Random(3), follower)
        self.core.poll(0.0)
        self.core.membership.joined(Lease(lease="l", ttl=1000.0, revision=1), 0.0)
        self.core.poll(0.0)
        self.core.actions()

    def meet(self, *members: NodeInfo, now: float = 0.0) -> None:
        """The hub shows these members."""
        self.core.viewed(view_of(members=members), now)

    def dials(self, now: float) -> list[str]:
        """Whom it dials at a time."""
        self.core.poll(now)
        return [a.info.node for a in self.core.actions() if isinstance(a, Dial)]

    def wake(self, now: float) -> float:
        """When it wants to be polled next; never at once when there is nothing to do."""
        self.core.poll(now)
        self.core.actions()
        wake = self.core.next_wake(now)
        assert wake > now
        return wake


def test_the_smaller_name_dials() -> None:
    node = Node("m")
    node.meet(info("a"), info("z"))
    assert node.dials(0.0) == ["z"]


def test_the_greater_name_dials_too_if_nobody_came() -> None:
    node = Node("m")
    node.meet(info("a"))
    assert node.dials(0.0) == []
    assert node.wake(0.0) == pytest.approx(CONFIG.dial_wait_seconds)
    assert node.dials(CONFIG.dial_wait_seconds) == ["a"]


def test_a_node_does_not_dial_itself_nor_whoever_is_connected() -> None:
    node = Node("m")
    node.core.peer_up("y", "", 0.0)
    node.meet(info("m"), info("y"), info("z"))
    assert node.dials(0.0) == ["z"]
    assert not node.core.peer_up("m", "", 0.0)


def test_a_node_that_cannot_be_dialled_dials_everyone_at_once_and_is_dialled_by_nobody() -> None:
    hidden = Node("z", port=0)
    hidden.meet(info("a"))
    assert hidden.dials(0.0) == ["a"]
    other = Node("a")
    other.meet(info("z", port=0))
    assert other.dials(100.0) == []


def test_no_member_is_dialled_twice_at_a_time() -> None:
    node = Node("m")
    node.meet(info("z"))
    assert node.dials(0.0) == ["z"]
    node.meet(info("z"), now=0.1)
    assert node.dials(1.0) == []


def test_a_dial_without_any_outcome_counts_as_failed_in_the_end() -> None:
    node = Node("m")
    node.meet(info("z"))
    assert node.dials(0.0) == ["z"]
    assert node.wake(1.0) == pytest.approx(CONFIG.dial_timeout_seconds)
    now = CONFIG.dial_timeout_seconds
    assert node.dials(now) == []
    assert node.dials(now + 2.0) == ["z"]


def test_pauses_after_failed_dials_grow_up_to_a_limit() -> None:
    node = Node("m")
    node.meet(info("z"))
    now, pauses = 0.0, []
    for _ in range(12):
        assert node.dials(now) == ["z"]
        node.core.dial_failed("z", now)
        wake = node.wake(now)
        pauses.append(wake - now)
        now = wake
    assert pauses[0] < 1.0 and CONFIG.redial_max_seconds * 0.7 <= max(pauses) <= CONFIG.redial_max_seconds * 1.3
    assert pauses[6] > pauses[0]


def test_a_peer_that_hangs_up_at_once_is_dialled_less_and_less_often() -> None:
    node = Node("m")
    node.meet(info("z"))
    now, gaps = 0.0, []
    for _ in range(8):
        assert node.dials(now) == ["z"]
        assert node.core.peer_up("z", "", now)
        node.core.peer_down("z", now + 0.1)
        began, now = now, node.wake(now + 0.1)
        gaps.append(now - began)
    assert gaps[-1] > 8 * gaps[0]


def test_after_a_connection_that_lasted_the_first_pause_is_short_again() -> None:
    node = Node("m")
    node.meet(info("z"))
    for now in (0.0, 10.0, 40.0):
        node.dials(now)
        node.core.dial_failed("z", now)
    node.core.peer_up("z", "", 100.0)
    node.core.peer_down("z", 100.0 + CONFIG.stable_seconds)
    assert node.wake(100.0 + CONFIG.stable_seconds) - 100.0 - CONFIG.stable_seconds <= CONFIG.redial_min_seconds * 1.25


def test_trainers_are_dialled_first_then_near_nodes() -> None:
    node = Node("0", config=replace(CONFIG, max_dialled_peers=2))
    members = [info(c, region="far") for c in "cdefg"] + [info("y", region="here"), info("z", role="trainer")]
    node.meet(*members)
    assert node.dials(0.0) == ["z", "y"]
    assert node.dials(1.0) == []


def test_a_node_with_peers_enough_dials_nobody_and_one_with_too_many_takes_none() -> None:
    node = Node("0")
    for name in "abcd":
        assert node.core.peer_up(name, "", 0.0)
    node.meet(info("z"))
    assert node.dials(0.0) == []
    assert node.wake(0.0) > 100.0
    for name in "ef":
        assert node.core.peer_up(name, "", 0.0)
    assert not node.core.peer_up("g", "", 0.0)
    assert node.core.peer_up("a", "", 0.0)
    for name in "abc":
        node.core.peer_down(name, 1.0)
    assert node.dials(5.0) == ["z"]


def test_a_banned_peer_is_hung_up_on_neither_dialled_nor_taken_back_until_its_time_is_up() -> None:
    node = Node("m")
    node.meet(info("z"))
    assert node.dials(0.0) == ["z"]
    node.core.peer_up("z", "", 0.0)
    m = manifest_of(1)
    node.core.swarm.begin(id_of(m), m, flags(1), flags(1, 0), 0.0)
    node.core.receive("z", Bitfield(id_of(m)[:SHORT_ID_BYTES], b"\1"), 0.0)
    node.core.receive("z", Chunk(id_of(m)[:SHORT_ID_BYTES], 0, b"wrong"), 1.0)
    actions = node.core.actions()
    assert [type(a) for a in actions if isinstance(a, Hangup | Ban)] == [Hangup, Ban]
    node.core.peer_down("z", 1.0)
    ban = CONFIG.swarm.first_ban
    assert not node.core.peer_up("z", "", 2.0)
    assert node.dials(2.5) == []
    # The view is polled in between; what matters is that the dial comes when the ban ends.
    assert node.dials(1.0 + ban + 0.1) == ["z"]


def test_node_does_not_dial_former_members() -> None:
    node = Node("m")
    node.meet(info("a"))
    node.meet()
    assert node.dials(50.0) == []


# ---- how the parts hang together -----------------------------------------------------------------------------------


def test_node_sets_no_alarm_at_once_when_nothing_is_due() -> None:
    node = Node("m", follower=Follower(None))
    node.meet(info("a"), info("z"))
    now = 0.0
    for _ in range(200):
        now = node.wake(now)
    assert now > 100.0


@pytest.mark.parametrize(("local", "said"), [("", [NO_VERSION]), ("ab" * 16, [])])
def test_only_a_node_without_weights_is_pushed_the_next_anchor_unasked(local: str, said: list[bytes]) -> None:
    node = Node("m", follower=Follower(None, local))
    node.core.swarm.follow(relay_plan(("p", "")), 0.0)
    node.core.peer_up("p", "", 0.0)
    messages = [action.message for action in node.core.actions() if isinstance(action, Send)]
    assert [message.digest for message in messages if isinstance(message, AcceptNext)] == said


def test_a_commit_is_told_to_the_hub_at_once() -> None:
    position = Position(run=RUN, epoch=1, version=0, digest=digest_of(0))
    node = Node("m", follower=Follower(position))
    m = manifest_of(1, version=1, base=0)
    node.core.viewed(view_of(announce(m)), 1.0)
    follower = node.core.follower
    assert follower is not None
    follower.manifest(id_of(m).hex(), m, 1.0)
    (stage,) = [a for a in node.core.actions() if isinstance(a, OpenStage)]
    follower.opened(stage, [[0]], [[]])
    (fetch,) = [a for a in node.core.actions() if isinstance(a, Fetch)]
    node.core.fetch(fetch, flags(1), 1.0)
    node.core.peer_up("z", "", 1.0)
    node.core.receive("z", Chunk(id_of(m)[:SHORT_ID_BYTES], 0, chunk_data(0)), 1.0)
    for action in node.core.actions():
        if isinstance(action, Save):
            node.core.saved(action)
    (put,) = node.core.actions()
    follower.chunk_staged(put)  # type: ignore[arg-type]
    (commit,) = node.core.actions()
    follower.committed(commit, Position(run=RUN, epoch=1, version=1, digest=m.digest), 2.0)  # type: ignore[arg-type]
    node.core.poll(2.0)
    (renew,) = [a for a in node.core.actions() if isinstance(a, CallRenew)]
    assert (renew.request.version, renew.request.digest) == (1, m.digest.hex())


def test_a_position_at_the_start_is_told_in_the_join() -> None:
    position = Position(run=RUN, epoch=1, version=7, digest=digest_of(7))
    core = NodeCore(info("m"), CONFIG, random.Random(1), Follower(position))
    core.poll(0.0)
    (join,) = [a for a in core.actions() if isinstance(a, CallJoin)]
    assert join.request.version == 7


def test_a_retired_manifest_is_no_longer_offered() -> None:
    node = Node("m", follower=Follower(Position(run=RUN, epoch=1, version=1, digest=digest_of(1))))
    old, new = manifest_of(1, version=1, base=0), manifest_of(1, version=1, base=None)
    node.core.offer(id_of(old), old, flags(1, 0), 0.0)
    follower = node.core.follower
    assert follower is not None
    follower.manifest(id_of(old).hex(), old, 0.0)
    node.core.peer_up("z", "", 0.0)
    node.core.actions()
    node.core.viewed(view_of(announce(new)), 1.0)
    actions = node.core.actions()
    assert Retire(id_of(old)) in actions
    assert "DontHave" in [type(getattr(a, "message", None)).__name__ for a in actions]


def test_a_full_disk_ends_the_transfer_and_the_path_is_tried_again() -> None:
    node = Node("m", follower=Follower(Position(run=RUN, epoch=1, version=0, digest=digest_of(0))))
    m = manifest_of(1, version=1, base=0)
    node.core.viewed(view_of(announce(m)), 1.0)
    follower = node.core.follower
    assert follower is not None
    follower.manifest(id_of(m).hex(), m, 1.0)
    (stage,) = [a for a in node.core.actions() if isinstance(a, OpenStage)]
    follower.opened(stage, [[0]], [[]])
    node.core.actions()
    node.core.store_failed(id_of(m), "the disk is full", 1.0)
    assert follower.last_error == "the disk is full"
    node.core.actions()
    wake = follower.next_wake()
    assert wake > 1.0
    node.core.poll(wake)
    assert [a for a in node.core.actions() if isinstance(a, OpenStage)]


@pytest.mark.parametrize("wrong", [False, True])
def test_what_the_store_gave_is_hashed_again_if_a_commit_would_bring_other_bits_than_were_signed(wrong: bool) -> None:
    node = Node("m", follower=Follower(Position(run=RUN, epoch=1, version=0, digest=digest_of(0))))
    m, signed = manifest_of(1), announce(manifest_of(1))
    node.core.viewed(view_of(signed), 0.0)
    follower = node.core.follower
    assert follower is not None
    follower.manifest(signed.id, m, 1.0)
    (stage,) = [a for a in node.core.actions() if isinstance(a, OpenStage)]
    follower.opened(stage, [[0]], [[0]])
    (put,) = [a for a in node.core.actions() if isinstance(a, StageChunk)]
    follower.chunk_staged(put)
    (commit,) = [a for a in node.core.actions() if isinstance(a, CommitStage)]
    error = DigestMismatchError("other bits") if wrong else EngineError("no room")
    follower.failed(commit, error, follower.position, 2.0)
    rechecks = [a for a in node.core.actions() if isinstance(a, Recheck)]
    assert rechecks == ([Recheck(id_of(m), 0)] if wrong else [])
