"""Holds connections to the parts that the plan gives them, where they lose much, and has those begin anew that bring
far less, or would be stopped: joins path controllers, slow-path restarts and the min-RTT refresh to connections."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from p2psync.protocol.plan import NodePlan
from p2psync.swarm.control.config import NEAR_RTT_SECONDS
from p2psync.swarm.control.connections import Connection, Connections
from p2psync.swarm.control.min_rtt_refresh import MinRttRefresh
from p2psync.swarm.control.node_estimates import LONGEST, MBIT, TALK
from p2psync.swarm.control.path_controller import PathController, haste
from p2psync.swarm.control.slow_path import SlowPathDetector
from p2psync.swarm.control.tcp_sample import TcpSample

#: Of one connection: seconds since it was read last, its reading then, and now.
_Moved: TypeAlias = tuple[float, TcpSample, TcpSample]
#: A connection is idle that carried nothing but small messages for so long; it begins anew so often (seconds).
IDLE, REST = 2.0, 4.0


class PathControllers:
    """The paces of one node's children. Near ones are not held: between them nothing is lost for long."""

    def __init__(self, peers: Connections, *, stops: bool = True) -> None:
        """stops: far connections may use a congestion control that stops them once they are ten seconds old."""
        self._peers = peers
        self.stops = stops
        self._path_controllers: dict[str, PathController] = {}
        self._slow_paths: dict[str, SlowPathDetector] = {}
        self._refresh = MinRttRefresh()
        #: Bytes a second that the plan foresees for a transfer.
        self._rate = 0.0
        #: When connections that carry nothing began anew last.
        self._rested: dict[Connection, float] = {}
        self._last: dict[Connection, tuple[TcpSample, float]] = {}
        #: How many connections to a peer carried what was sent to it last.
        self._carrying: dict[str, int] = {}
        #: Whom a limit was set for.
        self.held: frozenset[str] = frozenset()

    def planned(self, plan: NodePlan) -> None:
        """This is the plan now."""
        self._rate = plan.rate / MBIT
        parts = {name: rate / MBIT for name, rate in plan.limits_to().items()}
        self._path_controllers = {
            name: self._path_controllers.get(name) or PathController(part) for name, part in parts.items()
        }
        for name, part in parts.items():
            self._path_controllers[name].planned(part)
        rates = {name: rate / MBIT for name, rate in plan.rates_to().items()}
        self._slow_paths = {name: self._slow_paths.get(name) or SlowPathDetector(rate) for name, rate in rates.items()}
        for name, rate in rates.items():
            self._slow_paths[name].planned(rate)

    def begin(self, quiet: Collection[str], now: float, nbytes: int) -> None:
        """A transfer of so many bytes begins. quiet: peers far away to whom nothing flowed of late; now: seconds.

        What BBR knows of a path that was idle is what the last small messages made of it; and its least round trip is
        out of date, so that it would stop for a fifth of a second, somewhere in the transfer, to measure it.
        """
        times = haste(nbytes / self._rate) if self._rate else 1.0
        begun = self._path_controllers.keys() & set(quiet)
        for name in sorted(begun):
            self._path_controllers[name].begin(times)
        self._hold((), now)
        for name in sorted(begun):
            self._restart(name, now)

    def rest(self, now: float) -> None:
        """Have connections that carry nothing begin anew now and then.

        BBR takes the answer to a small message for one that may have been delayed, and does not believe its round
        trip; so two small messages after ten seconds of nothing else stop it, with a window of four packets, until more
        has come and gone. A fifth of all connections stood so as a small delta came.
        """
        if not self.stops:
            return
        alive = set(self._peers.all_streams())
        self._rested = {stream: at for stream, at in self._rested.items() if stream in alive}
        for stream in self._peers.all_streams():
            if now - self._rested.get(stream, -math.inf) >= REST and stream.idle(IDLE) and stream.can_restart:
                self._rested[stream] = now
                stream.restart()

    def read(self, samples: Mapping[Connection, TcpSample], now: float, probed: Collection[str]) -> None:
        """The counters of what moves; now: seconds. pumped: peers to whom junk is sent, at a rate of its own, and of
        which some is meant to be lost."""
        flows: dict[str, list[_Moved]] = {}
        for stream, sample in samples.items():
            before, at = self._last.get(stream, (sample, now))
            if now > at and sample.rtt > NEAR_RTT_SECONDS:
                flows.setdefault(sample.peer, []).append((now - at, before, sample))
        for name, pace in self._path_controllers.items():
            _look(pace, [] if name in probed else flows.get(name, []))
        for name, slow_path in self._slow_paths.items():
            if name in self._path_controllers:
                slow_path.held(self._path_controllers[name].rate)
            if _look(slow_path, [] if name in probed else flows.get(name, [])):
                self._restart(name, now)
        if self.stops:
            self._renew({name: flows[name] for name in self._path_controllers.keys() & flows.keys() - set(probed)}, now)
        for name, moved in flows.items():
            if carrying := sum(after.sent - before.sent > TALK * seconds for seconds, before, after in moved):
                self._carrying[name] = carrying
        alive = set(self._peers.all_streams())
        self._last = {stream: last for stream, last in self._last.items() if stream in alive}
        self._last |= {stream: (sample, now) for stream, sample in samples.items()}
        self._carrying = {name: count for name, count in self._carrying.items() if name in self._path_controllers}
        self._hold(probed, now)

    def _restart(self, name: str, now: float) -> None:
        ready = [stream for stream in self._peers.streams(name) if stream.can_restart]
        for stream in ready:
            stream.restart()
        if ready:
            self._refresh.begun([name], now)

    def _may_begin_anew(self, name: str) -> bool:
        return all(stream.can_restart for stream in self._peers.streams(name))

    def _renew(self, flows: Mapping[str, Sequence[_Moved]], now: float) -> None:
        """Have some of those begin anew that would be stopped before long."""
        pressed = {name: moved for name, moved in flows.items() if _is_pressed(moved) and self._may_begin_anew(name)}
        came = {
            name: sum((after.delivered - before.delivered) / seconds for seconds, before, after in moved)
            for name, moved in pressed.items()
        }
        trips = {name: max(after.rtt for _, _, after in moved) for name, moved in pressed.items()}
        spent = max((seconds for moved in pressed.values() for seconds, _, _ in moved), default=0.0)
        self._refresh.keep(self._path_controllers)
        for name in self._refresh.due(came, trips, spent, now):
            self._restart(name, now)

    def _hold(self, probed: Collection[str], now: float) -> None:
        wanted = {name: pace.rate for name, pace in self._path_controllers.items() if pace.rate}
        for name, rate in self._refresh.limits(now).items():
            wanted[name] = min(rate, wanted.get(name, rate))
        for name in sorted((wanted.keys() | self.held).difference(probed)):
            self._hold_one(name, wanted.get(name, 0.0))
        self.held = frozenset(wanted) | self.held.intersection(probed)

    def _hold_one(self, name: str, rate: float) -> None:
        # Where one has found its rate, others are hardly used: each may have the part of those that are.
        for stream in self._peers.streams(name):
            stream.set_pacing_limit(rate / self._carrying.get(name, 1))


def _is_pressed(flows: Sequence[_Moved]) -> bool:
    """Whether something waited all the time, and it is not long ago that they were read last."""
    pressed = any(before.backlog and after.backlog for _, before, after in flows)
    return pressed and max(seconds for seconds, _, _ in flows) <= LONGEST


def _look(pace: PathController | SlowPathDetector, flows: Sequence[_Moved]) -> bool | None:
    """Tell what the connections to one peer did since they were read last; returns the answer."""
    seconds = max((seconds for seconds, _, _ in flows), default=0.0)
    if not _is_pressed(flows):
        pace.pause()
        return None
    return pace.seen(
        seconds,
        sum(after.sent - before.sent for _, before, after in flows),
        sum(after.retransmitted - before.retransmitted for _, before, after in flows),
        sum(after.delivered - before.delivered for _, before, after in flows),
    )
