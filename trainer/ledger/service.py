"""The ledger's HTTP service, on the hub's application: it leases work to members, and takes their results.

Only members get work. When a membership ends, its work returns to the pool at once; each renewal of a membership renews
its claims. The service acknowledges a change only once it is durable. All of it runs on the loop that serves the hub.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from p2psync.errors import FormatError, HubError
from p2psync.membership.checks import is_hex
from p2psync.membership.leases import EndedLease
from p2psync.membership.records import Member
from p2psync.membership.work import MAX_WORK_WAIT_SECONDS, LeaseWork, WorkGrant, WorkItem
from p2psync.net.hub import HubService
from p2psync.net.hub_routes import read_json, reply_json
from p2psync.net.timer import Timer
from p2psync.trainer.ledger.core import Ledger, LedgerConfig, LedgerResult
from p2psync.trainer.ledger.journal import Journal
from p2psync.trainer.ledger.journal_writer import JournalWriter
from p2psync.trainer.ledger.uploads import MAX_UPLOADING, ResultUploads

__all__ = ["LedgerService", "mount"]

#: Requests for work that may wait at once.
_MAX_WAITING = 16384
#: How often waiting requests are tried again while there is work (seconds), as time alone may change a node's share.
WAKE_EVERY_SECONDS = 0.25


class LedgerService:
    """A ledger that actors reach over the hub's address, and that the trainer uses in its own process.

    Make it with `mount`. Use it on the hub's loop only.
    """

    def __init__(self, hub: HubService, ledger: Ledger, journal_writer: JournalWriter, max_uploading: int) -> None:
        self.ledger = ledger
        self._hub = hub
        self._journal_writer = journal_writer
        self._timer = Timer(hub.now, self.tick)
        self._work = asyncio.Event()
        self._results = asyncio.Event()
        self._wake_timer: asyncio.TimerHandle | None = None
        self._waiting = 0
        self._closing = False
        self.uploads = ResultUploads(ledger, hub.now, journal_writer.settled, self.tick, max_uploading)

    @property
    def waiting(self) -> int:
        """Requests for work that wait now."""
        return self._waiting

    def admit(self, version: int, digest: str) -> None:
        """See `Ledger.admit`."""
        self.ledger.admit(version, digest, self._hub.now())
        self._wake()

    async def put(self, version: int, items: Iterable[tuple[str, bytes]], *, skip_known: bool = False) -> int:
        """See `Ledger.put`; returns once it is durable. Wakes actors that wait for work. Raises `StoreError`, too."""
        count = self.ledger.put(version, items, skip_known=skip_known)
        await self._journal_writer.settled()
        self.tick()
        return count

    async def take(self, max_items: int, version: int | None = None, *, wait: float = math.inf) -> list[LedgerResult]:
        """See `Ledger.take`; waits until there is a result, for `wait` seconds at most.

        Returns once it is durable that they were taken; an empty list when the time is up, or the service has stopped.
        Raises `StoreError`.
        """
        deadline = None if wait == math.inf else asyncio.get_running_loop().time() + wait
        taken: list[LedgerResult] = []
        try:
            async with asyncio.timeout_at(deadline):
                while not (taken := self.ledger.take(max_items, version)) and not self._closing:
                    self._results.clear()
                    await self._results.wait()
        except TimeoutError:
            pass  # there was no result
        if taken:
            self.tick()  # more work may be leased again
            try:
                await self._journal_writer.settled()
            except BaseException:
                self.hand_back(taken)
                raise
        return taken

    def hand_back(self, results: Iterable[LedgerResult] | None = None) -> int:
        """See `Ledger.hand_back`."""
        count = self.ledger.hand_back(results)
        self.tick()
        return count

    async def commit_step(self, step: int | None = None) -> int:
        """See `Ledger.commit_step`; returns once it is durable. Raises `StoreError`."""
        gone = self.ledger.commit_step(step)
        await self._journal_writer.settled()
        return gone

    async def settled(self) -> None:
        """Wait until all changes so far are durable. Raises `StoreError`."""
        await self._journal_writer.settled()

    def tick(self) -> None:
        """Advances the ledger to the hub's clock, and wakes waiting requests. Call it after direct use of `ledger`."""
        self.ledger.expire(self._hub.now())
        if self._closing:
            return
        if self.ledger.done:
            self._results.set()
        self._wake()
        self._timer.set(self.ledger.next_expiry())

    async def serve_lease(self, request: web.Request) -> web.Response:
        """POST /v1/work/lease: `LeaseWork` → `WorkGrant`, as soon as there is work, else empty after `wait` seconds."""
        asked = await read_json(request, LeaseWork)
        if asked.max_items < 1 or not 0 <= asked.wait < math.inf:
            raise FormatError("max_items must be above 0, and wait a number of seconds")
        if not is_hex(asked.work, 32):
            raise FormatError("a work lease's id is 32 lower-case hex digits, drawn at random")
        items = await self._lease(asked)
        config = self.ledger.config
        return reply_json(
            WorkGrant(
                work=asked.work,
                ttl=config.claim_ttl,
                head=self.ledger.head,
                max_staleness=config.max_staleness,
                items=items,
            )
        )

    async def _lease(self, asked: LeaseWork) -> list[WorkItem]:
        deadline = asyncio.get_running_loop().time() + min(asked.wait, MAX_WORK_WAIT_SECONDS)
        if self._waiting >= _MAX_WAITING:
            raise HubError("too many nodes wait for work; ask again later")
        self._waiting += 1
        version = asked.version
        try:
            async with asyncio.timeout_at(deadline):
                while not (items := self._try_lease(asked, version)) and not self._closing:
                    version = None  # while it waits, its acknowledgements tell which version it runs
                    self._schedule_wake()
                    await self._work.wait()
        except TimeoutError:
            items = []  # there was no work
        finally:
            self._waiting -= 1
        return items

    def _try_lease(self, asked: LeaseWork, version: int | None) -> list[WorkItem]:
        node = self._hub.holder(
            asked.lease
        ).member.info.node  # looked up each time: the lease may end while its holder waits
        items = self.ledger.lease(node, asked.work, asked.max_items, self._hub.now(), version)
        self._timer.set(self.ledger.next_expiry())
        return items

    def _wake(self) -> None:
        if self._waiting and (self.ledger.pooled or self.ledger.claimed):
            work, self._work = self._work, asyncio.Event()
            work.set()

    def _schedule_wake(self) -> None:
        if self._wake_timer is None and (self.ledger.pooled or self.ledger.claimed):
            self._wake_timer = asyncio.get_running_loop().call_later(WAKE_EVERY_SECONDS, self._timed_wake)

    def _timed_wake(self) -> None:
        self._wake_timer = None
        self._wake()

    def _ended(self, ended: EndedLease) -> None:
        self.ledger.release_node(ended.member.info.node)
        self.tick()

    def _renewed(self, member: Member) -> None:
        self.ledger.renew_node(member.info.node, self._hub.now(), member.version)
        self._wake()

    async def _stop(self, _app: web.Application) -> None:
        self._closing = True
        self._timer.cancel()
        if self._wake_timer is not None:
            self._wake_timer.cancel()
        self._work.set()
        self._results.set()

    async def close(self, _app: web.Application | None = None) -> None:
        """Write all changes to the journal and close it; the application does so when it is cleaned up."""
        await self._journal_writer.close()


