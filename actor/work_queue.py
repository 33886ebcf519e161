"""Leases work ahead of need, and hands results in while generation goes on.

    with subscriber.work_queue(slots=8) as queue:      # a generator of 8 items at a time
        work = queue.take(timeout=0.5)                 # None: there is no work now
        …
        queue.hand_in(work, result, position, tokens)  # returns at once; sent in the background

A lease takes a round trip and a write to the ledger's disk. Meanwhile a slot that has become free would idle. So the
queue holds as many items in advance as slots become free in that time, plus one. More would wait here while other
actors may lack work at the end of a step. The queue measures both times as it runs.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from p2psync.actor.work_client import RETRY_MAX_SECONDS, RETRY_MIN_SECONDS, WorkClient
from p2psync.errors import LeaseError, P2PSyncError
from p2psync.membership.work import WorkItem
from p2psync.net.background import BackgroundLoop
from p2psync.protocol.versions import Position

#: Leases and items that are remembered: the fastest lease gives its duration, the items their rate.
_REMEMBERED = 16
#: Expected duration of a lease, as a multiple of the fastest one.
_LEASE_MARGIN = 2.0
#: Maximum items ahead of need, as a multiple of the slots.
_MAX_AHEAD_PER_SLOT = 4
#: Maximum results that are being sent at a time; `hand_in` waits while there are more.
MAX_HANDING_IN = 64
#: Seconds that a lease request waits at the ledger for work.
LEASE_WAIT_SECONDS = 20.0


@dataclass(frozen=True)
class ClaimedItem:
    """An item that this node has claimed. work: the id of its work lease."""

    work: str
    item: WorkItem


def items_ahead(slots: int, began: deque[float], leases: deque[float]) -> int:
    """Returns how many items to hold beyond those that are being generated.

    began: start times of the last items (seconds). leases: durations of the last leases (seconds).
    """
    if len(began) < 2 or began[-1] <= began[0] or not leases:
        return 1
    each_second = (len(began) - 1) / (began[-1] - began[0])
    return min(1 + math.ceil(_LEASE_MARGIN * min(leases) * each_second), _MAX_AHEAD_PER_SLOT * slots)


class WorkQueue:
    """A queue of claimed work: a context manager. Any thread may call `take`, `hand_in`, `drop` and `needless`."""

    def __init__(
        self,
        loop: BackgroundLoop,
        client: WorkClient,
        membership: Callable[[], tuple[str | None, int | None]],
        slots: int,
        *,
        deliver_timeout: float = 120.0,
    ) -> None:
        """loop: of the client. membership: returns the lease of the hub (None: not a member now) and the live version.
        slots: items that are generated at a time. deliver_timeout: seconds, see `WorkClient.deliver`."""
        self._loop = loop
        self._client = client
        self._membership = membership
        self._slots = slots
        self._deliver_timeout = deliver_timeout
        self._changed = threading.Condition()
        self._queue: deque[ClaimedItem] = deque()
        self._generating: set[tuple[str, str]] = set()
        self._needless: set[tuple[str, str]] = set()
        self._began: deque[float] = deque(maxlen=_REMEMBERED)
        self._leases: deque[float] = deque(maxlen=_REMEMBERED)
        self._outcomes: Counter[str] = Counter()
        self._handing_in = threading.BoundedSemaphore(MAX_HANDING_IN)
        self._wanted: asyncio.Event
        self._leasing: asyncio.Task[None]
        self._delivering: set[asyncio.Task[None]] = set()

    def __enter__(self) -> WorkQueue:
        self._loop.call(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits until all results are delivered, unless the block raised an error."""
        self._loop.call(self._stop(error is None))

    @property
    def outcomes(self) -> Counter[str]:
        """The number of results by the ledger's verdict, and under "failed" those that could not be delivered."""
        with self._changed:
            return self._outcomes.copy()

    def take(self, timeout: float = math.inf) -> ClaimedItem | None:
        """Returns the next item, to be started at once; None if there is none for `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue, None if timeout == math.inf else timeout)
            if not self._queue:
                return None
            work = self._queue.popleft()
            self._generating.add(_key(work))
            self._began.append(time.monotonic())
        self._loop.soon(self._wake)
        return work

    def hand_in(self, work: ClaimedItem, result: bytes, position: Position, tokens: int = 0) -> None:
        """Hands in a result of `tokens` tokens, made under `position`. Waits while `MAX_HANDING_IN` are being sent."""
        with self._changed:
            self._generating.discard(_key(work))
            self._needless.discard(_key(work))
        self._handing_in.acquire()
        self._loop.soon(lambda: self._deliver_soon(work, result, position, tokens))

    def drop(self, work: ClaimedItem) -> None:
        """Gives up an item that is `needless`."""
        with self._changed:
            self._generating.discard(_key(work))
            self._needless.discard(_key(work))
        self._loop.soon(self._wake)

    def needless(self, work: ClaimedItem) -> bool:
        """Returns whether another node's result of this item has counted, so that it need not be finished."""
        with self._changed:
            return _key(work) in self._needless

    # ---- on the loop -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._wanted = asyncio.Event()
        self._leasing = asyncio.create_task(self._lease_on())

    async def _stop(self, patient: bool) -> None:
        self._leasing.cancel()
        if not patient:
            for task in self._delivering:
                task.cancel()
        await asyncio.gather(self._leasing, *self._delivering, return_exceptions=True)

    def _wake(self) -> None:
        self._wanted.set()

    def _wanted_items(self) -> int:
        with self._changed:
            most = self._slots + items_ahead(self._slots, self._began, self._leases)
            return most - len(self._queue) - len(self._generating)

    async def _lease_on(self) -> None:
        pause = RETRY_MIN_SECONDS
        while True:
            self._wanted.clear()
            if (count := self._wanted_items()) <= 0:
                await self._wanted.wait()
                continue
            try:
                await self._lease(count)
                pause = RETRY_MIN_SECONDS
            except LeaseError:  # others have what was claimed under it
                with self._changed:
                    self._queue.clear()
                await asyncio.sleep(RETRY_MIN_SECONDS)
            except P2PSyncError:
                await asyncio.sleep(pause)
                pause = min(RETRY_MAX_SECONDS, 2 * pause)

    async def _lease(self, count: int) -> None:
        lease, version = self._membership()
        if lease is None:
            raise LeaseError("not a member of the hub now")
        begun = time.monotonic()
        grant = await self._client.lease(lease, count, LEASE_WAIT_SECONDS, version)
        with self._changed:
            if grant.items:
                self._leases.append(time.monotonic() - begun)
            self._queue.extend(ClaimedItem(grant.work, item) for item in grant.items)
            self._changed.notify_all()

    def _deliver_soon(self, work: ClaimedItem, result: bytes, position: Position, tokens: int) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(work, result, position, tokens))
        self._delivering.add(task)
        task.add_done_callback(self._delivering.discard)
        self._wake()

    async def _deliver(self, work: ClaimedItem, result: bytes, position: Position, tokens: int) -> None:
        outcome, void = "failed", list[str]()
        try:
            receipt = await self._client.deliver(
                *(work.work, work.item.item, result),
                version=position.version,
                digest=position.digest.hex(),
                tokens=tokens,
                timeout_seconds=self._deliver_timeout,
            )
            outcome, void = receipt.verdict, receipt.void
        except P2PSyncError:
            pass  # its claim ends by itself, and another node gets it
        finally:
            self._handing_in.release()
            with self._changed:
                self._outcomes[outcome] += 1
                self._drop(work.work, set(void))

    def _drop(self, work: str, items: set[str]) -> None:
        """Drops items for which another node's result has counted."""
        self._queue = deque(w for w in self._queue if w.work != work or w.item.item not in items)
        self._needless |= {key for key in self._generating if key[0] == work and key[1] in items}


def _key(work: ClaimedItem) -> tuple[str, str]:
    return work.work, work.item.item
