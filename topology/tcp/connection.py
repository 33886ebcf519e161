"""One direction of a TCP connection in virtual time: messages in order, in bursts over links, under congestion control.

Bytes that a link loses are sent again a round trip later, and hold back everything behind them. Acknowledgements take
the delay back and are never lost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from p2psync.sim.clock import VirtualClock
from p2psync.topology.tcp.congestion import BURST, MSS, CongestionControl
from p2psync.topology.tcp.links import LinkDirection

#: Bytes on the wire for each byte of a full packet.
HEADER_FACTOR = 1500 / MSS


class _Burst:
    """missing: bytes that have not arrived. The rest is for a delivery-rate sample (Cheng et al. 2017)."""

    __slots__ = ("delivered", "delivered_at", "limited", "message", "missing", "sent_at", "size")

    def __init__(self, missing: int, sent_at: float, delivered: float, delivered_at: float, *, limited: bool) -> None:
        self.missing = self.size = missing
        self.sent_at = sent_at
        self.delivered = delivered
        self.delivered_at = delivered_at
        self.limited = limited
        self.message: object = None


class TcpConnection:
    """Sends messages in order. Its counters are those that the kernel's `TCP_INFO` tells of a real connection."""

    def __init__(
        self,
        clock: VirtualClock,
        rng: Random,
        path: Sequence[tuple[LinkDirection, float]],
        back_seconds: float,
        congestion: CongestionControl,
        *,
        on_message: Callable[[object], None],
        on_drained: Callable[[], None] = lambda: None,
    ) -> None:
        """path: links, each with the delay behind it (seconds). on_message: called when all of a message has arrived.

        on_drained: called when bytes have left and fewer than `drained_below` wait to be sent (at first: one burst).
        """
        self._clock, self._rng, self._path, self._back = clock, rng, path, back_seconds
        self.congestion = congestion
        self._on_message, self._on_drained = on_message, on_drained
        self._queue: deque[tuple[int, object]] = deque()
        self._first_left = 0
        self._order: deque[_Burst] = deque()
        #: Bytes that wait to be sent, bytes in flight, bytes acknowledged.
        self.waiting = self.inflight = 0
        self.delivered = 0.0
        self.lost_packets = 0
        #: Bytes sent so far, those of them that were sent again, and those that are lost and not sent again yet.
        self.sent = self.resent = self.lost_unsent = 0
        #: Bytes that came so far, in any order and in order.
        self.received = self.received_in_order = 0
        #: Bytes a second that are paced at most, as SO_MAX_PACING_RATE sets it; inf: no limit.
        self.limit = math.inf
        #: `on_drained` is called when fewer bytes wait.
        self.drained_below = BURST
        #: The least round trip (seconds); inf: none yet.
        self.min_rtt = math.inf
        #: The smoothed round trip (seconds); 0: none yet.
        self.srtt = 0.0
        self._delivered_at = 0.0
        self._recovers_until = 0.0
        self._next_send = 0.0
        self._is_sending = False

    @property
    def is_recovering(self) -> bool:
        """Whether a packet was lost within the last round trip."""
        return self._clock.now < self._recovers_until

    def handshake(self) -> None:
        """Takes the round trip of a handshake over empty queues."""
        self.srtt = self.min_rtt = self._back + sum(delay for _, delay in self._path)

    def restart(self, congestion: CongestionControl) -> None:
        """Begins with another congestion control, which takes the window as it is, as when the kernel's is set."""
        congestion.begin(self._clock.now, self.congestion.cwnd, self.min_rtt, self.srtt)
        self.congestion = congestion
        self._send_window()

    def send(self, size: int, message: object) -> None:
        """Queue a message of `size` bytes."""
        self._queue.append((size, message))
        self.waiting += size
        self._send_window()

    def _send_window(self) -> None:
        if self._is_sending or not self.waiting:
            return
        next_size = min(BURST, self.waiting)
        if self.inflight and self.inflight + next_size > self.congestion.cwnd + BURST // 2:
            return
        self._is_sending = True
        self._clock.at(self._next_send, self._launch)

    def _launch(self) -> None:
        self._is_sending = False
        now = self._clock.now
        size, message = self._queue[0]
        left = self._first_left or size
        count = min(BURST, left, max(MSS, int(self.congestion.cwnd)))
        self._first_left = left - count
        if not self.inflight:
            self._delivered_at = now
            self.congestion.restarts_from_idle()
        self.waiting -= count
        self.sent += count
        burst = _Burst(count, now, self.delivered, self._delivered_at, limited=not self.waiting)
        if not self._first_left:
            self._queue.popleft()
            burst.message = message
        self._order.append(burst)
        self.inflight += count
        pacing = min(self.congestion.pacing, self.limit)
        if pacing < math.inf:
            self._next_send = max(now, self._next_send) + count * HEADER_FACTOR / pacing
        self._enter(burst, count, 0)
        if self.waiting < self.drained_below:
            self._on_drained()
        self._send_window()

    def _enter(self, burst: _Burst, size: int, hop: int) -> None:
        """Lets `size` bytes of a burst enter a link: all of it, or a retransmission."""
        if hop == len(self._path):
            self._arrive(burst, size)
            return
        link, delay = self._path[hop]
        through = link.take(size * HEADER_FACTOR, self._clock.now)
        lost = size if through is None else min(size, MSS * link.lose(-(-size // MSS), self._rng))
        if lost:
            self.lost_packets += -(-lost // MSS)
            self.lost_unsent += lost
            rtt = max(self.srtt, self._back + sum(delay for _, delay in self._path))
            self._clock.after(rtt, self._send_again, burst, lost)
        if through is not None and lost < size:
            self._clock.at(through + delay, self._enter, burst, size - lost, hop + 1)

    def _send_again(self, burst: _Burst, size: int) -> None:
        now = self._clock.now
        self.congestion.lost(now, self.inflight)
        self._recovers_until = now + self.srtt
        self.lost_unsent -= size
        self.sent += size
        self.resent += size
        self._enter(burst, size, 0)

    def _arrive(self, burst: _Burst, size: int) -> None:
        burst.missing -= size
        self.received += size
        self._clock.after(self._back, self._acknowledge, burst, size)
        while self._order and not self._order[0].missing:
            first = self._order.popleft()
            self.received_in_order += first.size
            message = first.message
            if message is not None:
                self._on_message(message)

    def _acknowledge(self, burst: _Burst, size: int) -> None:
        now = self._clock.now
        self.inflight -= size
        self.delivered += size
        self._delivered_at = now
        rtt = now - burst.sent_at
        self.min_rtt = min(self.min_rtt, rtt)
        self.srtt = rtt if not self.srtt else self.srtt + (rtt - self.srtt) / 8
        rate = (self.delivered - burst.delivered) / max(now - burst.delivered_at, rtt)
        self.congestion.acked(now, size, rtt, rate, limited=burst.limited, inflight=self.inflight)
        self._send_window()