class _LedgerMetrics(Collector):
    def __init__(self, service: LedgerService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        ledger = self._service.ledger
        counts = ledger.counts
        items = GaugeMetricFamily("p2psync_work_items", "Items of work by state", labels=["state"])
        states = (
            ("pooled", ledger.pooled),
            ("claimed", ledger.claimed),
            ("done", ledger.done),
            ("taken", ledger.taken),
        )
        for state, value in states:
            items.add_metric([state], value)
        yield items
        yield GaugeMetricFamily(
            "p2psync_work_uploading_bytes", "Results on their way", value=self._service.uploads.size
        )
        yield CounterMetricFamily("p2psync_work_leased", "Items leased", value=counts.leased)
        yield CounterMetricFamily("p2psync_work_re_leased", "Items leased again", value=counts.re_leased)
        yield CounterMetricFamily("p2psync_work_hedged", "Items leased while another held them", value=counts.hedged)
        yield CounterMetricFamily("p2psync_work_completed", "Results accepted", value=counts.completed)
        yield CounterMetricFamily("p2psync_work_committed", "Results of committed steps", value=counts.committed)
        refused = CounterMetricFamily("p2psync_work_refused", "Results refused, by reason", labels=["reason"])
        for verdict, number in counts.refused.items():
            refused.add_metric([verdict], number)
        yield refused


def mount(
    app: web.Application,
    hub: HubService,
    ledger: Ledger | LedgerConfig,
    *,
    journal: Journal | None = None,
    max_uploading: int = MAX_UPLOADING,
) -> LedgerService:
    """Add a ledger to the hub's application, `hub.build_app()`, before it is started; on the hub's loop.

    ledger: a ledger, or the settings of one to make. journal: the new ledger begins with its state and writes to it;
    the application closes it. None: the ledger is in memory. max_uploading: bytes of results that may be on their way
    at once. Raises `StoreError`.
    """
    journal_writer = JournalWriter(journal)
    if isinstance(ledger, LedgerConfig):
        saved = None if journal is None else journal.read()
        ledger = Ledger(ledger, record=journal_writer.record, saved=saved, now=hub.now())
    service = LedgerService(hub, ledger, journal_writer, max_uploading)
    app.add_routes([web.post("/v1/work/lease", service.serve_lease)])
    app.router.add_post("/v1/work/result", service.uploads.serve, expect_handler=service.uploads.expected)
    hub.on_ended(service._ended)
    hub.on_renewed(service._renewed)
    hub.metrics.registry.register(_LedgerMetrics(service))
    app.on_shutdown.append(service._stop)
    app.on_cleanup.append(service.close)
    return service
