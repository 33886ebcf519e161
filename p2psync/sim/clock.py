"""Virtual time: a queue of events, executed in order, and a fingerprint of everything that happened."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable

from blake3 import blake3

_ScheduledCall = tuple[float, int, Callable[..., None], tuple[object, ...]]
#: Slots per second. Events of later slots are unsorted, so that the heap holds one slot only and an event's cost does
#: not depend on their number.
_SLOTS = 1000


class VirtualClock:
    """The time of one simulation (seconds from 0), its only source of randomness, and its trace.

    Events of equal time happen in the order in which they were scheduled.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        #: Events carried out so far.
        self.events = 0
        self.rng = random.Random(seed)
        #: The current slot's events, a heap; each later slot's events, a list; and a heap of these slots.
        self._queue: list[_ScheduledCall] = []
        self._later: dict[int, list[_ScheduledCall]] = {}
        self._slots: list[int] = []
        self._slot = -1
        self._order = 0
        self._trace = blake3()

    def at(self, when: float, call: Callable[..., None], *arguments: object) -> None:
        """Schedules a call at a time (seconds); a past time counts as now."""
        self._order += 1
        when = when if when > self.now else self.now
        event = (when, self._order, call, arguments)
        slot = int(when * _SLOTS)
        if slot <= self._slot:
            heapq.heappush(self._queue, event)
        elif (waiting := self._later.get(slot)) is not None:
            waiting.append(event)
        else:
            self._later[slot] = [event]
            heapq.heappush(self._slots, slot)

    def after(self, delay: float, call: Callable[..., None], *arguments: object) -> None:
        """Schedules a call `delay` seconds from now."""
        self.at(self.now + delay, call, *arguments)

    def note(self, *what: object) -> None:
        """Adds an occurrence to the trace."""
        self._trace.update(f"{self.now:.9f} {what}\n".encode())

    @property
    def trace(self) -> str:
        """A fingerprint (32 hex digits) of everything noted: equal for equal runs."""
        return self._trace.hexdigest(16)

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Executes events until the queue is empty, time `until` is reached, or `done()` holds after an event."""
        while self._next() <= until:
            self.now, _, call, arguments = heapq.heappop(self._queue)
            self.events += 1
            call(*arguments)
            if done():
                return
        self.now = max(self.now, until)

    def _next(self) -> float:
        """Returns when the next event is due, after moving it into the heap; inf without events."""
        if not self._queue:
            if not self._slots:
                return math.inf
            self._slot = heapq.heappop(self._slots)
            self._queue = self._later.pop(self._slot)
            heapq.heapify(self._queue)
        return self._queue[0][0]


class VirtualTimer:
    """Calls back at the earliest of the times that it was set to since it last fired."""

    def __init__(self, clock: VirtualClock, callback: Callable[[], None]) -> None:
        self._clock, self._callback = clock, callback
        self._when = math.inf

    def set(self, when: float) -> None:
        """Fires at `when` (seconds), or at an earlier time that was set before; inf changes nothing."""
        if when < self._when:
            self._when = when
            self._clock.at(when, self._fire, when)

    def _fire(self, when: float) -> None:
        if when == self._when:
            self._when = math.inf
            self._callback()
