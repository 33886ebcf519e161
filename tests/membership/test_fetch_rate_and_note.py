"""Reports besides versions: the fetch rate of members, and the trainer's note."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from blake3 import blake3
from membership_parts import RUN, announce, claim, fresh, make_core, manifest, node

from p2psync.errors import FormatError
from p2psync.membership.client import CallRenew
from p2psync.membership.records import Announce, Join, Lease, Renew
from p2psync.protocol.manifest import Manifest, decode_body, open_signed
from p2psync.protocol.messages import SHORT_ID_BYTES, Bitfield, Chunk
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.exchange.bitmap import pack_bitmap
from p2psync.swarm.node import NodeCore


def test_a_renewal_reports_the_fetch_rate_and_wakes_no_reader() -> None:
    core = make_core()
    lease = core.join(Join(info=node(1)), lease=fresh(), now=0).lease
    revision, acknowledgements = core.revision, core.acknowledgements
    core.renew(Renew(lease=lease, fetch_rate=120_000), now=1)
    assert [m.fetch_rate for m in core.view().members] == [120_000]
    assert (core.revision, core.acknowledgements) == (revision, acknowledgements)
    core.renew(Renew(lease=lease, version=3, digest="a" * 32, fetch_rate=120_000), now=2)
    assert core.acknowledgements == acknowledgements + 1


@pytest.mark.parametrize("rate", [-1, 1 << 60])
def test_a_fetch_rate_is_bounded(rate: int) -> None:
    core = make_core()
    lease = core.join(Join(info=node(1)), lease=fresh(), now=0).lease
    core.renew(Renew(lease=lease, fetch_rate=5), now=1)
    assert "rate" in core.renew(Renew(lease=lease, fetch_rate=rate), now=9).refused
    assert core.view().members[0].fetch_rate == 5
    assert core.expire(18.9) == []


def test_the_status_carries_the_trainers_last_note() -> None:
    core = make_core()
    token = claim(core)
    assert core.status(0, 0).note == ""
    core.announce(Announce(token=token, manifests=[manifest(0)], note="profile fast: as configured"), now=0.0)
    announce(core, token, manifest(1, 0))
    assert core.status(0, 0).note == "profile fast: as configured"
    with pytest.raises(FormatError, match="note"):
        core.announce(Announce(token=token, manifests=[manifest(2, 1)], note="two\nlines"), now=0.0)
    with pytest.raises(FormatError, match="note"):
        core.announce(Announce(token=token, note="x" * 1000), now=0.0)
    assert core.view().head == 1
    claim(core, epoch=2, run="f" + RUN[1:])
    assert core.status(0, 0).note == "", "another run"


def test_announcements_name_their_profile() -> None:
    core = make_core()
    announce(core, claim(core), manifest(0))
    assert [a.profile for a in core.view().lineage] == ["fast"]


def test_a_node_reports_its_measured_fetch_rate() -> None:
    core = NodeCore(node(1), NodeConfig(), random.Random(1))
    data = [bytes([i]) * 50_000 for i in range(30)]
    made = _manifest(data)
    core.poll(0.0)
    core.membership.joined(Lease(lease="l", ttl=9.0, revision=1), 0.0)
    every = np.ones(len(data), np.bool_)
    id = b"i" * 32
    core.swarm.begin(id, made, ~every, every, 0.0)
    assert core.peer_up("peer", "", 0.0)
    short = id[:SHORT_ID_BYTES]
    core.receive("peer", Bitfield(short, pack_bitmap(every)), 0.0)
    for i, chunk in enumerate(data):
        core.receive("peer", Chunk(short, i, chunk), (i + 1) / 10)
    core.actions()
    core.poll(3.1)
    (renewal,) = [action for action in core.actions() if isinstance(action, CallRenew)]
    assert renewal.request.fetch_rate == 500_000


def _manifest(chunks: list[bytes]) -> Manifest:

    empty = decode_body(open_signed(manifest(1, 0), None)[1].body)
    hashes = b"".join(blake3(chunk).digest() for chunk in chunks)
    return msgspec.structs.replace(
        empty, sizes=[len(chunk) for chunk in chunks], hashes=hashes, first_rows=[0] * len(chunks)
    )
