"""Drives a `NodeCore` on the running loop: drains its actions once per turn, and polls it when it is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from p2psync.net.timer import Timer
from p2psync.swarm.node import NodeAction, NodeCore


class CoreLoop:
    """Messages on chunks poll the exchange alone: polling all of the core would cost more than handling a chunk."""

    def __init__(
        self,
        core: NodeCore,
        carry_out: Callable[[NodeAction], None],
        on_drained: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """on_drained: called after each drain. on_error: called with an exception of a drain."""
        self._core = core
        self._carry_out = carry_out
        self._on_drained = on_drained
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._timer = Timer(self._loop.time, self.wake_exchange)
        self._scheduled = False
        # Whether all of the core is to be polled in the next drain; and when it is due without that.
        self._polls_all = True
        self._core_due = 0.0
        self._stopped = False

    def wake(self) -> None:
        """Polls the core and drains its actions in this turn of the loop, once."""
        self._polls_all = True
        self.wake_exchange()

    def wake_exchange(self) -> None:
        """The same for the exchange alone; the rest of the core is polled when it is due."""
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def stop(self) -> None:
        """Drains no more."""
        self._stopped = True
        self._timer.cancel()

    def _drain(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        try:
            now = self._loop.time()
            polls_all = self._polls_all or now >= self._core_due
            self._polls_all = False
            if polls_all:
                self._core.poll(now)
            else:
                self._core.swarm.poll(now)
            while actions := self._core.actions():
                for action in actions:
                    self._carry_out(action)
            self._on_drained()
            if polls_all:
                self._core_due = self._core.next_wake_except_exchange()
            wake = min(self._core_due, self._core.swarm.next_wake())
            self._timer.set(wake if wake < float("inf") else None)
        except Exception as error:  # in a call of the loop, where no other code would see it
            self._on_error(error)
