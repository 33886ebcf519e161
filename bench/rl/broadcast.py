"""Full broadcasts that finish: the next version is published once every actor runs the one before.

The actors tell so on boards in shared memory, so that waiting for them takes no round trip. What waits is a copy of
the policy's bits, since the optimizer moves the policy on meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from p2psync.bench.rl.ways import Board

#: How often the boards are read (seconds).
_POLL_SECONDS = 0.002


class WaitingVersions:
    """Versions that wait to be broadcast, in their order."""

    def __init__(self, oldest_first: bool) -> None:
        """oldest_first: every version is broadcast; else the newest one is next, and the older ones are dropped."""
        self._oldest_first = oldest_first
        self._waiting: deque[tuple[int, list[Tensor]]] = deque()
        #: Versions that were dropped.
        self.skipped = 0

    def add(self, version: int, bits: list[Tensor]) -> None:
        """Queues a version."""
        self._waiting.append((version, bits))

    def next(self) -> tuple[int, list[Tensor]] | None:
        """Take the version that is next; None if none waits."""
        while len(self._waiting) > 1 and not self._oldest_first:
            self._waiting.popleft()
            self.skipped += 1
        return self._waiting.popleft() if self._waiting else None


class FinishingBroadcast:
    """Publishes versions one after another, in a thread of its own, while a `with` lasts."""

    def __init__(
        self, outbox: nn.Module, boards: Sequence[Board], publish: Callable[[int], None], oldest_first: bool
    ) -> None:
        """outbox: the module that `publish` reads. boards: on which each actor puts up the version that it runs."""
        self._outbox, self._boards, self._publish = outbox, boards, publish
        self._waiting = WaitingVersions(oldest_first)
        self._published = 0
        self._changed = threading.Condition()
        self._ended = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="broadcast")

    def __enter__(self) -> FinishingBroadcast:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    @property
    def skipped(self) -> int:
        """Versions that were dropped for a newer one."""
        return self._waiting.skipped

    def put(self, version: int, module: nn.Module) -> None:
        """Queues a version of the current `module`. Raises the error of an earlier one."""
        bits = [parameter.detach().clone() for parameter in module.parameters()]
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._waiting.add(version, bits)
            self._changed.notify()

    def _run(self) -> None:
        try:
            while (found := self._next()) is not None:
                version, bits = found
                with torch.no_grad():
                    for parameter, new in zip(self._outbox.parameters(), bits, strict=True):
                        parameter.copy_(new)
                self._publish(version)
                self._published = version
        except BaseException as error:
            self._failure = error

    def _next(self) -> tuple[int, list[Tensor]] | None:
        """The next version, once all actors run the one before; None once this has ended."""
        with self._changed:
            while not self._ended:
                if any(board.version < self._published for board in self._boards):
                    self._changed.wait(_POLL_SECONDS)
                elif (found := self._waiting.next()) is not None:
                    return found
                else:
                    self._changed.wait()
            return None
