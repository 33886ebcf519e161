"""A whole node without I/O: membership, whom to dial, the chunk exchange and, at an actor, the follower.

The shell (sockets and an engine, or the simulator) tells of what happened and carries out `actions`. This file decides
nothing about chunks or versions itself; it wires the three automata together and keeps connections to the members.

Whom to dial: of two nodes that can both be dialled, the one with the smaller name dials; the other one does so too if
no connection has come after a while, which covers paths that are open one way only. The peers of this node's part of
the plan come first, and are dialled however many others there are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import numpy as np

from p2psync.membership.client import HubCall, MembershipClient
from p2psync.membership.lineage import to_announcement
from p2psync.membership.records import Lease, Member, NodeInfo, View
from p2psync.protocol.manifest import Manifest
from p2psync.protocol.messages import NO_VERSION, Message
from p2psync.protocol.plan import NodePlan
from p2psync.protocol.versions import Position
from p2psync.swarm.exchange.actions import Action, Ban, Recheck, Save, VerifyManifest
from p2psync.swarm.exchange.bitmap import Bits
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.exchange import Exchange
from p2psync.swarm.synchronizer.actions import (
    AbandonStage,
    Adopt,
    ChangedRun,
    CommitStage,
    EngineAction,
    Fetch,
    GetManifest,
    OpenStage,
    RefuseRun,
    Retire,
    StageChunk,
    StopFetch,
)
from p2psync.swarm.synchronizer.follower import Follower


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Settings. max_dialled_peers: peers up to which this node dials; max_peers: peers beyond which it takes none;
    neither holds for peers of the plan.

    redial_*: pauses after a failed or lost connection (seconds); they begin anew after a connection that lasted
    `stable_seconds`. max_dials_per_second: the last pause is longer where members are more than are dialled in it at
    this rate. dial_wait_seconds: how long to wait for a member that should dial this node before dialling it instead.
    dial_timeout_seconds: how long a dial may take until a peer is greeted; beyond it, it has failed.
    """

    swarm: ExchangeConfig = field(default_factory=ExchangeConfig)
    max_dialled_peers: int = 48
    max_peers: int = 128
    redial_min_seconds: float = 0.5
    redial_max_seconds: float = 30.0
    max_dials_per_second: float = 4.0
    stable_seconds: float = 10.0
    dial_wait_seconds: float = 2.0
    dial_timeout_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to this member; answer with `peer_up` or `dial_failed`."""

    info: NodeInfo


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close every connection to this peer."""

    peer: str
    reason: str


NodeAction: TypeAlias = (
    Action
    | Dial
    | Hangup
    | HubCall
    | GetManifest
    | Adopt
    | OpenStage
    | Fetch
    | StageChunk
    | CommitStage
    | AbandonStage
    | Retire
    | RefuseRun
    | ChangedRun
)


_NEVER = float("inf")


@dataclass(slots=True)
class _Known:
    """What the node remembers of its connections to a member. Times in seconds; dialled_at: of the last dial."""

    first_seen: float
    retry_at: float
    pause: float
    dialling: bool = False
    dialled_at: float = 0.0
    up_at: float = 0.0


