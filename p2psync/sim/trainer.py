"""A simulated trainer: publishes versions durably, and announces them until the hub has them all.

The state of its run (run, epoch, the newest version's name, its packs) is on disk and outlives its process; a trainer
that takes over from another starts with a copy of part of that one's disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.errors import FencedError, LeaseError, P2PSyncError
from p2psync.membership.acceptance import Acceptance
from p2psync.membership.epochs import EPOCH_ZERO, RANDOM_BITS, next_epoch
from p2psync.membership.hub import HubCore
from p2psync.membership.lineage import to_announcement
from p2psync.membership.records import (
    Announce,
    Announced,
    Challenge,
    Claimed,
    NodeInfo,
    RunClaim,
    Status,
    View,
    claim_bytes,
)
from p2psync.protocol.lineage import resolve
from p2psync.protocol.manifest import Manifest, SignedManifest
from p2psync.protocol.versions import Position
from p2psync.sim.disk import SimPack
from p2psync.sim.network import SimHost
from p2psync.sim.node import SimNode, SimWorld
from p2psync.sim.weights import CodedVersion, ModelVersions, VersionName, signed_manifest
from p2psync.swarm.config import NodeConfig

_RETRY_SECONDS = 0.4
#: Seconds between checks whether an actor runs the newest version; seconds that peers have to supply a damaged chunk.
ACCEPTANCE_CHECK_SECONDS, _REPLACE_SECONDS = 3.0, 3.0
#: Start of the simulations, in seconds after `EPOCH_ZERO`.
_START_SECONDS = 1e6
#: Seconds by which the hub may learn of a version later than peers do.
HUB_DELAY_SECONDS = (0.0, 0.3, 2.0)


class PublishObserver(Protocol):
    """Learns which bits each manifest represents."""

    def published(self, trainer: SimTrainer, manifest: Manifest, name: VersionName) -> None:
        """A manifest is durable at a trainer, and about to be announced."""


class SimTrainer(SimNode):
    """A node that publishes."""

    def __init__(
        self,
        world: SimWorld,
        host: SimHost,
        info: NodeInfo,
        config: NodeConfig,
        *,
        bits: ModelVersions,
        key: Ed25519PrivateKey,
        run: str,
        epoch: int,
        publish_observer: PublishObserver,
        anchor_every: int,
        keep: int,
    ) -> None:
        """epoch: of the first claim, less one. anchor_every: versions between anchors. keep: deltas kept before an
        anchor."""
        super().__init__(world, host, info, config, None)
        self.bits = bits
        self.key = key
        self.run = run
        self.epoch = epoch
        self.name: VersionName = ()
        self.fenced = False
        #: Seconds by which its wall clock is ahead.
        self.unix_skew = 0.0
        self._publish_observer = publish_observer
        self._anchor_every = anchor_every
        self._keep = keep

    def start(self) -> None:
        """Starts a process: takes the run over at the next epoch, and announces the disk's versions."""
        clock = self.world.clock
        unix = EPOCH_ZERO + _START_SECONDS + clock.now + self.unix_skew
        self.epoch = next_epoch(self.epoch, 0, unix, clock.rng.getrandbits(RANDOM_BITS))
        self._token: str | None = None
        self._known: set[str] = set()
        self._retire: set[str] = set()
        self._busy = False
        self._hub_instance = ""
        self._acceptance = Acceptance()
        super().start()
        self.later(0.0, self.sync)
        self.later(ACCEPTANCE_CHECK_SECONDS, self._check_acceptance)
        for id, pack in self.store.packs.items():
            if any(chunk is None for chunk in pack.chunks):  # damage was found, and the process ended before the repair
                self.later(_REPLACE_SECONDS, self._replace_pack, id)

    def copy_disk(self, other: SimTrainer, versions: int) -> None:
        """Before the first start: copies the first `versions` versions of another trainer."""
        self.name = other.name[:versions]
        self.epoch = other.epoch
        for id, pack in other.store.packs.items():
            if pack.manifest.version < versions:
                self.store.packs[id] = SimPack(pack.manifest, pack.signed, list(pack.chunks))

    def restore(self, versions: int) -> None:
        """While no process runs: replaces the disk by a backup from the time of the first `versions` versions."""
        self.name = self.name[:versions]
        self.epoch = min(self.epoch, self.name[0]) - 1
        for id in [id for id, pack in self.store.packs.items() if pack.manifest.version >= versions]:
            del self.store.packs[id]

    @property
    def head(self) -> Position | None:
        """The version that this trainer published last."""
        newest = max((p.manifest for p in self.store.packs.values()), key=_order, default=None)
        if newest is None:
            return None
        return position_of(newest)

    # ---- publishing ------------------------------------------------------------------------------------------------

    def publish(self, *, anchor: bool = False) -> None:
        """Makes the next version durable, and has it announced; does nothing once fenced.

        anchor: also write an anchor. A trainer that takes over must, since the path to its first version may be gone.
        """
        if self.fenced:
            return
        base = self.name or None
        # Another epoch trains on other bits.
        self.name = (*self.name, self.epoch)
        version = len(self.name) - 1
        if base is not None:
            self._make(base, self.name)
        if anchor or version % self._anchor_every == 0:
            self._make(None, self.name)
            self._prune(version)
        self._squash()
        self.later(self.world.clock.rng.choice(HUB_DELAY_SECONDS), self.sync)

    def _squash(self) -> None:
        """One delta from where an actor was when the hub was last heard of, if that is two versions or more behind."""
        view = self.core.membership.view
        starts = {m.version for m in view.members if m.info.role == "actor"} if view is not None else set()
        behind = sorted(v for v in starts if v is not None and v + 2 < len(self.name))
        made = {(p.manifest.base, p.manifest.version) for p in self.store.packs.values()}
        newest = len(self.name) - 1
        if behind and (behind[0], newest) not in made:
            self._make(self.name[: behind[0] + 1], self.name)

    def describe(self, base: VersionName | None, name: VersionName) -> tuple[CodedVersion, Manifest, SignedManifest]:
        """Code and sign the delta between two versions, or the anchor of one."""
        coded, created = self.bits.coded(base, name), self.world.clock.now
        signed = signed_manifest(self.bits, coded, self.key, run=self.run, epoch=self.epoch, created=created)
        return coded, *signed

    def _make(self, base: VersionName | None, name: VersionName) -> None:
        coded, manifest, signed = self.describe(base, name)
        pack = self.store.add(manifest, signed)
        pack.chunks = list(coded.chunks)
        self._publish_observer.published(self, manifest, name)
        flags = np.ones(manifest.chunks, np.bool_)
        self.core.offer(signed.id, manifest, flags, self.now, signed.to_bytes())
        self.core.membership.running(manifest.version, manifest.digest.hex(), self.now)
        self._acceptance.published(position_of(manifest), self.now)

    def _prune(self, anchor: int) -> None:
        """Retires manifests that an anchor makes needless; they are removed once the hub has agreed."""
        for id, pack in self.store.packs.items():
            m = pack.manifest
            stale = m.version < anchor if m.base is None else m.base < anchor - self._keep
            if stale:
                self._retire.add(id.hex())

    # ---- damage -------------------------------------------------------------------------------------------

    def lost(self, id: bytes, index: int) -> None:
        """A chunk is damaged: peers may supply it; otherwise its manifest is retired and replaced."""
        super().lost(id, index)
        self.later(_REPLACE_SECONDS, self._replace_pack, id)

    def _replace_pack(self, id: bytes) -> None:
        pack = self.store.packs.get(id)
        if pack is None or self.fenced or all(chunk is not None for chunk in pack.chunks):
            return
        self._retire.add(id.hex())
        rest = [
            to_announcement(pack.manifest, other, 0)
            for other, pack in self.store.packs.items()
            if other.hex() not in self._retire
        ]
        newest = Position(run=self.run, epoch=0, version=len(self.name) - 1, digest=self.bits.weights(self.name).digest)
        if resolve(rest, None, (newest.version, newest.digest.hex())) is None:
            self._make(None, self.name)
        self.sync()

    def replace(self, reason: str) -> None:
        """No actor can run the newest version: checks the signed digests against the bits, retires wrong manifests, and
        writes the next version as an anchor."""
        self.world.clock.note("replace", self.info.node, reason)
        names = {len(name) - 1: name for name in (self.name[: k + 1] for k in range(len(self.name)))}
        for id, pack in self.store.packs.items():
            name = names.get(pack.manifest.version)
            if name is None or self.bits.weights(name).digest != pack.manifest.digest:
                self._retire.add(id.hex())
        self.name = (*self.name, self.epoch)
        self._make(None, self.name)
        self.sync()

    def _check_acceptance(self) -> None:
        """Asks the hub whether an actor runs the newest version."""
        self.later(ACCEPTANCE_CHECK_SECONDS, self._check_acceptance)
        if self.fenced or self._acceptance.settled:
            return
        process = self.processes

        def answer(status: Status | P2PSyncError) -> None:
            if process == self.processes and isinstance(status, Status):
                reason = self._acceptance.check(status.view.members, self.now)
                if reason is not None:
                    self.replace(reason)
                self.drain()

        now = self.world.clock.now
        self.world.hub.request(self.host, lambda core: core.status(now, 0.0), answer)

    # ---- the hub ---------------------------------------------------------------------------------------------------

    def on_view(self, view: View) -> None:
        """Announces again to a restarted hub, and retires the manifests of a fenced trainer."""
        if view.instance != self._hub_instance:
            self._hub_instance = view.instance
            self._token = None
            self._known.clear()
        if (view.run, view.epoch) > (self.run, self.epoch):
            self.fenced = True
        own = {id.hex() for id in self.store.packs}
        self._retire |= {a.id for a in view.lineage} - own
        self.sync()

    def sync(self) -> None:
        """Sends the hub the announcements that it lacks, one request at a time."""
        if self._busy or self.fenced:
            return
        if self._token is None:
            self._ask(lambda core: core.challenge(nonce=self.world.hub.secret(), now=self.world.clock.now), self._claim)
        elif self._unannounced() or self._retire:
            token, manifests, retire = self._token, self._unannounced(), sorted(self._retire)
            data = [pack.signed.to_bytes() for pack in manifests]
            ids = [pack.signed.id.hex() for pack in manifests]
            self._ask(
                lambda core: core.announce(
                    Announce(token=token, manifests=data, retire=retire), now=self.world.clock.now
                ),
                lambda _: self._announced(ids, retire),
            )

    def _unannounced(self) -> list[SimPack]:
        """Returns manifests that the hub lacks, in rising order of epochs and versions, three at most."""
        packs = [
            p for id, p in self.store.packs.items() if id.hex() not in self._known and id.hex() not in self._retire
        ]
        return sorted(packs, key=lambda p: _order(p.manifest))[:3]

    def _claim(self, challenge: object) -> None:
        assert isinstance(challenge, Challenge)
        claim = RunClaim(
            node=self.info.node,
            run=self.run,
            epoch=self.epoch,
            nonce=challenge.nonce,
            key=self.key.public_key().public_bytes_raw().hex(),
        )
        claim = msgspec.structs.replace(claim, signature=self.key.sign(claim_bytes(claim)).hex())
        token = self.world.hub.secret()
        self._ask(lambda core: core.claim(claim, token=token, now=self.world.clock.now), self._claimed)

    def _claimed(self, claimed: object) -> None:
        assert isinstance(claimed, Claimed)
        self.world.clock.note("claimed", self.info.node, claimed.epoch)
        self._token = claimed.token
        self._known.clear()

    def _announced(self, ids: list[str], retired: list[str]) -> None:
        self._known.update(ids)
        self._retire.difference_update(retired)
        for id in map(bytes.fromhex, retired):
            if self.store.packs.pop(id, None) is not None:
                self.core.swarm.end(id)

    def _ask(
        self,
        operation: Callable[[HubCore], Challenge | Claimed | Announced],
        then: Callable[[object], None],
    ) -> None:
        self._busy = True
        process = self.processes

        def answer(result: Challenge | Claimed | Announced | P2PSyncError) -> None:
            if process != self.processes:
                return
            self._busy = False
            if isinstance(result, FencedError):
                self.fenced = True
                self.world.clock.note("fenced", self.info.node)
            elif isinstance(result, P2PSyncError):
                if isinstance(result, LeaseError):
                    self._token = None
                self.later(_RETRY_SECONDS, self.sync)
            else:
                then(result)
                self.sync()
            self.drain()

        self.world.hub.request(self.host, operation, answer)


def position_of(manifest: Manifest) -> Position:
    """Returns the version that a manifest leads to."""
    return Position(run=manifest.run, epoch=manifest.epoch, version=manifest.version, digest=manifest.digest)


def _order(manifest: Manifest) -> tuple[int, int, bool]:
    return (manifest.epoch, manifest.version, manifest.base is None)
