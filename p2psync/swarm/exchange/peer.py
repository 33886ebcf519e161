"""One connected peer: what it holds, what it owes this node, what this node is to send to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2psync.swarm.exchange.download import Download
from p2psync.swarm.exchange.upload import Upload
from p2psync.swarm.peer import Early
from p2psync.swarm.transfer import Bits


@dataclass(slots=True)
class Peer:
    """near: in this node's region. publisher: it publishes. holds: flags per chunk of each manifest. surplus: useless
    bytes that it sent, less the useful ones. pending: its bitmaps of manifests that this node does not know yet."""

    name: str
    near: bool
    publisher: bool
    download: Download
    upload: Upload
    holds: dict[bytes, Bits] = field(default_factory=dict)
    pending: Early = field(default_factory=Early)
    surplus: int = 0

    def has(self, short: bytes, index: int) -> bool:
        """Returns whether the peer is known to hold a chunk."""
        theirs = self.holds.get(short)
        return theirs is not None and bool(theirs[index])
