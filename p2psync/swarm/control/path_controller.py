"""Controls one path: paces it at its planned rate while it loses much, and restarts it while it is slow. Sans-I/O.

Theory of operation. BBR keeps two round trips of data in flight. That is more than most queues hold where several
flows meet at a link: each flow overflows the queue, a fifth of the data is lost, and the rest waits behind holes for a
second. The plan gives each flow a share of the link; flows that are paced at their shares fill the link and leave its
queue empty. A plan errs by some percent and links change, so the pacing rate rises slowly until the path is free again.

State and event give the next state; other events leave a state as it is:

    state     TRANSFER   SHORT   LOSS    ROSE
    FREE      STARTUP            PACED
    STARTUP   STARTUP    FREE    PACED   FREE
    PACED                        PACED   FREE

A busy path also restarts every few seconds: BBR stops a connection for 0.2 s once its least round trip is ten seconds
old, to measure it again. All paths of a transfer would stop together, and the uplink would idle. A restarted path keeps
its window and the kernel's own least round trip. Each path restarts at another age, so that the others carry on.
`path_controllers` lists all occasions of a restart.
"""

from __future__ import annotations

import math
import zlib
from enum import Enum, auto

from p2psync.swarm.control.config import PathControlConfig
from p2psync.swarm.control.interval import Interval
from p2psync.swarm.control.slow_path import SlowPathDetector

_DEFAULTS = PathControlConfig()


class PathState(Enum):
    """The states of a path."""

    FREE = auto()
    """TCP alone sets the rate."""
    STARTUP = auto()
    """A transfer starts: paced at the planned rate, which rises fast."""
    PACED = auto()
    """Many losses: paced at the planned or the delivered rate, which rises slowly and falls with losses."""


class PathEvent(Enum):
    """The events that change a state."""

    TRANSFER = auto()
    """A transfer starts after a pause."""
    SHORT = auto()
    """A transfer starts after a pause that the queue before the link holds whole."""
    LOSS = auto()
    """A sample had many losses."""
    ROSE = auto()
    """The pacing rate rose above the rate at which the path is free."""


_NEXT = {
    (PathState.FREE, PathEvent.TRANSFER): PathState.STARTUP,
    (PathState.FREE, PathEvent.LOSS): PathState.PACED,
    (PathState.STARTUP, PathEvent.TRANSFER): PathState.STARTUP,
    (PathState.STARTUP, PathEvent.SHORT): PathState.FREE,
    (PathState.STARTUP, PathEvent.LOSS): PathState.PACED,
    (PathState.STARTUP, PathEvent.ROSE): PathState.FREE,
    (PathState.PACED, PathEvent.LOSS): PathState.PACED,
    (PathState.PACED, PathEvent.ROSE): PathState.FREE,
}


def startup_gain(seconds: float, queue_seconds: float) -> float:
    """Returns by how much a transfer that takes `seconds` at its planned rate may exceed that rate from the start.

    At k times the rate of a link, t seconds leave t (1 - 1 / k) seconds of data in the queue before it; every queue has
    room for `queue_seconds`.
    """
    return seconds / (seconds - queue_seconds) if seconds > queue_seconds else math.inf


class PathController:
    """The controller of the path to one child. Rates in bytes/s."""

    def __init__(self, peer: str, config: PathControlConfig = _DEFAULTS) -> None:
        """peer: the child's name, which sets at which age the path is refreshed."""
        self._config = config
        self._refresh_age = config.refresh_seconds + config.refresh_spread * zlib.crc32(peer.encode()) / 2**32
        self._restarted_at: float | None = None
        self.state = PathState.FREE
        #: The limit on the path's connections together; 0: none.
        self.pacing_rate = 0.0
        self._limit = 0.0
        self._free_above = 0.0
        self._sample = Interval()
        self._slow_path = SlowPathDetector(config.slow_path)

    def set_planned(self, rate: float, limit: float) -> None:
        """Sets the planned rate, and the rate at which a link of the path is full (its limit).

        A higher limit raises the pacing rate at once; a lower one waits for losses.
        """
        if self.pacing_rate and 0 < self._limit < limit:
            self.pacing_rate *= limit / self._limit
            self._free_above *= limit / self._limit
        self._limit = limit
        self._slow_path.set_planned(rate)

    def start_transfer(self, gain: float) -> None:
        """Paces the path at `pacing_gain` and `gain` times its limit, at least at `min_startup_rate`: BBR remembers a
        rate from when the path was alone on its links. A path that is paced for its losses stays as it is.

        gain: see `startup_gain`; infinity starts without a pacing rate.
        """
        if gain == math.inf:
            self._on(PathEvent.SHORT)
        elif self._on(PathEvent.TRANSFER):
            rate = self._config.pacing_gain * gain * self._limit
            self._pace(max(rate, self._config.min_startup_rate))

    def observe(self, interval: Interval | None) -> bool:
        """Takes what the path did since the last call; returns whether its congestion control should restart.

        interval: None if data did not wait all the time; then the sample starts over.
        """
        if interval is None:
            self._sample = Interval()
            self._slow_path.skip()
            return False
        self._sample.add(interval)
        if self._sample.sent >= self._config.sample_bytes:
            sample, self._sample = self._sample, Interval()
            self._judge(sample)
        return self._slow_path.observe(interval, self.pacing_rate)

    def restarted(self, now: float) -> None:
        """Notes that the congestion control restarted."""
        self._restarted_at = now

    def is_refresh_due(self, now: float) -> bool:
        """Returns whether BBR would stop the path before long; call it while data waits.

        The age of a path counts from its last restart, or from the first call.
        """
        if self._restarted_at is None:
            self._restarted_at = now
        return now - self._restarted_at >= self._refresh_age

    def _judge(self, sample: Interval) -> None:
        """Sets the pacing rate by a sample's losses.

        Many losses pace a free path at its limit or its delivery rate, whichever is more, and lower the rate of another
        one, but not below its limit (each times `pacing_gain`). Without them the rate rises, until the path is free.
        """
        gain = self._config.pacing_gain
        if sample.loss > self._config.max_loss:
            self._on(PathEvent.LOSS)
            if self.pacing_rate:
                self._pace(max(min(self.pacing_rate, gain * self._limit), self._config.backoff * self.pacing_rate))
            else:
                self._pace(gain * max(self._limit, sample.delivery_rate))
        elif self.pacing_rate:
            startup = self.state is PathState.STARTUP
            self.pacing_rate *= self._config.startup_growth if startup else self._config.paced_growth
            if self.pacing_rate > self._free_above:
                self._on(PathEvent.ROSE)

    def _pace(self, rate: float) -> None:
        self.pacing_rate = rate
        self._free_above = self._config.free_above * rate

    def _on(self, event: PathEvent) -> bool:
        """Changes the state; returns whether this state knows the event."""
        state = _NEXT.get((self.state, event))
        if state is not None:
            self._enter(state)
        return state is not None

    def _enter(self, state: PathState) -> None:
        self.state = state
        if state is PathState.FREE:
            self.pacing_rate = self._free_above = 0.0
