"""Carries out what the exchange wants of the store: chunks to send, to save and to hash again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from p2psync.engines.base import ChunkBytes
from p2psync.errors import P2PSyncError
from p2psync.net.node_context import NodeContext
from p2psync.net.peers import ConnectionManager
from p2psync.protocol.messages import SHORT_ID_BYTES
from p2psync.store.pack import Pack
from p2psync.swarm.exchange.actions import Recheck, Save, SendChunk
from p2psync.swarm.exchange.bitmap import Bits

#: A chunk is hashed again before it is sent if that was last done so long ago (seconds): rot is rare, and hashing takes
#: some milliseconds a chunk. A larger value lets rot go unseen for longer.
RECHECK_SECONDS = 300.0


class StoredChunks:
    """The chunks of one node. on_lost: called with the id of a manifest with a damaged chunk."""

    def __init__(self, node: NodeContext, connections: ConnectionManager, on_lost: Callable[[bytes], None]) -> None:
        self._node, self._connections, self._on_lost = node, connections, on_lost
        # Chunks that were saved in this turn of the loop: they are passed on from memory.
        self._saved: dict[tuple[bytes, int], ChunkBytes] = {}

    def send(self, action: SendChunk) -> None:
        """Sends a chunk, from memory or from the store."""
        data = self._saved.get((action.id, action.index)) or self._read(action)
        short = action.id[:SHORT_ID_BYTES]
        if data is None or not self._connections.send_chunk(action.peer, short, action.index, data, action.tag):
            self._node.core.swarm.flushed(action.peer, action.size, self._node.clock())

    def save(self, action: Save) -> None:
        """Saves a chunk."""
        pack = self._node.store.get(action.id)
        try:
            if pack is None:
                raise P2PSyncError(f"the store lost the pack {action.id.hex()[:12]}")
            pack.write(action.index, action.data)
        except P2PSyncError as error:
            self.failed(action.id, error)
            self._node.wake()
            return
        self._saved[(action.id, action.index)] = action.data
        self._node.core.saved(action)

    def failed(self, id: bytes, error: P2PSyncError) -> None:
        """The store cannot keep chunks of a manifest."""
        self._node.diagnostics.trouble(str(error))
        self._node.core.store_failed(id, str(error), self._node.clock())

    def drained(self) -> None:
        """The turn of the loop ends: chunks are read from the store from now on."""
        self._saved.clear()

    def recheck(self, action: Recheck) -> None:
        """Hashes a chunk again."""
        try:
            pack = self._node.store.get(action.id)
            if pack is not None:
                pack.recheck()  # its other chunks may have rotted with it
            is_good = pack is None or pack.view(action.index) is not None
        except P2PSyncError as error:
            self._node.diagnostics.trouble(str(error))
            is_good = False
        if not is_good:
            self._lost(action.id, action.index)

    async def recheck_packs(self) -> None:
        """Has every pack hash its chunks again before it sends them; repeats that after each `RECHECK_SECONDS`."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            for pack in self._node.store.packs():
                pack.recheck()

    def complete(self, id: bytes) -> None:
        """Makes a complete pack durable, in a thread."""
        pack = self._node.store.get(id)
        if pack is not None and pack.complete:
            # The store is closed after the tasks, and a thread that writes cannot be cancelled.
            self._node.tasks.spawn(self._seal(pack), lasting=True)

    def _read(self, action: SendChunk) -> memoryview | None:
        try:
            pack = self._node.store.get(action.id)
            data = pack.view(action.index) if pack is not None else None
        except P2PSyncError as error:
            self._node.diagnostics.trouble(str(error))
            data = None
        if data is None:
            self._lost(action.id, action.index)
        return data

    def _lost(self, id: bytes, index: int) -> None:
        self._node.diagnostics.trouble(f"chunk {index} of {id.hex()[:12]} is damaged or gone here; fetching it again")
        self._node.core.swarm.lost(id, index, self._node.clock())
        self._on_lost(id)
        self._node.wake()

    async def _seal(self, pack: Pack) -> None:
        try:
            await asyncio.to_thread(pack.seal)
        except P2PSyncError as error:
            self._node.diagnostics.trouble(str(error))


def held_chunks(pack: Pack) -> Bits:
    """Returns one flag per chunk."""
    return np.array([bool(have) for have in pack.have], np.bool_)
