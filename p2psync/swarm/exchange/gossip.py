"""Manifest gossip: a new version's manifest goes down the plan's trees ahead of its chunks.

Peers' connections are in use, and their congestion windows open: a manifest that takes three round trips over an idle
connection to the hub reaches all nodes in one pass down the trees. Each node forwards a manifest once its signature is
verified. With several parents, a lost packet on one path delays nobody.

A node accepts manifests from its parents in the plan only, and verifies one at a time for each. It bans a peer whose
manifest has no trusted signature.
"""

from __future__ import annotations

from collections import OrderedDict

from p2psync.protocol.messages import MAX_GOSSIP_BYTES, SHORT_ID_BYTES, ManifestGossip
from p2psync.swarm.exchange.actions import VerifyManifest
from p2psync.swarm.exchange.state import SwarmState
from p2psync.swarm.exchange.trust import BanPeer

#: Manifests whose holders a node remembers. More cost memory; with fewer, peers receive manifests twice.
_MAX_MANIFESTS = 16


class ManifestGossiper:
    """Receives manifests from one node's parents and sends them to its children."""

    def __init__(self, state: SwarmState, ban: BanPeer) -> None:
        self._state, self._ban = state, ban
        # The peers that sent or received each manifest, by its id.
        self._known: OrderedDict[bytes, set[str]] = OrderedDict()
        self._verifying: dict[str, bytes] = {}

    def publish(self, id: bytes, signed: bytes) -> None:
        """Sends the manifest of a version that this node publishes to its children. Comes before `Exchange.begin`."""
        if self._state.trees.is_publisher and signed:
            self._forward(id, signed)

    def receive(self, name: str, gossip: ManifestGossip) -> None:
        """Has a parent's manifest verified if it is new; ignores manifests of other peers."""
        if name not in self._state.trees.parents:
            return
        known = gossip.id in self._known or gossip.id[:SHORT_ID_BYTES] in self._state.transfers
        self._holders(gossip.id).add(name)
        if not known and name not in self._verifying:
            self._verifying[name] = gossip.id
            self._state.actions.append(VerifyManifest(name, gossip.id, gossip.signed))

    def verified(self, verify: VerifyManifest, *, taken: bool) -> None:
        """Forwards a manifest whose signature is trusted if it is new (`taken`)."""
        self._verifying.pop(verify.peer, None)
        if taken:
            self._forward(verify.id, verify.signed)

    def rejected(self, verify: VerifyManifest, now: float) -> None:
        """Bans the peer whose manifest has no trusted signature; another peer may send the true one."""
        self._verifying.pop(verify.peer, None)
        self._known.pop(verify.id, None)
        self._ban(verify.peer, "it offered a manifest that nobody trusted has signed", now, None)

    def peer_down(self, name: str) -> None:
        """Forgets which manifests a disconnected peer has; it may return without them."""
        for names in self._known.values():
            names.discard(name)

    def _forward(self, id: bytes, signed: bytes) -> None:
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
