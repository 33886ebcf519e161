"""The hub's HTTP service: a thin shell around `HubCore`.

It adds what a pure core cannot have: the clock, random secrets, waiting, and a timer for the next lease's end. It runs
in any process's loop; a trainer embeds it and adds routes of its own to the same application.

Long polls. A change of claim or lineage wakes every long poll at once. A change of members alone wakes them at once
too, but then not again for one millisecond per member (a second at most): when a thousand nodes join together, they
must not each cause a thousand replies. All readers at one revision share the encoded view, which inlines only manifests
that are new to them.

With a planner the hub makes plans in a thread; a new plan wakes long polls like a change of members.
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
from p2psync.membership.leases import EndedLease, HeldLease
from p2psync.membership.planning import Planner, PlanResult
from p2psync.membership.records import Member, Status
from p2psync.net.hub_log import HubLog
from p2psync.net.hub_metrics import HubMetrics
from p2psync.net.hub_routes import add_routes
from p2psync.net.hub_views import EncodedViews
from p2psync.net.listening import BACKLOG, open_listeners
from p2psync.net.plan_worker import PlanWorker
from p2psync.net.timer import Timer

_WAKE_SECONDS_PER_MEMBER = 0.001
_WAKE_MAX_SECONDS = 1.0
#: Seconds after which the same diagnostic line of a plan is reported again.
REPEAT_DIAGNOSTIC_SECONDS = 600.0
#: Long polls that are accepted beyond one per possible member.
_EXTRA_LONG_POLLS = 64
_SHUTDOWN_SECONDS = 2.0


class HubService:
    """One hub: its core, its long polls, its routes.

    Call everything but the constructor on the loop that serves.
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
        port_setting: str = "port",
    ) -> None:
        """token: the join token that every request must carry; None: anyone may. planner: None: there is no plan.

        on_trouble: receives one line when a plan fails, for each diagnostic of a plan, and when another run takes the
        hub. clock: seconds, monotonic. secret: draws lease ids, nonces and tokens; tests replace it and the clock.
        port_setting: the parameter that sets the port, for messages.
        """
        self.core = HubCore(config, instance=secret())
        self.metrics = HubMetrics(self.core)
        self.log = HubLog(clock)
        self.token = token
        self.secret = secret
        self._port_setting = port_setting
        self._clock = clock
        self._started = clock()
        self._timer = Timer(clock, self.tick)
        self._on_ended: list[Callable[[EndedLease], None]] = []
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
        self._reported_at: dict[str, float] = {}
        self._worker = None if planner is None else PlanWorker(planner, self._plan_made, self._plan_failed)
        self._warming: asyncio.Task[None] | None = None
        self._may_plan = False

    @property
    def waiting(self) -> int:
        """Number of long polls of the view that wait now."""
        return self._waiting

    @property
    def port(self) -> int:
        """The served port. Raises `UsageError` before `start`."""
        if self._runner is None:
            raise UsageError("this hub is not started, so it has no port yet")
        return int(self._runner.addresses[0][1])

    def now(self) -> float:
        """The hub's clock, in seconds."""
        return self._clock()

    def claimed(self, before: Claimant | None) -> None:
        """Reports when this hub changed from one run to another; the routes call it after a claim."""
        now = self.core.claimant
        if before is not None and now is not None and now.run != before.run:
            self._on_trouble(f"this hub changed hands: {now.line()}")

    def own_nonce(self) -> str:
        """Returns a nonce for a claim of the trainer that embeds this hub (`HubConfig.embedded`)."""
        nonce = self.secret()
        self.core.own_challenge(nonce=nonce, now=self._clock())
        return nonce

    def on_ended(self, call: Callable[[EndedLease], None]) -> None:
        """Registers `call` for every lease that ends: expired, left, or replaced by the node's next one."""
        self._on_ended.append(call)

    def on_renewed(self, call: Callable[[Member], None]) -> None:
        """Registers `call` for every renewal of a lease."""
        self._on_renewed.append(call)

    def renewed(self, lease: str) -> None:
        """Notifies the listeners of a renewal; the routes call it."""
        member = self.holder(lease).member
        for call in self._on_renewed:
            call(member)

    def holder(self, lease: str) -> HeldLease:
        """Returns the holder of the membership lease. Raises `LeaseError` if it has ended or never was."""
        return self.core.holder(lease, self._clock())

    def tick(self) -> None:
        """Advances the core to the clock: ends leases, notifies listeners, wakes long polls, sets the timer.

        The routes and the timer call it; so must any code that used `core` directly or moved an injected clock.
        """
        for ended in self.core.expire(self._clock()):
            self.log.ended(ended)
            for call in self._on_ended:
                call(ended)
        if self._closing:
            return
        self._plan()
        if self.core.urgent_revision > self._shown:
            self._wake()
        elif self.core.revision > self._shown:
            self._settle()
        self._timer.set(self.core.next_expiry())
        if self._may_plan and self.core.next_plan() < float("inf"):
            self._timer.set(self.core.next_plan())

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
        """Returns the encoded view: at once if it is new to a reader of `revision` of `instance`, otherwise after a
        change.

        wait: seconds after which it is returned in any case. packed: see `hub_wire.pack`. lease: of the reader, if
        known; if its poll is cancelled, its holder becomes suspected. changes: the changes since `revision` suffice.
        Raises `HubError` when too many polls wait already.
        """
        if self.core.heard_from(lease, self._clock()):
            self.tick()
        if instance == self.core.instance and wait > 0:
            if self._waiting >= self.core.config.max_members + _EXTRA_LONG_POLLS:
                raise HubError("too many nodes wait for this hub's view; ask again later")
            self._waiting += 1
            try:
                async with asyncio.timeout(wait):
                    while revision >= self._shown and not self._closing:
                        await self._woken.wait()
            except TimeoutError:
                pass  # the view is given in any case
            except asyncio.CancelledError:
                self._suspect(lease)
                raise
            finally:
                self._waiting -= 1
        # A reader of an earlier hub process has seen most manifests that the trainer announces again, but perhaps not
        # the newest.
        known = revision if instance == self.core.instance else 0 if instance else -1
        only_changes = changes and instance == self.core.instance
        return self._views.get(known, self._clock(), packed=packed, changes=only_changes)

    def _suspect(self, lease: str) -> None:
        if not self._closing:
            self.core.suspect(lease, self._clock())
            self.tick()

    def status(self) -> Status:
        """Returns the hub's state for people."""
        return self.core.status(self._clock(), self._started)

    def build_app(self) -> web.Application:
        """Returns the application, the same at each call. Routes may be added to it until it is started."""
        if self._app is None:
            self._app = web.Application()
            add_routes(self._app, self)
            self._app.on_shutdown.append(self._close)
        return self._app

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Serves on `host` and `port` (0: any free one) until `stop`; returns the port. May be called once.

        host: see `open_listeners`. Raises `P2PSyncError` when the address is not available.
        """
        listeners = await open_listeners(host, port, self._port_setting)
        runner = web.AppRunner(
            self.build_app(),
            access_log=None,
            handler_cancellation=True,  # a node that hangs up must not be waited for
            shutdown_timeout=_SHUTDOWN_SECONDS,
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
        """Replies to all long polls, closes every connection and stops serving. Does nothing if not started."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _close(self, _app: web.Application) -> None:
        self._closing = True
        self._timer.cancel()
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

    def _plan_made(self, plan_result: PlanResult) -> None:
        self.core.plan_made(plan_result, self._clock())
        self._report_diagnostics(plan_result.diagnostics)
        self.tick()

    def _report_diagnostics(self, diagnostics: Mapping[str, str]) -> None:
        now = self._clock()
        self._reported_at = {
            about: at for about, at in self._reported_at.items() if now - at < REPEAT_DIAGNOSTIC_SECONDS
        }
        for about, line in diagnostics.items():
            if about not in self._reported_at:
                self._reported_at[about] = now
                self._on_trouble(line)

    def _plan_failed(self, message: str) -> None:
        if self.core.plan_failed(message, self._clock()):
            self._on_trouble(
                f"no new plan, the last one stays in use: {message}; `p2psync doctor` says whether a hub can plan here"
            )
        self.tick()

    def _settle(self) -> None:
        if self._settling is not None:
            return
        loop = asyncio.get_running_loop()
        gap = min(_WAKE_MAX_SECONDS, _WAKE_SECONDS_PER_MEMBER * len(self.core))
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
