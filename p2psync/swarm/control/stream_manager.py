"""Brings the number of connections to each peer in line with the `StreamPolicy`: opens, closes or requests them."""

from __future__ import annotations

from collections.abc import Callable

from p2psync.protocol.messages import RequestStreams
from p2psync.swarm.control.connections import Connections
from p2psync.swarm.control.path_estimates import PathEstimates
from p2psync.swarm.control.stream_policy import StreamPolicy


class StreamManager:
    """The numbers of connections of one node."""

    def __init__(
        self, peers: Connections, policy: StreamPolicy, *, adapts: bool, on_count: Callable[[str, int], None]
    ) -> None:
        """adapts: False leaves the numbers as they are. on_count: takes the number of a peer, now and then."""
        self._peers = peers
        self._policy = policy
        self._adapts = adapts
        self._on_count = on_count
        #: Numbers that peers requested of this node, and it of them; the numbers at the last large change.
        self._requested: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def request(self, name: str, count: int) -> None:
        """Takes a peer's request for a number of connections, if this node dialled them."""
        self._requested[name] = count

    def forget(self, name: str) -> None:
        """Forgets a disconnected peer."""
        self._policy.forget(name)
        for table in (self._requested, self._sent, self._counts):
            table.pop(name, None)

    def adjust(self, name: str, path: PathEstimates | None, planned: float) -> bool:
        """Opens, closes or requests connections to a peer. Returns whether their number doubled or halved.

        planned: bytes/s that the plan sends to the peer.
        """
        count = len(self._peers.streams(name))
        self._on_count(name, count)
        before = self._counts.setdefault(name, count)
        changed = 2 * count <= before or count >= 2 * before
        if changed:
            self._counts[name] = count
        if self._adapts:
            if path is not None:
                self._policy.expect(name, path, planned)
            self._move_towards(name, count, self._policy.wanted(name))
        return changed

    def open_share(self, name: str) -> float:
        """Returns the share of the wanted connections that are open; a path with fewer delivers as much less."""
        if not self._adapts or self._policy.is_tolerant:
            return 1.0
        return min(1.0, len(self._peers.streams(name)) / self._policy.wanted(name))

    def observe(self, name: str, path: PathEstimates, seconds: float, now: float) -> None:
        """Takes an interval in which a path was used, without a pacing limit."""
        self._policy.observe(name, len(self._peers.streams(name)), path, seconds, now)

    def _move_towards(self, name: str, count: int, wanted: int) -> None:
        """Opens or closes dialled connections, to the larger of this node's and the peer's number; else requests it."""
        if self._peers.dialled(name):
            self._peers.set_streams(name, max(wanted, self._requested.get(name, 1)))
        elif self._sent.get(name, count) != wanted:
            self._sent[name] = wanted
            self._peers.send(name, RequestStreams(wanted))
