"""Manifest gossip: a new version's manifest goes down the plan's trees ahead of its chunks.

The connections of peers are warm, and their windows wide: a manifest that takes three round trips from a hub at rest is
everywhere after one way down the trees. Each node passes a manifest on as soon as its signature is verified. A node
that gets it from several parents does not miss a lost packet either.

A node takes manifests from its parents in the plan alone, and verifies one at a time for each. The exchange bans a peer
whose manifest has no trusted signature.
"""

from __future__ import annotations

from collections import OrderedDict

from p2psync.protocol.messages import MAX_GOSSIP_BYTES, SHORT_ID_BYTES, ManifestGossip
from p2psync.swarm.exchange.actions import VerifyManifest
from p2psync.swarm.exchange.state import SwarmState
from p2psync.swarm.exchange.trust import BanPeer

#: Manifests for which a node remembers the peers that have them. More cost memory; fewer, repeated manifests.
_MAX_MANIFESTS = 16


class ManifestGossiper:
    """The manifests that one node receives from its parents and passes to its children."""

    def __init__(self, state: SwarmState, ban: BanPeer) -> None:
        self._state, self._ban = state, ban
        # The peers that have each manifest, by its id: they sent it, or it was sent to them.
        self._known: OrderedDict[bytes, set[str]] = OrderedDict()
        self._verifying: dict[str, bytes] = {}

    def publish(self, id: bytes, signed: bytes) -> None:
        """Sends the manifest of a new version of this node's own to the children in the plan."""
        if self._state.trees.is_publisher and signed:
            self._pass_on(id, signed)

    def receive(self, name: str, gossip: ManifestGossip) -> None:
        """A peer sent a manifest; it is to be verified if it is new and the peer is a parent."""
        if name not in self._state.trees.parents:
            return
        known = gossip.id in self._known or gossip.id[:SHORT_ID_BYTES] in self._state.transfers
        self._holders(gossip.id).add(name)
        if not known and name not in self._verifying:
            self._verifying[name] = gossip.id
            self._state.actions.append(VerifyManifest(name, gossip.id, gossip.signed))

    def verified(self, verify: VerifyManifest, *, taken: bool) -> None:
        """A manifest has a trusted signature. taken: it is new, and passed on."""
        self._verifying.pop(verify.peer, None)
        if taken:
            self._pass_on(verify.id, verify.signed)

    def rejected(self, verify: VerifyManifest, now: float) -> None:
        """Bans the peer whose manifest has no trusted signature; another peer may send the true one."""
        self._verifying.pop(verify.peer, None)
        self._known.pop(verify.id, None)
        self._ban(verify.peer, "it offered a manifest that nobody trusted has signed", now, None)

    def peer_down(self, name: str) -> None:
        """A peer is gone, and may come back without any manifest."""
        for names in self._known.values():
            names.discard(name)

    def _pass_on(self, id: bytes, signed: bytes) -> None:
        if len(signed) > MAX_GOSSIP_BYTES:
            return
        has = self._holders(id)
        gossip = ManifestGossip(id, signed)
        for name in sorted(self._state.trees.all_children - has):
            peer = self._state.peers.get(name)
            if peer is not None and id[:SHORT_ID_BYTES] not in peer.upload.subscribed:
                self._state.send(name, gossip)
                has.add(name)

    def _holders(self, id: bytes) -> set[str]:
        if id not in self._known:
            self._known[id] = set()
            while len(self._known) > _MAX_MANIFESTS:
                self._known.popitem(last=False)
        return self._known[id]
