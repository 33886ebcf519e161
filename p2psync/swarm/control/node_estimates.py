"""What a node's connections show of its network: round trips, rates and loss for each peer, and its own up and down.

Theory of operation. The shell reads the counters of all connections that do anything at one moment, a few times a
second (`read`); each two readings of a connection make an interval. A connection is *pressed* in an interval at whose
both ends bytes waited to be sent and which the peer's window did not hold up: then the network alone set the rate. A
peer's rate is the sum over its connections, the node's the sum over all.

A rate counts once it has lasted for some round trips, so that what a filled hole in the sequence releases at once is no
rate. The best one is kept for a minute in which the path was pressed, however long it
takes until such a minute has gone by. A path that for a pressed second gives less than three tenths of its best has
changed, unless the uplink was what all its users shared; if all pressed paths fell so, it is the uplink that changed.
What has just begun to flow, and what flowed before a pause, tells nothing of that: a flow needs time to find its rate.
Links are shared with the paths of other nodes, too. So where a plan says what to expect of a path, it has changed only
if it gives less than three tenths of that, and then by as much as it falls short; what no plan asks of it tells nothing
of its change. What comes in tells less, since only the sender knows what held it up: a received rate is the highest
that was seen.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from p2psync.membership.checks import MAX_PATHS
from p2psync.membership.records import NodeStatistics, PathStatistics
from p2psync.swarm.control.estimators import LASTING, SETTLE, SETTLE_TRIPS, DeliveryRateSampler, WindowedMax, lasting
from p2psync.swarm.control.path_estimates import Course, PathEstimates
from p2psync.swarm.control.report_selection import UnreachablePeers, most_useful
from p2psync.swarm.control.tcp_sample import TcpSample

#: Seconds: intervals outside of these are no measure (a timer that came late is not a rate that fell).
SHORTEST, LONGEST = 0.05, 1.0
#: An uplink of which so much is used is what holds its users up, as far as each has so much of an equal share.
CROWDED, FAIR = 0.7, 0.3
#: Bytes a second below which what comes from a peer is talk, no transfer.
TALK = 64 << 10
#: A figure that moves by less than this part of itself is no news.
NEWS = 0.06

#: A flow that gives this part of what it may send gave no less than its path could.
LIMITED = 0.85

#: Mbit/s of a byte a second.
MBIT = 8e-6
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(slots=True)
class _Flow:
    """What happened with one peer in an interval (bytes). pressed, touched: its connections that were at both ends, at
    one end at least. limited: one sent about all that it may.
    """

    delivered: int = 0
    received: int = 0
    sent: int = 0
    resent: int = 0
    connections: int = 0
    pressed: int = 0
    touched: int = 0
    limited: bool = False

    @property
    def left(self) -> int:
        """What was sent, without what was sent again, unless that was most: then it is what was lost that arrives."""
        return max(self.sent - self.resent, self.resent)


class NodeEstimates:
    """The estimates of one node."""

    def __init__(self) -> None:
        self.paths: dict[str, PathEstimates] = {}
        #: What the plan expects of the ways to peers, together with other nodes' (bytes a second). None: no plan.
        self.expected: Mapping[str, float] | None = None
        #: The region of each peer that is in another one than this node.
        self.regions: dict[str, str] = {}
        #: Peers of this node's part of the plan, and how many paths the hub is told of: see `told_paths`.
        self.planned: frozenset[str] = frozenset()
        self.most_told = MAX_PATHS
        self.unreached = UnreachablePeers()
        self.up = WindowedMax()
        self.down = WindowedMax()
        #: Whether a path has fallen since `statistics` was asked.
        self.fell = False
        #: Bytes that were delivered and received in all intervals so far.
        self.delivered = 0
        self.received = 0
        self._moved = DeliveryRateSampler()
        self._course = Course()
        self._last: dict[Hashable, TcpSample] = {}
        self._read_at: dict[Hashable, float] = {}
        self._junk: Collection[str] = ()
        self._told = NodeStatistics()

    def read(self, samples: Mapping[_Key, TcpSample], now: float, junk: Collection[str] = ()) -> None:
        """The counters of all connections that do anything, by whatever names connections; now: seconds.

        junk: peers to whom junk is sent. It may be one of several that probe their downlink together, so that little
        coming through does not show that its path has changed.
        """
        self._junk = junk
        flows: dict[str, _Flow] = {}
        span = 0.0
        for key, sample in samples.items():
            self._learn_rtt(sample)
            before, since = self._last.get(key), now - self._read_at.get(key, now)
            if before is not None and since < SHORTEST:
                continue
            self._last[key], self._read_at[key] = sample, now
            if before is None or since > LONGEST or before.peer != sample.peer:
                continue
            span = max(span, since)
            _count(flows.setdefault(sample.peer, _Flow()), before, sample, since)
        if span:
            self._take(flows, span, now)

    def closed(self, key: Hashable) -> None:
        """A connection is gone."""
        self._last.pop(key, None)
        self._read_at.pop(key, None)

    def keep(self, peers: Iterable[str]) -> None:
        """Forget all others than these."""
        known = set(peers)
        for peer in [peer for peer in self.paths if peer not in known]:
            del self.paths[peer]
        self.unreached.keep(known)

    def round_trip(self, peer: str, seconds: float) -> None:
        """A round trip was timed in another way than by the kernel; the least counts."""
        self._learn_rtt(TcpSample(peer, rtt=seconds))

    def failed(self, peer: str, failed: bool = True) -> None:
        """A connection to this peer could not be opened; or one was, after all."""
        if peer in self.paths:
            self.paths[peer].failed = failed
        elif failed:
            self.unreached.add(peer)
        elif self.unreached.discard(peer):
            self.paths[peer] = PathEstimates()

    def statistics(self, *, down_sure: bool = True) -> NodeStatistics:
        """What the hub is to know, to three digits; of paths the `most_told` most useful ones. The same object as last
        time as long as nothing has really moved.

        down_sure: whether what came at best tells of the downlink; it may be all that anybody sent so far.
        """
        self.fell = False
        told = most_useful(self.paths, self.most_told, planned=self.planned, elsewhere=self.regions.keys())
        paths = [_path(peer, self.paths[peer]) for peer in told]
        paths += [PathStatistics(peer, failed=True) for peer in self.unreached.last(self.most_told - len(told))]
        paths.sort(key=lambda path: path.peer)
        down = self.down.value if down_sure else 0.0
        now = NodeStatistics(_three_digits(self.up.value * MBIT), _three_digits(down * MBIT), paths)
        if _is_news(self._told, now):
            self._told = now
        return self._told

    def turn(self, now: float) -> None:
        """Let the hub hear of other unreachable peers now and then, where it cannot be told of all."""
        self.unreached.matter(self.planned)
        self.unreached.turn(self.most_told - len(self.paths), now)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _learn_rtt(self, sample: TcpSample) -> None:
        path = self.paths.get(sample.peer)
        if path is None:
            path = self.paths[sample.peer] = PathEstimates(failed=self.unreached.discard(sample.peer))
        if sample.rtt > 0:
            path.rtt = min(path.rtt or sample.rtt, sample.rtt)
            path.sent.settle = max(SETTLE, SETTLE_TRIPS * path.rtt)

    def _take(self, flows: Mapping[str, _Flow], span: float, now: float) -> None:
        delivered = sum(flow.delivered for flow in flows.values())
        left = sum(flow.left for flow in flows.values())
        received = sum(flow.received for flow in flows.values())
        self.delivered += delivered
        self.received += received
        # Half of a peer's connections suffice: the last chunks leave them one by one.
        pressed = {peer: flow for peer, flow in flows.items() if 2 * flow.pressed >= flow.connections}
        self._take_sent(flows, pressed, span, now)
        sure = self._longest_lasting(pressed)
        if (pressed or delivered >= TALK * span) and self._course.begins(now):
            self.up.excuse()
        if pressed:
            free = sum(not f.limited and self.paths[peer].has_found_its_rate(now) for peer, f in pressed.items())
            self.up.add(delivered, span, lasting=sure, conclusive=free > 1, left=left)
            self._notice_changes(pressed)
        elif any(flow.touched for flow in flows.values()):
            self.up.lull(delivered, span, sure, left)
        else:
            self.up.pause()
        # A fast link may empty all that waits before two looks have seen it wait.
        busy = [peer for peer, flow in flows.items() if flow.delivered >= TALK * span]
        self.up.at_least(self._moved.rate(delivered, span, self._longest_lasting(busy), left) or 0.0)
        for peer, path in self.paths.items():
            _take_received(path.received, flows[peer].received if peer in flows else 0, span, self._lasting(peer))
        senders = [peer for peer, flow in flows.items() if flow.received >= TALK * span]
        _take_received(self.down, received, span, self._longest_lasting(senders))

    def _lasting(self, peer: str) -> float:
        return lasting(self.paths[peer].rtt)

    def _longest_lasting(self, peers: Iterable[str]) -> float:
        return max(map(self._lasting, peers), default=LASTING)

    def _take_sent(self, flows: Mapping[str, _Flow], pressed: Mapping[str, _Flow], span: float, now: float) -> None:
        total = sum(flow.delivered for flow in flows.values()) / span
        crowded = len(pressed) > 1 and total >= CROWDED * self.up.value
        fair = FAIR * total / max(1, len(pressed))
        for peer, path in self.paths.items():
            flow = flows.get(peer)
            path.sending = flow.delivered / span if flow is not None else 0.0
            if flow is not None and max(flow.delivered, flow.received) >= TALK * span:
                path.used_at = now
            if (peer in pressed or path.sending >= TALK) and path.course.begins(now):
                path.sent.excuse()
            if flow is not None:
                self._take_loss(path, flow, now)
            if peer not in pressed:
                path.pressed_since = None
                if flow is not None and flow.touched:
                    path.sent.lull(flow.delivered, span, self._lasting(peer), flow.left)
                else:
                    path.sent.pause()
                continue
            if path.pressed_since is None:
                path.pressed_since = now
            flow = pressed[peer]
            free = path.has_found_its_rate(now) and not flow.limited
            conclusive = free and peer not in self._junk and not (crowded and path.sending >= fair)
            sure = self._lasting(peer)
            rate = path.sent.add(flow.delivered, span, lasting=sure, conclusive=conclusive, left=flow.left)
            path.rise()
            if rate is not None:
                # Together with far peers nothing is a rate for longer than a near one's takes.
                self.up.gave(rate)

    def _notice_changes(self, pressed: Iterable[str]) -> None:
        expected = self.expected
        degraded_to = {
            peer: self.paths[peer].fallen_to(float("inf") if expected is None else expected.get(peer, 0.0))
            for peer in pressed
        }
        whole = self.up.fallen_to(float("inf") if expected is None else sum(expected.values()))
        all_fell = len(degraded_to) > 1 and whole is not None and None not in degraded_to.values()
        if whole is not None and all_fell and not self._behind_one_link(degraded_to):
            self.up.drop_to(whole)
            for peer in degraded_to:
                self.paths[peer].sent.excuse()
            return
        for peer, rate in degraded_to.items():
            if rate is not None:
                self.paths[peer].fall(rate)
                self.fell = True

    def _behind_one_link(self, peers: Iterable[str]) -> bool:
        """Whether all these are in one region, and it is another one."""
        regions = {self.regions.get(peer) for peer in peers}
        return len(regions) == 1 and None not in regions

    def _take_loss(self, path: PathEstimates, flow: _Flow, now: float) -> None:
        since = path.pressed_since
        if since is not None and now - since >= path.ramp:
            path.losses.add(flow.sent, flow.resent)


def _count(flow: _Flow, before: TcpSample, after: TcpSample, since: float) -> None:
    flow.delivered += max(0, after.delivered - before.delivered)
    flow.received += max(0, after.received - before.received)
    flow.sent += max(0, after.sent - before.sent)
    flow.resent += max(0, after.retransmitted - before.retransmitted)
    flow.connections += 1
    if after.rwnd_limited - before.rwnd_limited < since / 2:
        flow.pressed += bool(before.backlog and after.backlog and before.app_limited == after.app_limited)
        flow.touched += bool(before.backlog or after.backlog)
        flow.limited |= 0 < LIMITED * after.pacing_limit < (after.delivered - before.delivered) / since


def _take_received(best: WindowedMax, received: int, span: float, lasting: float) -> None:
    """Talk is no transfer, but a hole in the sequence that stops one for a while does not end it."""
    if received >= TALK * span:
        best.add(received, span, lasting=lasting, conclusive=False)
    else:
        best.lull(received, span, lasting)


def _path(peer: str, path: PathEstimates) -> PathStatistics:
    return PathStatistics(
        peer,
        rtt=_three_digits(path.rtt),
        sent=_three_digits(path.sent.value * MBIT),
        received=_three_digits(path.received.value * MBIT),
        loss=_three_digits(path.loss),
        failed=path.failed,
        degraded_to=_three_digits(path.degraded_to),
    )


def _three_digits(value: float) -> float:
    return float(f"{value:.2e}")


def _is_news(told: NodeStatistics, now: NodeStatistics) -> bool:
    if len(told.paths) != len(now.paths) or _moved(told.up, now.up) or _moved(told.down, now.down):
        return True
    return any(
        old.peer != new.peer
        or old.failed != new.failed
        or old.degraded_to != new.degraded_to
        or _moved(old.sent, new.sent)
        or _moved(old.received, new.received)
        or _moved(old.rtt, new.rtt, 0.001)
        or _moved(old.loss, new.loss, 0.002)
        for old, new in zip(told.paths, now.paths, strict=True)
    )


def _moved(told: float, now: float, least: float = 0.0) -> bool:
    """Whether a figure differs by more than noise does. least: a difference that never matters."""
    return abs(now - told) > max(least, NEWS * told)
