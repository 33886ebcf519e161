"""The hub's HTTP service: a thin shell around `HubCore`.

It adds what a pure core cannot have: the clock, random secrets, waiting, and an alarm at the next lease's end. It runs
in any process's loop; a trainer embeds it and mounts routes of its own on the same application.

Waiting nodes. A change of claim or lineage wakes every long-poll at once. Changes of members alone wake them at once
too, but then not again for one millisecond per member (a second at most): when a thousand nodes join together, they
must not each cause a thousand answers. The encoded view is shared by all who are answered at one revision, and holds
only those manifests that are news to them.

With a planner the hub makes plans, in a thread; a new plan is a change like one of members.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable, Mapping

from aiohttp import web

from p2psync.errors import HubError, UsageError
from p2psync.membership.fencing import Claimant
from p2psync.membership.hub import HubConfig, HubCore
from p2psync.membership.leases import Ended, Held
from p2psync.membership.planning import PlanBook, Planner
from p2psync.membership.records import Member, Status
from p2psync.net.hub_log import HubLog
from p2psync.net.hub_metrics import HubMetrics
from p2psync.net.hub_routes import add_routes
from p2psync.net.hub_views import EncodedViews
from p2psync.net.listening import BACKLOG, open_listeners
from p2psync.net.plan_worker import PlanWorker
from p2psync.net.timer import Alarm

_SETTLE_PER_MEMBER = 0.001
_SETTLE_AT_MOST = 1.0
#: The same remark on a plan is made again after so long (seconds).
SAY_AGAIN = 600.0
#: Long-polls beyond one per possible member.
_SPARE_WAITERS = 64
_SHUTDOWN_TIMEOUT = 2.0


class HubService:
    """One hub: its core, its waiting nodes, its routes.

    Everything but the constructor is to be called on the loop that serves.
    """

    def __init__(
        self,
        config: HubConfig,
        *,
        token: str | None = None,
        planner: Planner | None = None,
        on_trouble: Callable[[str], None] = lambda message: None,
        clock: Callable[[], float] = time.monotonic,
        secret: Callable[[], str] = lambda: secrets.token_hex(16),
        port_option: str = "--port",
    ) -> None:
        """token: the join token every request must bear; None: anyone may. planner: None: there is no plan.

        on_trouble: told in one line why there is no new plan, what is odd about members, and which other run has it.
        clock: seconds, never going back. secret: draws lease ids, nonces and tokens; tests replace it and the clock.
        port_option: the option that sets the port, for people.
        """
        self.core = HubCore(config, instance=secret())
        self.metrics = HubMetrics(self.core)
        self.log = HubLog(clock)
        self.token = token
        self.secret = secret
        self._port_option = port_option
        self._clock = clock
        self._started = clock()
        self._alarm = Alarm(clock, self.tick)
        self._on_ended: list[Callable[[Ended], None]] = []
        self._on_renewed: list[Callable[[Member], None]] = []
        self._app: web.Application | None = None
        self._runner: web.AppRunner | None = None
        self._closing = False
        self._shown = 0
        self._woken = asyncio.Event()
        self._last_wake = float("-inf")
        self._settling: asyncio.TimerHandle | None = None
        self._waiting = 0
        self._views = EncodedViews(self.core)
        self._on_trouble = on_trouble
        self._remarked: dict[str, float] = {}
        self._worker = None if planner is None else PlanWorker(planner, self._plan_made, self._plan_failed)
        self._warming: asyncio.Task[None] | None = None
        self._may_plan = False

    @property
    def waiting(self) -> int:
        """Long-polls of the view that wait now."""
        return self._waiting

    @property
    def port(self) -> int:
        """The port that is served. Raises `UsageError` before `start`."""
        if self._runner is None:
            raise UsageError("this hub is not started, so it has no port yet")
        return int(self._runner.addresses[0][1])

    def now(self) -> float:
        """The hub's clock, in seconds."""
        return self._clock()

    def claimed(self, before: Claimant | None) -> None:
        """Tell people when this hub went from one run to another; the routes call it after a claim."""
        now = self.core.claimant
        if before is not None and now is not None and now.run != before.run:
            self._on_trouble(f"this hub changed hands: {now.line()}")

    def own_nonce(self) -> str:
        """A nonce for a claim of the trainer that this hub is part of (`HubConfig.embedded`)."""
        nonce = self.secret()
        self.core.own_challenge(nonce=nonce, now=self._clock())
        return nonce

    def on_ended(self, call: Callable[[Ended], None]) -> None:
        """Have `call` told of every lease that ends: expired, left, or replaced by the node's next one."""
        self._on_ended.append(call)

    def on_renewed(self, call: Callable[[Member], None]) -> None:
        """Have `call` told of every renewal of a lease."""
        self._on_renewed.append(call)

    def renewed(self, lease: str) -> None:
        """Tell of a renewal; the routes call it."""
        member = self.holder(lease).member
        for call in self._on_renewed:
            call(member)

    def holder(self, lease: str) -> Held:
        """Who holds the membership lease. Raises `LeaseError` if it has ended or never was."""
        return self.core.holder(lease, self._clock())

    def tick(self) -> None:
        """Bring everything up to the clock: end leases, tell who listens, wake who waits, set the alarm.

        Called by the routes and the alarm; to be called by whoever used `core` directly or moved an injected clock.
        """
        for ended in self.core.expire(self._clock()):
            self.log.ended(ended)
            for call in self._on_ended:
                call(ended)
        if self._closing:
            return
        self._plan()
        if self.core.news > self._shown:
            self._wake()
        elif self.core.revision > self._shown:
            self._settle()
        self._alarm.set(self.core.next_expiry())
        if self._may_plan and self.core.next_plan() < float("inf"):
            self._alarm.set(self.core.next_plan())

    async def wait_view(
        self,
        instance: str,
        revision: int,
        wait: float,
        *,
        packed: bool = False,
        lease: str = "",
        changes: bool = False,
    ) -> bytes:
        """The encoded view: at once if it is news to one who knows `revision` of `instance`, else after a change.

        wait: seconds after which it is given in any case. packed: see `hub_wire.pack`. lease: of who asks, if known; a
        wait that is cancelled puts its holder in doubt. changes: what changed since is enough. Raises `HubError` when
        too many wait already.
        """
        if self.core.is_there(lease, self._clock()):
            self.tick()
        if instance == self.core.instance and wait > 0:
            if self._waiting >= self.core.config.max_members + _SPARE_WAITERS:
                raise HubError("too many nodes wait for this hub's view; ask again later")
            self._waiting += 1
            try:
                async with asyncio.timeout(wait):
                    while revision >= self._shown and not self._closing:
                        await self._woken.wait()
            except TimeoutError:
                pass  # the view is given in any case
            except asyncio.CancelledError:
                self._broke_off(lease)
                raise
            finally:
                self._waiting -= 1
        # Who knows a hub that was here before has seen what its trainer announces again, but perhaps not the newest.
        known = revision if instance == self.core.instance else 0 if instance else -1
        short = changes and instance == self.core.instance
        return self._views.get(known, self._clock(), packed=packed, changes=short)

    def _broke_off(self, lease: str) -> None:
        if not self._closing:
            self.core.broke_off(lease, self._clock())
            self.tick()

    def status(self) -> Status:
        """The hub at a glance, for people."""
        return self.core.status(self._clock(), self._started)

    def build_app(self) -> web.Application:
        """The application, the same at each call. Routes may be added to it until it is started."""
        if self._app is None:
            self._app = web.Application()
            add_routes(self._app, self)
            self._app.on_shutdown.append(self._close)
        return self._app

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Serve on `host` and `port` (0: any free one) until `stop`; returns the port. May be called once.

        host: see `open_listeners`. Raises `P2PSyncError` when the address cannot be had.
        """
        listeners = await open_listeners(host, port, self._port_option)
        runner = web.AppRunner(
            self.build_app(),
            access_log=None,
            handler_cancellation=True,  # a node that hangs up must not be waited for
            shutdown_timeout=_SHUTDOWN_TIMEOUT,
        )
        await runner.setup()
        for listener in listeners:
            await web.SockSite(runner, listener, ssl_context=tls, backlog=BACKLOG).start()
        self._runner = runner
        if self._worker is not None:
            self._warming = asyncio.create_task(self._warm(self._worker))
        self.tick()
        return self.port

    async def stop(self) -> None:
        """Answer everyone who waits, close every connection and stop serving. Does nothing if not started."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _close(self, _app: web.Application) -> None:
        self._closing = True
        self._alarm.cancel()
        if self._worker is not None and self._warming is not None:
            self._warming.cancel()
            self._worker.stop()
        self._wake()

    async def _warm(self, worker: PlanWorker) -> None:
        await worker.warm()
        self._may_plan = True
        self.tick()

    def _plan(self) -> None:
        if self._may_plan and self._worker is not None:
            task = self.core.begin_plan(self._clock())
            if task is not None:
                self._worker.make(task)

    def _plan_made(self, book: PlanBook) -> None:
        self.core.plan_made(book, self._clock())
        self._remark(book.remarks)
        self.tick()

    def _remark(self, remarks: Mapping[str, str]) -> None:
        now = self._clock()
        self._remarked = {about: at for about, at in self._remarked.items() if now - at < SAY_AGAIN}
        for about, line in remarks.items():
            if about not in self._remarked:
                self._remarked[about] = now
                self._on_trouble(line)

    def _plan_failed(self, message: str) -> None:
        if self.core.plan_failed(message, self._clock()):
            self._on_trouble(f"no new plan, going on with the last one: {message}")
        self.tick()

    def _settle(self) -> None:
        if self._settling is not None:
            return
        loop = asyncio.get_running_loop()
        gap = min(_SETTLE_AT_MOST, _SETTLE_PER_MEMBER * len(self.core))
        delay = self._last_wake + gap - loop.time()
        if delay <= 0:
            self._wake()
        else:
            self._settling = loop.call_later(delay, self._wake)

    def _wake(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        self._shown = self.core.revision
        self._last_wake = asyncio.get_running_loop().time()
        woken, self._woken = self._woken, asyncio.Event()
        woken.set()
