"""The best rate that lasted, of bytes that move in successive intervals. Sans-I/O.

A rate counts once it has lasted for some round trips, so that what a filled hole in the sequence releases at once is no
rate; the best one is kept for a minute of intervals that were a measure.
"""

from __future__ import annotations

from collections import deque

#: Seconds for which a rate must last at least, and at most; in round trips: so many; timers are not exact.
LASTING, LASTING_MOST, LASTING_TRIPS = 0.5, 0.75, 5.0
#: Between near peers, by their round trip (seconds), a hole is filled at once, and each second of junk costs much.
NEAR, LASTING_NEAR = 0.005, 0.2
_SLACK = 0.02
#: Seconds under pressure for which a best rate is kept, in so many parts; after which a path is known to have changed.
MEMORY, PARTS = 60.0, 10
SETTLE = 1.0
#: Or after so many round trips: the repair of one loss takes some.
SETTLE_TRIPS = 4.0
#: A path that gives less than this part of its best has changed, and is not only shared for a while.
CHANGED = 0.3
#: Of one that gives nothing any more this part is said to be left: 0 says that nothing has changed, or is known.
LEAST_LEFT = 0.01


def lasting(rtt: float) -> float:
    """For how long (seconds) a rate must last to be one, by the round trip (0: not known)."""
    if 0 < rtt <= NEAR:
        return LASTING_NEAR
    return min(LASTING_MOST, max(LASTING, LASTING_TRIPS * rtt))


class DeliveryRateSampler:
    """Successive intervals: how much had moved when, from their beginning, and how much had left to be moved."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])

    def rate(self, nbytes: int, seconds: float, lasting: float, left: int | None = None) -> float | None:
        """One interval more; the rate at which it lasted, None as long as there are too few.

        Of all times between once and 1.6 times `lasting` ago the one since which least has moved per second: then no
        hole in the sequence, and no queue of acknowledgements, held back what later came at once. Where word of what
        arrived waits in queues for longer than that, more seems to arrive than left (`left`, bytes without what was
        sent again); then what left counts, as in a sample of BBR's (draft-ietf-ccwg-bbr, delivery rate).
        """
        at, moved, gone = self._points[-1]
        now, moved, gone = at + seconds, moved + nbytes, gone + (nbytes if left is None else left)
        self._points.append((now, moved, gone))
        while now - self._points[0][0] > 1.6 * lasting + _SLACK:
            self._points.popleft()
        rates = [
            min(moved - came, gone - went) / (now - at)
            for at, came, went in self._points
            if now - at >= lasting - _SLACK
        ]
        return min(rates, default=None)


class WindowedMax:
    """The highest rate that lasted (bytes a second), and whether it still holds."""

    def __init__(self) -> None:
        self._run = DeliveryRateSampler()
        self._quiet = 0.0
        self._parts: deque[list[float]] = deque(maxlen=PARTS)
        self._recent: deque[tuple[float, float]] = deque()
        self._recent_seconds = 0.0
        #: What moved at best before anything was known.
        self._moved_before = 0.0
        #: Seconds under pressure after which low rates show a change.
        self.settle = SETTLE

    @property
    def value(self) -> float:
        """The best of the last minute; 0 before the first."""
        return max((part[1] for part in self._parts), default=0.0)

    def fallen_to(self, expected: float = float("inf")) -> float | None:
        """What is left of it if the best of the last pressed seconds is far below the best of the minute, else None.

        expected: what it would give, at most, if it had not changed (bytes a second); what is left is in proportion,
        by the newest rate: the best is just below what is far below when that is noticed, whatever is left.
        """
        base = self.before(expected)
        whole = min(base, expected)
        if self._recent_seconds < self.settle or not whole:
            return None
        best, newest = max(rate for rate, _ in self._recent), self._recent[-1][0]
        return base * max(LEAST_LEFT, newest / whole) if best < CHANGED * whole else None

    def before(self, expected: float = float("inf")) -> float:
        """What it gave as long as it had not changed (bytes a second). It may have been used for the first time after
        that, or what it gave never have been a measure: then as much as was `expected`."""
        return expected if self.value < CHANGED * expected < float("inf") and self.value else self.value

    def add(
        self,
        nbytes: int,
        seconds: float,
        *,
        lasting: float = LASTING,
        conclusive: bool = True,
        left: int | None = None,
    ) -> float | None:
        """So much moved in an interval, and a rate counts once it has lasted for `lasting` seconds; returns it, if so.

        conclusive: false if something else than what is measured may have been the limit: that can raise the best, but
        neither age nor refute it. left: what was sent, if that is known, without what was sent again (bytes).
        """
        self._quiet = 0.0
        mean = self._run.rate(nbytes, seconds, lasting, left)
        if mean is None:
            return None
        if conclusive and self._parts and self._parts[-1][0] >= MEMORY / PARTS:
            self._parts.append([0.0, 0.0])
        self.gave(mean)
        if conclusive:
            self._parts[-1][0] += seconds
            self._remember(mean, seconds)
        return mean

    def pause(self) -> None:
        """Nothing pressed in this interval: what comes next does not follow what came before."""
        self._run = DeliveryRateSampler()

    def lull(self, nbytes: int, seconds: float, lasting: float, left: int | None = None) -> None:
        """An interval that is no measure itself: what comes next follows what came before only if it comes soon."""
        self._quiet += seconds
        if self._quiet >= lasting:
            self.pause()
        else:
            self._run.rate(nbytes, seconds, lasting, left)

    def at_least(self, rate: float) -> None:
        """So much moved, pressed or not: what is known was too low. Where nothing is known it counts once something is.

        A fast link may be emptied too soon to be pressed, and a thin way that is must not pass for all there is.
        """
        if not self._parts:
            self._moved_before = max(self._moved_before, rate)
        elif self.value < rate:
            self._parts[-1][1] = rate

    def gave(self, rate: float) -> None:
        """A rate that lasted, by this measure or another: it is as much at least."""
        if not self._parts:
            self._parts.append([0.0, self._moved_before])
        self._parts[-1][1] = max(self._parts[-1][1], rate)

    def drop_to(self, rate: float) -> None:
        """What was known is no more true."""
        self._parts.clear()
        self._parts.append([0.0, rate])
        self._forget_recent()

    def excuse(self) -> None:
        """What was low of late was so for another reason."""
        self._forget_recent()

    def _remember(self, rate: float, seconds: float) -> None:
        self._recent.append((rate, seconds))
        self._recent_seconds += seconds
        while self._recent_seconds - self._recent[0][1] >= self.settle:
            self._recent_seconds -= self._recent.popleft()[1]

    def _forget_recent(self) -> None:
        self._recent.clear()
        self._recent_seconds = 0.0
