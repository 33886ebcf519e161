"""A trainer with its ledger, a network that loses things, and a clock: what faulty actors meet, in virtual time.

The ledger is the real one. Its journal is a list of changes, of which a crash loses those that were not yet durable;
a call is answered only once they are. The trainer's own state is that of the end of its last step.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

from p2psync.bench.rollouts.replay import Replay
from p2psync.membership.work import Verdict, WorkItem
from p2psync.trainer.ledger.core import Ledger, LedgerConfig, LedgerResult
from p2psync.trainer.ledger.records import LedgerChange

TTL = 5.0
Reply = Callable[[object], None]


class Broken(Exception):
    """A promise that was not kept."""


def digest_of(version: int) -> str:
    """Returns the digest of a published version (hex)."""
    return f"{version:032x}"


class EventClock:
    """Virtual time, and the queue of events."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def after(self, delay: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._count), call))

    def step(self) -> None:
        self.now, _, call = heapq.heappop(self._events)
        call()


class LedgerTrainer:
    """Steps of `items` prompts each; the next step's are put in when the one in hand is complete."""

    def __init__(self, clock: EventClock, rng: random.Random, steps: int, items: int, config: LedgerConfig) -> None:
        self.clock = clock
        self.rng = rng
        self.steps = steps
        self.items = items
        self.config = config
        self._disk = rng.choice([0.05, 1.0])
        self.life = 0
        self.ledger: Ledger | None = None
        self.members: dict[str, tuple[int, float]] = {}  # node → incarnation, until
        self.durable = Replay()
        #: State that outlives a crash: the results of each step that the trainer saved.
        self.trained: list[dict[str, bytes]] = []
        self.acknowledged: dict[str, bytes] = {}
        self.granted: dict[tuple[str, str], str] = {}  # lease, item → node
        self.heard: dict[str, float] = {}
        self.restarts = 0
        self.verdicts: dict[str, int] = {}
        self.hedged = 0
        self._pending: list[LedgerChange] = []
        self._replies: list[Callable[[], None]] = []
        self._batch: dict[str, bytes] = {}

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts from the durable state, as a process would."""
        self.life += 1
        self.members.clear()
        self.heard.clear()
        self._pending, self._replies, self._batch = [], [], {}
        saved = self.durable.saved()
        ledger = self.ledger = Ledger(self.config, record=self._record, saved=saved, now=self.clock.now)
        for _, node, _ in saved.claims:
            self.heard[node] = self.clock.now
        done = len(self.trained)
        ledger.resume(done - 1 if done else None)
        ledger.admit(done, digest_of(done), self.clock.now)
        self._put(done)
        self._later(0.0, self._collect)

    def crash(self) -> None:
        """Loses everything that was not durable."""
        if self.ledger is not None:
            self.hedged += self.ledger.counts.hedged
        self.ledger = None
        self.life += 1
        self.restarts += 1

    @property
    def finished(self) -> bool:
        """Whether all steps were saved."""
        return len(self.trained) >= self.steps

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        life = self.life
        self.clock.after(delay, lambda: call() if self.life == life else None)

    def _record(self, change: LedgerChange) -> None:
        self._pending.append(change)
        if len(self._pending) == 1:
            self._later(self.rng.uniform(0.001, self._disk), self._flush)

    def _flush(self) -> None:
        for change in self._pending:
            self.durable.apply(change)
        self._pending = []
        replies, self._replies = self._replies, []
        for reply in replies:
            reply()

    def _when_durable(self, call: Callable[[], None]) -> None:
        if self._pending:
            self._replies.append(call)
        else:
            call()

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _put(self, step: int) -> None:
        assert self.ledger is not None
        if step < self.steps:
            items = [(f"{step}/{index}", b"prompt") for index in range(self.items)]
            self.ledger.put(step, items, skip_known=True)

    def _collect(self) -> None:
        assert self.ledger is not None
        step = len(self.trained)
        if self.finished:
            return
        taken = self.ledger.take(self.rng.randint(1, 8), step)
        self._when_durable(lambda: self._use(step, taken))

    def _use(self, step: int, taken: list[LedgerResult]) -> None:
        for done in taken:
            if done.item.item in self._batch:
                raise Broken(f"{done.item.item} was given out twice in step {step}")
            self._batch[done.item.item] = done.result
        if len(self._batch) < self.items:
            self._later(self.rng.uniform(0.01, 0.5), self._collect)
            return
        self._put(step + 1)
        self._later(self.rng.uniform(0.1, 3.0), self._save)

    def _save(self) -> None:
        """The step is durable at the trainer's: from here on its results must never come again."""
        step = len(self.trained)
        wanted = {f"{step}/{index}" for index in range(self.items)}
        if set(self._batch) != wanted:
            raise Broken(f"step {step} was trained on {sorted(set(self._batch) ^ wanted)} too many or too few")
        for item, result in self._batch.items():
            if self.acknowledged.get(item, result) != result:
                raise Broken(f"{item} was acknowledged with one result and trained on another")
        self.trained.append(self._batch)
        self._batch = {}
        self._later(self.rng.uniform(0.0, 0.2), self._publish)

    def _publish(self) -> None:
        assert self.ledger is not None
        version = len(self.trained)
        self.ledger.admit(version, digest_of(version), self.clock.now)
        self._later(self.rng.uniform(0.0, 0.2), self._commit)

    def _commit(self) -> None:
        assert self.ledger is not None
        self.ledger.commit_step(len(self.trained) - 1)
        self._when_durable(self._collect)

    # ---- what actors ask -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """End memberships whose time is up."""
        if self.ledger is None:
            return
        for node in [node for node, (_, until) in self.members.items() if until <= self.clock.now]:
            del self.members[node]
            self.ledger.release_node(node)

    def renew(self, node: str, incarnation: int, version: int | None, reply: Reply) -> None:
        """Join, or stay a member."""
        assert self.ledger is not None
        known = self.members.get(node)
        if known is not None and known[0] != incarnation:
            self.ledger.release_node(node)
        self.members[node] = (incarnation, self.clock.now + TTL)
        self.heard[node] = self.clock.now
        self.ledger.renew_node(node, self.clock.now, version)
        reply(len(self.trained))

    def lease(self, node: str, lease: str, most: int, version: int | None, reply: Reply) -> None:
        """Work for a member."""
        assert self.ledger is not None
        if node not in self.members:
            reply(None)
            return
        self.heard[node] = max(self.heard.get(node, 0.0), self.clock.now)
        items: list[WorkItem] = self.ledger.lease(node, lease, most, self.clock.now, version)
        for item in items:
            self.granted[lease, item.item] = node
        reply([item.item for item in items])

    def complete(
        self, lease: str, item: str, result: bytes, version: int, digest: str, tokens: int, reply: Reply
    ) -> None:
        """A result, true or forged."""
        ledger = self.ledger
        assert ledger is not None
        void = ledger.void(lease)
        verdict: Verdict = ledger.complete(lease, item, result, version, digest, self.clock.now, tokens)
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        if verdict == "accepted":
            self._check(ledger, lease, item, version, digest)

        def answer() -> None:
            if verdict == "accepted":
                if item in self.acknowledged:
                    raise Broken(f"{item} was acknowledged twice")
                self.acknowledged[item] = result
            reply((verdict, void))

        self._when_durable(answer)

    def _check(self, ledger: Ledger, lease: str, item: str, version: int, digest: str) -> None:
        if digest != digest_of(version):
            raise Broken(f"{item}: the weights of another version were taken")
        if ledger.head is None or not ledger.head - self.config.max_staleness <= version <= ledger.head:
            raise Broken(f"{item}: version {version} was taken under head {ledger.head}")
        node = self.granted.get((lease, item))
        if node is None:
            raise Broken(f"{item} was taken from one who never leased it")
        if self.clock.now >= self.heard.get(node, -1e9) + self.config.claim_ttl:
            raise Broken(f"{item} was taken from {node}, whose claim had ended")
