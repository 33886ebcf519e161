"""Estimates what a node's paths, uplink and downlink carry, from the counters of its connections. Sans-I/O.

Theory of operation. The driver samples all active connections at one moment, a few times a second; two samples of a
connection make an interval. The network limits a connection in an interval at whose both ends data waits, in which the
send queue never ran dry, and for less than half of which the peer's receive window was full. It limits a path if it
limits half of its connections: then the path's delivery rate is a sample, as with BBR, where application-limited
samples do not count. A path's rate is the sum over its connections, the node's the sum over its paths.

The highest rate that lasted counts, over a minute of conclusive intervals. A path that delivers less than three tenths
of its planned or best rate for a second is degraded; if all paths that the network limits are, and not all lead to
one other region, the uplink is degraded instead. A flow that just started is not conclusive: it needs time to find its
rate. Nor is one that reaches its pacing limit, or that has its part of a full uplink. Received bytes only raise a
maximum, since the sender alone knows what limited it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

from p2psync.swarm.control.config import EstimatorConfig
from p2psync.swarm.control.estimators import LASTING, DegradationDetector, DeliveryRateSampler, FlowClock, WindowedMax
from p2psync.swarm.control.path_estimates import Flow, PathEstimates, observe_received
from p2psync.swarm.control.tcp_sample import TcpSample

_DEFAULTS = EstimatorConfig()
_NO_FLOW = Flow()
_Key = TypeVar("_Key", bound=Hashable)


class NodeEstimates:
    """The estimates of one node. Bytes, seconds and bytes/s; read the attributes, change them through the methods."""

    def __init__(self, config: EstimatorConfig = _DEFAULTS) -> None:
        self._config = config
        self.paths: dict[str, PathEstimates] = {}
        self.up = WindowedMax(config)
        self.down = WindowedMax(config)
        #: Bytes of all intervals.
        self.delivered = 0
        self.received = 0
        #: How many times a path degraded.
        self.degradations = 0
        self._expected: Mapping[str, float] = {}
        self._regions: dict[str, str] = {}
        self._up_sampler = DeliveryRateSampler()
        self._up_detector = DegradationDetector(config)
        self._clock = FlowClock(config)
        self._last: dict[Hashable, tuple[TcpSample, float]] = {}

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def expect(self, rates: Mapping[str, float]) -> None:
        """Takes the planned rates of paths (bytes/s); paths without one cannot degrade."""
        self._expected = rates

    def set_region(self, peer: str, region: str) -> None:
        """Takes the region of a peer that is in another one than this node; "" forgets it."""
        self._regions[peer] = region
        if not region:
            del self._regions[peer]

    def round_trip(self, peer: str, seconds: float) -> None:
        """Takes a round trip that the kernel did not time; 0: none."""
        self.paths.setdefault(peer, PathEstimates(config=self._config)).learn_rtt(seconds)

    def read(self, samples: Mapping[_Key, TcpSample], now: float, *, transferring: bool = True) -> None:
        """Takes the samples of all active connections, by any keys.

        transferring: whether chunks flow. Low rates of probes are not conclusive: several nodes may probe one downlink.
        """
        flows: dict[str, Flow] = {}
        seconds = 0.0
        for key, sample in samples.items():
            self.round_trip(sample.peer, sample.rtt)
            before, at = self._last.get(key, (None, now))
            if before is not None and now - at < self._config.min_interval:
                continue
            self._last[key] = sample, now
            if before is None or now - at > self._config.max_interval or before.peer != sample.peer:
                continue
            seconds = max(seconds, now - at)
            self._add(flows.setdefault(sample.peer, Flow()), before, sample, now - at)
        if seconds:
            self._observe(flows, seconds, now, transferring=transferring)

    def closed(self, key: Hashable) -> None:
        """Forgets a closed connection."""
        self._last.pop(key, None)

    def keep(self, peers: Collection[str]) -> None:
        """Forgets all other paths."""
        self.paths = {peer: path for peer, path in self.paths.items() if peer in peers}

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _add(self, flow: Flow, before: TcpSample, after: TcpSample, seconds: float) -> None:
        """Adds an interval of a connection to its path's flow, and whether the network limited it."""
        delivered = max(0, after.delivered - before.delivered)
        flow.delivered += delivered
        flow.received += max(0, after.received - before.received)
        flow.sent += max(0, after.sent - before.sent)
        flow.retransmitted += max(0, after.retransmitted - before.retransmitted)
        flow.connections += 1
        if after.receiver_limited - before.receiver_limited < seconds / 2:
            is_dry = before.app_limited != after.app_limited
            flow.saturated += bool(before.backlog and after.backlog and not is_dry)
            flow.backlogged += bool(before.backlog or after.backlog)
            flow.is_paced |= 0 < self._config.paced * after.pacing_limit < delivered / seconds

    def _observe(self, flows: Mapping[str, Flow], seconds: float, now: float, *, transferring: bool) -> None:
        limited = [peer for peer, flow in flows.items() if flow.is_network_limited]
        delivered = sum(flow.delivered for flow in flows.values())
        self.delivered += delivered
        # Flows that share a full uplink limit each other, as far as each has much of an equal share.
        is_crowded = len(limited) > 1 and delivered / seconds >= self._config.crowded * self.up.value
        fair = self._config.fair * delivered / max(1, len(limited))
        for peer, path in self.paths.items():
            flow = flows.get(peer, _NO_FLOW)
            is_shared = is_crowded and flow.delivered >= fair
            rate = path.observe(flow, seconds, now, conclusive=transferring and not is_shared)
            if rate is not None:
                # A near path's rate ends before the longer window of both, so add it separately.
                self.up.raise_to(rate)
        self._observe_up(flows, limited, seconds, now)
        self._observe_down(flows, seconds)

    def _observe_up(self, flows: Mapping[str, Flow], limited: Collection[str], seconds: float, now: float) -> None:
        delivered, sent = (sum(f.delivered for f in flows.values()), sum(f.sent_once for f in flows.values()))
        min_rate = self._config.min_transfer_rate
        if (limited or delivered >= min_rate * seconds) and self._clock.starts(now):
            self._up_detector.reset()
        min_seconds = self._min_seconds(limited)
        if limited:
            free = sum(not flows[peer].is_paced and self.paths[peer].has_found_its_rate(now) for peer in limited)
            rate = self.up.add(delivered, seconds, min_seconds=min_seconds, conclusive=free > 1, sent=sent)
            if rate is not None and free > 1:
                self._up_detector.add(rate, seconds)
            self._detect_degradations(limited)
        elif any(flow.backlogged for flow in flows.values()):
            self.up.skip(delivered, seconds, min_seconds, sent)
        else:
            self.up.restart()
        busy = self._min_seconds(peer for peer, flow in flows.items() if flow.delivered >= min_rate * seconds)
        self.up.raise_floor(self._up_sampler.rate(delivered, seconds, busy, sent) or 0.0)

    def _observe_down(self, flows: Mapping[str, Flow], seconds: float) -> None:
        received = sum(flow.received for flow in flows.values())
        self.received += received
        min_rate = self._config.min_transfer_rate
        senders = (peer for peer, flow in flows.items() if flow.received >= min_rate * seconds)
        observe_received(self.down, received, seconds, self._min_seconds(senders), self._config)

    def _min_seconds(self, peers: Iterable[str]) -> float:
        """Returns for how long a rate of these paths together must last to count."""
        return max((self.paths[peer].min_seconds for peer in peers), default=LASTING)

    def _detect_degradations(self, limited: Collection[str]) -> None:
        """Marks the degraded ones of these paths; the uplink instead if it and all of them are, several and not all in
        one other region.
        """
        found = {peer: self.paths[peer].degradation(self._expected.get(peer, 0.0)) for peer in limited}
        up = self._up_detector.detect(self.up.value, sum(self._expected.values()))
        if up is not None and len(found) > 1 and None not in found.values() and not self._share_a_region(found):
            self.up.replace(up.rate)
            self._up_detector.reset()
            for peer in found:
                self.paths[peer].pardon()
            return
        for peer, degradation in found.items():
            if degradation is not None:
                self.paths[peer].degrade(degradation)
                self.degradations += 1

    def _share_a_region(self, peers: Iterable[str]) -> bool:
        """Returns whether all these are in one region other than this node's: then its link limits them."""
        regions = {self._regions.get(peer) for peer in peers}
        return len(regions) == 1 and None not in regions
