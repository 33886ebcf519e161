"""The chunks that one peer owes this node (requested, or announced as pushes), and the rate at which it sends."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass

from p2psync.swarm.exchange.config import ExchangeConfig

#: A chunk: the manifest's short id, and its index.
ChunkKey = tuple[bytes, int]


@dataclass(slots=True)
class OwedChunk:
    """One chunk that a peer owes. size: bytes. at: when it was requested or announced (seconds). before: bytes that the
    peer owed then. requested: this node requested it; else a parent announced it.
    """

    size: int
    at: float
    before: int
    requested: bool


class Download:
    """One peer as a sender. Bytes and seconds.

    owed: the chunks that it will send, in the order of its queue; nbytes: their size. announced: how many of them it
    announced and will push. credit: requested bytes that it has not sent, cancelled ones included. round_trip: the
    least time from a request, while the peer owed no other chunk, to its chunk. snubbed: a request timed out, and the
    peer has delivered no chunk since. timeout_factor: how many times longer its requests may take.
    """

    __slots__ = (
        "_arrivals", "_backlog", "_backlog_at", "_busy_since", "_config", "_last_arrival", "_min_round_trip",
        "_rate", "announced", "credit", "nbytes", "owed", "round_trip", "snubbed", "timeout_factor",
    )  # fmt: skip

    def __init__(self, config: ExchangeConfig) -> None:
        self._config = config
        self.owed: OrderedDict[ChunkKey, OwedChunk] = OrderedDict()
        self.nbytes = 0
        self.announced = 0
        self.credit = 0
        self.round_trip = config.prior_round_trip
        self._min_round_trip = math.inf
        self.snubbed = False
        self.timeout_factor = 1.0
        self._arrivals: deque[tuple[float, int]] = deque()
        self._busy_since = self._last_arrival = -math.inf
        self._backlog = self._backlog_at = 0.0
        self._rate = 0.0

    def owe(self, key: ChunkKey, size: int, now: float, *, requested: bool) -> None:
        """Adds a chunk that the peer owes. requested: see `OwedChunk`."""
        if not self.owed:
            self._busy_since = now
        self.owed[key] = OwedChunk(size, now, self.nbytes, requested)
        self.nbytes += size
        if requested:
            self.credit += size
        else:
            self.announced += 1

    def drop(self, key: ChunkKey) -> OwedChunk | None:
        """Removes a chunk that the peer owed, and returns it; None if it did not owe it."""
        chunk = self.owed.pop(key, None)
        if chunk is not None:
            self.nbytes -= chunk.size
            self.announced -= not chunk.requested
        return chunk

    def arrived(self, size: int, owed: OwedChunk | None, now: float) -> None:
        """Samples the rate and the round trip with a useful chunk of the peer. owed: its entry, if the peer owed it."""
        self._arrivals.append((now, size))
        self._last_arrival = now
        self.snubbed = False
        self.timeout_factor = 1.0
        if owed is not None and owed.requested and not owed.before and now > owed.at:
            self._min_round_trip = min(self._min_round_trip, now - owed.at)
            self.round_trip = self._min_round_trip

    def timed_out(self) -> None:
        """Snubs the peer after a timeout: until it delivers, it gets one request at a time, with a longer timeout."""
        self.snubbed = True
        self.timeout_factor = min(self._config.backoff_most, 2 * self.timeout_factor)

    def set_backlog(self, seconds: float, now: float) -> None:
        """Sets for how many seconds the peer reports its uplink as busy."""
        self._backlog, self._backlog_at = seconds, now

    def backlog(self, now: float) -> float:
        """Returns the seconds for which the peer's uplink is still busy."""
        return max(0.0, self._backlog - (now - self._backlog_at))

    def rate(self, now: float) -> float:
        """Returns the peer's rate (bytes/s) while it owed chunks; 0: it never owed any for long enough."""
        window = max(self._config.rate_window, 4 * self.round_trip)
        arrivals = self._arrivals
        while arrivals and arrivals[0][0] < now - window:
            arrivals.popleft()
        if self.owed:
            start = max(now - window, self._busy_since + self.round_trip)
            if now - start > window / 4:
                came = sum(size for at, size in arrivals if at >= start)
                # A peer that sent no chunk counts as having sent a quarter of one.
                least = next(iter(self.owed.values())).size / 4
                self._rate = max(came, least) / (now - start)
        return self._rate

    def silence(self, now: float) -> float:
        """Returns for how many seconds the peer has owed chunks and sent none."""
        return max(0.0, now - max(self._busy_since + self.round_trip, self._last_arrival)) if self.owed else 0.0

    def wait(self, now: float) -> float:
        """Returns the seconds until the peer has sent all owed chunks: at its rate, and at least its silence."""
        if not self.owed:
            return 0.0
        return max(self.nbytes / (self.rate(now) or self._config.prior_rate), self.silence(now))

    def wait_for_another(self, size: int, now: float) -> float:
        """Returns the seconds until a chunk of `size` bytes would arrive if this node requested it now."""
        rate = self.rate(now) or self._config.prior_rate
        return max(self.wait(now), self.backlog(now)) + size / rate + self.round_trip

    def window(self, chunk_bytes: int, now: float) -> int:
        """Returns the bytes that the peer may owe: its rate times the round trip and the horizon, at least two chunks;
        one while it is snubbed.
        """
        config = self._config
        if self.snubbed:
            return chunk_bytes
        flow = int(self.rate(now) * (self.round_trip + config.horizon))
        return max(2 * chunk_bytes, min(config.window_most, max(config.window_least, flow)))

    def has_timed_out(self, chunk: OwedChunk, now: float) -> bool:
        """Returns whether a chunk, requested or announced, timed out: the peer has been silent for a timeout, or sends
        others instead.

        The timeout is `request_timeout` times `timeout_factor`, from the request on. A peer that sends others gets
        twice the time of the bytes before the chunk in addition.
        """
        timeout = self._config.request_timeout * self.timeout_factor
        if now < chunk.at + timeout:
            return False
        ahead = chunk.before / (self.rate(now) or self._config.prior_rate)
        return self.silence(now) >= timeout - self.round_trip or now >= chunk.at + timeout + 2 * ahead
