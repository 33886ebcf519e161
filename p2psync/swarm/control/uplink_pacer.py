"""How fast a node hands out in all, where the plan nearly fills its uplink. Pure.

Theory of operation. What an uplink gives is known from measuring it (`NodeEstimates.up`), and a plan that counts on
most of it keeps it busy all the time: then chunks are handed out as fast as it sends them, and no faster, so that they
wait here, where they can be called off, and not in the queue before the link, where they push each other out. What is
known may be too low. So where chunks have been held up here for a while, and all that was let out came through, the
rate rises: much if not even the least delayed connection is delayed, else a little. Once all that connections take
stands in them, the uplink is full, and the rate is again what it was seen to give. It never falls below that, so that
queues which others fill hold nobody up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from p2psync.swarm.control.node_estimates import LONGEST, TALK
from p2psync.swarm.control.tcp_sample import TcpSample

#: An uplink of which the plan takes so much is what holds its node up.
BINDS = 0.6
#: What is let out, of what the uplink was seen to give; what it gives for sure, of what gauges say, since they see
#: bursts.
KEPT, SURE = 0.985, 0.9
#: Seconds over which it is seen what an uplink gives; a part of what is let out that has come through by then is all.
SPAN, THROUGH = 0.75, 0.95
#: By how much the rate rises then: if the least delayed connection is delayed by less than so many seconds, and by less
#: than so many more.
IDLE, LEAP = 0.01, 1.25
BUSY, STEP = 0.05, 1.01
#: An uplink is full once what waits in its connections would take so long (seconds), and is so many bytes at least.
FULL_SECONDS, FULL_LEAST = 0.06, 256 << 10
_Key = TypeVar("_Key", bound=Hashable)


class UplinkPacer:
    """The pace of one node. rate: bytes a second that it may hand out, 0: any number."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._given = 0.0
        self._seen: deque[tuple[float, int]] = deque()
        self._last: dict[Hashable, TcpSample] = {}
        self._read_at = 0.0
        self._was_full = False

    def read(self, samples: Mapping[_Key, TcpSample], now: float, *, known: float, planned: float, held: bool) -> float:
        """The counters of all connections that do anything; now: seconds. Returns the rate.

        known: bytes a second that the uplink is known to give, 0: it is not. planned: what the plan has this node send.
        held: whether chunks have had to wait for this pace since it was read last.
        """
        seconds, self._read_at = now - self._read_at, now
        before = self._last
        self._last = dict(samples.items())
        if not known or planned < BINDS * known:
            self._seen.clear()
            self.rate = 0.0
            return self.rate
        flows = [(before[key], sample) for key, sample in samples.items() if key in before]
        delivered = sum(max(0, after.delivered - old.delivered) for old, after in flows)
        if not 0 < seconds <= LONGEST or delivered < TALK * seconds:
            self._seen.clear()
            self.rate = KEPT * self._base(known)
            return self.rate
        full = self._is_full(samples.values())
        given = self._span(seconds, delivered, pressed=held or full)
        if given > self._given or (given and full and self._was_full):
            self._given = given
        self._was_full = full
        if full:
            self.rate = KEPT * self._base(known)
        elif given >= THROUGH * self.rate:
            self.rate *= _rise(flows)
            self._seen.clear()
        self.rate = max(self.rate, KEPT * self._base(known))
        return self.rate

    def _base(self, known: float) -> float:
        return max(self._given or known, SURE * known)

    def _is_full(self, samples: Iterable[TcpSample]) -> bool:
        return sum(sample.backlog for sample in samples) > max(FULL_LEAST, FULL_SECONDS * self.rate)

    def _span(self, seconds: float, delivered: int, *, pressed: bool) -> float:
        """Bytes a second over the last `SPAN`, in all of which more waited than left; 0 if it did not."""
        if not pressed:
            self._seen.clear()
            return 0.0
        self._seen.append((seconds, delivered))
        while sum(spent for spent, _ in self._seen) - self._seen[0][0] >= SPAN:
            self._seen.popleft()
        spent = sum(spent for spent, _ in self._seen)
        return sum(moved for _, moved in self._seen) / spent if spent >= SPAN else 0.0


def _rise(flows: Iterable[tuple[TcpSample, TcpSample]]) -> float:
    """By how much the rate may rise, by the least delay of the connections that carry something."""
    delay = min((after.queueing_delay for before, after in flows if after.sent - before.sent > TALK // 4), default=0.0)
    return LEAP if delay < IDLE else STEP if delay < BUSY else 1.0
