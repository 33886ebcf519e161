"""What a node wants to measure, and when: the jobs of its `Prober`. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from p2psync.swarm.control.config import ProbeConfig
from p2psync.swarm.control.estimators import NEAR
from p2psync.swarm.control.node_estimates import NodeEstimates

#: A way that carried this part of what the plan counts on has shown that it can.
CARRIED = 0.7
#: A look that finds no more than so many times what those before it found has confirmed them.
MORE = 1.1
#: A downlink that gave so many times what the plan has come through it will not bind it, however wide it is.
AMPLE = 1.5


@dataclass(slots=True)
class Job:
    """Something to measure, when it is due, and how often that came to nothing since it was done.

    sure: a look was confirmed. bound: of a downlink, whether it was that which held back what came. asked: the peer
    that was asked last, where it is one at a time. shown: those that showed what they give. busy: those that had no
    time since it was done, and when that was. best: bytes a second that had come from its region when it was done last.
    """

    due: float
    tries: int = 0
    done: bool = False
    sure: bool = False
    bound: bool = False
    asked: str = ""
    best: float = 0.0
    shown: set[str] = field(default_factory=set)
    busy: dict[str, float] = field(default_factory=dict)


class Jobs:
    """The jobs of one node: the path to each other region, its own links (None before it has a peer), and the ways on
    which the plan counts, by parent."""

    def __init__(self, config: ProbeConfig, estimates: NodeEstimates, rng: random.Random) -> None:
        self.regions: dict[str, Job] = {}
        self.down: Job | None = None
        self.up: Job | None = None
        self.ways: dict[str, Job] = {}
        #: Bytes a second that the plan has each parent send to this node.
        self.expected: Mapping[str, float] = {}
        self._has_plan = False
        self._began = 0.0
        self._config = config
        self._estimates = estimates
        self._rng = rng

    def begin(self, now: float) -> None:
        """This node has a peer, and so links to measure."""
        if self.down is None:
            self.down = self.new(now + self._config.settle)
            self.up = self.new(now + self._config.settle)
            self._began = now

    def up_awaited(self, now: float) -> bool:
        """Whether the uplink was not looked at yet, and soon should be."""
        return self.up is not None and not self.up.done and now < self._began + self._config.window

    def new(self, due: float) -> Job:
        """A job that is due about then."""
        return Job(due + self._config.spread * self._rng.random())

    def planned(self, expected: Mapping[str, float], now: float) -> None:
        """There is another plan: `expected` as above."""
        self.expected, self._has_plan = expected, True
        due = now + self._config.settle
        self.ways = {name: self.ways.get(name) or self.new(due) for name in sorted(expected)}

    @property
    def down_ample(self) -> bool:
        """Whether clearly more came through the downlink at best than the plan has come. To find out how much more
        would cost those most who send most, and tell nobody anything."""
        return self._has_plan and self._estimates.down.value >= AMPLE * sum(self.expected.values())

    def paths_known(self, now: float, *, sure: bool = False) -> bool:
        """Whether each path to a region was measured once, or is not to be in the next seconds. sure: and another look
        confirmed it."""
        later = now + self._config.settle
        return all((job.sure if sure else job.done) or job.due > later for job in self.regions.values())

    def measured(self, now: float) -> bool:
        """Whether this holds, and this node's own links were measured, too."""
        return self.paths_known(now) and all(job is not None and job.done for job in (self.down, self.up))

    def lacking(self, name: str) -> bool:
        """Whether a parent is far away and never sent this node about what the plan has it send."""
        path = self._estimates.paths.get(name)
        return path is not None and path.rtt > NEAR and path.received.value < CARRIED * self.expected[name]

    def judge(self, job: Job, done: bool, now: float, best: float = 0.0, *, hidden: bool = False) -> None:
        """A probe has ended; done: it showed something. best: bytes a second that what it measures gave at best so far;
        hidden: whether it is a region, on the way from which narrow uplinks may hide more.
        """
        if done:
            # Looks may have met other traffic, and those with fewer peers than it takes show too little.
            sure = job.done and best <= MORE * job.best and job.tries <= self._config.tries and not hidden
            job.sure |= sure
            job.best = best
            pause = self._config.stale if sure else self._config.again
            job.due = now + pause * (0.75 + 0.5 * self._rng.random())
            job.tries, job.done = 0, True
            job.busy.clear()
        else:
            self.put_off(job, now, self._config.pause)

    def leave(self, job: Job, now: float) -> None:
        """Nothing more need be known of it for now."""
        job.done = True
        self.put_off(job, now, self._config.again)

    def put_off(self, job: Job, now: float, pause: float) -> None:
        """Not now, but in about `pause` seconds."""
        job.due = now + pause * (0.5 + self._rng.random())
