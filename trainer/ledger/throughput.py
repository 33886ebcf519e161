"""How fast each node works, and when it will have the newest version: what the ledger itself saw of it.

A node's rate is tokens of accepted results over the time during which it held work, both fading with each result, so
that about the last sixteen count whatever their length. Time is the ledger's own, from lease to result. Tokens are
what the node claims, within what can be: no faster than `max_rate` while the item was held, and in the mean of its
results no more than `MAX_CLAIM_RATIO` times what the middle one of all nodes claims. So a liar's rate is at most that
much too high, for as long as it really delivers results that count.

`stream` is the best rate of one item alone, fading too: a node that works on many items at once is fast in all, but
none of its items takes less than its tokens over `stream`.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

#: What stays of the past with each result: about the last sixteen count.
DECAY = 1 - 1 / 16
#: How many times the middle node's tokens per item a node may claim.
MAX_CLAIM_RATIO = 2.0
#: A node that holds nothing and did not ask for so long is not reckoned with (seconds).
ABSENT_SECONDS = 10.0
#: Nodes remembered; beyond it those unseen for longest are forgotten.
MAX_NODES = 65536
#: What a new sample counts in means of lags and intervals.
_NEW = 0.5
_STREAM_DECAY = 0.98
#: No result is reckoned to have taken less time than this (seconds).
_MIN_HELD_SECONDS = 1e-3


@dataclass(slots=True)
class WorkerStats:
    """One node. tokens, busy (seconds), items: fading sums. mark: when it last finished, or began to be busy.

    held: items it has claimed. lag: seconds from a version's admission to its acknowledgement, None: not known.
    """

    seen: float = 0.0
    held: int = 0
    mark: float = 0.0
    tokens: float = 0.0
    busy: float = 0.0
    items: float = 0.0
    stream: float = 0.0
    version: int | None = None
    lag: float | None = None


@dataclass(frozen=True, slots=True)
class NodeForecast:
    """What is expected of a node, in seconds from now.

    ready: when it can begin under a version that will do. start: when it will be through with what it holds. each:
    how much later each further item is finished. least: what one item takes at least.
    """

    ready: float
    start: float
    each: float
    least: float

    def finish(self, items: int) -> float:
        """When it would be through with so many items more."""
        return max(self.start + items * self.each, self.ready + self.least)

    def capacity(self, until: float) -> int:
        """How many items more it would finish by then."""
        if until < self.ready + self.least:
            return 0
        return max(0, int((until - self.start) / self.each + 1e-9))


class Throughput:
    """All nodes' rates and lags. Times are seconds on the ledger's clock."""

    def __init__(self, max_staleness: int, max_rate: float) -> None:
        """max_rate: tokens a second that no node can pass."""
        self.workers: dict[str, WorkerStats] = {}
        self.head: int | None = None
        self._staleness = max_staleness
        self._max_rate = max_rate
        self._admitted_at = 0.0
        self._interval: float | None = None
        self._mean = 1.0
        self._rate = 1.0

    def admitted(self, version: int, now: float) -> None:
        """`version` is the newest from now on."""
        if self.head is not None and now > self._admitted_at:
            self._interval = _blend(self._interval, now - self._admitted_at)
        self.head, self._admitted_at = version, now

    def asked(self, node: str, version: int | None, now: float) -> None:
        """A node asked for work. version: what it would use, if it said so."""
        worker = self.workers.get(node) or self._new(node)
        worker.seen = now
        if version is not None:
            self.acknowledged(node, version, now)

    def acknowledged(self, node: str, version: int, now: float) -> None:
        """A node runs `version`. One that never asked for work is passed over."""
        worker = self.workers.get(node)
        if worker is None:
            return
        if version == self.head and worker.version != version:
            worker.lag = _blend(worker.lag, now - self._admitted_at)
        worker.version = version

    def leased(self, node: str, items: int, now: float) -> None:
        """A node claimed items."""
        worker = self.workers.get(node) or self._new(node)
        if worker.held == 0:
            worker.mark = now
        worker.held += items

    def returned(self, node: str, items: int) -> None:
        """Claims of a node ended without a result that counts."""
        worker = self.workers.get(node)
        if worker is not None:
            worker.held -= items

    def overtaken(self, node: str, now: float) -> None:
        """Somebody else was sooner with an item of this node's, whose silence tells how fast it is at most."""
        worker = self.workers.get(node)
        if worker is None:
            return
        worker.held -= 1
        silence = now - worker.mark
        if silence * self._rate_of(worker, worker.mark) > self._mean:
            self._add(worker, self._mean, silence, now)

    def completed(self, node: str, tokens: int, held_for: float, now: float) -> None:
        """A result of a node counts. tokens: as claimed, 0: not told. held_for: seconds since the lease."""
        worker = self.workers.get(node)
        if worker is None:
            return
        counted = min(float(tokens) or self._mean, self._max_rate * max(held_for, _MIN_HELD_SECONDS))
        worker.stream = max(_STREAM_DECAY * worker.stream, counted / max(held_for, _MIN_HELD_SECONDS))
        worker.held -= 1
        self._add(worker, counted, now - worker.mark, now)

    @property
    def node_count(self) -> int:
        """How many nodes are remembered."""
        return len(self.workers)

    def is_measured(self, node: str) -> bool:
        """Whether anything is known of the node's rate."""
        worker = self.workers.get(node)
        return worker is not None and worker.items > 0

    def rate(self, node: str, now: float) -> float:
        """Tokens a second; of a node that nothing is known of, the middle one's."""
        worker = self.workers.get(node)
        return self._rate if worker is None else self._rate_of(worker, now)

    def active(self, now: float) -> list[str]:
        """Nodes that hold work or asked for it lately."""
        return [node for node, w in self.workers.items() if w.held or now - w.seen <= ABSENT_SECONDS]

    def forecast(self, node: str, now: float, held: int | None = None) -> NodeForecast:
        """What is expected of a node, if it holds so many items (None: as many as it does)."""
        worker = self.workers.get(node) or WorkerStats(seen=now)
        held = worker.held if held is None else held
        each = self._mean / self._rate_of(worker, now)
        silence = now - worker.mark if worker.held else 0.0
        ready = self._ready(worker, now)
        # One that has been silent for long will be for about as long again, whatever it did before.
        backlog = max((held - min(silence / each, held / 2)) * each, silence / 2) if held else 0.0
        least = self._mean / worker.stream if worker.stream else each
        return NodeForecast(ready=ready, start=ready + backlog, each=each, least=least)

    def refresh(self) -> None:
        """Reckon anew what is the middle of all nodes."""
        node_count = [worker for worker in self.workers.values() if worker.items]
        if not node_count:
            return
        self._mean = max(statistics.median_low(w.tokens / w.items for w in node_count), 1e-9)
        self._rate = statistics.median_low(
            max(min(w.tokens, MAX_CLAIM_RATIO * self._mean * w.items), 1e-9) / max(w.busy, _MIN_HELD_SECONDS)
            for w in node_count
        )

    def can_finish_in_time(self, node: str, now: float) -> bool:
        """Whether what the node begins now can be handed in before it is too old.

        False only while a newer version is on its way to it, and what it runs will be refused before it could finish.
        """
        worker = self.workers.get(node)
        if worker is None or worker.version is None or self.head is None or worker.version >= self.head:
            return True
        if worker.version < self.head - self._staleness:
            return False
        if self._interval is None:
            return True
        until = self._admitted_at + (worker.version + self._staleness + 1 - self.head) * self._interval
        return now > until or now + self.forecast(node, now).least <= until

    def _ready(self, worker: WorkerStats, now: float) -> float:
        if worker.version is None or self.head is None or worker.version >= self.head - self._staleness:
            return 0.0
        lags = [w.lag for w in self.workers.values() if w.lag is not None]
        lag = worker.lag if worker.lag is not None else statistics.median(lags) if lags else 0.0
        waited = now - self._admitted_at
        return max(lag - waited, waited / 2)

    def _rate_of(self, worker: WorkerStats, now: float) -> float:
        if not worker.items:
            return self._rate
        tokens = min(worker.tokens, MAX_CLAIM_RATIO * self._mean * worker.items)
        silence = now - worker.mark if worker.held else 0.0
        return max(tokens, 1e-9) / max(worker.busy + silence, _MIN_HELD_SECONDS)

    def _add(self, worker: WorkerStats, tokens: float, busy: float, now: float) -> None:
        worker.tokens = DECAY * worker.tokens + tokens
        worker.busy = DECAY * worker.busy + max(busy, 0.0)
        worker.items = DECAY * worker.items + 1
        worker.mark = now

    def _new(self, node: str) -> WorkerStats:
        if len(self.workers) >= MAX_NODES:
            idle = [(worker.seen, name) for name, worker in self.workers.items() if not worker.held]
            if idle:
                del self.workers[min(idle)[1]]
        self.workers[node] = worker = WorkerStats()
        return worker


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _NEW * (new - old)
