"""The scale of a fluid network: a simulated byte stands for a thousand, so that payloads take little memory."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from p2psync.protocol.plan import NodePlan
from p2psync.swarm.exchange.config import ExchangeConfig

#: Each simulated byte represents this many.
SCALE = 1024


def scaled(config: ExchangeConfig) -> ExchangeConfig:
    """Returns the same settings for bytes that represent `SCALE` each."""
    return replace(
        config,
        window_least=config.window_least // SCALE,
        window_most=config.window_most // SCALE,
        surplus_most=config.surplus_most // SCALE,
        flush_limit=config.flush_limit // SCALE,
        flush_most=config.flush_most // SCALE,
        push_room=config.push_room // SCALE,
        window_first=config.window_first // SCALE,
        prior_rate=config.prior_rate / SCALE,
        unsolicited_bytes=config.unsolicited_bytes // SCALE,
    )


def scaled_plan(plan: NodePlan) -> NodePlan:
    """Returns the same plan with rates divided by `SCALE`."""
    positions = [msgspec.structs.replace(position, rate=position.rate / SCALE) for position in plan.positions]
    return msgspec.structs.replace(plan, positions=positions)
