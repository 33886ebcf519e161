"""Offers: a new version's manifest goes down the plan's trees ahead of its chunks. A part of the swarm's core.

Connections between peers are warm, and their windows wide: a manifest that takes three round trips from a hub which was
silent for a while is everywhere after one way. Each node passes it on once its signature is checked, and at once; who
has it from several parents does not miss a lost packet either.

Only parents in the plan are listened to, and only one manifest at a time is looked at for each: whoever offers what
nobody trusted signed is banned.
"""

from __future__ import annotations

from collections import OrderedDict

from p2psync.protocol.messages import MAX_GOSSIP_BYTES, SHORT_ID_BYTES, ManifestGossip
from p2psync.swarm.exchange.actions import VerifyManifest
from p2psync.swarm.exchange.state import SwarmState

#: Manifests of which is remembered who has them.
_REMEMBERED = 16


class ManifestGossiper:
    """The manifests that one node receives from its parents and passes to its children."""

    def __init__(self, state: SwarmState) -> None:
        self._state = state
        # The peers that have each manifest, by its id: they sent it, or it was sent to them.
        self._known: OrderedDict[bytes, set[str]] = OrderedDict()
        self._vetting: dict[str, bytes] = {}

    def publish(self, id: bytes, signed: bytes) -> None:
        """A new version of this node's own: a publisher offers its manifest to its children in the plan."""
        if self._state.trees.is_publisher and signed:
            self._pass_on(id, signed)

    def came(self, name: str, offer: ManifestGossip) -> None:
        """A peer offers a manifest: it is checked if it is news, and comes from whom this node listens to."""
        if name not in self._state.trees.parents:
            return
        known = offer.id in self._known or offer.id[:SHORT_ID_BYTES] in self._state.transfers
        self._has(offer.id).add(name)
        if not known and name not in self._vetting:
            self._vetting[name] = offer.id
            self._state.actions.append(VerifyManifest(name, offer.id, offer.signed))

    def verified(self, verify: VerifyManifest, *, taken: bool) -> None:
        """The manifest is what it should be. taken: it is news, and passed on."""
        self._vetting.pop(verify.peer, None)
        if taken:
            self._pass_on(verify.id, verify.signed)

    def rejected(self, verify: VerifyManifest) -> None:
        """It is not: another peer may still have the true one."""
        self._vetting.pop(verify.peer, None)
        self._known.pop(verify.id, None)

    def peer_down(self, name: str) -> None:
        """A peer went: it may come back knowing nothing."""
        for names in self._known.values():
            names.discard(name)

    def _pass_on(self, id: bytes, signed: bytes) -> None:
        if len(signed) > MAX_GOSSIP_BYTES:
            return
        has = self._has(id)
        offer = ManifestGossip(id, signed)
        for name in sorted(self._state.trees.all_children - has):
            peer = self._state.peers.get(name)
            if peer is not None and id[:SHORT_ID_BYTES] not in peer.upload.subscribed:
                self._state.send(name, offer)
                has.add(name)

    def _has(self, id: bytes) -> set[str]:
        if id not in self._known:
            self._known[id] = set()
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[id]
