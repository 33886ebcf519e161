"""Steps of rollout work in virtual time: actors of different speeds, items of random lengths, the real ledger.

An actor works on `slots` items at a time, each at its part of the actor's rate; with one slot it works on its
leased items one after another. It asks for as many items as it has free slots; answers come after `rtt`. An actor
that got nothing asks again after any change or a quarter second, as actors that wait at the service do.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from p2psync.trainer.ledger.core import Ledger, LedgerConfig

#: How often a waiting actor's share is looked at again (seconds), as in `p2psync.trainer.ledger.service`.
POLL_SECONDS = 0.25
LENGTHS = ("fixed", "exponential", "heavy")
POLICIES = ("equal", "first-come", "allotted")
_DIGEST = "00" * 16


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a simulation.

    speeds: tokens/s of each actor. update_delays: seconds until each has a version ([]: none). lengths: "fixed",
    "exponential" or "heavy" (lognormal, sigma 1). ahead: items an actor without slots leases at a time. claims: by what
    each actor multiplies its tokens when it tells them.
    """

    name: str
    speeds: list[float]
    update_delays: list[float] = []
    claims: list[float] = []
    items: int = 256
    steps: int = 8
    slots: int = 1
    ahead: int = 16
    tokens: float = 512.0
    lengths: str = "exponential"
    rtt: float = 0.1
    seed: int = 1


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a case. seconds: of each step. ideal: of all steps, if every actor always worked at full rate.

    hedged: grants of items that somebody else held. wasted: share of all generated tokens that did not count.
    """

    policy: str
    seconds: list[float]
    ideal: float
    hedged: int
    wasted: float

    @property
    def total(self) -> float:
        """Seconds of all steps."""
        return sum(self.seconds)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One case under each policy, in the order of `POLICIES`."""

    case: Case
    outcomes: list[StepOutcome]


@dataclass
class _PacedActor:
    name: str
    speed: float
    slots: int
    update_delay: float
    lie: float
    queue: list[tuple[str, str]] = field(default_factory=list)  # (lease, item) not begun
    busy: int = 0
    version: int = 0
    has_request: bool = False


