"""Virtual time: a queue of events, carried out in order, and a fingerprint of all that happened."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable

from blake3 import blake3

_Event = tuple[float, int, Callable[..., None], tuple[object, ...]]
#: Slots of a second. Events of later slots wait in no order, so that a heap holds only those of one slot: what an event
#: costs does not grow with how many there are.
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
        #: The events of this slot, a heap; of each later one, a list; and a heap of these slots.
        self._queue: list[_Event] = []
        self._later: dict[int, list[_Event]] = {}
        self._slots: list[int] = []
        self._slot = -1
        self._order = 0
        self._trace = blake3()

    def at(self, when: float, call: Callable[..., None], *arguments: object) -> None:
        """Call at a time; one that has passed counts as now."""
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
        """Call `delay` seconds from now."""
        self.at(self.now + delay, call, *arguments)

    def note(self, *what: object) -> None:
        """Fold something that happened into the trace."""
        self._trace.update(f"{self.now:.9f} {what}\n".encode())

    @property
    def trace(self) -> str:
        """A fingerprint (32 hex digits) of everything noted: equal for equal runs."""
        return self._trace.hexdigest(16)

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Carry out events until the queue is empty, time `until` has come, or `done()` after some event."""
        while self._next() <= until:
            self.now, _, call, arguments = heapq.heappop(self._queue)
            self.events += 1
            call(*arguments)
            if done():
                return
        self.now = max(self.now, until)

    def _next(self) -> float:
        """When the next event is due, which is in the heap then; infinite if there is none."""
        if not self._queue:
            if not self._slots:
                return math.inf
            self._slot = heapq.heappop(self._slots)
            self._queue = self._later.pop(self._slot)
            heapq.heapify(self._queue)
        return self._queue[0][0]
