"""A node's side of membership: when to join, renew, ask for the view, and how long to wait after a failure. Pure.

States: OUT (no lease: join, with growing pauses) → IN (renew at a third of the TTL; one long poll for the view always
open) → OUT again when the hub no longer knows the lease or the lease has run out unrenewed. The last view stays in use
while the hub is away: peers go on exchanging what they know of.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeAlias

from p2psync.membership.records import RENEWALS_PER_TTL, Join, Lease, NodeInfo, Renew, View

#: Pauses after failures grow from the first to the last of these (seconds), with jitter so that nodes do not all
#: return at once.
FIRST_PAUSE = 0.2
LAST_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class CallJoin:
    """Join the hub; answer with `joined` or `failed`."""

    request: Join


@dataclass(frozen=True, slots=True)
class CallRenew:
    """Renew the lease; answer with `renewed`, `failed`, or `lease_lost`."""

    request: Renew


@dataclass(frozen=True, slots=True)
class CallView:
    """Long-poll the view; answer with `viewed` (None: nothing new) or `failed`."""

    instance: str
    revision: int


HubCall: TypeAlias = CallJoin | CallRenew | CallView


class MembershipClient:
    """Drives one node's lease and view."""

    def __init__(self, info: NodeInfo, rng: random.Random) -> None:
        self.info = info
        self.view: View | None = None
        #: Told with each renewal: see `Member.fetch_rate`.
        self.fetch_rate = 0
        self._rng = rng
        self._version: int | None = None
        self._digest = ""
        self._telling: tuple[int | None, str] = (None, "")
        self._told: tuple[int | None, str] = (None, "")
        self._lease: Lease | None = None
        self._lease_end = 0.0
        self._renew_at = 0.0
        self._lease_call = False
        self._view_call = False
        self._pause = FIRST_PAUSE
        self._wait_until = 0.0
        self._view_wait_until = 0.0

    @property
    def lease(self) -> str | None:
        """The id of the live lease, None while out."""
        return self._lease.lease if self._lease else None

    @property
    def untold(self) -> bool:
        """Whether the hub has not yet confirmed what is live here."""
        return self._told != (self._version, self._digest)

    def running(self, version: int | None, digest: str, now: float) -> None:
        """This version (digest in hex) is live at this node: told to the hub at once."""
        self._version, self._digest = version, digest
        self._renew_at = now

    def poll(self, now: float) -> list[HubCall]:
        """The calls to make now. Each kind is under way at most once."""
        calls: list[HubCall] = []
        if self._lease is not None and now >= self._lease_end:
            self._lease = None
        if not self._lease_call and now >= self._wait_until:
            if self._lease is None:
                calls.append(CallJoin(Join(info=self.info, version=self._version, digest=self._digest)))
            elif now >= self._renew_at:
                renewal = Renew(
                    lease=self._lease.lease, version=self._version, digest=self._digest, fetch_rate=self.fetch_rate
                )
                calls.append(CallRenew(renewal))
                self._renew_at = now + self._lease.ttl / RENEWALS_PER_TTL
            self._lease_call = bool(calls)
            if calls:
                self._telling = (self._version, self._digest)
        if self._lease is not None and not self._view_call and now >= self._view_wait_until:
            calls.append(CallView(self.view.instance if self.view else "", self.view.revision if self.view else -1))
            self._view_call = True
        return calls

    def next_wake(self) -> float:
        """When `poll` may have something to do next."""
        waits = []
        if not self._lease_call:
            waits.append(self._wait_until if self._lease is None else max(self._renew_at, self._wait_until))
        if self._lease is not None:
            waits.append(self._lease_end)
            if not self._view_call:
                waits.append(self._view_wait_until)
        return min(waits, default=float("inf"))

    def joined(self, lease: Lease, now: float) -> None:
        """The hub granted a lease."""
        self._granted(lease, now)
        # What became live while the join was under way is told at once.
        self._renew_at = now if self.untold else now + lease.ttl / RENEWALS_PER_TTL

    def renewed(self, lease: Lease, now: float) -> None:
        """The hub renewed the lease."""
        self._granted(lease, now)

    def lease_lost(self, now: float) -> None:
        """The hub does not know the lease (it ended, or the hub started anew): join again at once."""
        self._lease_call = False
        self._lease = None
        self._wait_until = now

    def viewed(self, view: View | None, now: float) -> None:
        """The long poll ended."""
        self._view_call = False
        self._view_wait_until = now
        if view is not None:
            self.view = view

    def failed(self, call: HubCall, now: float) -> None:
        """A call failed: the hub is unreachable or broken. Pauses grow until one succeeds."""
        pause = self._pause * (0.75 + 0.5 * self._rng.random())
        self._pause = min(LAST_PAUSE, self._pause * 2)
        if isinstance(call, CallView):
            self._view_call = False
            self._view_wait_until = now + pause
        else:
            self._lease_call = False
            self._wait_until = now + pause
            self._renew_at = min(self._renew_at, now + pause)

    def _granted(self, lease: Lease, now: float) -> None:
        self._lease_call = False
        self._lease = lease
        self._told = self._telling
        self._lease_end = now + lease.ttl
        self._pause = FIRST_PAUSE
        self._wait_until = now
