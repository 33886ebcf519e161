"""What is on its way in the trees: how far the root is ahead of those who receive.

The root sees the first hop of a tree only; a slow link further down shows in chunks that are not held yet. A chunk
counts for as much as the share of the receivers who lack it, so that one straggling copy does not weigh as much as a
chunk that nobody has. What may be on its way in all is what the trees carry in the time that a chunk takes to get
around when no other is in its way, and a little for every way on, so that no relay is idle: whatever is more than that
stands in queues, and at last the last chunk has to get through them. What the trees carry is what was planned, or what
was seen of late if that is more. By Little's law the time is the mean, over those who receive, of how long each lacked
the chunk; the least one seen on a way is nearest to that of empty queues. Where less arrives than was planned, more is
let out, up to a limit, and more and more where that goes on: where packets are lost a chunk takes far longer in the
mean than at best. Who is heard of later and lacks what came before him lacked it all the time, too. Even so the least
time may be what near receivers took: where for a second hardly half arrives of what was planned, and as much is on its
way as may be, times are learnt anew, once for each plan, and not where as much was enough before: then a link fell.
Receivers say what they hold now and then only, and where few are near the least time is that of a chunk that came just
before somebody's word: no less is let out than the trees carry between two words of one.

Ways are the first hops of trees: trees that begin at the same hops share what is let onto them. A small manifest goes
out without waiting for news.

Trees differ in how long a chunk takes to be everywhere. The last chunks go down those in which they arrive soonest, so
that all trees end at one time: one is given nothing more once what is left would be through the others before.

A chunk leaves when all who receive hold it, or after a while, so that a slow receiver cannot stop the others; one who
lags by more than what may be on its way several times, and than a second's, is not waited for at all. But as long as
there is such a one, no more goes out than was planned: where the others are ahead, whatever they get sooner is taken
from links and uplinks that he needs, too. A chunk in a tree of an earlier plan that nobody new has for a while stands
before a link that fell. It counts no more: the new trees go around that link, and those who lack it ask others.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from p2psync.swarm.exchange.bitmap import Bits

#: Chunks that may be on their way for each way on, besides what the trees carry in the least time a chunk took.
EACH_WAY = 1.5
#: The same as a part of what the trees carry, if that is more: where ways are few, most relays are further down. And
#: where more than so many receive, whose trees are deeper still.
DEEPER, FEW, DEEPER_AMONG_MANY = 0.7, 32, 1.3
#: That time before any was seen, between near nodes too, and at most (seconds).
FIRST_LAG, NEAR_LAG, MOST_LAG = 0.25, 0.1, 1.0
#: What the trees carry is the best of so many spans, each of so long (seconds).
SPANS, SPAN = 4, 0.5
#: How many times that may be let out where less than planned arrives.
MOST_SLACK = 2.0
#: Where so many spans in a row bring less than such a part of what was planned, with as much on its way as may be, so
#: many times that is let out after each; not while somebody lags, from whom it would take links and uplinks. Among many
#: it takes `SPANS` of them: their trees still fill in the first ones.
LATELY, ENOUGH, MORE = 2, 0.9, 1.15
#: What one way may have, as a multiple of its part of all, and at least (chunks).
WAY_SLACK, LEAST_IN_WAY = 2.0, 2.0
#: Seconds after which a chunk is waited for no more; how often is looked.
FLIGHT_MOST, LOOK_EVERY = 10.0, 0.03
#: The same of those in trees of an earlier plan, since somebody new last had one; and times as long as one is lacked.
STRANDED_AFTER, STRANDED_LAGS = 3.0, 6.0
#: One who lacks so many times what may be on its way, and more than the trees carry in `MOST_LAG`, is not waited for:
#: by the first alone nobody far would be waited for once little is let out, and then nothing would show that more may.
LAGGING = 3.0
#: Where in so many spans in a row less than such a part of what was planned arrives, times are learnt anew.
SHORT, SHORT_SPANS = 0.5, 2
#: How much a new chunk counts for how long a tree takes; what part of that it takes for sure.
TOOK, SURELY = 1 / 8, 0.8
_FORMER = -1


@dataclass(slots=True)
class _Flying:
    """A chunk. tree: its number, `_FORMER` if it is of an earlier plan. lacked: by what share of the receivers.

    since: when it was put in. moved: when somebody new last had it. lag: for how long each lacked it, in the mean
    (seconds). again: it had been before.
    """

    tree: int
    since: float
    moved: float
    lacked: float = 1.0
    lag: float = 0.0
    again: bool = False


@dataclass(slots=True)
class _Quickest:
    """The chunk of a way that got around soonest. since: when it was put in. lag: for how long each lacked it, in the
    mean (seconds)."""

    index: int
    since: float
    lag: float


class InFlightWindow:
    """Chunks on their way, of one manifest."""

    def __init__(self, first: int = 0, *, near: bool = False, news: float = 0.0) -> None:
        """first: chunks that go out without waiting. near: all receivers are nearby. news: how long a receiver may keep
        to itself what it holds (seconds)."""
        self._first = first
        # A word may come right after a look, and is acted on at the next one.
        self._unheard = news + 2 * LOOK_EVERY
        self._first_lag = NEAR_LAG if near else FIRST_LAG
        self._flying: dict[int, _Flying] = {}
        self._way_of: list[int] = []
        self._shares: list[float] = []
        self._rate = 0.0
        #: Of each way: the chunk that was lacked for the least time in the mean.
        self._least: list[_Quickest | None] = []
        #: Of each tree: its rate (chunks/s), and how long a chunk took to be everywhere (seconds, 0: not known).
        self._rates: list[float] = []
        self._took: list[float] = []
        #: Chunks that may be on their way in all.
        self.window = 0.0
        self._spans: deque[float] = deque(maxlen=SPANS)
        self._span_began = 0.0
        self._arrived = 0.0
        self._weights: list[float] = []
        self._given: list[int] = []
        self._weight = 0.0
        self._looked = -1.0
        self._all: set[int] = set()
        self._deeper = DEEPER
        #: How many of the chunks that were put in each had at the last look who did not lag by far.
        self._have: dict[str, int] = {}
        #: Those who receive, as of the last look.
        self._receivers: set[str] = set()
        #: Spans in a row in which far less than planned arrived though no more might be put in.
        self._short = 0
        self._was_full = False
        #: How many times that is let out because less than planned went on to arrive.
        self._more = 1.0
        #: Whether times were learnt anew since the plan began, or need not be.
        self._learnt_anew = False
        #: Chunks that may be put in before the next look while somebody is not waited for.
        self._allowed = math.inf

    def planned(self, rates: Sequence[float], ways: Sequence[Hashable]) -> None:
        """These are the trees now: their rates (chunks/s) and ways.

        What is on its way down others still counts in all.
        """
        # What was seen is the best guess for ways that were not tried yet.
        first_lag = self._lag
        numbers: dict[Hashable, int] = {}
        self._way_of = [numbers.setdefault(way, len(numbers)) for way in ways]
        self._rates = list(rates)
        self._rate = sum(rates)
        self._shares = [0.0] * len(numbers)
        for way, rate in zip(self._way_of, rates, strict=True):
            self._shares[way] += rate / (self._rate or 1.0)
        self._weights = [0.0] * len(numbers)
        self._given = [0] * len(numbers)
        self._learn_anew(first_lag)
        self._short, self._learnt_anew = 0, False
        self._more = 1.0
        for flying in self._flying.values():
            flying.tree = _FORMER
        self._fit_window()

    def _learn_anew(self, first_lag: float) -> None:
        """Forget how long chunks took; it may be so long (seconds)."""
        self._first_lag = first_lag
        self._least, self._took = [None] * len(self._shares), [0.0] * len(self._rates)

    def _fit_window(self) -> None:
        rate = max(self._rate, *self._spans) if self._spans else self._rate
        carried = min(MOST_LAG, self._lag) * rate * self._slack
        ways = EACH_WAY * len(self._shares)
        self.window = max(carried + max(ways, self._deeper * carried), self._unheard * rate + ways)

    @property
    def _lag(self) -> float:
        """Seconds that a chunk takes to get around: halfway between that of the shortest way and the mean of all.

        The shortest alone lets out too little where trees are long, the mean too much where all uplinks are full.
        """
        known = [(share, best.lag) for share, best in zip(self._shares, self._least, strict=True) if best]
        if not known:
            return self._first_lag
        mean = sum(share * lag for share, lag in known) / sum(share for share, _ in known)
        return (min(lag for _, lag in known) + mean) / 2

    @property
    def _slack(self) -> float:
        """By how much more than planned is let out because less arrives: ways differ in how long they take."""
        if len(self._spans) < SPANS:
            return 1.0
        return max(1.0, min(MOST_SLACK, self._more * self._rate / max(1e-9, *self._spans)))

    def load(self, tree: int) -> float:
        """What the way of a tree has with one chunk more, as a part of what it may have."""
        way = self._way_of[tree]
        return (self._weights[way] + 0.5) / max(LEAST_IN_WAY, WAY_SLACK * self.window * self._shares[way])

    @property
    def is_full(self) -> bool:
        """Whether no tree should take more for now."""
        return len(self._all) >= self._first and (self._weight + 0.5 >= self.window or self._allowed < 1)

    def full(self, tree: int) -> bool:
        """Whether a tree should take no more for now."""
        return self.is_full or (len(self._all) >= self._first and self.load(tree) >= 1)

    def planned_in(self, tree: int, seconds: float) -> float:
        """Chunks that a tree was planned to carry in so long."""
        return self._rates[tree] * seconds

    def has_its_part(self, tree: int, chunks: int) -> bool:
        """Whether the way of a tree was given its part of so many chunks since the plan began."""
        way = self._way_of[tree]
        return self._given[way] >= math.ceil(self._shares[way] * chunks)

    def too_late(self, trees: Sequence[int], chunks: int) -> frozenset[int]:
        """Those of these trees in which a chunk would be everywhere only after `chunks` others had been put into the
        rest of them and were."""
        if not all(self._took[tree] for tree in trees):
            return frozenset()
        rate = under_way = 0.0
        ranked = sorted(trees, key=self._took.__getitem__)
        for i, tree in enumerate(ranked):
            took = SURELY * self._took[tree]
            # With those before this one alone the last chunk would be everywhere after so long.
            if rate and (chunks + under_way) / rate <= took:
                return frozenset(ranked[i:])
            rate += self._rates[tree]
            under_way += self._rates[tree] * took
        return frozenset()

    def add(self, index: int, tree: int, now: float) -> None:
        """A chunk goes down a tree."""
        if index in self._flying:
            self._drop(index)
        if self._looked < 0:
            self._looked = self._span_began = now
        self._flying[index] = _Flying(tree, now, now, again=index in self._all)
        self._weigh(self._flying[index], 1.0)
        self._given[self._way_of[tree]] += 1
        self._all.add(index)
        self._allowed -= 1

    def is_due(self, now: float) -> bool:
        """Whether it is time to look again."""
        return bool(self._flying) and now - self._looked >= LOOK_EVERY

    def look(self, holds: Mapping[str, Bits], now: float) -> None:
        """What the receivers hold (flags per chunk, by their names)."""
        if not self.is_due(now):
            return
        passed, self._looked = now - self._looked, now
        self._deeper = DEEPER if len(holds) <= FEW else DEEPER_AMONG_MANY
        for flying in self._flying.values():
            # Put in after the last look, it was not lacked for all the time since.
            flying.lag += flying.lacked * min(passed, now - flying.since)
        self._was_full |= self.is_full
        self._meet(holds, now)
        indices = np.array(sorted(self._flying))
        keeping_up = self._keeping_up(holds)
        self._allow(len(keeping_up) == len(holds), passed)
        lacked = sum((~theirs[indices] for theirs in keeping_up), np.zeros(len(indices))) / max(1, len(keeping_up))
        for index, share in zip(indices.tolist(), lacked.tolist(), strict=True):
            flying = self._flying[index]
            if share < flying.lacked:
                flying.moved = now
            self._weigh(flying, share - flying.lacked)
            flying.lacked = share
            if not share:
                self._learn(index, flying, now)
            if not share or self._is_given_up(flying, now):
                self._drop(index)
        if now - self._span_began >= SPAN:
            self._end_span(self._arrived / (now - self._span_began))
            self._span_began, self._arrived = now, 0.0
        self._fit_window()

    def _end_span(self, rate: float) -> None:
        self._spans.append(rate)
        self._short = self._short + 1 if rate < SHORT * self._rate and self._was_full else 0
        spans = LATELY if len(self._receivers) <= FEW else SPANS
        lately = list(self._spans)[-spans:]
        pressed = self._was_full and math.isinf(self._allowed)
        if pressed and len(lately) == spans and max(lately) < ENOUGH * self._rate:
            self._more = min(MOST_SLACK, MORE * self._more)
        self._was_full = False
        # Where trees have brought what was planned, as much on its way was enough: what is more would go to waste.
        self._learnt_anew |= rate >= ENOUGH * self._rate
        if self._short >= SHORT_SPANS and not self._learnt_anew:
            self._learnt_anew = True
            self._learn_anew(max(self._first_lag, FIRST_LAG))

    def _meet(self, holds: Mapping[str, Bits], now: float) -> None:
        new = holds.keys() - self._receivers
        if not new:
            return
        part = len(new) / len(holds)
        for flying in self._flying.values():
            # They lacked what is on its way since it was put in.
            flying.lag += part * (now - flying.since - flying.lag)
        for best in filter(None, self._least):
            # And so those of them did who lack what others have long had. How long the rest did nobody knows: where
            # many are heard of one after the other, up to all the time since would come to far too much.
            lacking = sum(not holds[name][best.index] for name in new) / len(holds)
            best.lag += lacking * max(0.0, min(MOST_LAG, now - best.since) - best.lag)
        self._receivers = set(holds)

    def _learn(self, index: int, flying: _Flying, now: float) -> None:
        """A chunk is everywhere. Of one that was put in again nobody knows since when."""
        if flying.tree == _FORMER or flying.again:
            return
        way = self._way_of[flying.tree]
        best = self._least[way]
        if best is None or flying.lag < best.lag:
            self._least[way] = _Quickest(index, flying.since, flying.lag)
        took = self._took[flying.tree] or now - flying.since
        self._took[flying.tree] = took + TOOK * (now - flying.since - took)

    def _keeping_up(self, holds: Mapping[str, Bits]) -> list[Bits]:
        """What those hold who do not lag by far; what they got since the last look has arrived."""
        sent = np.fromiter(self._all, np.intp, len(self._all))
        most = max(LAGGING * max(self.window, self._first), MOST_LAG * self._rate)
        counts = {name: int(theirs[sent].sum()) for name, theirs in holds.items()}
        had, self._have = self._have, {name: count for name, count in counts.items() if len(sent) - count <= most}
        new = sum(count - had.get(name, count) for name, count in self._have.items())
        self._arrived += new / max(1, len(self._have))
        return [holds[name] for name in self._have]

    def _allow(self, all_keep_up: bool, seconds: float) -> None:
        if all_keep_up:
            self._allowed = math.inf
            return
        left = self._allowed if math.isfinite(self._allowed) else 0.0
        self._allowed = min(left, LEAST_IN_WAY) + self._rate * seconds

    def _is_given_up(self, flying: _Flying, now: float) -> bool:
        """Whether a chunk is waited for no more though somebody lacks it."""
        stranded = flying.tree == _FORMER and now - flying.moved > max(STRANDED_AFTER, STRANDED_LAGS * self._lag)
        return stranded or now - flying.since > FLIGHT_MOST

    def _weigh(self, flying: _Flying, more: float) -> None:
        self._weight += more
        if flying.tree != _FORMER:
            self._weights[self._way_of[flying.tree]] += more

    def _drop(self, index: int) -> None:
        flying = self._flying.pop(index)
        self._weigh(flying, -flying.lacked)
