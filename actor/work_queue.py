"""Work at hand before it is needed, and results handed in while generation goes on.

    with subscriber.work_queue(slots=8) as queue:      # a generator that has 8 items in the making
        work = queue.take(timeout=0.5)                 # None: there is none now
        …
        queue.hand_in(work, result, position, tokens)  # at once; the ledger hears of it in the background

A lease takes a round trip and a write to the ledger's disk, during which a slot that has just become free would idle.
So as many items more are held as slots become free in that time, and one: what is held beyond that waits in vain here,
and may be missing elsewhere at the end of a step. Both are measured as the work goes on.
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

#: Of the last so many leases the fastest tells how long one takes, and the last so many items how often one is begun.
_REMEMBERED = 16
#: A lease is reckoned to take so many times as long as the fastest did.
_SLACK = 2.0
#: Items ahead of need, by slots: at most.
_MOST_AHEAD = 4
#: Results on their way at once; `hand_in` waits while there are more.
MAX_HANDING_IN = 64
#: How long a lease waits at the ledger for work (seconds).
LEASE_WAIT_SECONDS = 20.0


@dataclass(frozen=True)
class ClaimedItem:
    """An item that is this node's. work: the id of its work lease."""

    work: str
    item: WorkItem


def items_ahead(slots: int, began: deque[float], leases: deque[float]) -> int:
    """Items to hold beyond those in the making. began: when the last items were begun; leases: how long the last leases
    took (seconds)."""
    if len(began) < 2 or began[-1] <= began[0] or not leases:
        return 1
    each_second = (len(began) - 1) / (began[-1] - began[0])
    return min(1 + math.ceil(_SLACK * min(leases) * each_second), _MOST_AHEAD * slots)


class WorkQueue:
    """A context manager; `take`, `hand_in` and `needless` are for any threads."""

    def __init__(
        self,
        loop: BackgroundLoop,
        client: WorkClient,
        membership: Callable[[], tuple[str | None, int | None]],
        slots: int,
        *,
        patience: float = 120.0,
    ) -> None:
        """loop: of the client. membership: the lease of the hub (None: no member now) and the live version. slots:
        items in the making at a time. patience: see `WorkClient.deliver`."""
        self._loop = loop
        self._client = client
        self._membership = membership
        self._slots = slots
        self._patience = patience
        self._changed = threading.Condition()
        self._queue: deque[ClaimedItem] = deque()
        self._making: set[tuple[str, str]] = set()
        self._void: set[tuple[str, str]] = set()
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
        """Results that are on their way still arrive, unless an error leads out."""
        self._loop.call(self._stop(error is None))

    @property
    def outcomes(self) -> Counter[str]:
        """How many results the ledger answered with which verdict, and under "failed" how many it could not be told."""
        with self._changed:
            return self._outcomes.copy()

    def take(self, timeout: float = math.inf) -> ClaimedItem | None:
        """The next item, to be begun at once; None if there is none for `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue, None if timeout == math.inf else timeout)
            if not self._queue:
                return None
            work = self._queue.popleft()
            self._making.add(_key(work))
            self._began.append(time.monotonic())
        self._loop.soon(self._look)
        return work

    def hand_in(self, work: ClaimedItem, result: bytes, position: Position, tokens: int = 0) -> None:
        """A result of `tokens` tokens, made under `position`. Waits only while very many are on their way."""
        with self._changed:
            self._making.discard(_key(work))
            self._void.discard(_key(work))
        self._handing_in.acquire()
        self._loop.soon(lambda: self._deliver_soon(work, result, position, tokens))

    def drop(self, work: ClaimedItem) -> None:
        """Give up an item that is `needless`."""
        with self._changed:
            self._making.discard(_key(work))
            self._void.discard(_key(work))
        self._loop.soon(self._look)

    def needless(self, work: ClaimedItem) -> bool:
        """Whether somebody else's result of this item counted, so that it need not be finished."""
        with self._changed:
            return _key(work) in self._void

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

    def _look(self) -> None:
        self._wanted.set()

    def _room(self) -> int:
        with self._changed:
            most = self._slots + items_ahead(self._slots, self._began, self._leases)
            return most - len(self._queue) - len(self._making)

    async def _lease_on(self) -> None:
        pause = RETRY_MIN_SECONDS
        while True:
            self._wanted.clear()
            if (room := self._room()) <= 0:
                await self._wanted.wait()
                continue
            try:
                await self._lease(room)
                pause = RETRY_MIN_SECONDS
            except LeaseError:  # what was claimed under it is others' now
                with self._changed:
                    self._queue.clear()
                await asyncio.sleep(RETRY_MIN_SECONDS)
            except P2PSyncError:
                await asyncio.sleep(pause)
                pause = min(RETRY_MAX_SECONDS, 2 * pause)

    async def _lease(self, room: int) -> None:
        lease, version = self._membership()
        if lease is None:
            raise LeaseError("not a member of the hub now")
        begun = time.monotonic()
        grant = await self._client.lease(lease, room, LEASE_WAIT_SECONDS, version)
        with self._changed:
            if grant.items:
                self._leases.append(time.monotonic() - begun)
            self._queue.extend(ClaimedItem(grant.work, item) for item in grant.items)
            self._changed.notify_all()

    def _deliver_soon(self, work: ClaimedItem, result: bytes, position: Position, tokens: int) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(work, result, position, tokens))
        self._delivering.add(task)
        task.add_done_callback(self._delivering.discard)
        self._look()

    async def _deliver(self, work: ClaimedItem, result: bytes, position: Position, tokens: int) -> None:
        outcome, void = "failed", list[str]()
        try:
            receipt = await self._client.deliver(
                *(work.work, work.item.item, result),
                version=position.version,
                digest=position.digest.hex(),
                tokens=tokens,
                patience=self._patience,
            )
            outcome, void = receipt.verdict, receipt.void
        except P2PSyncError:
            pass  # its claim ends by itself, and somebody else gets it
        finally:
            self._handing_in.release()
            with self._changed:
                self._outcomes[outcome] += 1
                self._drop(work.work, set(void))

    def _drop(self, work: str, items: set[str]) -> None:
        """Somebody else was sooner with these."""
        self._queue = deque(w for w in self._queue if w.work != work or w.item.item not in items)
        self._void |= {key for key in self._making if key[0] == work and key[1] in items}


def _key(work: ClaimedItem) -> tuple[str, str]:
    return work.work, work.item.item
