"""Measures how fast each node works, and how soon it has the newest version, from what the ledger itself sees.

A node's rate is tokens of accepted results over the time during which it held work, both decaying with each result, so
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

#: Weight of the past with each result: about the last sixteen count.
DECAY = 1 - 1 / 16
#: How many times the median node's tokens per item a node may claim.
MAX_CLAIM_RATIO = 2.0
#: A node that holds no item and did not ask for work for so long does not count (seconds).
ABSENT_SECONDS = 10.0
#: Nodes remembered; beyond it the node unseen for longest is forgotten.
MAX_NODES = 65536
#: Weight of a new sample in the means of update delays and intervals.
_NEW = 0.5
_STREAM_DECAY = 0.98
#: A result counts as having taken this time at least.
_MIN_HELD_SECONDS = 1e-3


@dataclass(slots=True)
class WorkerStats:
    """The measurements of one node.

    seen: when it last asked for work. held: items it has claimed. mark: when it last finished, or began to be busy.
    tokens, busy (seconds), items: decaying sums. stream: tokens a second of one item alone. version: that it runs.
    update_delay: seconds from a version's admission to its acknowledgement, None: not known.
    """

    seen: float = 0.0
    held: int = 0
    mark: float = 0.0
    tokens: float = 0.0
    busy: float = 0.0
    items: float = 0.0
    stream: float = 0.0
    version: int | None = None
    update_delay: float | None = None


@dataclass(frozen=True, slots=True)
class NodeForecast:
    """The expected finish times of a node, in seconds from now.

    ready: when it can begin under an admissible version. start: when it will have finished the items that it holds.
    each: how much later each further item is finished. least: the least time that one item takes.
    """

    ready: float
    start: float
    each: float
    least: float

    def finish(self, items: int) -> float:
        """Returns when it would have finished `items` items more."""
        return max(self.start + items * self.each, self.ready + self.least)

    def capacity(self, until: float) -> int:
        """Returns how many items more it would finish by `until`."""
        if until < self.ready + self.least:
            return 0
        return max(0, int((until - self.start) / self.each + 1e-9))


class Throughput:
    """Measures the rates and update delays of all nodes. Times are seconds on the ledger's clock."""

    def __init__(self, max_staleness: int, max_rate: float) -> None:
        """max_staleness: see `LedgerConfig`. max_rate: tokens a second that no node can pass."""
        self.workers: dict[str, WorkerStats] = {}
        self.head: int | None = None
        self._staleness = max_staleness
        self._max_rate = max_rate
        self._admitted_at = 0.0
        self._interval: float | None = None
        self._mean = 1.0
        self._rate = 1.0

    def admitted(self, version: int, now: float) -> None:
        """Take in that `version` is the newest from now on."""
        if self.head is not None and now > self._admitted_at:
            self._interval = _blend(self._interval, now - self._admitted_at)
        self.head, self._admitted_at = version, now

    def asked(self, node: str, version: int | None, now: float) -> None:
        """Take in that a node asked for work. version: that it would use, None: unknown."""
        worker = self.workers.get(node) or self._new(node)
        worker.seen = now
        if version is not None:
            self.acknowledged(node, version, now)

    def acknowledged(self, node: str, version: int, now: float) -> None:
        """Take in that a node runs `version`. A node that never asked for work is ignored."""
        worker = self.workers.get(node)
        if worker is None:
            return
        if version == self.head and worker.version != version:
            worker.update_delay = _blend(worker.update_delay, now - self._admitted_at)
        worker.version = version

    def leased(self, node: str, items: int, now: float) -> None:
        """Take in that a node claimed `items` items."""
        worker = self.workers.get(node) or self._new(node)
        if worker.held == 0:
            worker.mark = now
        worker.held += items

    def returned(self, node: str, items: int) -> None:
        """Take in that claims of a node on `items` items ended without a result that counted."""
        worker = self.workers.get(node)
        if worker is not None:
            worker.held -= items

    def overtaken(self, node: str, now: float) -> None:
        """Take in that another node finished an item of this node's first: its silence bounds its rate."""
        worker = self.workers.get(node)
        if worker is None:
            return
        worker.held -= 1
        silence = now - worker.mark
        if silence * self._rate_of(worker, worker.mark) > self._mean:
            self._add(worker, self._mean, silence, now)

    def completed(self, node: str, tokens: int, held_for: float, now: float) -> None:
        """Take in a node's accepted result. tokens: as claimed, 0: unknown. held_for: seconds since the lease."""
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
        """Returns whether the node has finished an item, so that its rate is known."""
        worker = self.workers.get(node)
        return worker is not None and worker.items > 0

    def rate(self, node: str, now: float) -> float:
        """Returns tokens a second of a node; the median of all for a node that was not measured."""
        worker = self.workers.get(node)
        return self._rate if worker is None else self._rate_of(worker, now)

    def active(self, now: float) -> list[str]:
        """Returns the nodes that hold work, or asked for it within `ABSENT_SECONDS`."""
        return [node for node, w in self.workers.items() if w.held or now - w.seen <= ABSENT_SECONDS]

    def forecast(self, node: str, now: float, held: int | None = None) -> NodeForecast:
        """Returns the expected finish times of a node, if it holds `held` items (None: as many as it does)."""
        worker = self.workers.get(node) or WorkerStats(seen=now)
        held = worker.held if held is None else held
        each = self._mean / self._rate_of(worker, now)
        silence = now - worker.mark if worker.held else 0.0
        ready = self._ready(worker, now)
        # A node that has been silent for long is expected to be for about as long again, whatever its rate was.
        backlog = max((held - min(silence / each, held / 2)) * each, silence / 2) if held else 0.0
        least = self._mean / worker.stream if worker.stream else each
        return NodeForecast(ready=ready, start=ready + backlog, each=each, least=least)

    def refresh(self) -> None:
        """Compute the medians over all nodes again."""
        node_count = [worker for worker in self.workers.values() if worker.items]
        if not node_count:
            return
        self._mean = max(statistics.median_low(w.tokens / w.items for w in node_count), 1e-9)
        self._rate = statistics.median_low(
            max(min(w.tokens, MAX_CLAIM_RATIO * self._mean * w.items), 1e-9) / max(w.busy, _MIN_HELD_SECONDS)
            for w in node_count
        )

    def can_finish_in_time(self, node: str, now: float) -> bool:
        """Returns whether an item that the node begins now can be handed in before its version is too old.

        False only while a newer version is on its way to the node, and results under the version that it runs will be
        refused before it could finish one.
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
        delay = worker.update_delay
        if delay is None:
            known = [other.update_delay for other in self.workers.values() if other.update_delay is not None]
            delay = statistics.median(known) if known else 0.0
        waited = now - self._admitted_at
        return max(delay - waited, waited / 2)

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
