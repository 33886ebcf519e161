"""Nodes that run the real core and send false messages."""

from __future__ import annotations

import numpy as np

from p2psync.protocol.messages import SHORT_ID_BYTES, Bitfield, Chunk, ManifestGossip, Message, Request
from p2psync.sim.node import SimNode
from p2psync.swarm.exchange.actions import SendChunk
from p2psync.swarm.exchange.bitmap import pack_bitmap


class Corrupter(SimNode):
    """Sends well-formed but wrong chunks: with a flipped bit, or with another chunk's bytes."""

    def give_chunk(self, action: SendChunk, data: bytes) -> None:
        """Sends a wrong chunk in most cases."""
        rng = self.world.clock.rng
        pack = self.store.packs[action.id]
        wrong = data
        if rng.random() < 0.5:
            others = [c for p in self.store.packs.values() for c in p.chunks[action.index : action.index + 1] if c]
            wrong = rng.choice(others)
        elif rng.random() < 0.8:
            at = rng.randrange(len(data))
            wrong = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        assert pack.manifest.verify_chunk(action.index, data)
        super().give_chunk(action, wrong)


class Boaster(SimNode):
    """Claims to hold every chunk, and answers no request."""

    def _peer_up(self, name: str, region: str) -> bool:
        accepted = super()._peer_up(name, region)
        if accepted:
            self.later(0.1, self._boast, name)
        return accepted

    def _boast(self, name: str) -> None:
        view = self.core.membership.view
        for announced in view.lineage if view else ():
            short = bytes.fromhex(announced.id)[:SHORT_ID_BYTES]
            self.links.send(name, Bitfield(short, pack_bitmap(np.ones(64, np.bool_))))
        if self.links.connected(name):
            self.later(1.0, self._boast, name)

    def _message(self, name: str, message: Message) -> None:
        if not isinstance(message, Request):
            super()._message(name, message)


class Flooder(SimNode):
    """Repeatedly sends the chunks that it holds to peers that did not request them."""

    def _peer_up(self, name: str, region: str) -> bool:
        accepted = super()._peer_up(name, region)
        if accepted:
            self.later(0.1, self._flood, name)
        return accepted

    def _flood(self, name: str) -> None:
        for id, pack in list(self.store.packs.items()):
            for index, data in enumerate(pack.chunks):
                if data is not None:
                    self.links.send_chunk(name, id[:SHORT_ID_BYTES], index, data, lambda: None)
        if self.links.connected(name):
            self.later(0.5, self._flood, name)


class Babbler(SimNode):
    """Sends bytes that are not frames."""

    def _message(self, name: str, message: Message) -> None:
        super()._message(name, message)
        if isinstance(message, Chunk) or self.world.clock.rng.random() < 0.05:
            self.links.send_raw(name, self.world.clock.rng.randbytes(20))


class Forger(SimNode):
    """Offers manifests with a flipped bit, old ones, and valid ones under another id."""

    def _peer_up(self, name: str, region: str) -> bool:
        accepted = super()._peer_up(name, region)
        if accepted:
            self.later(0.1, self._forge, name)
        return accepted

    def _forge(self, name: str) -> None:
        rng = self.world.clock.rng
        if self._signed:
            id, data = rng.choice([(id, signed.to_bytes()) for id, signed in sorted(self._signed.items())])
            at = rng.randrange(len(data))
            flipped = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
            self.links.send(
                name,
                rng.choice(
                    (ManifestGossip(id, data), ManifestGossip(id, flipped), ManifestGossip(rng.randbytes(32), data))
                ),
            )
        if self.links.connected(name):
            self.later(1.0, self._forge, name)


#: Liars by their name in a configuration.
LIARS: dict[str, type[SimNode]] = {
    "corrupter": Corrupter,
    "boaster": Boaster,
    "flooder": Flooder,
    "babbler": Babbler,
    "forger": Forger,
}
