"""Settings of one node in the swarm."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2psync.swarm.exchange.config import ExchangeConfig


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """max_dialled_peers: peers up to which this node dials; max_peers: peers beyond which it takes none; neither holds
    for peers of the plan. More peers find missing chunks sooner and cost more messages.

    redial_*: pauses after a failed or lost connection (seconds); they start over after a connection that lasted
    `stable_seconds`. max_dials_per_second: the last pause is longer where members are more than are dialled in it at
    this rate. dial_wait_seconds: how long to wait for a member that should dial this node before dialling it instead.
    dial_timeout_seconds: how long a dial may take until a peer is greeted; beyond it, it has failed.
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
