"""What the parts of a swarm share: its peers, its transfers, and the actions that it has decided on."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from p2psync.protocol.messages import MAX_REQUEST_CHUNKS, Cancel, Control
from p2psync.swarm.actions import Action, Send, SwarmConfig
from p2psync.swarm.downlink import Downlink
from p2psync.swarm.lag import Lag
from p2psync.swarm.peer import Peer
from p2psync.swarm.transfer import Transfer
from p2psync.swarm.trees import Trees


@dataclass(slots=True)
class Ground:
    """node: this node's name. transfers: by the manifest's short id. peers: those connected, by name."""

    config: SwarmConfig
    rng: random.Random
    node: str = ""
    transfers: dict[bytes, Transfer] = field(default_factory=dict)
    peers: dict[str, Peer] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    trees: Trees = field(default_factory=Trees)
    downlink: Downlink = field(default_factory=Downlink)
    lag: Lag = field(default_factory=Lag)
    sent_bytes: int = 0

    @property
    def asks(self) -> bool:
        """Whether any request is out."""
        return any(transfer.asked for transfer in self.transfers.values())

    @property
    def others_fetch(self) -> bool:
        """Whether a peer is known to have some of the newest manifest, which is all here, and not the rest yet."""
        newest = max(self.transfers, key=lambda short: self.transfers[short].manifest.version, default=None)
        if newest is None or not self.transfers[newest].held.all():
            return False
        theirs = [peer.holds[newest] for peer in self.peers.values() if newest in peer.holds]
        return any(flags.any() and not flags.all() for flags in theirs)

    @property
    def pushers(self) -> frozenset[str]:
        """Who may push chunks here: the parents in the plan, and whoever publishes, who brings at the end what they
        still owe."""
        return self.trees.parents.union(name for name, peer in self.peers.items() if peer.source)

    def send(self, name: str, message: Control) -> None:
        """Send a control message to a peer."""
        self.actions.append(Send(name, message))

    def cancel(self, name: str, short: bytes, chunks: list[int]) -> None:
        """Ask a peer for these chunks no longer."""
        for start in range(0, len(chunks), MAX_REQUEST_CHUNKS):
            self.send(name, Cancel(short, chunks[start : start + MAX_REQUEST_CHUNKS]))

    def forget_request(self, transfer: Transfer, index: int, name: str) -> None:
        """A peer is not asked for a chunk any more; it is open again if nobody else is."""
        released = transfer.release(index, name)
        peer = self.peers.get(name)
        if released is not None and peer is not None:
            peer.asked_bytes -= transfer.manifest.sizes[index]
