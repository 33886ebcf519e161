"""The hub in the simulation: the real core, called over a network that may delay or lose calls and replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from p2psync.errors import HubError, P2PSyncError
from p2psync.membership.hub import HubConfig, HubCore
from p2psync.membership.planning import Planner, PlanTask
from p2psync.membership.records import View
from p2psync.sim.clock import VirtualClock
from p2psync.sim.network import SimHost

#: Seconds of a long poll, of a caller's wait for a lost reply, and of a connection refused by a stopped hub.
LONG_POLL_SECONDS = 10.0
CALL_TIMEOUT_SECONDS = 3.0
REFUSED_SECONDS = 0.05
_LATENCY_SECONDS = 0.02
#: Seconds that a plan takes.
_PLAN_SECONDS = 0.1

T = TypeVar("T")
#: Receives a call's result, or its error.
AnswerCallback = Callable[[T | P2PSyncError], None]


@dataclass(eq=False)
class _LongPoll:
    """An open long poll."""

    host: SimHost
    known: int
    answer: AnswerCallback[View | None]
    lease: str
    whole: bool


class SimHub:
    """A sequence of hub processes at one address."""

    def __init__(
        self, clock: VirtualClock, config: HubConfig, planner: Callable[[], Planner | None] = lambda: None
    ) -> None:
        """planner: makes a planner for each process; None: there are no plans."""
        self._clock = clock
        self._config = config
        self._new_planner = planner
        self._planner: Planner | None = None
        self._plan_wake: float | None = None
        self._starts = 0
        self._waiting: list[_LongPoll] = []
        self._secrets = 0
        self._shown = -1
        self._expiry: float | None = None
        #: Probability that a call, or its reply, is lost.
        self.loss = 0.0
        #: Hosts that cannot reach the hub.
        self.cut_off: set[str] = set()
        self.up = True
        self.core = self._start()

    def secret(self) -> str:
        """Returns a fresh lease id, nonce or token."""
        self._secrets += 1
        return f"secret-{self._secrets}"

    def stop(self) -> None:
        """Ends the process; open polls fail."""
        self.up = False
        waiting, self._waiting = self._waiting, []
        for poll in waiting:
            self._reply(poll.host, poll.answer, HubError("the hub went away"))

    def restart(self) -> None:
        """Starts a new process without state."""
        self.core = self._start()
        self.up = True

    def request(self, host: SimHost, operation: Callable[[HubCore], T], answer: AnswerCallback[T]) -> None:
        """Runs an operation at the hub; `answer` receives its result or error, unless the host has crashed."""
        if self._is_lost(host):
            self._clock.after(CALL_TIMEOUT_SECONDS, _answer, host, answer, HubError("no answer"))
        else:
            self._clock.after(self._delay(host), self._carry_out, host, operation, answer)

    def view(
        self,
        host: SimHost,
        instance: str,
        revision: int,
        answer: AnswerCallback[View | None],
        lease: str = "",
        *,
        whole: bool = True,
    ) -> None:
        """Long-polls the view: replies at once if it differs from the caller's, otherwise at a change, or with None at
        the end."""
        if self._is_lost(host):
            self._clock.after(CALL_TIMEOUT_SECONDS + LONG_POLL_SECONDS, _answer, host, answer, HubError("no answer"))
        else:
            self._clock.after(self._delay(host), self._poll, host, instance, revision, answer, lease, whole)

    def crashed(self, host: SimHost) -> None:
        """A host's process ended, and the hub sees its connections close, unless the host is cut off or the event is
        lost."""
        if self.up and not self._is_lost(host):
            self._clock.after(self._delay(host), self._suspect, host)

    def _suspect(self, host: SimHost) -> None:
        mine = [poll for poll in self._waiting if poll.host is host]
        self._waiting = [poll for poll in self._waiting if poll.host is not host]
        for poll in mine:
            self.core.suspect(poll.lease, self._clock.now)
        self._settle()

    def _start(self) -> HubCore:
        self._starts += 1
        self._planner = self._new_planner()
        return HubCore(self._config, instance=f"hub-{self._starts}")

    def _is_lost(self, host: SimHost) -> bool:
        return host.name in self.cut_off or (self.loss > 0 and self._clock.rng.random() < self.loss)

    def _delay(self, host: SimHost) -> float:
        return host.delay + _LATENCY_SECONDS

    def _carry_out(self, host: SimHost, operation: Callable[[HubCore], T], answer: AnswerCallback[T]) -> None:
        if not self.up:
            self._clock.after(REFUSED_SECONDS, _answer, host, answer, HubError("connection refused"))
            return
        try:
            result: T | P2PSyncError = operation(self.core)
        except P2PSyncError as error:
            result = error
        self._reply(host, answer, result)
        self._settle()

    def _poll(
        self, host: SimHost, instance: str, revision: int, answer: AnswerCallback[View | None], lease: str, whole: bool
    ) -> None:
        if not self.up:
            self._clock.after(REFUSED_SECONDS, _answer, host, answer, HubError("connection refused"))
            return
        self.core.heard_from(lease, self._clock.now)
        if (instance, revision) != (self.core.instance, self.core.revision):
            same = instance == self.core.instance
            known = revision if same else 0 if instance else -1
            self._reply(host, answer, self._view(known, whole or not same))
        else:
            poll = _LongPoll(host, revision, answer, lease, whole)
            self._shown = revision
            self._waiting.append(poll)
            self._clock.after(LONG_POLL_SECONDS, self._end_poll, poll)
        self._settle()

    def _end_poll(self, poll: _LongPoll) -> None:
        if poll in self._waiting:
            self._waiting.remove(poll)
            self._reply(poll.host, poll.answer, None)

    def _reply(self, host: SimHost, answer: AnswerCallback[T], result: T | P2PSyncError) -> None:
        if self._is_lost(host):
            self._clock.after(CALL_TIMEOUT_SECONDS, _answer, host, answer, HubError("no answer"))
        else:
            self._clock.after(self._delay(host), _answer, host, answer, result)

    def _settle(self) -> None:
        """Does what the hub's driver does after each operation: ends leases, wakes long polls, sets the next timer."""
        self.core.expire(self._clock.now)
        self._plan()
        self._wake()
        expiry = self.core.next_expiry()
        if expiry is not None and (self._expiry is None or expiry < self._expiry or self._expiry <= self._clock.now):
            self._expiry = expiry
            self._clock.at(expiry, self._settle)

    def _wake(self) -> None:
        if not self._waiting or self._shown == self.core.revision:
            return
        self._shown = self.core.revision
        waiting, self._waiting = self._waiting, []
        views: dict[tuple[int, bool], View] = {}  # shared by equal readers, as in the hub's service
        for poll in waiting:
            kind = poll.known, poll.whole
            if kind not in views:
                views[kind] = self._view(*kind)
            self._reply(poll.host, poll.answer, views[kind])

    def _view(self, known: int, whole: bool) -> View:
        return (None if whole else self.core.changes(known)) or self.core.view(known)

    def _plan(self) -> None:
        if self._planner is None:
            return
        now, core = self._clock.now, self.core
        task = core.begin_plan(now)
        if task is not None:
            self._clock.after(_PLAN_SECONDS, self._make_plan, core, task)
        due = core.next_plan()
        if due < float("inf") and (self._plan_wake is None or due < self._plan_wake or self._plan_wake <= now):
            self._plan_wake = due
            self._clock.at(due, self._settle)

    def _make_plan(self, core: HubCore, task: PlanTask) -> None:
        if core is not self.core or self._planner is None:
            return  # the process that began the plan has ended
        try:
            core.plan_made(self._planner.plan(task), self._clock.now)
        except ArithmeticError as error:
            core.plan_failed(str(error), self._clock.now)
        self._clock.note("plan", core.instance, core.revision)
        self._settle()


def _answer(host: SimHost, answer: AnswerCallback[T], result: T | P2PSyncError) -> None:
    if host.alive:
        answer(result)