class NodeCore:
    """One trainer or actor in the swarm."""

    def __init__(
        self, info: NodeInfo, config: NodeConfig, rng: random.Random, follower: Follower | None = None
    ) -> None:
        self.info = info
        self.config = config
        self.swarm = Exchange(config.swarm, rng, info.node)
        self.membership = MembershipClient(info, rng)
        self.follower = follower
        self._rng = rng
        self._members: dict[str, NodeInfo] = {}
        self._known: dict[str, _Known] = {}
        self._up: set[str] = set()
        #: This node's part of the plan, None before the first.
        self.plan: NodePlan | None = None
        self._plan_peers: frozenset[str] = frozenset()
        # No dial is due before this; at or before now when something has changed since it was worked out.
        self._dial_wake = _NEVER
        # Epoch and version of the newest that was published here.
        self._published = (-1, -1)
        self._actions: list[NodeAction] = []
        if follower is not None:
            self.membership.why_waiting = lambda: follower.waiting_reason
        if follower is not None and follower.position is not None:
            self._running(follower.position, 0.0)
        elif follower is not None and not follower.local_digest:
            self.swarm.running(NO_VERSION)

    def listening(self, port: int) -> None:
        """The port at which peers reach this node is known now (0: none); to be told before the first `poll`."""
        self.info = self.membership.info = msgspec.structs.replace(self.info, port=port)

    # ---- hub -------------------------------------------------------------------------------------------------------

    def joined(self, lease: Lease, now: float) -> None:
        """See `MembershipClient`."""
        self.membership.joined(lease, now)

    def renewed(self, lease: Lease, now: float) -> None:
        """See `MembershipClient`."""
        self.membership.renewed(lease, now)

    def lease_lost(self, now: float) -> None:
        """See `MembershipClient`."""
        self.membership.lease_lost(now)

    def viewed(self, view: View | None, now: float) -> View | None:
        """The long poll of the view ended; see `MembershipClient.viewed`."""
        whole = self.membership.viewed(view, now)
        if whole is not None:
            self._members_changed(whole.members, now)
            if self.follower is not None:
                self.follower.viewed(whole, now)
        return whole

    def planned(self, plan: NodePlan, now: float) -> None:
        """The hub gave this node's part of the plan. Raises `FormatError` for one that no planner makes."""
        plan.check()
        self.membership.planned(plan.revision, now)
        self.plan = plan
        self._take_plan_peers(frozenset(plan.peers) - {self.info.node}, now)
        self.swarm.follow(plan, now)

    def hub_failed(self, call: HubCall, now: float) -> None:
        """A call to the hub failed."""
        self.membership.failed(call, now)

    # ---- peers -----------------------------------------------------------------------------------------------------

    def peer_up(self, name: str, region: str, now: float) -> bool:
        """A connection to a peer is greeted; False if it must be closed: it is banned, this node, or one too many.

        To be said again at each further connection, and when one of several is lost: see `Exchange.peer_up`. If the
        peer was started anew, say `peer_down` first.
        """
        near = bool(region) and region == self.info.region
        self._dial_wake = now
        known = self._known.get(name)
        full = name not in self._up | self._plan_peers and len(self._up) >= self.config.max_peers
        source = name in self._members and self._members[name].role == "trainer"
        if full or name == self.info.node or not self.swarm.peer_up(name, near, now, source=source):
            if known is not None:
                self._back_off(known, now)
            return False
        if known is not None:
            known.dialling = False
            known.up_at = known.up_at if name in self._up else now
        self._up.add(name)
        return True

    def peer_down(self, name: str, now: float) -> None:
        """The last connection to a peer is gone."""
        self._up.discard(name)
        self._dial_wake = now
        self.swarm.peer_down(name, now)
        known = self._known.get(name)
        if known is not None:
            if now - known.up_at >= self.config.stable_seconds:
                known.pause = self.config.redial_min_seconds
            self._back_off(known, now)

    def dial_failed(self, name: str, now: float) -> None:
        """A dialled member did not answer."""
        known = self._known.get(name)
        if known is not None:
            self._back_off(known, now)
            self._dial_wake = now

    def receive(self, name: str, message: Message, now: float) -> None:
        """A message of a peer that is up."""
        self.swarm.receive(name, message, now)

    # ---- chunks and versions ---------------------------------------------------------------------------------------

    def offer(self, id: bytes, manifest: Manifest, held: Bits, now: float, signed: bytes = b"") -> None:
        """Serve what the store holds of a manifest. signed: the signed manifest, of a version that was just published
        here: peers in the plan are told before the hub tells them."""
        if signed and (manifest.epoch, manifest.version) > self._published:
            self._published = (manifest.epoch, manifest.version)
            self.swarm.publish(id, signed)
        self.swarm.begin(id, manifest, held, np.zeros(manifest.chunks, np.bool_), now)
        if self.follower is not None:
            self.follower.holds_bytes(id, sum(manifest.sizes[int(i)] for i in np.flatnonzero(held)))

    def manifest_verified(self, verify: VerifyManifest, manifest: Manifest, now: float) -> bool:
        """A manifest that a peer offered is signed by whom this node trusts. Whether it is of use: to be kept then."""
        news = to_announcement(manifest, verify.id, len(verify.signed))
        taken = self.follower is not None and self.follower.peer_announced(news, manifest, now)
        self.swarm.manifest_verified(verify, taken=taken)
        return taken

    def manifest_rejected(self, verify: VerifyManifest, now: float) -> None:
        """A manifest that a peer offered is not."""
        self.swarm.manifest_rejected(verify, now)

    def fetch(self, action: Fetch, held: Bits, now: float) -> None:
        """The store is ready for a `Fetch`; `held`: what it holds already (flags per chunk)."""
        wanted = np.zeros(action.step.manifest.chunks, np.bool_)
        wanted[list(action.wanted)] = True
        self.swarm.begin(action.step.id, action.step.manifest, held, wanted, now)

    def saved(self, action: Save) -> None:
        """The store keeps a chunk now."""
        if self.follower is not None:
            self.follower.saved(action.id, action.index)

    def chunk_damaged(self, action: StageChunk, now: float) -> None:
        """A chunk that was to be staged is damaged on disk."""
        self.swarm.lost(action.id, action.chunk, now)
        if self.follower is not None:
            self.follower.chunk_damaged(action)

    def adopted(self, action: Adopt, position: Position | None, now: float) -> None:
        """See `Follower`; what is live is told to the hub."""
        if self.follower is not None:
            self.follower.adopted(action, position, now)
            self._running(position, now)

    def committed(self, action: CommitStage, position: Position, now: float) -> None:
        """See `Follower`; the commit is acknowledged to the hub."""
        if self.follower is not None:
            self.follower.committed(action, position, now)
            self._running(position, now)

    def mark_corrupt(self, message: str, position: Position | None, now: float) -> None:
        """See `Follower.mark_corrupt`; the hub is told what is live here instead."""
        if self.follower is not None and self.follower.mark_corrupt(message, position, now):
            self._running(position, now)

    def engine_failed(
        self, action: EngineAction, message: str, position: Position | None, now: float, *, wrong: bool = False
    ) -> None:
        """See `Follower.failed`. wrong: the bits are others than were signed: the hub is told, and the store hashes
        again what it gave, which may have rotted there."""
        if self.follower is not None:
            before = self.follower.position
            digest, chunks = self.follower.suspects(action)
            if wrong and digest:
                self.membership.rejected(digest, now)
                self._actions += [Recheck(id, chunk) for id, chunk in chunks]
            self.follower.failed(action, message, position, now)
            if self.follower.position != before:
                self._running(self.follower.position, now)

    def store_failed(self, id: bytes, message: str, now: float) -> None:
        """The store could not keep a manifest's chunks: stop fetching it, and try the whole path again later."""
        self.swarm.end(id)
        if self.follower is not None:
            self.follower.store_failed(message, now)

    # ---- time and output -------------------------------------------------------------------------------------------

    def poll(self, now: float) -> None:
        """Do what time has made due."""
        self.membership.fetch_rate = self.swarm.fetch_rate
        self._actions += self.membership.poll(now)
        self.swarm.poll(now)
        if self.follower is not None:
            self.follower.poll(now)
        if now >= self._dial_wake:
            self._dial_due(now)

    def next_wake(self, now: float) -> float:
        """When `poll` must be called next at the latest."""
        return max(now, min(self.rest_wake(), self.swarm.next_wake()))

    def rest_wake(self) -> float:
        """The same of all but the swarm: where nothing but its inputs came, `swarm.poll` will do until then."""
        wake = min(self.membership.next_wake(), self._dial_wake)
        return wake if self.follower is None else min(wake, self.follower.next_wake())

    def actions(self) -> list[NodeAction]:
        """What is to be done now, in order; empties the list."""
        done, self._actions = self._actions, []
        for action in self.swarm.actions():
            if isinstance(action, Ban):
                self._up.discard(action.peer)
                self._dial_wake = -_NEVER
                done.append(Hangup(action.peer, action.reason))
            done.append(action)
        if self.follower is not None:
            for command in self.follower.actions():
                if isinstance(command, StopFetch):
                    self.swarm.stop_fetch(command.id)
                    continue
                if isinstance(command, Retire):
                    self.swarm.end(command.id)
                done.append(command)
        done += self.swarm.actions()
        return done

    # ---- whom to dial ----------------------------------------------------------------------------------------------

    def _members_changed(self, members: list[Member], now: float) -> None:
        current = {m.info.node: m.info for m in members if m.info.node != self.info.node}
        self._members = current
        for peer in self.swarm.peers:
            peer.publisher = peer.name in current and current[peer.name].role == "trainer"
        for name in [name for name in self._known if name not in current]:
            del self._known[name]
        for name in current:
            if name not in self._known:
                self._known[name] = _Known(now, now, self.config.redial_min_seconds)
        self._dial_due(now)

    def _wanted_dials(self) -> list[str]:
        """Members to be dialled, and dials under way that may turn out to have failed."""
        room = self._room() > 0
        return [
            name
            for name, known in self._known.items()
            if name not in self._up
            and (known.dialling or room or name in self._plan_peers)
            and self._members[name].port
        ]

    def _room(self) -> int:
        return self.config.max_dialled_peers - len(self._up) - sum(known.dialling for known in self._known.values())

    def _dial_at(self, name: str) -> float:
        known = self._known[name]
        if known.dialling:
            return known.dialled_at + self.config.dial_timeout_seconds
        at = max(known.retry_at, self.swarm.banned_until(name))
        mine_to_dial = self.info.node < name or not self.info.port
        return at if mine_to_dial else max(at, known.first_seen + self.config.dial_wait_seconds)

    def _dial_due(self, now: float) -> None:
        due = [name for name in self._wanted_dials() if self._dial_at(name) <= now]
        for name in due:
            if self._known[name].dialling:
                self._back_off(self._known[name], now)
        due = [name for name in due if self._dial_at(name) <= now]
        for name in self._choose(due):
            known = self._known[name]
            known.dialling, known.dialled_at = True, now
            self._actions.append(Dial(self._members[name]))
        self._dial_wake = min((self._dial_at(name) for name in self._wanted_dials()), default=_NEVER)

    def _choose(self, names: list[str]) -> list[str]:
        """All peers of the plan; while there is room trainers, then nodes of this region, then others at random."""
        planned = [name for name in names if name in self._plan_peers]
        others = [name for name in names if name not in self._plan_peers]
        order = {name: self._rng.random() for name in others}
        others.sort(key=lambda n: (self._members[n].role != "trainer", not self._is_near(n), order[n]))
        return planned + others[: max(0, self._room() - len(planned))]

    def _take_plan_peers(self, peers: frozenset[str], now: float) -> None:
        """Those that are new among them are tried at once, whatever became of earlier dials."""
        for name in peers - self._plan_peers:
            known = self._known.get(name)
            if known is not None and not known.dialling:
                known.pause = self.config.redial_min_seconds
                known.retry_at = known.first_seen = now
        self._plan_peers = peers
        self._dial_due(now)

    def _is_near(self, name: str) -> bool:
        return bool(self.info.region) and self._members[name].region == self.info.region

    def _back_off(self, known: _Known, now: float) -> None:
        known.dialling = False
        known.first_seen = now
        known.retry_at = now + known.pause * (0.75 + 0.5 * self._rng.random())
        last = max(self.config.redial_max_seconds, len(self._known) / self.config.max_dials_per_second)
        known.pause = min(last, known.pause * 2)

    def _running(self, position: Position | None, now: float) -> None:
        self.swarm.running(b"" if position is None else position.digest)
        if position is None:
            self.membership.running(None, "", now)
        else:
            self.membership.running(position.version, position.digest.hex(), now, position.run, position.epoch)