class RolloutSimulation:
    """One case under one policy: "equal" (each actor its part at once), "first-come" (each request is granted in full),
    or "allotted"."""

    def __init__(self, case: Case, policy: str) -> None:
        self.case = case
        self.policy = policy
        self.now = 0.0
        update_delays = case.update_delays or [0.0] * len(case.speeds)
        lies = case.claims or [1.0] * len(case.speeds)
        self.actors = [
            _PacedActor(f"{index:03d}", speed, case.slots, update_delay, lie)
            for index, (speed, update_delay, lie) in enumerate(zip(case.speeds, update_delays, lies, strict=True))
        ]
        self.ledger = Ledger(
            LedgerConfig(allot=policy == "allotted", max_staleness=0, claim_ttl=1e9, max_hold=1e9, max_per_node=1 << 16)
        )
        self._length = _lengths(case)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._leases = itertools.count()
        self._remaining = 0
        self._made = self._useful = 0.0

    def run(self) -> StepOutcome:
        """All steps."""
        seconds = []
        for step in range(self.case.steps):
            began = self.now
            self._begin(step)
            while self._remaining:
                self.now, _, call = heapq.heappop(self._events)
                call()
            seconds.append(self.now - began)
        return StepOutcome(
            policy=self.policy,
            seconds=seconds,
            ideal=sum(self._ideal(step) for step in range(self.case.steps)),
            hedged=self.ledger.counts.hedged,
            wasted=1 - self._useful / self._made,
        )

    def _ideal(self, step: int) -> float:
        """The least time in which all actors together can make the step's tokens, each from its update delay on."""
        tokens = sum(self._length(step, index) for index in range(self.case.items))
        begun = sorted((actor.update_delay, actor.speed) for actor in self.actors)
        rate = made = 0.0
        for (update_delay, speed), (following, _) in zip(begun, [*begun[1:], (float("inf"), 0.0)], strict=True):
            rate += speed
            if made + rate * (following - update_delay) >= tokens:
                return update_delay + (tokens - made) / rate
            made += rate * (following - update_delay)
        raise AssertionError("the last interval has no end")

    def _begin(self, step: int) -> None:
        self.ledger.admit(step, _DIGEST, self.now)
        self.ledger.put(step, [(f"{step}/{index}", b"") for index in range(self.case.items)])
        self._remaining = self.case.items
        for actor in self.actors:
            self._at(actor.update_delay, lambda actor=actor: self._updated(actor, step))  # type: ignore[misc]

    def _updated(self, actor: _PacedActor, version: int) -> None:
        actor.version = max(actor.version, version)
        self.ledger.renew_node(actor.name, self.now, actor.version)
        self._ask(actor)

    def _at(self, delay: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._count), call))

    def _free_slots(self, actor: _PacedActor) -> int:
        if self.policy == "equal":
            # Each its part, at once, whatever becomes of it.
            share = -(-self.case.items // len(self.actors))
            return share if not actor.busy and not actor.queue else 0
        if actor.slots == 1:
            return 0 if actor.queue else self.case.ahead
        return actor.slots - actor.busy - len(actor.queue)

    def _ask(self, actor: _PacedActor) -> None:
        if not actor.has_request and self._free_slots(actor) > 0:
            actor.has_request = True
            self._at(self.case.rtt / 2, lambda: self._arrived(actor))

    def _arrived(self, actor: _PacedActor) -> None:
        lease = str(next(self._leases))
        items = self.ledger.lease(actor.name, lease, self._free_slots(actor), self.now, actor.version)
        if items:
            work = [(lease, item.item) for item in items]
            self._at(self.case.rtt / 2, lambda: self._granted(actor, work))
        elif self._remaining:
            self._at(POLL_SECONDS, lambda: self._arrived(actor))

    def _granted(self, actor: _PacedActor, work: list[tuple[str, str]]) -> None:
        actor.has_request = False
        actor.queue += work
        self._start(actor)

    def _start(self, actor: _PacedActor) -> None:
        while actor.queue and actor.busy < actor.slots:
            lease, item = actor.queue.pop(0)
            actor.busy += 1
            step, index = map(int, item.split("/"))
            tokens = self._length(step, index)
            seconds = tokens * actor.slots / actor.speed
            self._at(seconds, lambda lease=lease, item=item, t=tokens: self._finished(actor, lease, item, t))  # type: ignore[misc]
        self._ask(actor)

    def _finished(self, actor: _PacedActor, lease: str, item: str, tokens: float) -> None:
        actor.busy -= 1
        self._made += tokens
        self._at(self.case.rtt / 2, lambda: self._offered(actor, lease, item, tokens))
        self._start(actor)

    def _offered(self, actor: _PacedActor, lease: str, item: str, tokens: float) -> None:
        told = int(tokens * actor.lie)
        version = int(item.split("/")[0])
        void = set(self.ledger.void(lease))
        verdict = self.ledger.complete(lease, item, b"", version, _DIGEST, self.now, told)
        actor.queue = [(lease, waiting) for lease, waiting in actor.queue if waiting not in void]
        if verdict == "accepted":
            self._useful += tokens
            self._remaining -= 1
            self.ledger.take(1)
            self.ledger.commit_step()


def _lengths(case: Case) -> Callable[[int, int], float]:
    """Tokens of an item of a step: the same whoever works on it, under whatever policy."""

    def length(step: int, index: int) -> float:
        rng = random.Random(f"{case.seed}/{step}/{index}")
        match case.lengths:
            case "fixed":
                return case.tokens
            case "exponential":
                return case.tokens * max(rng.expovariate(1.0), 0.02)
            case _:
                return case.tokens * rng.lognormvariate(-0.5, 1.0)

    return length


def compare(case: Case, policies: Sequence[str] = POLICIES) -> list[StepOutcome]:
    """Returns the outcomes of a case under each policy."""
    return [RolloutSimulation(case, policy).run() for policy in policies]


def cases(seed: int = 1, steps: int = 8) -> list[Case]:
    """The cases of `p2psync sim rollouts`."""
    two, four = [1000.0, 3000.0], [1000.0, 1000.0, 1000.0, 5000.0]
    shown = [
        Case(name="1:3", speeds=two),
        Case(name="1:3, all of one length", speeds=two, lengths="fixed"),
        Case(name="1:3, heavy tail", speeds=two, lengths="heavy"),
        Case(name="1:3, the slow one claims tenfold", speeds=two, claims=[10.0, 1.0]),
        Case(name="1:3, 32 at a time", speeds=two, slots=32, items=512),
        Case(name="4 × 1:3, 32 at a time", speeds=two * 4, slots=32, items=1024),
        Case(name="1:1:1:5", speeds=four),
        Case(name="1:1:1:5, 32 at a time", speeds=four, slots=32, items=512),
        Case(name="1:1:1:1, one gets versions late", speeds=[2000.0] * 4, update_delays=[1.0, 1.0, 1.0, 12.0]),
        Case(name="16 equal", speeds=[1000.0] * 16),
    ]
    return [msgspec.structs.replace(case, seed=seed, steps=steps) for case in shown]
