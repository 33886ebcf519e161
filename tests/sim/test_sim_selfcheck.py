"""Recovery from versions that no actor can decode, from unnoticed rot, and from a restored backup."""

from __future__ import annotations

import msgspec
import pytest
from blake3 import blake3

from p2psync.membership import epochs
from p2psync.protocol.manifest import Manifest, SignedManifest, sign
from p2psync.sim import build
from p2psync.sim import trainer as trainers
from p2psync.sim.build import SimConfig, Simulation
from p2psync.sim.checks import InvariantError
from p2psync.sim.run import SimFailure, run_sim
from p2psync.sim.trainer import SimTrainer
from p2psync.sim.weights import CodedVersion, VersionName
from p2psync.swarm.exchange.blame import Blame


class Flipped(SimTrainer):
    """Its snapshot has a flipped bit from version 2 on, and it looks at nothing else: the digests that it signs are
    those of bits that nobody has. Once it verifies, it sees that."""

    verified = False

    def describe(self, base: VersionName | None, name: VersionName) -> tuple[CodedVersion, Manifest, SignedManifest]:
        coded, manifest, _ = super().describe(base, name)
        if not self.verified:
            manifest = msgspec.structs.replace(
                manifest,
                digest=self.signed_digest(name, manifest.digest),
                base_digest=self.signed_digest(base, manifest.base_digest)
                if base is not None
                else manifest.base_digest,
            )
        return coded, manifest, sign(manifest, self.key)

    def _make(self, base: VersionName | None, name: VersionName) -> None:
        if base is not None or len(name) <= 2 or self.verified:  # an anchor of other bits than were signed is not made
            super()._make(base, name)

    def _prune(self, anchor: int) -> None:
        if anchor < 2 or self.verified:
            super()._prune(anchor)

    def signed_digest(self, name: VersionName, digest: bytes) -> bytes:
        """The digest that it signs for a version."""
        return digest if len(name) <= 2 else blake3(repr(name).encode()).digest(16)

    def replace(self, reason: str) -> None:
        self.verified = True
        super().replace(reason)


@pytest.mark.parametrize("seed", range(4))
def test_versions_that_no_actor_can_decode_are_replaced_by_a_whole_one(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(build, "SimTrainer", Flipped)
    report = run_sim(seed, SimConfig(faults=(), liars=(), versions=5, actors=3))
    assert report.commits >= 3


def test_without_the_acceptance_check_the_swarm_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SimTrainer", Flipped)
    monkeypatch.setattr(SimTrainer, "_check_acceptance", lambda self: None)
    with pytest.raises(SimFailure) as error:
        run_sim(0, SimConfig(faults=(), liars=(), versions=5, actors=3, bound=60.0))
    assert error.value.kind == "converge"


def sole_source(seed: int) -> tuple[float, int]:
    """An anchor rots at its only holder, after it was hashed; then an actor joins. How long until that one runs the
    newest version, and how many bans there were."""
    config = SimConfig(actors=0, faults=(), liars=(), planned=False)
    sim = Simulation(seed, config)
    sim.trainer.start()
    sim.trainer.publish()
    sim.clock.run(3.0, lambda: False)
    for pack in sim.trainer.store.packs.values():
        pack.checked.update(range(len(pack.chunks)))
        data = pack.chunks[1]
        assert data is not None
        pack.chunks[1] = bytes([data[0] ^ 1]) + data[1:]
    sim.invariants.rotten.add(sim.trainer.info.node)
    joiner = sim.add_actor()
    joiner.start()
    begun = sim.clock.now
    sim.clock.run(begun + 700.0, lambda: sim.invariants.has_converged(sim.nodes, sim.trainer.head))
    sim.invariants.check_end(sim.nodes, sim.trainer.head, 700.0)
    return sim.clock.now - begun, sim.invariants.bans


@pytest.mark.parametrize("seed", range(4))
def test_a_joiner_gets_past_a_chunk_that_rotted_at_its_only_holder(seed: int) -> None:
    seconds, bans = sole_source(seed)
    assert bans == 1
    assert seconds < 25.0


def test_a_blamed_node_that_does_not_recheck_keeps_the_joiner_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Blame, "may_recheck", lambda self, name, now: False)
    with pytest.raises(InvariantError, match=r"banned the honest|runs nothing"):
        sole_source(0)


def test_a_trainer_from_a_backup_is_followed_at_once() -> None:
    for seed in range(4):
        run_sim(seed, SimConfig(faults=("restore_backup",), fault_count=1, liars=(), actors=3, bound=30.0))


def test_epochs_that_repeat_leave_actors_on_a_lost_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "next_epoch", lambda own, known, unix_seconds, drawn: max(own, known) + 1)
    with pytest.raises(SimFailure) as error:
        run_sim(5, SimConfig(faults=("restore_backup",), fault_count=1, liars=(), actors=3))
    assert error.value.kind == "converge"


def test_a_new_epoch_is_above_all_known_ones_and_never_repeats() -> None:
    at = epochs.EPOCH_ZERO + 1000.0
    first = epochs.next_epoch(0, 0, at, 5)
    assert epochs.next_epoch(0, 0, at + 0.001, 0) > first  # restored a moment later: nothing is known
    assert epochs.next_epoch(first, 0, at - 500, 7) == first + 1  # the clock went back
    assert epochs.next_epoch(3, first, at - 500, 7) == first + 1  # the hub knows
    assert epochs.next_epoch(0, 0, at, 6) != first  # neither knows, and the clock went back to the very moment
    assert epochs.next_epoch(0, 0, 1e12, 0) < (1 << 53) - 1 and epochs.next_epoch(2, 2, 0.0, 0) == 3
