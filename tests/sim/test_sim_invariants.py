"""Each invariant can fail: with a part of the core taken out, the simulation notices."""

from __future__ import annotations

import pytest

from p2psync.membership.records import Announcement
from p2psync.protocol.manifest import Manifest
from p2psync.sim import engine, run
from p2psync.sim.build import SimConfig
from p2psync.sim.run import SimFailure, run_sim
from p2psync.swarm.dialer import Dialer
from p2psync.swarm.exchange.chunk_intake import ChunkIntake
from p2psync.swarm.exchange.exchange import Exchange
from p2psync.swarm.node import NodeCore
from p2psync.swarm.synchronizer.attempt import SyncAttempt
from p2psync.swarm.synchronizer.follower import Follower
from p2psync.swarm.synchronizer.known_versions import KnownVersions

CALM = SimConfig(faults=(), liars=(), bound=20.0)


def failure(config: SimConfig, seeds: int = 12, *, of: str = "") -> SimFailure:
    """The first failure among some seeds; of: of this invariant."""
    for seed in range(seeds):
        try:
            run_sim(seed, config)
        except SimFailure as error:
            if of in ("", error.kind):
                return error
    raise AssertionError("no invariant failed")


def test_wrong_bits_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Manifest, "verify_chunk", lambda self, index, data: True)
    monkeypatch.setattr(engine, "check_digest", lambda found, wanted: None)
    # What is wrong may also be unreadable, so that a node makes no progress.
    assert failure(SimConfig(faults=(), liars=("corrupter",), bound=20.0), of="bits").kind == "bits"


def test_the_digest_alone_keeps_wrong_bits_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Manifest, "verify_chunk", lambda self, index, data: True)
    assert failure(SimConfig(faults=(), liars=("corrupter",), bound=20.0)).kind != "bits"


def test_a_return_to_an_older_version_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def there_and_back(self: Follower) -> Announcement | None:
        view, head = self._versions.view, self._versions.head
        if view is None or head is None or self.position is None or self.position.version == 0:
            return head if self.position is None or (head and head.version) else None
        return next((a for a in view.lineage if a.version < self.position.version), None)

    monkeypatch.setattr(Follower, "_target", there_and_back)
    monkeypatch.setattr(SyncAttempt, "check", lambda self, run, live: None)
    assert failure(CALM).kind == "rising"


def test_a_commit_before_the_hub_announces_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnownVersions, "has_announced", lambda self, path: True)
    assert failure(CALM).kind == "announced"


def test_a_node_that_never_arrives_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dialer, "_wanted", lambda self: [])
    error = failure(CALM)
    assert error.kind == "converge"
    assert f"python -m p2psync.sim --seeds {error.seed}:{error.seed + 1}" in str(error)


def test_an_unjust_ban_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Chunks from the disk are bytes, chunks from peers are memory views.
    monkeypatch.setattr(Manifest, "verify_chunk", lambda self, index, data: isinstance(data, bytes))
    assert failure(CALM).kind == "honest"


def test_a_liar_that_goes_free_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange, "_ban", lambda self, name, reason, now, seconds=None: None)
    assert failure(SimConfig(faults=(), liars=("corrupter",))).kind == "blame"


def test_waste_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkIntake, "_add_useless_bytes", lambda self, peer, size, now: None)
    assert failure(SimConfig(faults=(), liars=("flooder",))).kind == "waste"


def test_an_endless_loop_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_EVENTS", 20_000)
    monkeypatch.setattr(NodeCore, "next_wake", lambda self, now: now)
    assert failure(CALM).kind == "busy"
