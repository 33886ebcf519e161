"""The table of leases: which nodes are members, and until when.

Pure: time and lease ids are arguments. `now` is in seconds on a monotonic clock. A lease granted or renewed at t lives
while now < t + ttl; from then on it is refused, whether or not `expire` has been called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from p2psync.errors import HubError, LeaseError, UsageError
from p2psync.membership.deadlines import Deadlines
from p2psync.membership.records import DEFAULT_TTL_SECONDS, Member, NodeStatistics

#: Default bound on the members of one table.
MAX_MEMBERS = 16384


@dataclass(frozen=True)
class EndedLease:
    """A lease that has ended. replaced: the node joined again, and whatever depended on the earlier lease is void."""

    lease: str
    member: Member
    reason: Literal["expired", "left", "replaced"]


@dataclass(frozen=True)
class HeldLease:
    """A live lease: its holder, when it was granted, and when it was last granted or renewed (seconds).

    statistics: the network statistics that its holder last reported; None: none yet. waits: see `MemberAge`.
    """

    lease: str
    member: Member
    joined: float
    heard: float
    statistics: NodeStatistics | None = None
    waits: str = ""


def running(member: Member) -> tuple[int | None, str, str, int]:
    """Returns the version, digest, run and epoch that a member reports as live."""
    return (member.version, member.digest, member.run, member.epoch)


class LeaseTable:
    """Leases by id, at most one per node, each `ttl` seconds long unless renewed.

    Every operation is O(log n) amortised, except `members` and `held`, which are O(n log n) and O(n).
    """

    def __init__(self, ttl: float = DEFAULT_TTL_SECONDS, max_members: int = MAX_MEMBERS) -> None:
        """`ttl`: seconds. Raises `UsageError` unless both are above 0."""
        if not (0 < ttl < float("inf") and max_members > 0):
            raise UsageError(f"a lease of {ttl} s for {max_members} members: both must be above 0")
        self.ttl = ttl
        self.max_members = max_members
        self._held: dict[str, HeldLease] = {}
        self._by_node: dict[str, str] = {}
        self._deadlines = Deadlines()

    def __len__(self) -> int:
        return len(self._held)

    def join(self, lease: str, member: Member, now: float) -> EndedLease | None:
        """Grants `lease`, an id never used before. Returns the node's earlier lease, which ends here, or None.

        Call `expire(now)` first: expired leases that are still in the table count as members. Raises `HubError` when
        the table is full, `UsageError` when the id is in use.
        """
        if lease in self._held:
            raise UsageError("this lease id is in use; draw another")
        node = member.info.node
        earlier = self._by_node.get(node)
        if earlier is None and len(self._held) >= self.max_members:
            raise HubError(
                f"the hub is full with {self.max_members} members; wait for one to leave, or raise its limit"
            )
        ended = None if earlier is None else EndedLease(earlier, self._drop(earlier).member, "replaced")
        self._by_node[node] = lease
        self._hold(HeldLease(lease, member, now, now))
        return ended

    def renew(
        self,
        lease: str,
        version: int | None,
        digest: str,
        now: float,
        fetch_rate: int = 0,
        statistics: NodeStatistics | None = None,
        *,
        run: str = "",
        epoch: int = 0,
        waits: str = "",
        rejected: str = "",
    ) -> Member:
        """Extends `lease` to `now + ttl`, and records what its holder runs and rejected (see `Member`) and waits for.

        statistics: None keeps the last ones. Raises `LeaseError` if the lease has ended.
        """
        held = self.holder(lease, now)
        reported = msgspec.structs.replace(
            held.member,
            version=version,
            digest=digest,
            run=run,
            epoch=epoch,
            fetch_rate=fetch_rate,
            rejected=rejected,
        )
        member = held.member if held.member == reported else reported
        self._hold(
            HeldLease(lease, member, held.joined, now, held.statistics if statistics is None else statistics, waits)
        )
        return member

    def leave(self, lease: str, now: float) -> EndedLease:
        """Ends `lease`. Raises `LeaseError` if it has ended before."""
        self.holder(lease, now)
        return EndedLease(lease, self._drop(lease).member, "left")

    def holder(self, lease: str, now: float) -> HeldLease:
        """Returns the holder of `lease`. Raises `LeaseError` if it has ended or never was."""
        held = self._held.get(lease)
        if held is None or now >= held.heard + self.ttl:
            raise LeaseError("this lease has ended or was never granted; join again")
        return held

    def is_held(self, lease: str) -> bool:
        """Returns whether the table holds this lease; an expired one counts until `expire`."""
        return lease in self._held

    def of_node(self, node: str) -> Member | None:
        """The member of this node id, None if there is none."""
        lease = self._by_node.get(node)
        return None if lease is None else self._held[lease].member

    def expire(self, now: float) -> list[EndedLease]:
        """Ends and returns the leases whose time is up at `now`, in the order in which they expired."""
        return [EndedLease(lease, self._drop(lease).member, "expired") for lease in self._deadlines.pop_due(now)]

    def next_expiry(self) -> float | None:
        """Returns when the next lease ends unless it is renewed (seconds), None if there is none."""
        return self._deadlines.next()

    def members(self) -> list[Member]:
        """All members, sorted by node."""
        return [self._held[self._by_node[node]].member for node in sorted(self._by_node)]

    def held(self) -> list[HeldLease]:
        """Returns all leases, in no order."""
        return list(self._held.values())

    def _hold(self, held: HeldLease) -> None:
        self._held[held.lease] = held
        self._deadlines.set(held.lease, held.heard + self.ttl)

    def _drop(self, lease: str) -> HeldLease:
        held = self._held.pop(lease)
        self._deadlines.discard(lease)
        if self._by_node.get(held.member.info.node) == lease:
            del self._by_node[held.member.info.node]
        return held
