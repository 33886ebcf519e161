"""The dialer: decides which members a node dials, and when. Sans-I/O.

Of two nodes that can both be dialled, the one with the smaller name dials. The other one dials too if no connection
comes within `dial_wait_seconds`, which covers paths that are open in one direction only. The dialer dials the peers of
this node's plan first, whatever the number of other peers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from p2psync.membership.records import Member, NodeInfo
from p2psync.swarm.config import NodeConfig

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to this member; answer with `peer_up` or `dial_failed`."""

    info: NodeInfo


@dataclass(slots=True)
class _Contact:
    """The dials to one member. Seconds.

    waiting_since: when this node began to wait for the member's dial. retry_at: no dial before it. pause: after the
    next failure. up_at: when the member connected.
    """

    waiting_since: float
    retry_at: float
    pause: float
    is_dialling: bool = False
    dialled_at: float = 0.0
    up_at: float = 0.0


class Dialer:
    """Dials the members that one node knows."""

    def __init__(
        self, info: NodeInfo, config: NodeConfig, rng: random.Random, banned_until: Callable[[str], float]
    ) -> None:
        """banned_until: returns when a peer's ban ends (seconds)."""
        self.info = info
        #: The time of the next `poll`; at or before now after an event that may make a dial due.
        self.wake = _NEVER
        self._config = config
        self._rng = rng
        self._banned_until = banned_until
        self._members: dict[str, NodeInfo] = {}
        self._contacts: dict[str, _Contact] = {}
        self._up: set[str] = set()
        self._plan_peers: frozenset[str] = frozenset()

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def members_changed(self, members: Iterable[Member], now: float) -> list[Dial]:
        """Replaces the members by those in the hub's view; returns the dials that are due."""
        self._members = {m.info.node: m.info for m in members if m.info.node != self.info.node}
        for name in [name for name in self._contacts if name not in self._members]:
            del self._contacts[name]
        for name in self._members:
            if name not in self._contacts:
                self._contacts[name] = _Contact(now, now, self._config.redial_min_seconds)
        return self.poll(now)

    def plan_changed(self, peers: frozenset[str], now: float) -> list[Dial]:
        """Replaces the plan's peers; returns the dials that are due, those of new peers without a pause."""
        for name in peers - self._plan_peers:
            contact = self._contacts.get(name)
            if contact is not None and not contact.is_dialling:
                contact.pause = self._config.redial_min_seconds
                contact.retry_at = contact.waiting_since = now
        self._plan_peers = peers
        return self.poll(now)

    def connected(self, name: str, now: float) -> None:
        """Marks a peer as connected."""
        self.wake = now
        contact = self._contacts.get(name)
        if contact is not None:
            contact.is_dialling = False
            contact.up_at = contact.up_at if name in self._up else now
        self._up.add(name)

    def failed(self, name: str, now: float) -> None:
        """Backs off from a member after a failed dial or a refused connection."""
        self.wake = now
        contact = self._contacts.get(name)
        if contact is not None:
            self._back_off(contact, now)

    def disconnected(self, name: str, now: float) -> None:
        """Marks a peer as disconnected; backs off from it."""
        contact = self._contacts.get(name)
        if contact is not None and now - contact.up_at >= self._config.stable_seconds:
            contact.pause = self._config.redial_min_seconds
        self._up.discard(name)
        self.failed(name, now)

    def banned(self, name: str) -> None:
        """Marks a banned peer as disconnected."""
        self._up.discard(name)
        self.wake = -_NEVER

    def poll(self, now: float) -> list[Dial]:
        """Gives up dials that timed out, and returns those that are due."""
        due = [name for name in self._wanted() if self._due_at(name) <= now]
        for name in due:
            if self._contacts[name].is_dialling:
                self._back_off(self._contacts[name], now)
        chosen = self._choose([name for name in due if self._due_at(name) <= now])
        for name in chosen:
            contact = self._contacts[name]
            contact.is_dialling, contact.dialled_at = True, now
        self.wake = min((self._due_at(name) for name in self._wanted()), default=_NEVER)
        return [Dial(self._members[name]) for name in chosen]

    # ---- queries ---------------------------------------------------------------------------------------------------

    def accepts(self, name: str) -> bool:
        """Returns whether this node accepts a connection of a peer: it has room, and the peer is another node."""
        known = name in self._up or name in self._plan_peers
        return name != self.info.node and (known or len(self._up) < self._config.max_peers)

    def is_publisher(self, name: str) -> bool:
        """Returns whether a peer is a trainer, which publishes."""
        return name in self._members and self._members[name].role == "trainer"

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _wanted(self) -> list[str]:
        """Returns the members to dial, and those with a dial in progress, which may time out."""
        has_room = self._room() > 0
        return [
            name
            for name, contact in self._contacts.items()
            if name not in self._up
            and (contact.is_dialling or has_room or name in self._plan_peers)
            and self._members[name].port
        ]

    def _room(self) -> int:
        dialling = sum(contact.is_dialling for contact in self._contacts.values())
        return self._config.max_dialled_peers - len(self._up) - dialling

    def _due_at(self, name: str) -> float:
        contact = self._contacts[name]
        if contact.is_dialling:
            return contact.dialled_at + self._config.dial_timeout_seconds
        at = max(contact.retry_at, self._banned_until(name))
        dials_first = self.info.node < name or not self.info.port
        return at if dials_first else max(at, contact.waiting_since + self._config.dial_wait_seconds)

    def _choose(self, names: list[str]) -> list[str]:
        """Returns all peers of the plan and, up to the limit, trainers, nodes of this region, then random others."""
        planned = [name for name in names if name in self._plan_peers]
        others = [name for name in names if name not in self._plan_peers]
        order = {name: self._rng.random() for name in others}
        others.sort(key=lambda name: (not self.is_publisher(name), not self._in_same_region(name), order[name]))
        return planned + others[: max(0, self._room() - len(planned))]

    def _in_same_region(self, name: str) -> bool:
        return bool(self.info.region) and self._members[name].region == self.info.region

    def _back_off(self, contact: _Contact, now: float) -> None:
        contact.is_dialling = False
        contact.waiting_since = now
        contact.retry_at = now + contact.pause * (0.75 + 0.5 * self._rng.random())
        longest = max(self._config.redial_max_seconds, len(self._contacts) / self._config.max_dials_per_second)
        contact.pause = min(longest, contact.pause * 2)
