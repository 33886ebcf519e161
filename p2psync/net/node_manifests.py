"""The signed manifests of one node: had from the hub, from peers or from the store, and verified."""

from __future__ import annotations

import asyncio

from p2psync.errors import P2PSyncError, TrustError
from p2psync.net.node_context import NodeContext
from p2psync.net.stored_chunks import held_chunks
from p2psync.protocol.manifest import Manifest, SignedManifest, open_expected, open_signed
from p2psync.store.pack import Pack
from p2psync.swarm.exchange.actions import VerifyManifest
from p2psync.swarm.synchronizer.actions import Fetch, GetManifest

#: Manifests up to this size (bytes) are read on the loop: a thousand chunks of a model of hundreds of tensors. Larger
#: ones would hold the loop up; smaller ones take less time to read than another thread takes to begin.
MAX_MANIFEST_ON_LOOP_BYTES = 40 << 10


class NodeManifests:
    """trusted: keys of publishers."""

    def __init__(self, node: NodeContext, trusted: frozenset[bytes]) -> None:
        self._node, self._trusted = node, trusted
        self._signed: dict[bytes, SignedManifest] = {}

    async def get(self, action: GetManifest) -> None:
        """Gets a manifest from the hub."""
        follower = self._node.core.follower
        assert follower is not None
        try:
            data = action.inline if action.inline is not None else await self._node.hub.manifest(action.id)
            manifest, signed = await self._open(data, action.id)
            self._signed[signed.id] = signed
            follower.manifest(action.id, manifest, self._node.clock())
        except P2PSyncError as error:
            if isinstance(error, TrustError) and follower.position is None and not self._signed:
                # No manifest was ever signed by a trusted key: a wrong key, or a wrong hub.
                self._node.tasks.break_node(error)
                return
            self._node.diagnostics.trouble(str(error))
            follower.no_manifest(action.id, str(error), self._node.clock())
        self._node.wake()

    async def verify(self, action: VerifyManifest) -> None:
        """Verifies a manifest that a peer sent."""
        try:
            manifest, signed = await self._open(action.signed, action.id.hex())
        except P2PSyncError:
            self._node.core.manifest_rejected(action, self._node.clock())
        else:
            if self._node.core.manifest_verified(action, manifest, self._node.clock()):
                self._signed[signed.id] = signed
        self._node.wake()

    def offer_stored(self, pack: Pack) -> None:
        """Offers a pack of an earlier process, if its manifest is one that this node trusts."""
        id = pack.signed.id
        try:
            open_signed(pack.signed.to_bytes(), self._trusted)
        except P2PSyncError as error:
            self._node.diagnostics.trouble(f"leaving the pack {id.hex()[:12]} alone: {error}")
            return
        self._signed[id] = pack.signed
        self._node.core.offer(id, pack.manifest, held_chunks(pack), self._node.clock())

    def fetch(self, action: Fetch) -> None:
        """Begins to fetch a manifest's chunks into its pack. Raises `P2PSyncError`."""
        pack = self._node.store.get(action.step.id)
        if pack is None:
            signed = self._signed.get(action.step.id)
            if signed is None:
                raise P2PSyncError("the manifest to fetch is not at hand any more; trying again")
            pack = self._node.store.add(signed, action.step.manifest)
        self._node.core.fetch(action, held_chunks(pack), self._node.clock())

    def forget(self, id: bytes) -> None:
        """Forgets a manifest."""
        self._signed.pop(id, None)

    async def _open(self, data: bytes, id: str) -> tuple[Manifest, SignedManifest]:
        if len(data) <= MAX_MANIFEST_ON_LOOP_BYTES:
            return open_expected(data, id, self._trusted)
        return await asyncio.to_thread(open_expected, data, id, self._trusted)
