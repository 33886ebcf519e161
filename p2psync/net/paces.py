"""Holds connections to the parts that the plan gives them, where they lose much, and has those begin anew that bring
far less: the shell of `swarm.pacing` and `swarm.vigour`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from p2psync.net import tcp
from p2psync.net.peers import PeerTable
from p2psync.net.stream import PeerStream
from p2psync.protocol.plan import NodePlan
from p2psync.swarm.gauges import LONGEST, MBIT, TALK, Reading
from p2psync.swarm.pacing import Pace
from p2psync.swarm.vigour import Vigour


class Paces:
    """The paces of one node's children. Near ones are not held: between them nothing is lost for long."""

    def __init__(self, peers: PeerTable) -> None:
        self._peers = peers
        self._paces: dict[str, Pace] = {}
        self._vigours: dict[str, Vigour] = {}
        self._last: dict[PeerStream, tuple[Reading, float]] = {}
        #: How many connections to a peer carried what was sent to it last.
        self._carrying: dict[str, int] = {}
        #: Whom a limit was set for.
        self.held: frozenset[str] = frozenset()

    def planned(self, plan: NodePlan) -> None:
        """This is the plan now."""
        parts = {name: rate / MBIT for name, rate in plan.limits_to().items()}
        self._paces = {name: self._paces.get(name) or Pace(part) for name, part in parts.items()}
        for name, part in parts.items():
            self._paces[name].planned(part)
        rates = {name: rate / MBIT for name, rate in plan.rates_to().items()}
        self._vigours = {name: self._vigours.get(name) or Vigour(rate) for name, rate in rates.items()}
        for name, rate in rates.items():
            self._vigours[name].planned(rate)

    def begin(self, quiet: Collection[str]) -> None:
        """A large transfer begins. quiet: peers far away to whom nothing flowed of late.

        What BBR knows of a path that was idle is what the last small messages made of it; and its least round trip is
        out of date, so that it would stop for a fifth of a second, somewhere in the transfer, to measure it.
        """
        begun = self._paces.keys() & set(quiet)
        for name in begun:
            self._paces[name].begin()
        self._hold(())
        for name in begun:
            for stream in self._peers.streams(name):
                stream.begin_anew()

    def read(self, readings: Mapping[PeerStream, Reading], now: float, pumped: Collection[str]) -> None:
        """The counters of what moves; now: seconds. pumped: peers to whom junk is sent, at a rate of its own, and of
        which some is meant to be lost."""
        flows: dict[str, list[tuple[float, Reading, Reading]]] = {}
        for stream, reading in readings.items():
            before, at = self._last.get(stream, (reading, now))
            if now > at and reading.rtt > tcp.NEAR_RTT:
                flows.setdefault(reading.peer, []).append((now - at, before, reading))
        for name, pace in self._paces.items():
            _look(pace, [] if name in pumped else flows.get(name, []))
        for name, vigour in self._vigours.items():
            if name in self._paces:
                vigour.held(self._paces[name].rate)
            if _look(vigour, [] if name in pumped else flows.get(name, [])):
                for stream in self._peers.streams(name):
                    stream.begin_anew()
        for name, moved in flows.items():
            if carrying := sum(after.sent - before.sent > TALK * seconds for seconds, before, after in moved):
                self._carrying[name] = carrying
        alive = set(self._peers.all_streams())
        self._last = {stream: last for stream, last in self._last.items() if stream in alive}
        self._last |= {stream: (reading, now) for stream, reading in readings.items()}
        self._carrying = {name: count for name, count in self._carrying.items() if name in self._paces}
        self._hold(pumped)

    def _hold(self, pumped: Collection[str]) -> None:
        wanted = {name: pace.rate for name, pace in self._paces.items() if pace.rate}
        for name in (wanted.keys() | self.held).difference(pumped):
            # Where one has found its rate, others are hardly used: each may have the part of those that are.
            rate = wanted[name] / self._carrying.get(name, 1) if name in wanted else 0.0
            for stream in self._peers.streams(name):
                stream.hold_to(rate)
        self.held = frozenset(wanted) | self.held.intersection(pumped)


def _look(pace: Pace | Vigour, flows: list[tuple[float, Reading, Reading]]) -> bool | None:
    """Tell what the connections to one peer did since they were read last; returns the answer."""
    seconds = max((seconds for seconds, _, _ in flows), default=0.0)
    if not any(before.backlog and after.backlog for _, before, after in flows) or seconds > LONGEST:
        pace.pause()
        return None
    return pace.seen(
        seconds,
        sum(after.sent - before.sent for _, before, after in flows),
        sum(after.resent - before.resent for _, before, after in flows),
        sum(after.delivered - before.delivered for _, before, after in flows),
    )
