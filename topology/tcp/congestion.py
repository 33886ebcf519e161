"""Congestion control in virtual time: BBR version 1 as Linux has it (Cardwell et al. 2016), and cubic (RFC 9438).

Each holds a window (`cwnd`, bytes) and a pacing rate (bytes/s; infinite: unpaced), and hears of every acknowledgement
and loss. Sizes are bytes, times and round trips seconds, rates bytes a second.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

#: Payload of a full packet, and the greatest burst that is handed to a link at once.
MSS, BURST = 1448, 16 * 1024
#: Windows of a new connection (RFC 6928), and the least one.
INITIAL_WINDOW, MIN_WINDOW = 10 * MSS, 4 * MSS


class CongestionControl(Protocol):
    """Decides how much a connection may have in flight, and how fast it sends."""

    cwnd: float
    pacing: float

    def acked(self, now: float, size: int, rtt: float, rate: float, *, limited: bool, inflight: float) -> None:
        """Hears that `size` bytes arrived. rate: delivery-rate sample. limited: the sender had nothing more to send."""

    def lost(self, now: float, inflight: float) -> None:
        """Hears that a packet was lost."""

    def restarts_from_idle(self) -> None:
        """Hears that bytes leave while none are in flight."""

    def begin(self, now: float, cwnd: float, min_rtt: float, srtt: float) -> None:
        """Takes over a connection that has this window and these round trips."""


class Bbr:
    """Paces at the greatest delivery rate of ten round trips, and holds two bandwidth-delay products in flight."""

    STARTUP_GAIN, WINDOW_GAIN = 2.885, 2.0
    CYCLE = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    #: Round trips that the bandwidth filter spans, and those without growth by `FULL_GROWTH` after which startup ends.
    FILTER_ROUNDS, FULL_ROUNDS, FULL_GROWTH = 10, 3, 1.25
    #: After so long the least round trip is measured again, with a least window for `PROBE_RTT_SECONDS`.
    MIN_RTT_SECONDS, PROBE_RTT_SECONDS = 10.0, 0.2

    def __init__(self) -> None:
        self.cwnd: float = INITIAL_WINDOW
        self.pacing = math.inf
        self.min_rtt = math.inf
        #: startup, drain, probe (bandwidth) or probe_rtt.
        self.state = "startup"
        self._min_rtt_at = 0.0
        # (round, rate), falling: the first is the greatest of the rounds of the filter.
        self._rates: deque[tuple[int, float]] = deque()
        self._round = 0
        self._delivered = self._round_end = 0.0
        self._full_rate, self._full_rounds, self._is_full = 0.0, 0, False
        self._phase, self._phase_at = 0, 0.0
        self._recovers_until, self._saved_window = 0.0, 0.0
        self._probes_rtt_until = 0.0
        self._was_idle = False

    @property
    def bandwidth(self) -> float:
        """Bytes/s: the greatest delivery rate of the last round trips."""
        return self._rates[0][1] if self._rates else 0.0

    def acked(self, now: float, size: int, rtt: float, rate: float, *, limited: bool, inflight: float) -> None:
        """See `CongestionControl`."""
        self._delivered += size
        begins_round = self._delivered >= self._round_end
        if begins_round:
            self._round_end = self._delivered + inflight
            self._round += 1
        self._see_rtt(now, rtt)
        if not limited or rate >= self.bandwidth:
            self._see_rate(rate)
        if begins_round and not limited and not self._is_full:
            self._check_full()
        self._change_state(now, inflight)
        self._set_pacing()
        self._set_window(now, size, inflight)

    def lost(self, now: float, inflight: float) -> None:
        """Conserves packets for one round trip; then restores the window."""
        if now >= self._recovers_until:
            self._saved_window = max(self._saved_window, self.cwnd)
            self.cwnd = max(inflight, MIN_WINDOW)
            self._recovers_until = now + (self.min_rtt if math.isfinite(self.min_rtt) else 0.1)

    def restarts_from_idle(self) -> None:
        """See `CongestionControl`. The next round trip is fresh, so that none is measured with a least window."""
        self._was_idle = True

    def begin(self, now: float, cwnd: float, min_rtt: float, srtt: float) -> None:
        """See `CongestionControl`."""
        self.cwnd, self.min_rtt, self._min_rtt_at = cwnd, min_rtt, now
        if srtt:
            self.pacing = self.STARTUP_GAIN * cwnd / srtt

    def _see_rtt(self, now: float, rtt: float) -> None:
        is_old = now - self._min_rtt_at > self.MIN_RTT_SECONDS
        was_idle, self._was_idle = self._was_idle, False
        if is_old and was_idle:
            self.min_rtt, self._min_rtt_at = rtt, now
            return
        if rtt > self.min_rtt and not is_old:
            return
        if is_old and rtt > self.min_rtt and self.state == "probe":
            self.state = "probe_rtt"
            self._saved_window = max(self._saved_window, self.cwnd)
            self._probes_rtt_until = now + max(self.PROBE_RTT_SECONDS, rtt)
        self.min_rtt = min(rtt, self.min_rtt) if self.state == "probe_rtt" else rtt
        self._min_rtt_at = now

    def _see_rate(self, rate: float) -> None:
        rates = self._rates
        while rates and rates[-1][1] <= rate:
            rates.pop()
        rates.append((self._round, rate))
        while len(rates) > 1 and rates[0][0] < self._round - self.FILTER_ROUNDS:
            rates.popleft()

    def _check_full(self) -> None:
        if self.bandwidth >= self._full_rate * self.FULL_GROWTH:
            self._full_rate, self._full_rounds = self.bandwidth, 0
            return
        self._full_rounds += 1
        self._is_full = self._full_rounds >= self.FULL_ROUNDS

    def _change_state(self, now: float, inflight: float) -> None:
        product = self.bandwidth * self.min_rtt
        if self.state == "startup" and self._is_full:
            self.state = "drain"
        if self.state == "drain" and inflight <= product:
            self._enter_probe(now, "probe")
        if self.state == "probe_rtt" and now >= self._probes_rtt_until:
            self._enter_probe(now, "probe" if self._is_full else "startup")
            self._min_rtt_at = now
        if self.state == "probe":
            self._change_phase(now, inflight, product)

    def _enter_probe(self, now: float, state: str) -> None:
        self.state, self._phase, self._phase_at = state, 2, now

    def _change_phase(self, now: float, inflight: float, product: float) -> None:
        gain, elapsed = self.CYCLE[self._phase], now - self._phase_at
        ends = elapsed > self.min_rtt and (gain <= 1.0 or inflight >= 0.9 * gain * product)
        if ends or elapsed > 2 * self.min_rtt or (gain < 1.0 and inflight <= product):
            self._phase, self._phase_at = (self._phase + 1) % len(self.CYCLE), now

    def _set_pacing(self) -> None:
        if not self.bandwidth or not math.isfinite(self.min_rtt):
            return
        gains = {"startup": self.STARTUP_GAIN, "drain": 1 / self.STARTUP_GAIN, "probe_rtt": 1.0}
        rate = gains.get(self.state, self.CYCLE[self._phase]) * self.bandwidth
        if self._is_full or not math.isfinite(self.pacing) or rate > self.pacing:
            self.pacing = rate

    def _set_window(self, now: float, size: int, inflight: float) -> None:
        gain = self.STARTUP_GAIN if self.state in ("startup", "drain") else self.WINDOW_GAIN
        # Bursts on their way into a link come on top, as Linux reckons with the offload of segments.
        target = gain * self.bandwidth * self.min_rtt + 3 * BURST
        if self.state == "probe_rtt":
            self.cwnd = MIN_WINDOW
        elif now < self._recovers_until:
            self.cwnd = max(self.cwnd, inflight + size)
        else:
            self.cwnd, self._saved_window = max(self.cwnd, self._saved_window), 0.0
            if self._is_full:
                self.cwnd = min(self.cwnd + size, target)
            elif self.cwnd < target or self._delivered < INITIAL_WINDOW:
                self.cwnd += size
            self.cwnd = max(self.cwnd, MIN_WINDOW)


class Cubic:
    """Slow start with HyStart's delay rule, then the cubic of the time since the last loss."""

    #: RFC 9438: growth in MSS/s^3, what a loss leaves of the window, and Reno's growth for that.
    C, BETA, RENO = 0.4, 0.7, 0.53
    #: Pacing relative to the window's own rate, as Linux paces past slow start, and HyStart's bounds on the delay
    #: (seconds).
    PACING_GAIN, HYSTART_SECONDS = 1.5, (0.004, 0.016)

    def __init__(self) -> None:
        self.cwnd: float = INITIAL_WINDOW
        self.pacing = math.inf
        self.min_rtt = math.inf
        self._threshold = math.inf
        self._window_max = 0.0
        self._epoch_at: float | None = None
        self._reno_window = 0.0
        self._recovers_until = 0.0

    def acked(self, now: float, size: int, rtt: float, rate: float, *, limited: bool, inflight: float) -> None:
        """See `CongestionControl`."""
        self.min_rtt = min(self.min_rtt, rtt)
        self.pacing = self.PACING_GAIN * self.cwnd / max(rtt, 1e-4)
        if limited and inflight < 0.5 * self.cwnd:
            return
        if self.cwnd < self._threshold:
            self._slow_start(size, rtt)
        else:
            self._grow(now, size, rtt)

    def lost(self, now: float, inflight: float) -> None:
        """Cuts the window, at most once in a round trip."""
        if now < self._recovers_until:
            return
        self._recovers_until = now + (self.min_rtt if math.isfinite(self.min_rtt) else 0.1)
        fast_convergence = self.cwnd * (1 + self.BETA) / 2
        self._window_max = self.cwnd if self.cwnd >= self._window_max else fast_convergence
        self.cwnd = self._threshold = max(self.cwnd * self.BETA, MIN_WINDOW)
        self._epoch_at = None

    def restarts_from_idle(self) -> None:
        """See `CongestionControl`."""

    def begin(self, now: float, cwnd: float, min_rtt: float, srtt: float) -> None:
        """See `CongestionControl`."""
        self.cwnd, self.min_rtt = cwnd, min_rtt

    def _slow_start(self, size: int, rtt: float) -> None:
        self.cwnd += size
        least, most = self.HYSTART_SECONDS
        if rtt > self.min_rtt + max(least, min(most, self.min_rtt / 8)) and self.cwnd > 16 * MSS:
            self._threshold = self.cwnd

    def _grow(self, now: float, size: int, rtt: float) -> None:
        if self._epoch_at is None:
            self._epoch_at, self._reno_window = now, self.cwnd
            self._window_max = max(self._window_max, self.cwnd)
        k = (self._window_max / MSS * (1 - self.BETA) / self.C) ** (1 / 3)
        target = MSS * self.C * (now - self._epoch_at + rtt - k) ** 3 + self._window_max
        self._reno_window += self.RENO * MSS * size / self.cwnd
        target = max(target, self._reno_window)
        # Once a round trip the window may grow by half; at its plateau by a hundredth of a packet.
        step = min(target - self.cwnd, 0.5 * self.cwnd) if target > self.cwnd else 0.01 * MSS
        self.cwnd += step * size / self.cwnd
