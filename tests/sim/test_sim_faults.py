"""One scenario for each kind of fault and each liar, alone and often."""

from __future__ import annotations

import pytest

from p2psync.membership.records import NodeInfo, Role
from p2psync.protocol.manifest import Manifest
from p2psync.sim.build import SimConfig, Simulation
from p2psync.sim.faults import KINDS
from p2psync.sim.liars import LIARS
from p2psync.sim.run import run_sim
from p2psync.swarm.exchange.actions import VerifyManifest
from p2psync.swarm.node import NodeCore


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_swarm_recovers_from_each_fault(kind: str) -> None:
    for seed in range(3):
        run_sim(seed, SimConfig(faults=(kind,), fault_count=3, liars=()))


@pytest.mark.parametrize("kind", sorted(LIARS))
def test_the_swarm_converges_despite_each_liar(kind: str) -> None:
    for seed in range(4):
        run_sim(seed, SimConfig(faults=(), liars=(kind, kind)))


def test_without_faults_every_version_reaches_every_actor_and_no_peer_is_banned() -> None:
    for seed in range(5):
        report = run_sim(seed, SimConfig(faults=(), liars=(), actors=4))
        assert report.bans == 0
        assert report.makespans and max(report.makespans) < 10.0
        # A star would send each actor a copy.
        assert report.trainer_bytes < 4 * report.payload_bytes


def test_senders_of_wrong_chunks_are_banned_by_their_receivers() -> None:
    reports = [run_sim(seed, SimConfig(faults=(), liars=("corrupter",), actors=4)) for seed in range(4)]
    assert sum(report.bans for report in reports) > 0


def test_a_flooder_is_banned() -> None:
    reports = [run_sim(seed, SimConfig(faults=(), liars=("flooder",), actors=4)) for seed in range(4)]
    assert sum(report.bans for report in reports) > 0


def test_a_peer_that_forges_manifests_is_banned_by_its_peers() -> None:
    reports = [run_sim(seed, SimConfig(faults=(), liars=("forger",), actors=4)) for seed in range(4)]
    assert sum(report.bans for report in reports) > 0


def test_versions_are_fetched_before_the_hub_announces_them_and_committed_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = 0
    original = NodeCore.manifest_verified

    def manifest_verified(self: NodeCore, verify: VerifyManifest, manifest: Manifest, now: float) -> bool:
        nonlocal taken
        is_new = original(self, verify, manifest, now)
        taken += is_new
        return is_new

    monkeypatch.setattr(NodeCore, "manifest_verified", manifest_verified)
    for seed in range(4):
        run_sim(seed, SimConfig(faults=(), liars=(), actors=4))
    assert taken > 8, "every simulation checks that nothing is committed before the hub announces it"


def test_a_copy_of_an_old_version_saves_the_anchor() -> None:
    def joiner_bytes(kind: str) -> int:
        config = SimConfig(faults=(kind,), fault_count=1, liars=(), actors=3)
        return sum(run_sim(seed, config).received_bytes for seed in range(4))

    assert joiner_bytes("join_with_copy") < joiner_bytes("join_with_nothing")


def test_everyone_behind_a_nat_but_the_trainer_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Simulation._info

    def info(self: Simulation, role: Role, *, reachable: bool) -> NodeInfo:
        return original(self, role, reachable=role == "trainer")

    monkeypatch.setattr(Simulation, "_info", info)
    for seed in range(4):
        run_sim(seed, SimConfig(faults=(), liars=(), actors=3))
