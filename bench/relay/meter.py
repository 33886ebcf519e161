"""The processor time of a process, sampled, so that it is known between any two moments afterwards."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from contextlib import suppress
from types import TracebackType

from p2psync.bench.swarm.processes import Child

#: Seconds between two looks.
EVERY = 0.005


def clock_of(pid: int) -> int:
    """The clock that counts the processor time of a process and all its threads, as clock_getcpuclockid(3) names it."""
    return (~pid << 3) | 2


class CpuSamples:
    """CPU seconds used by each moment (time.monotonic), in order."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._spent: list[float] = []

    def add(self, at: float, spent: float) -> None:
        """A look."""
        self._at.append(at)
        self._spent.append(spent)

    def between(self, begin: float, end: float) -> float:
        """Returns the processor seconds used between two moments; time outside of the samples counts nothing."""
        return self._spent_until(end) - self._spent_until(begin)

    def _spent_until(self, moment: float) -> float:
        """Returns the seconds used until a moment; between two samples it interpolates."""
        after = bisect_right(self._at, moment)
        if after in (0, len(self._at)):
            return self._spent[after - 1 if after else 0]
        share = (moment - self._at[after - 1]) / (self._at[after] - self._at[after - 1])
        return self._spent[after - 1] + share * (self._spent[after] - self._spent[after - 1])


class Meter(CpuSamples):
    """Looks at a child's clock while a `with` lasts."""

    def __init__(self, child: Child) -> None:
        super().__init__()
        self._child = child
        self._clock = clock_of(child.process.pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Meter:
        self.add(time.monotonic(), time.clock_gettime(self._clock) + self._child.ended_children_seconds())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        # It may have ended, which others tell.
        with suppress(OSError):
            while not self._stop.wait(EVERY):
                self.add(time.monotonic(), time.clock_gettime(self._clock) + self._child.ended_children_seconds())
