"""The chunks that one peer owes this node, and the rate at which it sends."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass

from p2psync.swarm.exchange.config import ExchangeConfig

#: A chunk: the manifest's short id, and its index.
ChunkKey = tuple[bytes, int]
#: Seconds that a round trip is expected to take before one was seen.
_INITIAL_ROUND_TRIP = 0.2


@dataclass(slots=True)
class OwedChunk:
    """size: bytes. at: since when it is owed (seconds). before: bytes that the peer owed then. requested: it was
    requested, not announced by a parent."""

    size: int
    at: float
    before: int
    requested: bool


class Download:
    """One peer as a sender. Bytes and seconds.

    owed: the chunks that it will send here, in the order of its queue. nbytes: of them. announced: how many of them it
    announced and will push. credit: bytes that it was asked for, whether or not the request was given up, and has not
    sent. round_trip: least seen between a request, while the peer owed nothing else, and its chunk. snubbed: it let a
    request time out, and has delivered nothing since.
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
        self.round_trip = _INITIAL_ROUND_TRIP
        self._min_round_trip = math.inf
        self.snubbed = False
        self.timeout_factor = 1.0
        self._arrivals: deque[tuple[float, int]] = deque()
        self._busy_since = self._last_arrival = -math.inf
        self._backlog = self._backlog_at = 0.0
        self._rate = 0.0

    def owe(self, key: ChunkKey, size: int, now: float, *, requested: bool) -> None:
        """The peer owes another chunk."""
        if not self.owed:
            self._busy_since = now
        self.owed[key] = OwedChunk(size, now, self.nbytes, requested)
        self.nbytes += size
        if requested:
            self.credit += size
        else:
            self.announced += 1

    def drop(self, key: ChunkKey) -> OwedChunk | None:
        """The peer does not owe this chunk any more."""
        chunk = self.owed.pop(key, None)
        if chunk is not None:
            self.nbytes -= chunk.size
            self.announced -= not chunk.requested
        return chunk

    def arrived(self, size: int, owed: OwedChunk | None, now: float) -> None:
        """A useful chunk came from the peer. owed: as it was owed, if it was."""
        self._arrivals.append((now, size))
        self._last_arrival = now
        self.snubbed = False
        self.timeout_factor = 1.0
        if owed is not None and owed.requested and not owed.before and now > owed.at:
            self._min_round_trip = min(self._min_round_trip, now - owed.at)
            self.round_trip = self._min_round_trip

    def timed_out(self) -> None:
        """A request was not answered in time: the peer gets one at a time, and longer, until it delivers."""
        self.snubbed = True
        self.timeout_factor = min(self._config.backoff_most, 2 * self.timeout_factor)

    def set_backlog(self, seconds: float, now: float) -> None:
        """The peer says that its uplink is busy for so long."""
        self._backlog, self._backlog_at = seconds, now

    def backlog(self, now: float) -> float:
        """Returns for how many seconds the peer's uplink is still busy."""
        return max(0.0, self._backlog - (now - self._backlog_at))

    def rate(self, now: float) -> float:
        """Returns the bytes/s that came while the peer owed something; 0: nothing was ever owed long enough to tell."""
        window = max(self._config.rate_window, 4 * self.round_trip)
        arrivals = self._arrivals
        while arrivals and arrivals[0][0] < now - window:
            arrivals.popleft()
        if self.owed:
            start = max(now - window, self._busy_since + self.round_trip)
            if now - start > window / 4:
                came = sum(size for at, size in arrivals if at >= start)
                # Nothing at all is taken for a quarter of a chunk.
                least = next(iter(self.owed.values())).size / 4
                self._rate = max(came, least) / (now - start)
        return self._rate

    def silence(self, now: float) -> float:
        """Returns for how long the peer has sent nothing although it owes something."""
        return max(0.0, now - max(self._busy_since + self.round_trip, self._last_arrival)) if self.owed else 0.0

    def wait(self, now: float) -> float:
        """Returns the seconds until everything owed is here: at the peer's rate, and no less than its silence."""
        if not self.owed:
            return 0.0
        return max(self.nbytes / (self.rate(now) or self._config.prior_rate), self.silence(now))

    def wait_for_another(self, size: int, now: float) -> float:
        """Returns the seconds until a chunk of this size would be here if it were requested now."""
        rate = self.rate(now) or self._config.prior_rate
        return max(self.wait(now), self.backlog(now)) + size / rate + self.round_trip

    def window(self, chunk_bytes: int, now: float) -> int:
        """Returns the bytes that the peer may owe before no more is requested: what it sends in a round trip and the
        horizon, at least two chunks; one while it is snubbed."""
        config = self._config
        if self.snubbed:
            return chunk_bytes
        flow = int(self.rate(now) * (self.round_trip + config.horizon))
        return max(2 * chunk_bytes, min(config.window_most, max(config.window_least, flow)))

    def has_timed_out(self, chunk: OwedChunk, now: float) -> bool:
        """Returns whether a chunk is given up: the peer has been silent for a timeout, or sends others instead."""
        timeout = self._config.request_timeout * self.timeout_factor
        if now < chunk.at + timeout:
            return False
        ahead = chunk.before / (self.rate(now) or self._config.prior_rate)
        return self.silence(now) >= timeout - self.round_trip or now >= chunk.at + timeout + 2 * ahead
