"""Applies path control to a node's connections: sets their pacing limits and restarts their congestion control.

Congestion control restarts, and searches for the path's rate as on a new connection, when

- a transfer starts on a path to a far child to which no chunk flowed of late (`PathControllers.start_transfer`);
- a path to a far child is slow (`SlowPathDetector.observe`);
- a busy path to a far child has not restarted for some seconds, with BBR (`PathController.is_refresh_due`);
- a connection is idle, every few seconds, with BBR (`PathControllers.restart_idle`);
- a probe without a rate starts (`ProbeSender.start`).

Only BBR restarts. A connection that is below its window for a moment (`Connection.can_restart`) does not, except for a
probe.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from p2psync.protocol.plan import NodePlan
from p2psync.swarm.control.config import MBIT, NEAR_RTT_SECONDS, EstimatorConfig, PathControlConfig
from p2psync.swarm.control.connections import Connection, Connections
from p2psync.swarm.control.interval import Interval
from p2psync.swarm.control.path_controller import PathController, startup_gain
from p2psync.swarm.control.tcp_sample import TcpSample

_DEFAULTS = PathControlConfig()
_MAX_INTERVAL, _MIN_RATE = EstimatorConfig().max_interval, EstimatorConfig().min_transfer_rate
#: Of one connection: seconds since its last sample, that sample, and the new one.
_Change: TypeAlias = tuple[float, TcpSample, TcpSample]


class PathControllers:
    """The controllers of the paths to a node's far children; near ones lose nothing for long."""

    def __init__(self, peers: Connections, *, probes_rtt: bool = True, config: PathControlConfig = _DEFAULTS) -> None:
        """probes_rtt: far connections may use BBR, which stops a connection whose least round trip is ten seconds old,
        to measure it again.
        """
        self._peers = peers
        self._config = config
        self.probes_rtt = probes_rtt
        self._paths: dict[str, PathController] = {}
        #: Planned rate of a whole transfer (bytes/s).
        self._transfer_rate = 0.0
        self._idle_restarts: dict[Connection, float] = {}
        self._last: dict[Connection, tuple[TcpSample, float]] = {}
        #: How many connections of a path carried its last data.
        self._carrying: dict[str, int] = {}
        #: Peers whose connections have a pacing limit.
        self.paced: frozenset[str] = frozenset()

    def set_plan(self, plan: NodePlan) -> None:
        """Takes this node's part of a new plan."""
        self._transfer_rate = plan.rate / MBIT
        rates, limits = plan.rates_to(), plan.limits_to()
        self._paths = {name: self._paths.get(name) or PathController(name, self._config) for name in rates}
        for name, rate in rates.items():
            self._paths[name].set_planned(rate / MBIT, limits.get(name, rate) / MBIT)

    def start_transfer(self, quiet: Collection[str], now: float, nbytes: int) -> None:
        """Paces and restarts the paths to those of these peers that are children. nbytes: of the transfer.

        BBR remembers an idle path as slow, from small messages; and its least round trip is out of date, so it would
        stop in the middle of the transfer to measure it again.
        """
        seconds = nbytes / self._transfer_rate if self._transfer_rate else math.inf
        gain = startup_gain(seconds, self._config.queue_seconds) if self._transfer_rate else 1.0
        starting = sorted(self._paths.keys() & set(quiet))
        for name in starting:
            self._paths[name].start_transfer(gain)
        self._set_limits(())
        for name in starting:
            self._restart(name, now)

    def restart_idle(self, now: float) -> None:
        """Restarts idle connections every few seconds.

        BBR ignores the round trip of a lone small message. So the least round trip of an idle connection expires, and
        the next two messages in flight stop it with a window of four packets.
        """
        if not self.probes_rtt:
            return
        alive = set(self._peers.all_streams())
        self._idle_restarts = {stream: at for stream, at in self._idle_restarts.items() if stream in alive}
        for stream in self._peers.all_streams():
            since = now - self._idle_restarts.get(stream, -math.inf)
            due = since >= self._config.idle_restart_seconds and stream.idle(self._config.idle_seconds)
            if due and stream.can_restart:
                self._idle_restarts[stream] = now
                stream.restart()

    def observe(self, samples: Mapping[Connection, TcpSample], now: float, probed: Collection[str]) -> None:
        """Takes the samples of active connections; restarts paths that are slow or due.

        probed: peers that get padding, which has limits and losses of its own.
        """
        changes: dict[str, list[_Change]] = {}
        for stream, sample in samples.items():
            before, at = self._last.get(stream, (sample, now))
            if now > at and sample.rtt > NEAR_RTT_SECONDS:
                changes.setdefault(sample.peer, []).append((now - at, before, sample))
        for name, moved in changes.items():
            if carrying := sum(after.sent - before.sent > _MIN_RATE * seconds for seconds, before, after in moved):
                self._carrying[name] = carrying
        for name, path in self._paths.items():
            interval = _interval(changes.get(name, ())) if name not in probed else None
            if path.observe(interval) or (interval is not None and self._is_refresh_due(name, now)):
                self._restart(name, now)
        alive = set(self._peers.all_streams())
        self._last = {stream: last for stream, last in self._last.items() if stream in alive}
        self._last |= {stream: (sample, now) for stream, sample in samples.items()}
        self._carrying = {name: count for name, count in self._carrying.items() if name in self._paths}
        self._set_limits(probed)

    def _is_refresh_due(self, name: str, now: float) -> bool:
        """Returns whether a busy path is due for a restart, and all its connections can restart."""
        if not self.probes_rtt or not all(stream.can_restart for stream in self._peers.streams(name)):
            return False
        return self._paths[name].is_refresh_due(now)

    def _restart(self, name: str, now: float) -> None:
        """Restarts those connections of a path that can."""
        ready = [stream for stream in self._peers.streams(name) if stream.can_restart]
        for stream in ready:
            stream.restart()
        if ready:
            self._paths[name].restarted(now)

    def _set_limits(self, probed: Collection[str]) -> None:
        """Sets the limits of all paths but the probed ones.

        The connections that carry a path's data share its limit: one at its full rate leaves the others nearly unused.
        """
        limits = {name: path.pacing_rate for name, path in self._paths.items() if path.pacing_rate}
        for name in sorted((limits.keys() | self.paced).difference(probed)):
            for stream in self._peers.streams(name):
                stream.set_pacing_limit(limits.get(name, 0.0) / self._carrying.get(name, 1))
        self.paced = frozenset(limits) | self.paced.intersection(probed)


def _interval(changes: Sequence[_Change]) -> Interval | None:
    """Returns what the connections of a path did together; None if on none data waited at both ends of the interval, or
    the last samples are old.
    """
    seconds = max((seconds for seconds, _, _ in changes), default=0.0)
    if seconds > _MAX_INTERVAL or not any(before.backlog and after.backlog for _, before, after in changes):
        return None
    return Interval(
        seconds,
        sum(after.sent - before.sent for _, before, after in changes),
        sum(after.retransmitted - before.retransmitted for _, before, after in changes),
        sum(after.delivered - before.delivered for _, before, after in changes),
    )
