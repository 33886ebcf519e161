"""Settings of one node in the swarm."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2psync.swarm.exchange.config import ExchangeConfig


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Settings of one node.

    swarm: of its chunk exchange. max_dialled_peers: connected peers up to which this node dials; max_peers: beyond
    which it accepts no connection; neither limits the peers of the plan. More peers find missing chunks sooner and cost
    more messages.

    redial_min_seconds, redial_max_seconds: bounds of the pause after a failed or lost connection; a connection that
    lasts `stable_seconds` resets it. max_dials_per_second: in large swarms the longest pause grows to keep this rate.
    dial_wait_seconds: for the other side to dial, before this node dials. dial_timeout_seconds: for a dial, until the
    peer is greeted.
    """

    swarm: ExchangeConfig = field(default_factory=ExchangeConfig)
    max_dialled_peers: int = 48
    max_peers: int = 128
    redial_min_seconds: float = 0.5
    redial_max_seconds: float = 30.0
    max_dials_per_second: float = 4.0
    stable_seconds: float = 10.0
    dial_wait_seconds: float = 2.0
    dial_timeout_seconds: float = 20.0
