"""The state that the parts of an exchange share: peers, transfers, the plan's trees, and the actions decided on."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from p2psync.protocol.messages import MAX_REQUEST_CHUNKS, Cancel, Control
from p2psync.swarm.exchange.actions import Action, Send
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.peer import Peer
from p2psync.swarm.exchange.transfer import Transfer
from p2psync.swarm.exchange.trees import Trees


@dataclass(slots=True)
class SwarmState:
    """The shared state of one exchange.

    node: this node's name. transfers: by the manifest's short id. peers: the connected ones, by name. actions: for the
    shell, in order. trees: this node's positions in the plan.
    """

    config: ExchangeConfig
    rng: random.Random
    node: str = ""
    transfers: dict[bytes, Transfer] = field(default_factory=dict)
    peers: dict[str, Peer] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    trees: Trees = field(default_factory=Trees)

    def send(self, name: str, message: Control) -> None:
        """Sends a control message to a peer."""
        self.actions.append(Send(name, message))

    def cancel(self, name: str, short: bytes, chunks: list[int]) -> None:
        """Cancels chunks of a manifest (short id) at a peer."""
        for start in range(0, len(chunks), MAX_REQUEST_CHUNKS):
            self.send(name, Cancel(short, chunks[start : start + MAX_REQUEST_CHUNKS]))
