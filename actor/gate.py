"""Who may use the live weights when: readers together, or one commit alone, and a commit never waits for long.

A commit that waits keeps new readers out, so that a loop that reads without pause does not starve it: it waits for the
readers of the moment and no others. A reader inside may enter again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Gate:
    """Any number of readers, or one writer, who goes first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers: dict[int, int] = {}
        self._writers = 0
        self._kept_waiting: float | None = None
        self._ended: Exception | None = None

    @contextmanager
    def held(self, ready: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Keep writers out meanwhile. Waits until `ready` (see `look`). Raises what `end` was given."""
        me = threading.get_ident()
        with self._changed:
            if self._writers and me not in self._readers and self._kept_waiting is None:
                self._kept_waiting = time.perf_counter()
            self._changed.wait_for(
                lambda: self._ended is not None or me in self._readers or (not self._writers and ready())
            )
            if self._ended is not None and me not in self._readers:
                raise self._ended
            self._readers[me] = self._readers.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._readers[me] -= 1
                if not self._readers[me]:
                    del self._readers[me]
                    self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[float]:
        """Keep readers out meanwhile; waits for those inside, however long they stay.

        Gives the moment (`time.perf_counter`) since which readers have had to wait: while the writer waits for the end
        of a batch, nobody is kept from anything until another reader comes.
        """
        with self._changed:
            self._writers += 1
            self._changed.wait_for(lambda: not self._readers)
            since = self._kept_waiting if self._kept_waiting is not None else time.perf_counter()
        try:
            yield since
        finally:
            with self._changed:
                self._writers -= 1
                self._kept_waiting = None
                self._changed.notify_all()

    def look(self) -> None:
        """Have waiting readers look again whether they are ready."""
        with self._changed:
            self._changed.notify_all()

    def end(self, reason: Exception) -> None:
        """Send waiting readers away with this error, and those to come. Again: no effect."""
        with self._changed:
            self._ended = self._ended or reason
            self._changed.notify_all()
