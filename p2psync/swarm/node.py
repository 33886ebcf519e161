"""The core of a node: membership, dials, the chunk exchange and, at an actor, the follower. Sans-I/O.

The shell (sockets and an engine, or the simulator) passes events in and carries out `actions`. This module connects the
parts; it makes no decision on chunks or versions itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np

from p2psync.errors import LeaseError, P2PSyncError
from p2psync.membership.client import CallJoin, CallPlan, HubCall, MembershipClient
from p2psync.membership.lineage import to_announcement
from p2psync.membership.records import Lease, NodeInfo, View
from p2psync.protocol.manifest import Manifest
from p2psync.protocol.messages import NO_VERSION, Message
from p2psync.protocol.plan import NodePlan
from p2psync.protocol.versions import Position
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.dialer import Dial, Dialer
from p2psync.swarm.exchange.actions import Action, Ban, Save, VerifyManifest
from p2psync.swarm.exchange.bitmap import Bits
from p2psync.swarm.exchange.exchange import Exchange
from p2psync.swarm.monitored_exchange import MonitoredExchange
from p2psync.swarm.synchronizer.actions import Fetch, FollowerAction, Retire, StopFetch
from p2psync.swarm.synchronizer.follower import Follower


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close every connection to this peer."""

    peer: str
    reason: str


NodeAction: TypeAlias = Action | Dial | Hangup | HubCall | FollowerAction
HubResult: TypeAlias = Lease | View | NodePlan | P2PSyncError | None


