"""What is known of the way to one peer: its round trip, what it gave at best, what it loses, whether it has changed."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2psync.swarm.control.estimators import LEAST_LEFT, WindowedMax

#: One that fell and gives so many times what was left has changed again.
RISEN = 2.0
#: Bytes sent after which older losses count half, and from which on losses are a share of anything.
LOSS_MEMORY, LOSS_LEAST = 64 << 20, 128 << 10
#: Seconds that a flow takes to find its rate, in which losses are its own, and little is no sign of a change; round
#: trips that are added to them.
RAMP, RAMP_TRIPS = 1.0, 3.0
#: Seconds without anything after which whatever flows begins.
LULL = 1.0


@dataclass(slots=True)
class LossEstimator:
    """Bytes that were sent, and those of them that were sent again; older ones count less."""

    sent: float = 0.0
    resent: float = 0.0

    def add(self, sent: int, resent: int) -> None:
        if self.sent > LOSS_MEMORY:
            self.sent, self.resent = self.sent / 2, self.resent / 2
        self.sent += sent
        self.resent += resent

    @property
    def known(self) -> bool:
        return self.sent >= LOSS_LEAST

    @property
    def share(self) -> float:
        return min(1.0, self.resent / self.sent) if self.known else 0.0


class Course:
    """Since when something flows without a longer pause. Seconds."""

    def __init__(self) -> None:
        self.since = float("-inf")
        self._last = float("-inf")

    def begins(self, now: float) -> bool:
        """Something flows now; returns whether nothing did for a while before."""
        begins = now - self._last > LULL
        self._last = now
        if begins:
            self.since = now
        return begins


@dataclass(slots=True)
class PathEstimates:
    """What is known of the way to one peer. rtt: seconds; rates: bytes a second. pressed_since: None while not pressed.

    course: since when something flows to it. used_at: when chunks or probes last came or went.

    failed: a connection could not be opened. fallen, fell_to: what part was left of the rate sent when it changed, and
    what it was then; 0: it has not.
    """

    rtt: float = 0.0
    sent: WindowedMax = field(default_factory=WindowedMax)
    received: WindowedMax = field(default_factory=WindowedMax)
    losses: LossEstimator = field(default_factory=LossEstimator)
    pressed_since: float | None = None
    sending: float = 0.0
    course: Course = field(default_factory=Course)
    used_at: float = 0.0
    failed: bool = False
    degraded_to: float = 0.0
    fell_to: float = 0.0
    _planned: float = 0.0
    _left: float = 1.0

    @property
    def ramp(self) -> float:
        """How long a flow may take to find its rate (seconds)."""
        return RAMP + RAMP_TRIPS * self.rtt

    def has_found_its_rate(self, now: float) -> bool:
        """Whether what flows to the peer does so for long enough."""
        return now - self.course.since >= self.ramp

    def fallen_to(self, planned: float) -> float | None:
        """What is left of the rate sent if it has changed, else None. planned: what is expected of it (bytes a second),
        which is still that of before a fall until a plan says something else."""
        if planned != self._planned:
            self._planned, self._left = planned, 1.0
        return self.sent.fallen_to(planned * self._left) if self._has_something_left else None

    @property
    def _has_something_left(self) -> bool:
        return not self.degraded_to or self.degraded_to > LEAST_LEFT

    def fall(self, rate: float) -> None:
        """The way changed: it gives so much now."""
        left = rate / self.sent.before(self._planned * self._left)
        self.degraded_to, self._left = (self.degraded_to or 1.0) * left, self._left * left
        self.fell_to = rate
        self.sent.drop_to(rate)

    def rise(self) -> None:
        """Once it gives a good deal more, it has changed again."""
        if self.degraded_to and self.sent.value >= RISEN * self.fell_to:
            self.degraded_to, self._left = 0.0, 1.0

    @property
    def loss(self) -> float:
        """Share of the bytes sent that had to be sent again, once a flow had found its rate; 0 if that is not known."""
        return self.losses.share
