"""The ledger's HTTP service, on the hub's application: leases of work for members, and their results.

A node must be a member to be given work. When its membership ends, its work returns at once; while it is renewed, so
are its claims. Everything here runs on the loop that serves the hub.
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
from p2psync.membership.leases import Ended
from p2psync.membership.records import Member
from p2psync.membership.work import (
    MAX_RESULT_BYTES,
    MAX_WORK_WAIT,
    LeaseWork,
    Receipt,
    Verdict,
    WorkGrant,
    WorkItem,
    WorkResult,
)
from p2psync.net.hub import HubService
from p2psync.net.hub_alarm import Alarm
from p2psync.net.hub_routes import read_json, reply_json
from trainer.ledger import Done, Ledger

#: A result in base64, and what stands around it.
_MAX_RESULT_BODY = MAX_RESULT_BYTES // 3 * 4 + 4096
#: Requests for work that may wait at once.
_MAX_WAITING = 16384


class LedgerService:
    """A ledger that actors reach over the hub's address, and that the trainer uses in its own process.

    Make it with `mount`. To be used on the hub's loop only.
    """

    def __init__(self, hub: HubService, ledger: Ledger) -> None:
        self.ledger = ledger
        self._hub = hub
        self._alarm = Alarm(hub.now, self.tick)
        self._work = asyncio.Event()
        self._results = asyncio.Event()
        self._waiting = 0
        self._closing = False

    @property
    def waiting(self) -> int:
        """Requests for work that wait now."""
        return self._waiting

    def admit(self, version: int, digest: str) -> None:
        """See `Ledger.admit`."""
        self.ledger.admit(version, digest)

    def put(self, version: int, items: Iterable[tuple[str, bytes]]) -> int:
        """See `Ledger.put`; wakes actors that wait for work."""
        count = self.ledger.put(version, items)
        self.tick()
        return count

    async def take(self, max_items: int) -> list[Done]:
        """Take up to `max_items` results out, oldest first; waits until there is one.

        Cancel it, or put it under `asyncio.timeout`, to bound the wait. Empty only when the service has stopped.
        """
        while not self.ledger.done and not self._closing:
            self._results.clear()
            await self._results.wait()
        taken = self.ledger.take(max_items)
        self.tick()  # there may be room for work again
        return taken

    def tick(self) -> None:
        """Bring the ledger up to the hub's clock, and wake who waits. To be called after direct use of `ledger`."""
        self.ledger.expire(self._hub.now())
        if self._closing:
            return
        if self.ledger.pooled:
            work, self._work = self._work, asyncio.Event()
            work.set()
        if self.ledger.done:
            self._results.set()
        self._alarm.set(self.ledger.next_expiry())

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

    async def serve_result(self, request: web.Request) -> web.Response:
        """POST /v1/work/result: `WorkResult` → `Receipt`."""
        offered = await read_json(request, WorkResult, _MAX_RESULT_BODY)
        verdict: Verdict = self.ledger.complete(
            offered.work, offered.item, offered.result, offered.version, offered.digest, self._hub.now()
        )
        self.tick()
        return reply_json(Receipt(verdict=verdict))

    async def _lease(self, asked: LeaseWork) -> list[WorkItem]:
        deadline = asyncio.get_running_loop().time() + min(asked.wait, MAX_WORK_WAIT)
        if self._waiting >= _MAX_WAITING:
            raise HubError("too many nodes wait for work; ask again later")
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                while not (items := self._try_lease(asked)) and not self._closing:
                    await self._work.wait()
        except TimeoutError:
            items = []  # there was no work
        finally:
            self._waiting -= 1
        return items

    def _try_lease(self, asked: LeaseWork) -> list[WorkItem]:
        node = self._hub.holder(asked.lease).member.info.node  # anew each time: it may end while its holder waits
        items = self.ledger.lease(node, asked.work, asked.max_items, self._hub.now())
        self._alarm.set(self.ledger.next_expiry())
        return items

    def _ended(self, ended: Ended) -> None:
        self.ledger.release_node(ended.member.info.node)
        self.tick()

    def _renewed(self, member: Member) -> None:
        self.ledger.renew_node(member.info.node, self._hub.now())

    async def _close(self, _app: web.Application) -> None:
        self._closing = True
        self._alarm.cancel()
        self._work.set()
        self._results.set()


class _LedgerMetrics(Collector):
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterable[Metric]:
        ledger = self._ledger
        counts = ledger.counts
        items = GaugeMetricFamily("p2psync_work_items", "Items of work by state", labels=["state"])
        for state, value in (("pooled", ledger.pooled), ("claimed", ledger.claimed), ("done", ledger.done)):
            items.add_metric([state], value)
        yield items
        yield CounterMetricFamily("p2psync_work_leased", "Items leased", value=counts.leased)
        yield CounterMetricFamily("p2psync_work_re_leased", "Items leased again", value=counts.re_leased)
        yield CounterMetricFamily("p2psync_work_completed", "Results accepted", value=counts.completed)
        refused = CounterMetricFamily("p2psync_work_refused", "Results refused, by reason", labels=["reason"])
        for verdict, number in counts.refused.items():
            refused.add_metric([verdict], number)
        yield refused


def mount(app: web.Application, hub: HubService, ledger: Ledger) -> LedgerService:
    """Serve `ledger` on the hub's application, `hub.build_app()`, before it is started."""
    service = LedgerService(hub, ledger)
    app.add_routes([web.post("/v1/work/lease", service.serve_lease), web.post("/v1/work/result", service.serve_result)])
    hub.on_ended(service._ended)
    hub.on_renewed(service._renewed)
    hub.metrics.registry.register(_LedgerMetrics(ledger))
    app.on_shutdown.append(service._close)
    return service
