"""The publisher's in-flight window: how many chunks of a manifest may be in flight down the trees.

The publisher sees its own children only; a slow link further down shows in chunks that receivers lack. The window is
what the trees carry in one latency (Little's law), times a gain as in BBR's congestion control (Cardwell et al., 2017),
plus some chunks for each path so that no relay is idle:

    size = gain * rate * latency + per_path * paths

- rate: chunks/s, the planned rate, or the highest delivery rate of the last intervals.
- latency: mean seconds until a receiver holds a chunk; of each path the least sample, which met the shortest queues;
  over the paths, halfway from the least to the mean by planned rates; `latency_first` before the first sample.

A chunk counts as the share of the receivers that lack it, and leaves the window when all of them hold it, or after
`chunk_timeout`. A straggler, which alone would fill half of the window (of two receivers three quarters), does not
count as a receiver, so that it does not stop the others. Small manifests have no window (`PublisherSender._window`).

Trees in which the publisher has the same children form a path. A path may fill a multiple of its share of the window,
so that a path that delivers no chunk gets no more of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from p2psync.swarm.exchange.bitmap import Bits
from p2psync.swarm.exchange.config import ExchangeConfig

#: The weight of a new sample in a smoothed delivery time: RFC 6298 smooths round trips with it.
SMOOTHING = 1 / 8


@dataclass(slots=True)
class _Chunk:
    """One chunk in flight. Seconds.

    tree: its number in the plan; None: the plan changed since. missing: the share of the receivers that lack it.
    latency: for how long a receiver has lacked it, in the mean. is_resent: the publisher had sent it before.
    """

    index: int
    tree: int | None
    sent_at: float
    is_resent: bool
    missing: float = 1.0
    latency: float = 0.0


@dataclass(slots=True)
class _Path:
    """The trees in which the publisher has the same children.

    share: of the plan's rate. in_flight: chunks, each as the share of the receivers that lack it. quickest: the
    delivered chunk with the least latency.
    """

    share: float = 0.0
    in_flight: float = 0.0
    quickest: _Chunk | None = None


@dataclass(slots=True)
class _Tree:
    """One tree of the plan. path: see `_Path`. rate: planned chunks/s. completion: smoothed seconds until all
    receivers hold a chunk; 0: not known."""

    path: _Path
    rate: float
    completion: float = 0.0


class InFlightWindow:
    """The chunks of one manifest that are in flight. size: how many may be."""

    def __init__(self, config: ExchangeConfig, *, unlimited: bool = False) -> None:
        """unlimited: any number of chunks may be in flight."""
        self._config, self._unlimited = config, unlimited
        self._chunks: dict[int, _Chunk] = {}
        self._sent: set[int] = set()
        self._paths: list[_Path] = []
        self._trees: list[_Tree] = []
        #: How many of the sent chunks each receiver holds, stragglers excluded.
        self._counts: dict[str, int] = {}
        self._rate = 0.0
        self._in_flight = 0.0
        self._prior_latency = config.latency_first
        self._receivers: set[str] = set()
        #: Delivered chunks/s in each of the last intervals.
        self._rates: deque[float] = deque(maxlen=config.delivery_intervals)
        self._delivered = 0.0
        self._interval_began = self._updated_at = 0.0
        self.size = 0.0

    def follow(self, rates: Sequence[float], children: Sequence[Hashable]) -> None:
        """Replaces the trees: chunks/s and the publisher's children in each. Chunks in flight still count."""
        # The measured latency is the best estimate for paths without a sample.
        self._prior_latency = self._latency()
        self._rate = sum(rates)
        paths: dict[Hashable, _Path] = {}
        self._trees = [_Tree(paths.setdefault(c, _Path()), rate) for rate, c in zip(rates, children, strict=True)]
        self._paths = list(paths.values())
        for tree in self._trees:
            tree.path.share += tree.rate / (self._rate or 1.0)
        for chunk in self._chunks.values():
            chunk.tree = None
        self._resize()

    def planned_rate(self, tree: int) -> float:
        """Returns the planned chunks/s of a tree."""
        return self._trees[tree].rate

    # ---- limits ----------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether no tree may take a chunk."""
        return not self._unlimited and self._in_flight + 0.5 >= self.size

    def has_room(self, tree: int) -> bool:
        """Returns whether a tree may take a chunk."""
        return self._unlimited or not (self.is_full or self.load(tree) >= 1)

    def load(self, tree: int) -> float:
        """Returns the load of a tree's path with one chunk more in flight, as a part of the path's bound."""
        path, config = self._trees[tree].path, self._config
        return (path.in_flight + 0.5) / max(config.path_least, config.path_gain * path.share * self.size)

    def slow_trees(self, trees: Sequence[int], chunks: int) -> frozenset[int]:
        """Returns those of these trees that would complete one chunk later than the others complete all `chunks`.

        The publisher sends the last chunks down the other trees, which complete them sooner. The time of a tree counts
        as `completion_part` of its mean, and its chunks in flight as what its rate sends in that time.
        """
        ranked = sorted((self._trees[tree].completion, tree) for tree in trees)
        if not ranked or not ranked[0][0]:
            return frozenset()
        rate = in_flight = 0.0
        for i, (completion, tree) in enumerate(ranked):
            # The faster trees alone complete all chunks by then.
            if rate and (chunks + in_flight) / rate <= self._config.completion_part * completion:
                return frozenset(slower for _, slower in ranked[i:])
            rate += self._trees[tree].rate
            in_flight += self._trees[tree].rate * self._config.completion_part * completion
        return frozenset()

    # ---- events ----------------------------------------------------------------------------------------------------

    def sent(self, index: int, tree: int, now: float) -> None:
        """Adds a chunk that the publisher sent down a tree."""
        if index in self._chunks:
            self._remove(index)
        if not self._sent:
            self._interval_began = self._updated_at = now
        chunk = self._chunks[index] = _Chunk(index, tree, now, index in self._sent)
        self._sent.add(index)
        self._add_in_flight(chunk, 1.0)

    def is_due(self, now: float) -> bool:
        """Returns whether an update is due."""
        return bool(self._chunks) and now - self._updated_at >= self._config.poll_interval

    def update(self, holds: Mapping[str, Bits], now: float) -> None:
        """Updates the window with the chunks that each receiver holds (flags, by name)."""
        if not self.is_due(now):
            return
        passed, self._updated_at = now - self._updated_at, now
        self._add_receivers([theirs for name, theirs in holds.items() if name not in self._receivers], len(holds), now)
        self._receivers = set(holds)
        kept = self._without_stragglers(holds)
        indices = list(self._chunks)
        missing = sum((~theirs[indices] for theirs in kept), np.zeros(len(indices))) / max(1, len(kept))
        for index, share in zip(indices, missing.tolist(), strict=True):
            chunk = self._chunks[index]
            age = now - chunk.sent_at
            # A new receiver has lacked the chunk since it was sent.
            chunk.latency += chunk.missing * min(passed, age) + max(0.0, share - chunk.missing) * age
            self._add_in_flight(chunk, share - chunk.missing)
            chunk.missing = share
            if not share:
                self._sample(chunk, age)
            if not share or age > self._config.chunk_timeout:
                self._remove(index)
        interval = now - self._interval_began
        if interval >= self._config.delivery_interval:
            self._rates.append(self._delivered / interval)
            self._interval_began, self._delivered = now, 0.0
        self._resize()

    def _add_receivers(self, new: Sequence[Bits], receivers: int, now: float) -> None:
        """Corrects the latencies: a new receiver that lacks the quickest chunk has lacked it since it was sent."""
        for chunk in filter(None, (path.quickest for path in self._paths)):
            lacking = sum(not theirs[chunk.index] for theirs in new) / max(1, receivers)
            age = min(self._config.latency_most, now - chunk.sent_at)
            chunk.latency += lacking * max(0.0, age - chunk.latency)

    def _without_stragglers(self, holds: Mapping[str, Bits]) -> list[Bits]:
        """Returns the flags of the receivers that are no stragglers; counts the chunks delivered to them."""
        sent, config = np.fromiter(self._sent, np.intp, len(self._sent)), self._config
        # Each of two receivers may be a window behind the other at times.
        most = self.size * max(config.straggler_least, config.straggler_share * len(holds)) + 1
        counts = {name: int(theirs[sent].sum()) for name, theirs in holds.items()}
        before, self._counts = self._counts, {name: n for name, n in counts.items() if len(sent) - n <= most} or counts
        new = sum(count - before.get(name, count) for name, count in self._counts.items())
        self._delivered += new / max(1, len(self._counts))
        return [holds[name] for name in self._counts]

    def _sample(self, chunk: _Chunk, age: float) -> None:
        """Samples the latency of a delivered chunk; not of a resent one, which may have arrived the first time."""
        if chunk.tree is None or chunk.is_resent:
            return
        tree = self._trees[chunk.tree]
        path = tree.path
        if path.quickest is None or chunk.latency < path.quickest.latency:
            path.quickest = chunk
        tree.completion += (age - tree.completion) * (SMOOTHING if tree.completion else 1)

    def _resize(self) -> None:
        """Sets the size: see the module's formula."""
        config = self._config
        self.size = config.window_gain * max(
            self._rate, *self._rates, 0.0
        ) * self._latency() + config.window_per_path * len(self._paths)

    def _latency(self) -> float:
        """Returns the latency of a chunk that meets no queues (seconds)."""
        config, latency = self._config, self._prior_latency
        known = [(path.quickest.latency, path.share) for path in self._paths if path.quickest is not None]
        if known:
            mean = sum(latency * share for latency, share in known) / sum(share for _, share in known)
            latency = (min(known)[0] + mean) / 2
        # Receivers announce pushed chunks only after this delay.
        return min(config.latency_most, max(config.have_delay_pushed, latency))

    def _add_in_flight(self, chunk: _Chunk, more: float) -> None:
        self._in_flight += more
        if chunk.tree is not None:
            self._trees[chunk.tree].path.in_flight += more

    def _remove(self, index: int) -> None:
        chunk = self._chunks.pop(index)
        self._add_in_flight(chunk, -chunk.missing)