class NodeCore:
    """One trainer or actor in the swarm."""

    def __init__(
        self, info: NodeInfo, config: NodeConfig, rng: random.Random, follower: Follower | None = None
    ) -> None:
        self.info = info
        self.swarm = Exchange(config.swarm, rng, info.node)
        self.traffic = MonitoredExchange(info, self.swarm)
        self.membership = MembershipClient(info, rng)
        self.dialer = Dialer(info, config, rng, self.swarm.trust.banned_until)
        self.follower = follower
        #: This node's part of the plan, None before the first.
        self.plan: NodePlan | None = None
        # Epoch and version of the newest manifest that this node published.
        self._published = (-1, -1)
        self._actions: list[NodeAction] = []
        if follower is not None:
            self._attach_follower(follower)

    def set_port(self, port: int) -> None:
        """Sets the port at which peers reach this node (0: none). Comes before the first `poll`."""
        self.info = self.membership.info = self.dialer.info = msgspec.structs.replace(self.info, port=port)

    def _attach_follower(self, follower: Follower) -> None:
        """Has the follower report its live version to the hub and to parents."""
        self.membership.why_waiting = lambda: follower.waiting_reason
        follower.on_live, follower.on_lost = self._report_live, self.swarm.lost
        follower.on_rejected = self.membership.rejected
        if follower.position is not None:
            self._report_live(follower.position, 0.0)
        elif not follower.local_digest:
            self.swarm.accept_next(NO_VERSION)

    def _report_live(self, position: Position | None, now: float) -> None:
        if position is None:
            self.swarm.accept_next(b"")
            self.membership.running(None, "", now)
        else:
            self.swarm.accept_next(position.digest)
            self.membership.running(position.version, position.digest.hex(), now, position.run, position.epoch)

    # ---- hub -------------------------------------------------------------------------------------------------------

    def hub_answered(self, call: HubCall, result: HubResult, now: float) -> View | None:
        """Handles the hub's answer to a call: a result, an error, or None for an unchanged view.

        Returns the whole view if it changed. Raises `FormatError` for an inconsistent plan.
        """
        if isinstance(result, LeaseError) and not isinstance(call, CallPlan):
            self.membership.lease_lost(now)
        elif isinstance(result, P2PSyncError):
            # A lost lease in a call for the plan does not end the membership: the next renewal shows its state.
            self.membership.failed(call, now)
        elif isinstance(result, NodePlan):
            self.planned(result, now)
        elif isinstance(result, Lease):
            accept_lease = self.membership.joined if isinstance(call, CallJoin) else self.membership.renewed
            accept_lease(result, now)
        else:
            return self.viewed(result, now)
        return None

    def viewed(self, view: View | None, now: float) -> View | None:
        """Handles the answer to the long poll of the view; see `MembershipClient.viewed`."""
        whole = self.membership.viewed(view, now)
        if whole is not None:
            self._actions += self.dialer.members_changed(whole.members, now)
            for peer in self.swarm.peers:
                peer.publisher = self.dialer.is_publisher(peer.name)
            self.traffic.members(member.info for member in whole.members)
            if self.follower is not None:
                self.follower.viewed(whole, now)
        return whole

    def planned(self, plan: NodePlan, now: float) -> None:
        """Follows this node's part of a new plan. Raises `FormatError` for an inconsistent one."""
        plan.check()
        self.membership.planned(plan.revision, now)
        self.plan = plan
        self._actions += self.dialer.plan_changed(frozenset(plan.peers) - {self.info.node}, now)
        self.traffic.follow(plan, now)

    # ---- peers -----------------------------------------------------------------------------------------------------

    def peer_up(self, name: str, region: str, now: float) -> bool:
        """Adds a peer whose connection is greeted. Returns False if the shell must close the connection: the peer is
        banned or this node itself, or the node has no room for another peer.

        The shell calls this again for each further connection, and when one of several is lost: see `Exchange.peer_up`.
        For a peer that restarted, it calls `peer_down` first.
        """
        publishes = self.dialer.is_publisher(name)
        if not self.dialer.accepts(name) or not self.traffic.peer_up(name, region, now, publishes=publishes):
            self.dialer.failed(name, now)
            return False
        self.dialer.connected(name, now)
        return True

    def peer_down(self, name: str, now: float) -> None:
        """Removes a peer whose last connection is closed."""
        self.traffic.peer_down(name, now)
        self.dialer.disconnected(name, now)

    def dial_failed(self, name: str, now: float) -> None:
        """Handles a failed dial."""
        self.dialer.failed(name, now)
        self.traffic.dial_failed(name)

    def receive(self, name: str, message: Message, now: float) -> bool:
        """Handles a peer's message. Returns whether it was for the exchange, which the shell polls then."""
        return self.traffic.receive(name, message, now)

    # ---- chunks and versions ---------------------------------------------------------------------------------------

    def offer(self, id: bytes, manifest: Manifest, held: Bits, now: float, signed: bytes = b"") -> None:
        """Offers the stored chunks of a manifest to peers.

        signed: the signed manifest, if this node has just published it; its children in the plan receive it before the
        hub announces it.
        """
        if signed:
            self.traffic.transfer_begins(manifest)
        if signed and (manifest.epoch, manifest.version) > self._published:
            self._published = (manifest.epoch, manifest.version)
            self.swarm.gossip.publish(id, signed)
        self.swarm.begin(id, manifest, held, np.zeros(manifest.chunks, np.bool_), now)
        if self.follower is not None:
            self.follower.holds_bytes(id, sum(manifest.sizes[int(i)] for i in np.flatnonzero(held)))
            self.follower.manifest(id.hex(), manifest, now)

    def manifest_verified(self, verify: VerifyManifest, manifest: Manifest, now: float) -> bool:
        """Handles a peer's manifest with a trusted signature. Returns whether it is new, and must be stored."""
        announcement = to_announcement(manifest, verify.id, len(verify.signed))
        taken = self.follower is not None and self.follower.peer_announced(announcement, manifest, now)
        if taken:
            self.traffic.transfer_begins(manifest)
        self.swarm.gossip.verified(verify, taken=taken)
        return taken

    def manifest_rejected(self, verify: VerifyManifest, now: float) -> None:
        """Handles a peer's manifest without a trusted signature: bans the peer."""
        self.swarm.gossip.rejected(verify, now)

    def fetch(self, action: Fetch, held: Bits, now: float) -> None:
        """Begins a `Fetch` once the store is ready. held: chunks that it holds already (flags)."""
        self.traffic.transfer_begins(action.step.manifest)
        wanted = np.zeros(action.step.manifest.chunks, np.bool_)
        wanted[list(action.wanted)] = True
        self.swarm.begin(action.step.id, action.step.manifest, held, wanted, now)

    def saved(self, action: Save) -> None:
        """Reports a chunk as stored to the follower."""
        if self.follower is not None:
            self.follower.saved(action.id, action.index)

    def store_failed(self, id: bytes, message: str, now: float) -> None:
        """Stops fetching a manifest whose chunks the store cannot keep; the follower retries the whole path later."""
        self.swarm.end(id)
        if self.follower is not None:
            self.follower.store_failed(message, now)

    # ---- time and output -------------------------------------------------------------------------------------------

    def poll(self, now: float) -> None:
        """Does all work that is due."""
        self.membership.fetch_rate = self.swarm.statistics.fetch_rate
        self._actions += self.membership.poll(now)
        self.swarm.poll(now)
        if self.follower is not None:
            self.follower.poll(now)
        if now >= self.dialer.wake:
            self._actions += self.dialer.poll(now)

    def next_wake(self, now: float) -> float:
        """Returns the time of the next `poll` if no other event comes first."""
        return max(now, min(self.next_wake_except_exchange(), self.swarm.next_wake()))

    def next_wake_except_exchange(self) -> float:
        """Returns the same without the exchange. Until then, after inputs of the exchange, `swarm.poll` suffices."""
        wake = min(self.membership.next_wake(), self.dialer.wake)
        return wake if self.follower is None else min(wake, self.follower.next_wake())

    def actions(self) -> list[NodeAction]:
        """Returns the actions for the shell, in order, and clears them."""
        done, self._actions = self._actions, []
        for action in self.swarm.actions():
            if isinstance(action, Ban):
                self.dialer.banned(action.peer)
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
