"""The shares of all chunks that a node's part of a plan gives to each of its edges."""

from __future__ import annotations

from collections.abc import Callable

from p2psync.protocol.plan import NodePlan, TreePosition


def fractions_from(plan: NodePlan) -> dict[str, float]:
    """Returns the fraction of all chunks that each parent should send to this node first."""
    return _fractions(plan, lambda position: [position.parent] if position.parent >= 0 else [])


def fractions_to(plan: NodePlan) -> dict[str, float]:
    """Returns the fraction of all chunks that this node should send to each child."""
    return _fractions(plan, lambda position: position.children)


def _fractions(plan: NodePlan, ends: Callable[[TreePosition], list[int]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for share, position in zip(plan.shares, plan.positions, strict=True):
        for end in ends(position):
            found[plan.peers[end]] = found.get(plan.peers[end], 0.0) + share / sum(plan.shares)
    return found
