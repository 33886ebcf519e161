"""A small fleet of actors that die, hang, lie, come late and repeat themselves, and a trainer that is killed: each seed
one drawn history. Every prompt must be answered exactly once per step, and nothing stale be admitted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from p2psync.bench.rollouts.world import TTL, Broken, EventClock, LedgerTrainer, digest_of
from p2psync.trainer.ledger.core import LedgerConfig

#: Faults end after so many virtual seconds, and everything must be done after so many more.
FAULTY, LIMIT = 120.0, 4000.0
_TIMEOUT = 20.0


class LedgerHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one seed."""

    seed: int
    seconds: float
    steps: int
    prompts: int
    deaths: int
    restarts: int
    cuts: int
    hedged: int
    verdicts: dict[str, int]


class Swept(msgspec.Struct, kw_only=True):
    """The outcomes of many seeds. seconds: virtual, of the longest."""

    seeds: int = 0
    failed: int = 0
    seconds: float = 0.0
    steps: int = 0
    prompts: int = 0
    deaths: int = 0
    restarts: int = 0
    cuts: int = 0
    hedged: int = 0
    verdicts: dict[str, int] = {}


@dataclass
class _FaultyActor:
    world: FaultyWorld
    name: str
    speed: float
    liar: bool
    incarnation: int = 0
    version: int | None = None
    alive: bool = True
    cut: bool = False
    stuck: bool = False
    working: bool = False
    has_request: bool = False
    unanswered: str | None = None
    queue: list[tuple[str, str]] = field(default_factory=list)
    seen: list[tuple[str, str, bytes, int]] = field(default_factory=list)

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new process of the same node."""
        self.incarnation += 1
        self.alive, self.working, self.has_request, self.stuck = True, False, False, False
        self.version, self.unanswered, self.queue = None, None, []
        self._renew()

    def kill(self) -> None:
        self.alive = False
        self.incarnation += 1

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        incarnation = self.incarnation
        self.world.clock.after(delay, lambda: call() if self.alive and self.incarnation == incarnation else None)

    def _ask_world(
        self, call: Callable[[LedgerTrainer, Callable[[object], None]], None], got: Callable[[object], None]
    ) -> None:
        """A request and its answer, each of which may be lost, late or doubled."""
        world, rng = self.world, self.world.rng
        incarnation = self.incarnation

        def answered(answer: object) -> None:
            if rng.random() >= world.loss and not self.cut:
                world.clock.after(
                    world.delay(), lambda: got(answer) if self.alive and self.incarnation == incarnation else None
                )

        def arrive() -> None:
            if world.trainer.ledger is not None and not self.cut:
                call(world.trainer, answered)

        for _ in range(2 if rng.random() < world.doubled else 1):
            if rng.random() >= world.loss and not self.cut:
                world.clock.after(world.delay(), arrive)

    # ---- what it does ----------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        def got(head: object) -> None:
            assert isinstance(head, int)
            if self.version is None or head > self.version:
                self._later(self.world.rng.uniform(0.05, 4.0), lambda: self._commit(head))
            self._ask()

        self._ask_world(lambda t, reply: t.renew(self.name, self.incarnation, self.version, reply), got)
        self._later(TTL / 3, self._renew)

    def _commit(self, version: int) -> None:
        self.version = max(version, self.version or 0)

    def _ask(self) -> None:
        if self.has_request or self.queue or self.version is None:
            return
        self.has_request = True
        lease = self.unanswered or f"{self.name}-{self.world.rng.getrandbits(60):x}"
        most, version = self.world.rng.randint(1, 6), self.version
        self.unanswered = lease

        def got(items: object) -> None:
            if self.unanswered != lease:
                return
            self.unanswered, self.has_request = None, False
            self.queue += [(lease, item) for item in items or ()]  # type: ignore[attr-defined]
            self._work()
            if not self.queue:
                self._later(0.3, self._ask)

        def again() -> None:
            if self.unanswered == lease:
                self.has_request = False
                self._ask()

        self._ask_world(lambda t, reply: t.lease(self.name, lease, most, version, reply), got)
        self._later(2.0, again)

    def _work(self) -> None:
        if self.working or self.stuck or not self.queue:
            return
        self.working = True
        lease, item = self.queue.pop(0)
        rng = self.world.rng
        version = self.version or 0
        tokens = 1 + int(rng.expovariate(1 / 200))
        self._later(tokens / self.speed, lambda: self._finish(lease, item, version, tokens))

    def _finish(self, lease: str, item: str, version: int, tokens: int) -> None:
        self.working = False
        result = f"{item} by {self.name} {self.incarnation} under {version} {tokens}".encode()
        if self.liar and self.world.rng.random() < 0.5:
            self._lie(lease, item)
        self.seen.append((lease, item, result, version))
        self._offer(lease, item, result, version, tokens * (50 if self.liar else 1), self.world.clock.now + _TIMEOUT)
        self._work()
        self._ask()

    def _offer(self, lease: str, item: str, result: bytes, version: int, tokens: int, until: float) -> None:
        answered = False

        def got(answer: object) -> None:
            nonlocal answered
            answered = True
            void = answer[1]  # type: ignore[index]
            self.queue = [work for work in self.queue if work[1] not in void]
            self._ask()

        def again() -> None:
            if not answered and self.world.clock.now < until:
                self._offer(lease, item, result, version, tokens, until)

        digest = digest_of(version)
        self._ask_world(lambda t, reply: t.complete(lease, item, result, version, digest, tokens, reply), got)
        self._later(2.0, again)

    def _lie(self, lease: str, item: str) -> None:
        """Hands in a false result, or an old one once more."""
        rng = self.world.rng
        version = self.version or 0
        forged = b"forged"
        lies = [
            (lease, item, version, digest_of(version + 1)),
            (lease, item, version + 3, digest_of(version + 3)),
            (lease, item, version - 3, digest_of(version - 3)),
            ("made up", item, version, digest_of(version)),
            (lease, "0/999", version, digest_of(version)),
            (lease, f"{item.split('/')[0]}/{rng.randrange(8)}x", version, digest_of(version)),
        ]
        for other in self.world.actors:  # a stolen lease for weights that nobody published, and an old result again
            lies += [(old[0], old[1], version, "ff" * 16) for old in other.seen[-1:]]
        said = rng.choice(lies)
        self._ask_world(lambda t, reply: t.complete(said[0], said[1], forged, said[2], said[3], 10**9, reply), _ignore)
        if self.seen:
            old = rng.choice(self.seen)
            digest = digest_of(old[3])
            self._ask_world(lambda t, reply: t.complete(old[0], old[1], old[2], old[3], digest, 1, reply), _ignore)


def _ignore(_answer: object) -> None:
    pass


class FaultyWorld:
    """A world of faults drawn from one seed."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.clock = EventClock()
        self.seed = seed
        self.loss = rng.choice([0.0, 0.02, 0.2])
        self.doubled = rng.choice([0.0, 0.1])
        self._slow = rng.choice([0.05, 1.0])
        config = LedgerConfig(
            claim_ttl=rng.choice([6.0, 12.0]),
            max_hold=rng.choice([20.0, 60.0]),
            max_staleness=rng.choice([0, 1, 1, 2]),
            allot=rng.random() < 0.8,
            hedge_margin=rng.choice([0.0, 1.0, 1.25]),
            max_done_bytes=rng.choice([120, 1 << 20]),
        )
        self.trainer = LedgerTrainer(self.clock, rng, rng.randint(2, 6), rng.randint(1, 24), config)
        count = rng.randint(1, 6)
        self.actors = [
            _FaultyActor(self, f"n{index}", rng.choice([30.0, 100.0, 300.0]), liar=index > 0 and rng.random() < 0.3)
            for index in range(count)
        ]
        self.deaths = self.cuts = 0
        self._faults: list[Callable[[], None]] = [self._kill, self._cut, self._stick, self._restart]

    def delay(self) -> float:
        """The delay of one message."""
        return self.rng.uniform(0.001, self._slow) * (10 if self.rng.random() < 0.02 else 1)

    def run(self) -> LedgerHistory:
        """Runs until all steps are saved. Raises `Broken`."""
        self.trainer.start()
        for actor in self.actors:
            self.clock.after(self.rng.uniform(0, 2), actor.start)
        self._tick()
        self._fault()
        while not self.trainer.finished:
            self.clock.step()
            if self.clock.now > LIMIT:
                raise Broken(f"step {len(self.trainer.trained)} is not done after {LIMIT:.0f} s")
        return LedgerHistory(
            seed=self.seed,
            seconds=self.clock.now,
            steps=self.trainer.steps,
            prompts=self.trainer.steps * self.trainer.items,
            cuts=self.cuts,
            deaths=self.deaths,
            restarts=self.trainer.restarts,
            hedged=self.trainer.hedged + (self.trainer.ledger.counts.hedged if self.trainer.ledger else 0),
            verdicts=self.trainer.verdicts,
        )

    def _tick(self) -> None:
        self.trainer.tick()
        self.clock.after(0.5, self._tick)

    def _fault(self) -> None:
        if self.clock.now < FAULTY:
            self.rng.choice(self._faults)()
            self.clock.after(self.rng.expovariate(1 / 4), self._fault)

    def _kill(self) -> None:
        actor = self.rng.choice(self.actors)
        if actor.alive:
            self.deaths += 1
            actor.kill()
            self.clock.after(self.rng.choice([0.1, 3.0, 20.0]), actor.start)

    def _cut(self) -> None:
        actor = self.rng.choice(self.actors)
        actor.cut = True
        self.cuts += 1
        self.clock.after(self.rng.uniform(0.5, 15.0), lambda: setattr(actor, "cut", False))

    def _stick(self) -> None:
        """Makes a random actor hang for a while: it only renews its lease."""
        actor = self.rng.choice(self.actors)
        actor.stuck = True

        def free() -> None:
            actor.stuck = False
            actor._work()

        self.clock.after(self.rng.uniform(1.0, 40.0), free)

    def _restart(self) -> None:
        if self.trainer.ledger is not None:
            self.trainer.crash()
            self.clock.after(self.rng.choice([0.1, 2.0, 10.0]), self.trainer.start)


def simulate(seed: int) -> LedgerHistory:
    """One seed. Raises `Broken`."""
    return FaultyWorld(seed).run()


def sweep(seeds: range, tell: Callable[[str], None]) -> Swept:
    """Every seed; what broke is told in a line each."""
    swept = Swept(seeds=len(seeds))
    for seed in seeds:
        try:
            history = simulate(seed)
        except Exception as error:
            swept.failed += 1
            tell(f"seed {seed}: {type(error).__name__}: {error}")
            continue
        swept.seconds = max(swept.seconds, history.seconds)
        for name in ("steps", "prompts", "deaths", "restarts", "cuts", "hedged"):
            setattr(swept, name, getattr(swept, name) + getattr(history, name))
        for verdict, count in history.verdicts.items():
            swept.verdicts[verdict] = swept.verdicts.get(verdict, 0) + count
    return swept
